"""Members of rooms for tests, and what is seen of a room."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import apsw
import trio

import motet
from motet.actors.rooms.opening import RoomEvents
from motet.actors.storage.connection import Connection
from motet.protocols.chat import UserMessage
from motet.protocols.events import AnyEvent, MessageAdded, RoomIdle, RoomTurn, Warned
from motet.protocols.models import Finished, ModelEvent, ModelRequest, TextPart, Usage, UsageReport

Script = Callable[[str], str]


class Speaks:
    """A model that answers what ``script`` makes of the last thing it was told."""

    def __init__(self, script: Script | str, name: str = "chooser") -> None:
        self.name = name
        self.script: Script = script if callable(script) else lambda _: script
        self.requests: list[ModelRequest] = []
        self.gate: trio.Event | None = None

    @property
    def told(self) -> list[str]:
        """The last message of each request."""
        return [text_of(request) for request in self.requests]

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        self.requests.append(request)
        if self.gate is not None:
            await self.gate.wait()
        yield _parts(self.script(text_of(request)))


def text_of(request: ModelRequest) -> str:
    last = request.messages[-1]
    assert isinstance(last, UserMessage)
    return last.text


async def _parts(text: str) -> AsyncIterator[ModelEvent]:
    for part in (TextPart(text), UsageReport(Usage(10, 5)), Finished("stop")):
        await trio.lowlevel.checkpoint()
        yield part


def agent(name: str, script: Script | str) -> motet.Agent[None]:
    return motet.Agent(name, model=Speaks(script, name), description=f"is {name}")


def model_of(one: motet.Agent[None]) -> Speaks:
    assert isinstance(one.model, Speaks)
    return one.model


async def until_idle(events: RoomEvents) -> list[AnyEvent]:
    seen: list[AnyEvent] = []
    async for event in events:
        seen.append(event)
        if isinstance(event, RoomIdle):
            break
    return seen


def said(events: list[AnyEvent]) -> list[tuple[str, str]]:
    return [(one.author, one.text) for one in events if isinstance(one, MessageAdded)]


def turns(events: list[AnyEvent]) -> list[str]:
    return [one.speaker for one in events if isinstance(one, RoomTurn)]


def behind_the_host(state: Path, *statements: str) -> None:
    """Change the real database as no host would."""
    connection = apsw.Connection(str(state / "motet.db"))
    connection.set_busy_timeout(5_000)
    for statement in statements:
        connection.execute(statement)  # pyright: ignore[reportUnknownMemberType]  # its stub
    connection.close()


def warnings(events: list[AnyEvent]) -> list[str]:
    return [one.message for one in events if isinstance(one, Warned)]


def on_disk(state: Path) -> str:
    """All that is in the database of a host that has ended, and the bytes of its file."""
    with closing(Connection(str(state / "motet.db"))) as connection:
        tables = connection.run("SELECT name FROM sqlite_schema WHERE type = 'table'")
        rows = [connection.run(f'SELECT * FROM "{name}"') for (name,) in tables]
    return repr(rows) + repr((state / "motet.db").read_bytes())
