"""G7: a transcript is valid whatever a model answers in place of a form, and whenever it stops."""

from __future__ import annotations

import msgspec
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet.actors.agents.output import form_of
from motet.actors.runs.output import FINAL_ANSWER, Answering, Refused
from motet.actors.runs.turn import CallModel, Decision, Finish, RunCalls, Turn
from motet.actors.transcript.grammar import close_calls, violations
from motet.protocols.chat import AssistantMessage, Call
from motet.protocols.events import EventRecord
from motet.protocols.models import ModelResponse, StopReason
from motet.protocols.tools import CallResult, ToolSpec
from tests.guarantees.test_g07_transcript import CancelAt, check_events
from tests.scripted import Scripted, call, say


class Ticket(msgspec.Struct):
    title: str
    severity: int


# Any answers, without a host


TEXTS = st.sampled_from(
    ['{"title":"a","severity":1}', '{"title":"a"', "It crashes.", "", "NO_REPLY"]
)
REASONS: tuple[StopReason, ...] = ("stop", "length", "tool_calls")


def answered(text: str, calls: list[tuple[str, str]], reason: StopReason) -> ModelResponse:
    numbered = (Call(f"c{index}", *one) for index, one in enumerate(calls))
    return ModelResponse(text, calls=tuple(numbered), stop_reason=reason)


ANSWERS = st.builds(
    answered,
    TEXTS,
    st.lists(st.tuples(st.sampled_from(["look", FINAL_ANSWER]), TEXTS), max_size=3),
    st.sampled_from(REASONS),
)
LOOK = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})


@given(
    st.lists(ANSWERS, min_size=1, max_size=12), st.booleans(), st.integers(0, 3), st.integers(1, 8)
)
def test_whatever_a_model_answers_the_rows_stay_valid(
    answers: list[ModelResponse], native: bool, rounds: int, turns: int
) -> None:
    """Law: after every answer the rows can be closed to a valid transcript; at most ``rounds``
    answers are repaired; a completed turn has a value of the type, and its last row says it.
    """
    form = form_of(Ticket)
    assert form is not None
    turn = Turn(motet.Limits(turns=turns, tool_errors=None, total_errors=None), verbatim=True)
    answering = Answering(form, rounds, native)
    decision, repaired = turn.begin("go"), 0
    for answer in answers:
        if not isinstance(decision, CallModel):
            break
        offered = answering.offered((LOOK,) if decision.offer_tools else ())
        assert (FINAL_ANSWER in [tool.name for tool in offered]) != native
        decision, refused = taken(turn, answering, answer)
        repaired += refused
        assert violations(close_calls(turn.rows, "unknown")) == ()
    assert repaired <= rounds
    if isinstance(decision, Finish) and decision.status == "completed":
        assert isinstance(answering.given(decision.output), Ticket)
        assert turn.rows[-1] == AssistantMessage(decision.output)


def taken(turn: Turn, answering: Answering, answer: ModelResponse) -> tuple[Decision, bool]:
    """What comes of an answer, and whether it was one to be repaired."""
    settled = answering.settled(answer)
    if isinstance(settled, Refused):
        if settled.final:
            return turn.fail("no form"), False
        return turn.refused(settled.text, settled.answer, settled.told), True
    decision = turn.answered(settled)
    while isinstance(decision, RunCalls):
        calls = decision.calls
        decision = turn.observed([CallResult(one.id, one.name, "seen") for one in calls])
    return decision, False


# Any moment, with one


def agent_that_repairs() -> motet.Agent[None, Ticket]:
    script = Scripted(
        say("It crashes."),
        call((FINAL_ANSWER, {"title": "a"}), text="here"),
        call(("nap", {}), (FINAL_ANSWER, {"title": "a", "severity": 1})),
        call((FINAL_ANSWER, {"title": "a", "severity": 1})),
    )
    agent = motet.Agent("a", model=script, output_type=Ticket)

    @agent.tool
    async def nap() -> str:
        await trio.sleep(1)
        return "slept"

    return agent


async def cancelled_run(fault: CancelAt) -> bool:
    """One run under the fault; checks all that has to hold. True when the run beat the fault."""
    records: list[EventRecord] = []
    agent = agent_that_repairs()
    result: motet.RunResult[Ticket] | None = None
    async with motet.open_host(agents=[agent]) as host:
        host.events.attach("session:s", records.append)
        with trio.CancelScope() as scope:
            fault.scope = scope
            result = await host.run(agent, "go", session="s", check=False)
        fault.scope = None
        await trio.testing.wait_all_tasks_blocked()
        runs = await host.runs()
        rows = [item.row for item in await host.history("s")] if runs else []

    assert violations(rows) == (), rows
    check_events([record.event for record in records], started=bool(runs))
    if result is not None and result.status == "completed":
        assert result.output == Ticket("a", 1)
        assert isinstance(rows[-1], AssistantMessage)
        assert rows[-1].text == result.text
    return not scope.cancelled_caught


def test_a_run_cancelled_at_any_step_of_its_repairs_leaves_a_valid_transcript() -> None:
    """Law: for every k, cancelling the caller at step k leaves a transcript that is valid. The
    sweep ends when the run wins."""
    for step in range(1, 2_000, 3):
        fault = CancelAt(step)
        clock = MockClock(autojump_threshold=0)
        if trio.run(cancelled_run, fault, clock=clock, instruments=[fault]):
            assert step > 50
            return
    raise AssertionError("the run never came to its end")
