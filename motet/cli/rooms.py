"""``motet rooms``: the rooms there are, and what was said in one; also while a host runs."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import trio

from motet.actors.storage import rooms as rows
from motet.cli.errors import clock_time
from motet.cli.exits import OK
from motet.cli.render import one_line, visible
from motet.cli.screen import console
from motet.cli.setup import Setup
from motet.cli.stored import reading
from motet.protocols.errors import ConfigError, NotFound
from motet.protocols.rooms import RoomMessage, RoomRecord


def list_rooms(setup: Setup, *, json: bool) -> int:
    """Print the rooms that are stored or configured, by name."""
    found = {name: RoomRecord(name, "") for name in setup.config.rooms}
    with suppress(NotFound):  # no host has used this state: there is what is configured
        found |= {one.name: one for one in trio.run(_stored, setup.state)}
    records = [found[name] for name in sorted(found)]
    if json:
        print(msgspec.json.encode(records).decode())
    elif records:
        _print_table(setup, records)
    else:
        print(f"no rooms in {setup.state}, and none in {setup.source}", file=sys.stderr)
    return OK


def show_room(setup: Setup, room: str, limit: int, *, json: bool) -> int:
    """Print the newest ``limit`` messages of a room. Raises ``NotFound``."""
    if not room:
        raise ConfigError("which one? motet rooms show NAME; `motet rooms` lists them")
    print_messages(trio.run(_said, setup.state, room, limit), json=json)
    return OK


def print_messages(messages: tuple[RoomMessage, ...], *, json: bool) -> None:
    if json:
        print(msgspec.json.encode(messages).decode())
        return
    for one in messages:
        print(f"{clock_time(one.at)[5:16]}  [{one_line(one.author)}] {visible(one.text).rstrip()}")


async def _stored(state: Path) -> tuple[RoomRecord, ...]:
    async with reading(state) as readers:
        return tuple(map(rows.record, await readers.read(rows.ROOMS)))


async def _said(state: Path, room: str, limit: int) -> tuple[RoomMessage, ...]:
    async with reading(state) as readers:
        if not await readers.read(rows.ROOM, (room,)):
            raise NotFound(f"nothing was said in a room {room!r}; `motet rooms` lists them")
        return rows.messages(await readers.read(rows.LAST, (room, rows.ALL, limit)))


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
        going = Text("goes on", "yellow") if one.state.floor.going else Text()
        names = Text(one_line(", ".join(members)))
        owner = Text(one_line(one.owner))
        table.add_row(Text(one.name), owner, names, str(one.state.floor.round), going)
    console(sys.stdout).print(table)
