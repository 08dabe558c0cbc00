"""In every mode and at every moment, each member is told everything once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from trio.testing import MockClock

import motet
from motet.actors.rooms.history import Change, RoomHistory
from motet.protocols import room_floor as floor
from motet.protocols.chat import UserMessage
from motet.protocols.events import RoomTurn
from motet.protocols.models import ModelEvent, ModelRequest
from motet.protocols.room_messages import Draft
from motet.protocols.rooms import ROOM_MODES, RoomMode
from motet.protocols.sessions import LOCAL, Principal, SessionBusy
from motet.protocols.storage import DiskFull
from tests.actors.rooms.talk import Speaks, agent, model_of

MEMBERS = ("ann", "ben")


@attrs.frozen
class Step:
    """Somebody says something, after so many of the room's own steps."""

    called: str
    after: int


steps = st.builds(Step, st.sampled_from(["@ann", "@ben", "@all", ""]), st.integers(0, 60))


class Talks(Speaks):
    """Says something of its own, then passes, in turns of several steps."""

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        for _ in range(30):
            await trio.lowlevel.checkpoint()
        async with super().request(request) as parts:
            yield parts


def member(name: str) -> motet.Agent[None]:
    counts = iter(range(10_000))

    def script(_: str) -> str:
        number = next(counts)
        return f"<{name}{number}>" if number % 2 else "PASS"

    return motet.Agent(name, model=Talks(script, name))


async def play(mode: RoomMode, concurrency: int, story: list[Step]) -> None:
    agents = [member(name) for name in MEMBERS]
    room = motet.Room("r", members=agents, mode=mode, concurrency=concurrency, history=500)
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        for number, step in enumerate(story):
            for _ in range(step.after):
                await trio.lowlevel.checkpoint()
            with suppress(SessionBusy):
                await opened.post(f"{step.called} <m{number}>", user="alice")
        await opened.wait()
        await opened.post("@all <last>", user="alice")
        await opened.wait()
        assert opened.waits
        said = [(one.author, one.text) for one in await opened.history(limit=500)]
        for name in MEMBERS:
            session = f"agent:{name}:room:group:r"
            rows = await host.history(session, limit=200, principal=LOCAL)
            heard = "\n".join(one.row.text for one in rows if isinstance(one.row, UserMessage))
            for author, text in said:
                token = text[text.index("<") : text.index(">") + 1]
                # What is said after the last one's turn began is told at the next.
                behind = said.index((author, text)) > said.index(("alice", "@all <last>"))
                times = heard.count(token)
                assert times == (author != name) or (behind and times == 0), (name, token, heard)


@settings(max_examples=5, deadline=None)
@given(st.sampled_from(ROOM_MODES), st.integers(1, 2), st.lists(steps, min_size=1, max_size=5))
@example("steer", 2, [Step("@all", 0), Step("", 30), Step("@ben", 10), Step("", 30)])
@example("steer", 1, [Step("@ann", 0), Step("@ann", 0), Step("@ann", 0), Step("@ann", 0)])
@example("followup", 1, [Step("@all", 0), Step("@ann", 9), Step("@ben", 0)])
@example("interrupt", 1, [Step("@all", 0), Step("@ann", 30), Step("", 9)])
def test_each_member_is_shown_every_message_once(
    mode: RoomMode, concurrency: int, story: list[Step]
) -> None:
    """Law: of what was taken and said, each member is told all that others said, none twice."""

    async def main() -> None:
        with trio.fail_after(20):
            await play(mode, concurrency, story)

    trio.run(main)


async def test_a_call_that_comes_while_the_floor_is_given_is_read_and_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn of an earlier round ends after the next speaker was picked, before that is stored."""
    record, late = RoomHistory.record, ["@ben and this too"]

    async def with_a_late_turn(self: RoomHistory, change: Change, *more: Any, **how: Any) -> None:
        if getattr(change, "__name__", "") == "give" and late:
            text, number = late.pop(), self.last + 1
            called = partial(
                floor.call_late, name="ann", called=["ben"], asked_by=(), number=number
            )
            await record(self, called, Draft("ann", text))
        await record(self, change, *more, **how)

    monkeypatch.setattr(RoomHistory, "record", with_a_late_turn)
    ann, ben = agent("ann", "PASS"), agent("ben", "yes")
    async with motet.open_host() as host:
        room = motet.Room("r", members=[ann, ben], speakers=motet.mentions())
        opened = await host.open_room(room)
        await opened.post("@ben hello", user="alice")
        await opened.wait()
        (told,) = model_of(ben).told
        assert told == "[#1 person alice] @ben hello\n[#2 agent ann] @ben and this too"
        turns = [record.event for record in await host.events.read("room:r", 0, 100)]
        (turn,) = [one for one in turns if isinstance(one, RoomTurn)]
        assert turn.called_by == ("ann",)


@given(st.lists(st.integers(0, 3), max_size=8), st.booleans())
def test_people_who_are_assumed_during_a_write_are_not_forgotten(
    steps: list[int], fails: bool
) -> None:
    """Law: whoever joins a turn under way, before, during or after a write, has joined it (G16)."""

    async def main() -> None:
        ann = agent("ann", "yes")
        gate = model_of(ann).gate = trio.Event()
        async with motet.open_host() as host:
            opened = await host.open_room(motet.Room("r", members=[ann]))
            await opened.post("hello", user="alice")
            while not model_of(ann).requests:
                await trio.lowlevel.checkpoint()
            history, joined = opened._live.history, ["alice"]  # pyright: ignore[reportPrivateUsage]

            async def write() -> None:
                await history.record(lambda state: replace(state, opened=state.opened + 1))

            if fails:
                history.store = Refuses(history.store)  # type: ignore[assignment]  # pyright: ignore
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                for number, count in enumerate(steps):
                    for _ in range(count):
                        await trio.lowlevel.checkpoint()
                    joined.append(f"user{number}")
                    history.assume(partial(floor.ask_also, who=Principal(joined[-1])))
            assert [who.user for who in history.state.floor.asked_by] == joined
            gate.set()

    trio.run(main, clock=MockClock(autojump_threshold=0))


@attrs.define
class Refuses:
    """A store that refuses the first write."""

    store: Any
    refused: bool = False

    async def ask(self, request: object) -> object:
        if not self.refused:
            self.refused = True
            await trio.lowlevel.checkpoint()
            raise DiskFull("no room")
        return await self.store.ask(request)
