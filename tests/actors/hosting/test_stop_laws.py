"""Stops between inputs of several users, in any order: what ends, what not, and who is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.errors import NotFound
from motet.protocols.host import Expected
from motet.protocols.models import ModelEvent, ModelRequest
from motet.protocols.queueing import QueueMode
from motet.protocols.sessions import QueueFull, StopReport
from tests.scripted import Scripted, call, say

GROUP = "agent:a:tcp:group:den"
USERS = {"alice": ("s", "t"), "bob": ("b", GROUP)}
"""Whose sessions these are; in the group, bob's bridge speaks for several people."""
PEOPLE = ("", "eve", "fay")
Way: TypeAlias = Literal["newest", "session", "sender", "everything", "run"]


@attrs.define
class Model:
    """Answers each input as it says: at once, after a tool, after a while, or never."""

    name: str = "m"

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        text = request.messages[-1].text.rpartition(" ")[2]
        if text == "never":
            await trio.sleep_forever()
        step = call((text, {})) if text in ("nap", "tidy") else say("done ", text)
        async with Scripted(step).request(request) as parts:
            yield parts


def agent() -> motet.Agent[None]:
    async def nap() -> str:
        """Take a while."""
        await trio.sleep(1)
        return "rested"

    async def tidy() -> str:
        """Take a while, also to end."""
        try:
            await trio.sleep(2)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
        return "tidy"

    return motet.Agent("a", model=Model(), tools=[nap, tidy])


inputs = st.tuples(
    st.just("say"),
    st.sampled_from([(user, key) for user, keys in USERS.items() for key in keys]),
    st.sampled_from(["now", "nap", "tidy", "never"]),
    st.sampled_from(["followup", "steer", "collect", "interrupt"]),
    st.sampled_from(PEOPLE),
    st.booleans(),
)
stops = st.tuples(
    st.just("stop"),
    st.sampled_from([(user, key) for user, keys in USERS.items() for key in keys]),
    st.sampled_from(["newest", "session", "sender", "everything", "run"]),
    st.sampled_from(PEOPLE[1:]),
)
pauses = st.tuples(st.just("wait"), st.sampled_from([0.0, 0.3, 1.1]))
Step: TypeAlias = (
    tuple[Literal["say"], tuple[str, str], str, QueueMode, str, bool]
    | tuple[Literal["stop"], tuple[str, str], Way, str]
    | tuple[Literal["wait"], float]
)


@attrs.define
class Input:
    user: str
    session: str
    sender: str
    order: int
    run_id: str = ""
    refused: bool = False


@attrs.define(eq=False)
class World:
    host: motet.Host
    nursery: trio.Nursery
    said: list[Input] = attrs.field(factory=list[Input])
    told: list[events.EventRecord] = attrs.field(factory=list[events.EventRecord])
    stopped: set[str] = attrs.field(factory=set[str])
    dropped: set[str] = attrs.field(factory=set[str])

    async def take(self, step: Step) -> None:
        match step:
            case ("wait", seconds):
                await trio.sleep(seconds)
            case ("say", (user, session), text, mode, sender, noted):
                one = Input(user, session, sender if session == GROUP else "", len(self.said))
                self.said.append(one)
                principal = motet.Principal(user)
                expect = self.host.expect
                note = expect(session, sender=one.sender, principal=principal) if noted else None
                self.nursery.start_soon(self.submit, one, text, mode, note)
            case ("stop", (user, session), way, sender):
                self.nursery.start_soon(self.stop, user, session, way, sender)
        if step[0] != "wait":
            await trio.lowlevel.checkpoint()

    async def submit(self, one: Input, text: str, mode: QueueMode, note: Expected | None) -> None:
        try:
            ack = await self.host.submit(
                text,
                session=one.session,
                agent="a",
                mode=mode,
                sender=one.sender,
                debounce=0.2 if note else 0.0,
                principal=motet.Principal(one.user),
                expected=note,
            )
        except QueueFull:
            one.refused = True
        else:
            one.run_id = ack.run_id

    async def stop(self, user: str, session: str, way: Way, sender: str) -> None:
        principal, stop = motet.Principal(user), self.host.stop
        live = {run.id for run in self.host._parts.table.runs.values()}  # pyright: ignore[reportPrivateUsage]
        meant = [one for one in self.said if one.user == user and one.run_id in live]
        match way:
            case "everything":
                report = await stop(everything=True, principal=principal)
            case "newest":
                report = await stop(session=session, newest=True, principal=principal)
            case "session":
                report = await stop(session=session, principal=principal)
            case "sender":
                report = await stop(session=session, sender=sender, principal=principal)
            case "run":
                report = await self.one(principal)
        named = {*report.stopped, *report.dropped_inputs, *report.still_running}
        self.stopped |= set(report.stopped)
        self.dropped |= set(report.dropped_inputs)
        assert not report.still_running, "all clean-up here takes less than the grace"
        if way in ("everything", "session"):
            here = {one.run_id for one in meant if way == "everything" or one.session == session}
            left = {run.id for run in self.host._parts.table.runs.values()}  # pyright: ignore[reportPrivateUsage]
            assert not here & left, "what was there when the stop came has ended with it"
        if way == "newest":
            own = [one for one in self.said if one.run_id in report.stopped]
            assert len(own) <= 1
        for one in self.said:
            if one.run_id and one.run_id in named:
                assert one.user == user, "a stop ends nothing of another user"
                assert way != "sender" or one.sender == sender

    async def one(self, principal: motet.Principal) -> StopReport:
        """Stop some run of anybody; what is foreign is not found."""
        known = [one for one in self.said if one.run_id]
        if not known:
            return StopReport()
        target = known[len(self.told) % len(known)]
        try:
            return await self.host.stop(run_id=target.run_id, principal=principal)
        except NotFound:
            return StopReport()


async def _play(steps: list[Step]) -> None:
    async with motet.open_host(agents=[agent()]) as host:
        world = await _played(host, steps)
        await host.stop(everything=True)
        assert (host.status().running, host.status().queued) == (0, 0)
        await trio.sleep(1)
        infos = {run.run_id: run for run in await host.runs(limit=200)}
        ends = Counter(
            record.run_id
            for record in world.told
            if isinstance(record.event, events.Terminal | events.InputDropped | events.InputSteered)
        )
        for one in world.said:
            assert one.refused or one.run_id, "every sender has an answer"
            if one.refused:
                continue
            assert infos[one.run_id].status not in ("queued", "running", "waiting")
            assert ends[one.run_id] == 1, (infos[one.run_id], ends)
            assert one.run_id not in world.dropped or infos[one.run_id].status == "dropped"
            assert one.run_id not in world.stopped or infos[one.run_id].status != "dropped"
        for keys in USERS.values():
            for key in keys:
                if any(one.session == key and not one.refused for one in world.said):
                    assert violations([item.row for item in await host.history(key)]) == ()


async def _played(host: motet.Host, steps: list[Step]) -> World:
    async with trio.open_nursery() as nursery:
        world = World(host, nursery)
        for keys in USERS.values():
            for key in keys:
                host.events.attach(f"session:{key}", world.told.append)
        for step in steps:
            await world.take(step)
    return world


@settings(max_examples=25, deadline=None)
@given(st.lists(inputs | stops | pauses, max_size=14))
def test_each_input_ends_once_in_any_order_of_stops(steps: list[Step]) -> None:
    """Law: a stop returns when what it names has ended; it ends nothing that is another user's, or
    another sender's; what was there when it came is gone when it returns; and every input that was
    acknowledged has one end, in the journal and on disk, with a transcript that is valid.
    """
    trio.run(_play, steps, clock=MockClock(autojump_threshold=0))
