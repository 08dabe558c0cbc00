"""Resolved errors and answers to escalations where sessions are compacted, and in rooms.

What is stored of an error depends on what its tools did, and not on how much of the history a
model is still shown, or on whose words a member of a room answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import trio
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import motet
from motet.protocols.chat import JsonObject, UserMessage
from motet.protocols.escalations import HISTORY_TAG, Answer
from motet.protocols.models import ModelEvent, ModelRequest
from motet.protocols.rooms import RoomPlan
from tests.actors.hosting.test_resolved_errors import with_tools
from tests.scripted import Scripted, Step, call, say

TOOLS: tuple[str, ...] = ("fetch", "save")
ANN, BOB = motet.Principal("ann"), motet.Principal("bob")
SUMMARY = "They asked for things, and some failed."

Batch = list[tuple[str, bool]]
"""Calls of one answer: a tool, and whether it works."""
BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from(TOOLS), st.booleans()), min_size=1, max_size=2), max_size=2
)


class Summarises(Scripted):
    """A script beside which summaries are written whenever they are asked for."""

    summaries = 0

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        if "Write the summary" not in str(request.messages[-1]):
            async with super().request(request) as events:
                yield events
            return
        self.summaries += 1
        async with Scripted(say(SUMMARY)).request(request) as events:
            yield events


def agent_of(*answers: Step, tool_errors: int | None = None) -> motet.Agent[None]:
    """An agent with tools that work or fail as each call says."""
    limits = motet.Limits(tool_errors=tool_errors, total_errors=None)
    return with_tools(motet.Agent("a", model=Summarises(*answers), limits=limits))


def model_of(agent: motet.Agent[None]) -> Summarises:
    assert isinstance(agent.model, Summarises)
    return agent.model


def script(runs: list[list[Batch]]) -> list[Step]:
    """What the model says in these runs; no two calls are equal, so that no loop is seen."""
    steps: list[Step] = []
    for batches in runs:
        for one in batches:
            said: list[tuple[str, JsonObject]] = [
                (tool, {"works": works, "n": 10 * len(steps) + at})
                for at, (tool, works) in enumerate(one)
            ]
            steps.append(call(*said))
        steps.append(say("done"))
    return steps


def expected(runs: list[list[Batch]]) -> dict[str, tuple[int, int]]:
    """Of each tool, the errors that are open and those that are resolved."""
    found: dict[str, tuple[int, int]] = dict.fromkeys(TOOLS, (0, 0))
    for tool, works in (one for batches in runs for batch in batches for one in batch):
        open_, resolved = found[tool]
        found[tool] = (0, resolved + open_) if works else (open_ + 1, resolved)
    return found


def breaks(runs: list[list[Batch]]) -> bool:
    """Whether a breaker may take a tool out: its fifth failure in a row."""
    row = dict.fromkeys(TOOLS, 0)
    for tool, works in (one for batches in runs for batch in batches for one in batch):
        row[tool] = 0 if works else row[tool] + 1
        if row[tool] == 5:
            return True
    return False


LONG: list[tuple[list[Batch], bool]] = [([], False)] * 4
"""Runs without calls, so that there is something to summarise."""


async def stored(host: motet.Host, session: str) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for tool in TOOLS:
        of = [await host.errors(session=session, tool=tool, resolved=one) for one in (False, True)]
        found[tool] = (len(of[0]), len(of[1]))
    return found


@settings(max_examples=12, deadline=None)
@given(runs=st.lists(st.tuples(BATCHES, st.booleans()), min_size=2, max_size=6))
def test_a_success_resolves_errors_that_were_compacted_before_it(
    runs: list[tuple[list[Batch], bool]],
) -> None:
    """Law: over any calls, records say what the calls did, wherever the session is compacted."""
    runs = [*LONG, *runs]
    calls = [batches for batches, _ in runs]
    assume(not breaks(calls))
    assume(any(is_compacted for _, is_compacted in runs))

    async def story() -> None:
        agent = agent_of(*script(calls))
        async with motet.open_host(agents=[agent], check_messages=True) as host:
            for at, (_, is_compacted) in enumerate(runs):
                await host.run(agent, "go", session="s")
                if is_compacted:
                    await host.compact("s")
                assert await stored(host, "s") == expected(calls[: at + 1])
        assert model_of(agent).summaries

    trio.run(story)


@settings(max_examples=10, deadline=None)
@given(turns=st.lists(st.tuples(BATCHES, st.sampled_from([ANN, BOB])), min_size=1, max_size=5))
def test_a_success_of_a_room_s_member_resolves_its_errors_whoever_has_asked(
    turns: list[tuple[list[Batch], motet.Principal]],
) -> None:
    """Law: over the turns of a member, for any people, records say what the calls did.

    The people of the room read none of them: they are those of the room.
    """
    calls = [batches for batches, _ in turns]
    assume(not breaks(calls))

    async def story() -> None:
        agent = agent_of(*script(calls))
        async with motet.open_host(agents=[agent], check_messages=True) as host:
            plan = RoomPlan(("a",))
            room = (await host.rooms.create("den", plan, people=("bob",), principal=ANN)).name
            for at, (_, who) in enumerate(turns):
                await host.rooms.post(room, "@a go", principal=who)
                await (await host.open_room(room, principal=ANN)).wait()
                sessions = {error.session_id for error in await host.errors()}
                assert len(sessions) <= 1
                for session in sessions:
                    assert await stored(host, session) == expected(calls[: at + 1])
            for who in (ANN, BOB):
                assert await host.errors(principal=who) == ()

    trio.run(story)


FAILS: Batch = [("fetch", False)]


@settings(max_examples=16, deadline=None)
@given(
    decision=st.sampled_from(["retry", "advice", "skip", "give_up"]),
    before=st.booleans(),
    after=st.booleans(),
    turns=st.integers(4, 6),
)
def test_an_answer_reaches_the_next_run_wherever_the_session_is_compacted(
    decision: Answer, before: bool, after: bool, turns: int
) -> None:
    """Law: before or behind the answer, compacting changes neither it nor what it sets free.

    The next run reads the failed calls, a success of it resolves their errors, and the count begins
    again: one more failure escalates nothing.
    """
    quiet: list[list[Batch]] = [[] for _ in range(turns)]
    then: list[list[Batch]] = [[[("fetch", True)]], [FAILS]]

    async def story() -> None:
        agent = agent_of(
            *script([*quiet]), call(("fetch", {"works": False, "n": 1})), tool_errors=2
        )
        model_of(agent).then(call(("fetch", {"works": False, "n": 2})))
        async with motet.open_host(agents=[agent], check_messages=True) as host:
            for _ in quiet:
                await host.run(agent, "go", session="s")
            stuck = await host.run(agent, "go", session="s", check=False)
            assert stuck.status == "escalated"
            if before:
                await host.compact("s")
            model_of(agent).then(*script(then))
            (waiting,) = await host.escalations(state="open")
            assert len(waiting.error_history) == 2
            answered = await host.resolve(waiting.id, decision, note="take the mirror")
            assert not (await host.session("s")).needs_review
            if answered.next_run is None:
                assert decision == "give_up"
                assert await stored(host, "s") == {"fetch": (2, 0), "save": (0, 0)}
                return
            assert (await host.wait_run(answered.next_run)).status == "completed"
            asked = model_of(agent).requests[-2].messages[-1]
            assert isinstance(asked, UserMessage)
            assert asked.text.count(f"<{HISTORY_TAG}>") == 1
            assert await stored(host, "s") == {"fetch": (0, 2), "save": (0, 0)}
            if after:
                await host.compact("s")
            assert (await host.run(agent, "go", session="s")).status == "completed"
            assert await stored(host, "s") == {"fetch": (1, 2), "save": (0, 0)}
            assert await host.escalations(state="open") == ()
        assert model_of(agent).summaries >= before + after

    trio.run(story)
