"""G15 for texts that steer: whatever happens, each is answered once, or dropped and said to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, TypeAlias

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.chat import UserMessage
from tests.scripted import Scripted, call, say

Action: TypeAlias = Literal["steer", "followup", "stop run", "stop session", "stop text"]
Plan: TypeAlias = Sequence[tuple[float, Action]]

ACTIONS: tuple[Action, ...] = (
    "steer", "steer", "steer", "followup", "stop run", "stop session", "stop text",
)  # fmt: skip
PLANS = st.lists(st.tuples(st.sampled_from([0.1, 0.3, 0.5]), st.sampled_from(ACTIONS)), max_size=8)
ANSWERS = st.lists(st.sampled_from([True, True, False]), min_size=1, max_size=6)


class Session:
    """A session in which a run works and thinks, and is told things meanwhile."""

    def __init__(self, host: motet.Host, answers: Sequence[bool], turns: int) -> None:
        steps = [call(("work", {})) if calls else say("so far") for calls in answers]
        model = Scripted(*steps, *[say("done")] * 40)
        self.host = host
        self.agent = motet.Agent("a", model=model, limits=motet.Limits(turns=turns))
        self.sent: dict[str, str] = {}
        self.ended: Counter[str] = Counter()

        @self.agent.tool
        async def work() -> str:
            await trio.sleep(0.5)
            return "worked"

        @host.on("after_model")
        async def think(_event: motet.AfterModel) -> None:
            await trio.sleep(0.25)

        host.events.attach("session:s", self.hear)

    def hear(self, record: events.EventRecord) -> None:
        ends = (events.Terminal, events.InputDropped, events.InputSteered)
        if record.run_id and isinstance(record.event, ends):
            self.ended[record.run_id] += 1

    async def act(self, plan: Plan) -> None:
        first = await self.host.submit("text 0", session="s", agent="a")
        self.sent[first.run_id] = "text 0"
        for delay, action in plan:
            await trio.sleep(delay)
            await self.one(action, first.run_id)

    async def one(self, action: Action, run_id: str) -> None:
        match action:
            case "steer" | "followup":
                text = f"text {len(self.sent)}"
                ack = await self.host.send(text, session="s", mode=action)
                self.sent[ack.run_id] = text
            case "stop session":
                await self.host.stop(session="s")
            case "stop run" | "stop text":
                wanted = run_id if action == "stop run" else list(self.sent)[-1]
                with suppress(motet.NotFound):  # it has ended, or entered the run
                    await self.host.stop(run_id=wanted)

    async def quiet(self) -> None:
        with trio.fail_after(1_000):
            while sum(self.ended.values()) < len(self.sent):
                await trio.sleep(1)
        await trio.sleep(60)  # whatever might still come


async def story(answers: Sequence[bool], turns: int, plan: Plan) -> None:
    async with motet.open_host() as host:
        session = Session(host, answers, turns)
        host.add(session.agent)
        await session.act(plan)
        await session.quiet()

        status = {run.run_id: run.status for run in await host.runs(session="s", limit=100)}
        rows = [item.row for item in await host.history("s", limit=200)]
        asked = "\n".join(row.text for row in rows if isinstance(row, UserMessage))
        asked_for = Counter(asked.split("\n"))
        assert status.keys() == session.sent.keys()
        assert session.ended == dict.fromkeys(session.sent, 1)
        for run_id, text in session.sent.items():
            assert asked_for[text] == (0 if status[run_id] == "dropped" else 1)
            assert status[run_id] not in ("queued", "running")
        assert violations(rows) == ()


@settings(max_examples=30, deadline=None)
@given(ANSWERS, st.sampled_from([20, 20, 20, 2, 1]), PLANS)
def test_each_acknowledged_text_is_answered_once_or_dropped(
    answers: list[bool], turns: int, plan: list[tuple[float, Action]]
) -> None:
    """Law: an accepted text is in one row of the transcript, or its run has ended as dropped; its
    end is told once; and nothing is queued or running in the end."""
    trio.run(story, answers, turns, plan, clock=MockClock(autojump_threshold=0))
