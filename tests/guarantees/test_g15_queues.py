"""G15 and G13 for queues: each input of several senders is answered, joined or dropped, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count, groupby
from typing import get_args

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.chat import ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import ModelEvent, ModelRequest
from motet.protocols.queueing import MODES, Overflow, QueueConfig, QueueMode
from motet.protocols.sessions import QueueFull, SessionBusy
from tests.scripted import Scripted, call, say

SESSIONS = ("agent:a:tcp:group:den", "agent:a:tcp:direct:ann", "s")
CAPACITY = 4


@attrs.frozen
class Say:
    sender: str
    mode: QueueMode | None
    debounce: float


@attrs.frozen
class Halt:
    """``run``: the newest one that was sent, else all of the session."""

    run: bool


Step = tuple[float, Say | Halt]
SAYS = st.builds(
    Say,
    st.sampled_from(["ann", "bob", "cid", "dan"]),
    st.sampled_from([None, None, *MODES]),
    st.sampled_from([0.0, 0.0, 0.4]),
)
PLANS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.3, 0.7]),
        st.one_of(*[SAYS] * 7, st.builds(Halt, st.booleans())),
    ),
    max_size=18,
)
CONFIGS = st.builds(
    QueueConfig,
    capacity=st.just(CAPACITY),
    overflow=st.sampled_from(get_args(Overflow)),
    concurrent=st.sampled_from([1, 2, 3]),
    throttle=st.sampled_from([0.6, 0.6, 0.000_1]),
)


class Worker:
    """Works once in each turn, and is done."""

    name = "worker"

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        turn: list[ChatMessage] = []
        for row in request.messages:
            begins = isinstance(row, UserMessage) and row.note != "injected"
            turn = [row] if begins else [*turn, row]
        worked = any(isinstance(row, ToolMessage) for row in turn)
        script = Scripted(say("done") if worked else call(("work", {})))
        async with script.request(request) as answer:
            yield answer


class Story:
    """A session that works while several people talk to it."""

    def __init__(self, host: motet.Host, session: str, most: int) -> None:
        self.host, self.session, self.most = host, session, most
        self.sent: dict[str, str] = {}
        self.numbers = count()
        self.ended: Counter[str] = Counter()
        self.busy = self.busiest = 0
        self.agent = motet.Agent("a", model=Worker())

        @self.agent.tool
        async def work() -> str:
            self.busy += 1
            self.busiest = max(self.busy, self.busiest)
            try:
                await trio.sleep(0.5)
            finally:
                self.busy -= 1
            return "worked"

        host.add(self.agent)
        host.events.attach(f"session:{session}", self.hear)

    def hear(self, record: events.EventRecord) -> None:
        ends = (events.Terminal, events.InputDropped, events.InputSteered)
        if record.run_id and isinstance(record.event, ends):
            self.ended[record.run_id] += 1

    async def act(self, plan: Sequence[Step]) -> None:
        for delay, step in plan:
            await trio.sleep(delay)
            if isinstance(step, Say):
                await self.say(step)
            elif not step.run:
                await self.host.stop(session=self.session)
            elif self.sent:
                with suppress(motet.NotFound):  # it has ended, or was answered with another
                    await self.host.stop(run_id=list(self.sent)[-1])
            assert self.host.status().queued <= CAPACITY

    async def say(self, step: Say) -> None:
        text = f"text {next(self.numbers)}."
        with suppress(QueueFull, SessionBusy):
            ack = await self.host.submit(
                text,
                session=self.session,
                agent="a",
                mode=step.mode,
                sender=step.sender,
                debounce=step.debounce,
            )
            self.sent[ack.run_id] = text

    async def quiet(self) -> None:
        with trio.fail_after(1_000):
            while sum(self.ended.values()) < len(self.sent):
                await trio.sleep(1)
        await trio.sleep(60)  # whatever might still come


async def story(session: str, rules: QueueConfig, plan: Sequence[Step]) -> None:
    most = rules.concurrent if session == SESSIONS[0] else 1
    async with motet.open_host(config=motet.HostConfig(queue=rules)) as host:
        told = Story(host, session, most)
        async with trio.open_nursery() as nursery:
            for part in range(3):  # at the same time
                nursery.start_soon(told.act, plan[part::3])
        await told.quiet()
        status = {run.run_id: run.status for run in await host.runs(limit=200)}
        found = await host.history(session, limit=200) if told.sent else ()
    rows = [item.row for item in found]
    asked = "\n".join(row.text for row in rows if isinstance(row, UserMessage))
    assert status.keys() == told.sent.keys()
    assert told.ended == dict.fromkeys(told.sent, 1)
    for run_id, text in told.sent.items():
        assert asked.count(text) == (0 if status[run_id] == "dropped" else 1)
        assert status[run_id] in ("completed", "cancelled", "dropped", "steered")
    assert told.busiest <= most
    blocks = [run_id for run_id, _ in groupby(found, lambda item: item.run_id)]
    assert len(blocks) == len(set(blocks))
    assert violations(rows) == ()


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SESSIONS), CONFIGS, PLANS)
def test_each_acknowledged_input_is_answered_joined_or_dropped_once(
    session: str, rules: QueueConfig, plan: list[Step]
) -> None:
    """Law: whatever comes from whom, in whatever mode, with stops in between: an acknowledged input
    is in one row of the transcript, or was dropped; its end is told once; never more runs go on
    than may, or inputs wait; and the rows of a run stand together.
    """
    trio.run(story, session, rules, plan, clock=MockClock(autojump_threshold=0))
