"""``motet rooms``: rooms and their messages, from the state directory or through a server.

The functions on the state directory also work while a host runs. Those with a server show the rooms
that its user may see, and can make and change them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import attrs
import msgspec
import trio
from msgspec import UNSET, UnsetType

from motet.actors.storage import rooms as rows
from motet.cli.errors import clock_time
from motet.cli.exits import OK
from motet.cli.render import in_json, one_line, visible
from motet.cli.running import PAGE, Server, ask
from motet.cli.screen import console
from motet.cli.setup import Setup
from motet.cli.stored import reading
from motet.protocols import room_tables as sql
from motet.protocols.errors import ConfigError, NotFound
from motet.protocols.host_rooms import RoomInfo
from motet.protocols.queueing import MODES
from motet.protocols.room_limits import Budgets
from motet.protocols.room_newcomers import EVERYTHING
from motet.protocols.rooms import ACTIVATIONS, RoomChange, RoomMessage, RoomPlan, RoomRecord
from motet.protocols.session_keys import thread_of


def list_rooms(setup: Setup, *, json: bool) -> int:
    """Print the rooms that are stored or configured, by name."""
    found = {name: RoomRecord(name, "") for name in setup.config.rooms}
    with suppress(NotFound):  # no host has used this state: there is what is configured
        found |= {one.name: one for one in trio.run(_stored, setup.state)}
    records = [found[name] for name in sorted(found)]
    if json:
        named = [msgspec.to_builtins(one) | {"people": one.names} for one in records]
        print(in_json(named))
    elif records:
        _print_table(setup, records)
    else:
        print(f"no rooms in {setup.state}, and none in {setup.source}", file=sys.stderr)
    return OK


def show_room(setup: Setup, room: str, limit: int, *, json: bool, query: str = "") -> int:
    """Print the newest ``limit`` messages of a room, which have ``query``. Raises ``NotFound``."""
    if not room:
        raise ConfigError("which one? motet rooms show NAME; `motet rooms` lists them")
    _print_messages(room, trio.run(_said, setup.state, room, limit, query), query, json=json)
    return OK


def _print_messages(
    room: str, messages: tuple[RoomMessage, ...], query: str, *, json: bool
) -> None:
    if not messages and query:
        print(f"no message of {room} has {query!r}", file=sys.stderr)
    elif not messages and thread_of(room)[1]:
        raise NotFound(f"nothing was said in the thread {room!r}")
    if json:
        print(in_json(messages))
        return
    for one in messages:
        text = "(withdrawn)" if one.deleted else visible(one.text).rstrip()
        marks = " (edited)" if one.edited and not one.deleted else ""
        marks += "".join(f"  {one_line(each.text)} {len(each.users)}" for each in one.reactions)
        head = f"{clock_time(one.at)[5:16]}  #{one.seq}"  # commands such as /edit take the number
        print(f"{head}  [{one_line(one.author)}] {text}{marks}")


async def _stored(state: Path) -> tuple[RoomRecord, ...]:
    async with reading(state) as readers:
        return tuple(map(rows.room_record, await readers.read(sql.ROOMS)))


async def _said(state: Path, room: str, limit: int, query: str) -> tuple[RoomMessage, ...]:
    async with reading(state) as readers:
        if not await readers.read(sql.ROOM, (room,)):
            raise NotFound(f"nothing was said in a room {room!r}; `motet rooms` lists them")
        params = (room, EVERYTHING, limit, EVERYTHING, 0, 0, sql.words_of(query))
        return rows.room_messages(await readers.read(sql.LAST_MESSAGES, params))


def _print_table(setup: Setup, records: list[RoomRecord]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("room", "owner", "members", "rounds", ""):
        right = heading == "rounds"
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for one in records:
        configured = setup.config.rooms.get(one.name)
        members = configured.members if configured else one.plan.members if one.plan else ()
        going = Text("active", "yellow") if one.state.floor.going else Text()
        names = Text(one_line(", ".join(members)))
        owner = Text(one_line(one.owner))
        table.add_row(Text(one.name), owner, names, str(one.state.floor.round), going)
    console(sys.stdout).print(table)


# Through a server


K = TypeVar("K")


@attrs.frozen
class Wanted:
    """The wanted settings of a room; an empty one stays as it is, or as by default."""

    members: tuple[str, ...] = ()
    people: tuple[str, ...] = ()
    mode: str | None = None
    max_turns: int | None = None
    turn_timeout: float | None = None
    activation: str | None = None
    budgets: tuple[str, ...] = ()

    @property
    def change(self) -> RoomChange:
        """Raises ``ConfigError``."""
        return RoomChange(
            people=self.people or UNSET,
            members=self.members or UNSET,
            mode=_known(self.mode, "--mode", MODES),
            activation=_known(self.activation, "--activation", (*ACTIVATIONS, None)),
            max_turns=self.max_turns or UNSET,
            turn_timeout=self.turn_timeout or UNSET,
            budgets=_budgets(self.budgets) if self.budgets else UNSET,
        )


def list_remote_rooms(server: Server, *, json: bool, query: str = "") -> int:
    """Print the rooms that the user may see, by name."""
    found = ask(server, lambda client: client.rooms(query=query))
    if json:
        print(in_json(found))
    elif found:
        _print_infos(found)
    else:
        print("no rooms that you may see", file=sys.stderr)
    return OK


def show_remote_room(server: Server, room: str, limit: int, *, json: bool, query: str = "") -> int:
    """Print the newest ``limit`` messages of a room, at most 200, which have ``query``."""
    name, most = named_room(room), min(limit, PAGE)
    page = ask(server, lambda client: client.room_history(name, limit=most, query=query))
    _print_messages(name, page.messages, query, json=json)
    return OK


def create_room(server: Server, name: str, wanted: Wanted, *, json: bool) -> int:
    """Make a room, and print the name that it got."""
    if not wanted.members:
        raise ConfigError("of which agents? motet rooms create NAME --member AGENT ...")
    plan = wanted.change.of(RoomPlan(wanted.members))
    called = named_room(name)
    made = ask(server, lambda client: client.create_room(called, plan, people=wanted.people))
    print(in_json(made) if json else made.name)
    return OK


def set_room(server: Server, room: str, wanted: Wanted, *, json: bool) -> int:
    """Change a room, and print it."""
    change = wanted.change
    if change == RoomChange():
        options = "--member, --person, --mode, --max-turns, --turn-timeout, --budget, --activation"
        raise ConfigError(f"nothing to change: give {options}")
    name = named_room(room)
    info = ask(server, lambda client: client.change_room(name, change))
    if json:
        print(in_json(info))
    else:
        _print_infos((info,))
        if info.plan and info.plan.budgets.are_set:
            print(f"budgets: {_budget_words(info.plan.budgets)}")
        elif wanted.budgets:
            print("budgets: none")
    return OK


def _budget_words(budgets: Budgets) -> str:
    """Budgets as ``--budget`` takes them: ``day.usd=5, person_hour.turns=20``."""
    windows: dict[str, dict[str, float | None]] = msgspec.to_builtins(budgets)
    return ", ".join(
        f"{window}.{what}={value:g}"
        for window, allowance in windows.items()
        for what, value in (allowance or {}).items()
        if value is not None
    )


def _budgets(given: Sequence[str]) -> Budgets:
    """The budgets of texts such as ``day.usd=5``; ``none`` for none. Raises ``ConfigError``."""
    values: dict[str, dict[str, str]] = {}
    for one in given:
        key, equals, value = one.partition("=")
        window, _, what = key.partition(".")
        if one == "none":
            continue
        if not (equals and what):
            raise ConfigError(f"--budget {one!r}: write it as day.usd=5 or person_hour.turns=20")
        values.setdefault(window, {})[what] = value
    try:
        return msgspec.convert(values, Budgets, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(Budgets.__struct_fields__)
        what = f"{known}; of each turns, tokens, usd"
        raise ConfigError(f"--budget: {error}; there are {what}") from None


def named_room(room: str) -> str:
    """Raises ``ConfigError`` without a name."""
    if not room:
        raise ConfigError("which room? `motet rooms` lists them")
    return room


def _known(word: str | None, option: str, values: Sequence[K]) -> K | UnsetType:
    """The value that a word names, ``default`` None; unset without a word."""
    known = {str(value or "default"): value for value in values}
    if word is not None and word not in known:
        raise ConfigError(f"{option} {word!r}: use one of {', '.join(known)}")
    return UNSET if word is None else known[word]


def _print_infos(infos: tuple[RoomInfo, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("room", "title", "owner", "people", "members", "mode", ""):
        table.add_column(heading, overflow="fold")
    for one in infos:
        members = one.plan.members if one.plan else tuple(each.name for each in one.members)
        people, agents = ", ".join(one.people), ", ".join(members)
        words = (one.name, one.terms.title, one.owner, people, agents, one.mode)
        going = Text() if one.idle else Text("active", "yellow")
        table.add_row(*(Text(one_line(word)) for word in words), going)
    console(sys.stdout).print(table)
