"""Builders for tests of the session store: a running store, inputs, a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs

from motet.actors.storage.location import Location
from motet.actors.storage.run_access import RunJournal
from motet.actors.storage.sessions import SessionStore
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.sessions import (
    Accepted,
    AcceptInput,
    FinishRun,
    LoadTranscript,
    NewInput,
    SessionStoreMessage,
)
from motet.runtime import ActorRef
from tests.actors.storage.builders import Opened, open_database

CALL = Call("call_1", "read_log", '{"unit": "ssh"}')
ASKS = AssistantMessage("let me look", (CALL,))
RESULT = ToolMessage("call_1", "read_log", "all quiet")
ANSWER = AssistantMessage("nothing happened")
ROWS: tuple[ChatMessage, ...] = (UserMessage("hi"), ASKS, RESULT, ANSWER)


@attrs.define
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def new_input(
    run_id: str,
    *,
    session: str = "s",
    user: str = "alice",
    text: str = "hi",
    key: str | None = None,
    body: str = "",
) -> AcceptInput:
    return AcceptInput(NewInput(run_id, session, "helper", user, text, key, body))


@attrs.frozen
class Store:
    """A running store. ``actor`` is there for its statistics only."""

    ref: ActorRef[SessionStoreMessage]
    actor: SessionStore
    database: Opened
    clock: Clock
    journal: RunJournal

    async def accept(self, run_id: str, *, session: str = "s", user: str = "alice") -> Accepted:
        return await self.ref.ask(new_input(run_id, session=session, user=user))

    async def begin(self, run_id: str) -> None:
        await self.journal.begin(run_id, self.clock())

    async def note(self, run_id: str, step: int, row: ChatMessage) -> None:
        await self.journal.note(run_id, step, row)

    async def complete(self, run_id: str, *, session: str = "s") -> None:
        await self.accept(run_id, session=session)
        await self.ref.ask(FinishRun(run_id, "completed", ROWS))

    async def transcript(self, session: str = "s") -> tuple[ChatMessage, ...]:
        return await self.ref.ask(LoadTranscript(session))


@asynccontextmanager
async def open_store(location: Location, *, check_messages: bool = True) -> AsyncGenerator[Store]:
    async with open_database(location, check_messages=check_messages) as database:
        clock = Clock()
        journal, actors = RunJournal(), list[SessionStore]()

        def build() -> SessionStore:
            store = SessionStore(database.writer.submit, database.readers, clock, journal=journal)
            actors.append(store)
            return actors[-1]

        ref = await database.system.start(build, name="sessions")
        yield Store(ref, actors[0], database, clock, journal)
