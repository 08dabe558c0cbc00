"""``motet rooms`` with a running server: what its user may see, make and change."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs
import msgspec
import trio
from msgspec import UNSET

from motet.cli.exits import OK
from motet.cli.render import one_line
from motet.cli.rooms import print_messages
from motet.cli.running import PATIENCE, talking
from motet.cli.screen import console
from motet.cli.setup import Setup
from motet.client import Client, connect
from motet.protocols.errors import ConfigError, MotetError
from motet.protocols.host_rooms import RoomInfo
from motet.protocols.queueing import MODES, QueueMode
from motet.protocols.rooms import RoomChange, RoomPlan

R = TypeVar("R")
PAGE = 200


@attrs.frozen
class Server:
    """Which one: that of an address, or else the one that runs on the state of ``setup``."""

    setup: Setup | None = None
    url: str = ""
    token: str | None = None

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        """Raises ``MotetError`` when there is none, or when it does not answer in time."""
        if self.setup is not None:
            async with talking(self.setup.state) as client:
                yield client
            return
        try:
            with trio.fail_after(PATIENCE):
                async with connect(self.url, token=self.token, name="motet") as client:
                    yield client
        except trio.TooSlowError:
            raise MotetError(f"the server at {self.url} does not answer") from None


@attrs.frozen
class Wanted:
    """What a room is to be; what is empty stays as it is, or as it is by default."""

    members: tuple[str, ...] = ()
    people: tuple[str, ...] = ()
    mode: str | None = None
    max_turns: int | None = None

    @property
    def change(self) -> RoomChange:
        """Raises ``ConfigError``."""
        return RoomChange(
            people=self.people or UNSET,
            members=self.members or UNSET,
            mode=_mode(self.mode) or UNSET,
            max_turns=self.max_turns or UNSET,
        )


def list_rooms(server: Server, *, json: bool) -> int:
    """Print the rooms that the user may see, by name."""
    found = _ask(server, lambda client: client.rooms())
    if json:
        print(msgspec.json.encode(found).decode())
    elif found:
        _print_table(found)
    else:
        print("no rooms that you may see", file=sys.stderr)
    return OK


def show_room(server: Server, room: str, limit: int, *, json: bool) -> int:
    """Print the newest ``limit`` messages of a room, at most 200."""
    name, most = _named(room), min(limit, PAGE)
    page = _ask(server, lambda client: client.room_history(name, limit=most))
    print_messages(page.messages, json=json)
    return OK


def create_room(server: Server, name: str, wanted: Wanted, *, json: bool) -> int:
    """Make a room, and print the name that it got."""
    if not wanted.members:
        raise ConfigError("of which agents? motet rooms create NAME --member AGENT ...")
    plan = wanted.change.of(RoomPlan(wanted.members))
    called = _named(name)
    made = _ask(server, lambda client: client.create_room(called, plan, people=wanted.people))
    print(msgspec.json.encode(made).decode() if json else made.name)
    return OK


def set_room(server: Server, room: str, wanted: Wanted, *, json: bool) -> int:
    """Change a room, and print what it is."""
    change = wanted.change
    if change == RoomChange():
        raise ConfigError("what is to be different? --member, --person, --mode or --max-turns")
    name = _named(room)
    info = _ask(server, lambda client: client.change_room(name, change))
    if json:
        print(msgspec.json.encode(info).decode())
    else:
        _print_table((info,))
    return OK


def _ask(server: Server, what: Callable[[Client], Awaitable[R]]) -> R:
    async def ask() -> R:
        async with server.client() as client:
            return await what(client)
        raise AssertionError("a client swallows nothing")

    return trio.run(ask)


def _named(room: str) -> str:
    if not room:
        raise ConfigError("which room? `motet rooms` lists them")
    return room


def _mode(word: str | None) -> QueueMode | None:
    if word is None:
        return None
    known: dict[str, QueueMode] = {mode: mode for mode in MODES}
    if word not in known:
        raise ConfigError(f"--mode {word!r}: use one of {', '.join(MODES)}")
    return known[word]


def _print_table(infos: tuple[RoomInfo, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("room", "owner", "people", "members", "mode", ""):
        table.add_column(heading, overflow="fold")
    for one in infos:
        members = one.plan.members if one.plan else tuple(each.name for each in one.members)
        words = (one.name, one.owner, ", ".join(one.people), ", ".join(members), one.mode)
        going = Text() if one.idle else Text("goes on", "yellow")
        table.add_row(*(Text(one_line(word)) for word in words), going)
    console(sys.stdout).print(table)
