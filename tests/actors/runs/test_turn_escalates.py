"""A turn ends with a person when a limit of failures is reached, and never before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.errors.tracker import LINE_LIMIT, SENT_LIMIT, with_error_blocks
from motet.actors.runs.turn import CallModel, Finish, RunCalls, Turn
from motet.actors.transcript.grammar import violations
from motet.actors.transcript.guards import LoopDetector
from motet.protocols.chat import AssistantMessage, Call, Outcome, ToolMessage
from motet.protocols.escalations import HISTORY_SHOWN
from motet.protocols.limits import Limits
from motet.protocols.tools import CallResult
from tests.actors.runs.builders import answer

ADVICE_LIMIT = 250
UNWATCHED = LoopDetector(dict.fromkeys("abcd", "polling"))
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(["done", "failed", "failed", "denied"])
calls = st.tuples(st.sampled_from("abcd"), outcomes)
batches = st.lists(st.lists(calls, min_size=1, max_size=4), min_size=1, max_size=12)


def play(
    turn: Turn, batch: list[tuple[str, Outcome]], text: str = "Error: no"
) -> CallModel | RunCalls | Finish:
    """The model makes these calls, and they end so."""
    made = tuple(Call(f"c{turn.iteration}_{i}", tool) for i, (tool, _) in enumerate(batch))
    assert turn.answered(answer("", *made)) == RunCalls(made)
    results = [
        CallResult(call.id, call.name, text, outcome)
        for call, (_, outcome) in zip(made, batch, strict=True)
    ]
    return turn.observed(results)


@given(batches, st.integers(1, 5), st.integers(1, 12))
def test_it_escalates_with_the_batch_in_which_a_recount_reaches_a_limit(
    played: list[list[tuple[str, Outcome]]], tool_errors: int, total_errors: int
) -> None:
    """Law: exactly the first batch in which a limit is reached is the last; its rows are kept.

    Calls of one batch that fail are one attempt of their tool.
    """
    limits = Limits(turns=50, tool_errors=tool_errors, total_errors=total_errors)
    turn = Turn(limits, loops=UNWATCHED)
    turn.begin("go")
    row: dict[str, set[int]] = {}
    attempts, reached, failed = set[tuple[int, str]](), False, 0
    for number, batch in enumerate(played):
        decision = play(turn, batch)
        for tool, outcome in batch:
            if outcome == "failed":
                row.setdefault(tool, set()).add(number)
                attempts.add((number, tool))
                failed += 1
                reached = reached or len(row[tool]) >= tool_errors or len(attempts) >= total_errors
            elif outcome == "done":
                row[tool] = set()
        assert isinstance(decision, Finish) == reached
        if isinstance(decision, Finish):
            assert decision.status == "escalated"
            assert decision.escalation is not None
            assert decision.escalation.reason == decision.detail
            assert len(decision.escalation.error_history) == min(failed, HISTORY_SHOWN)
            last = turn.rows[-1]
            assert isinstance(last, AssistantMessage)
            assert last.note == "escalated"
            break
    assert violations(turn.rows) == ()
    assert len(turn.results) == sum(isinstance(row, ToolMessage) for row in turn.rows)


@given(st.lists(st.text(max_size=500), min_size=1, max_size=19), st.integers(1, 4))
def test_what_errors_cost_a_request_is_bounded(texts: list[str], parallel: int) -> None:
    """Law: new errors as told, with advice; three blocks; and a line for each of the others."""
    limits = Limits(turns=50, tool_calls=None, tool_errors=None, total_errors=None)
    turn = Turn(limits, loops=UNWATCHED)
    turn.begin("go")
    for number, text in enumerate(texts):
        play(turn, [("a", "failed")] * parallel, text)
        sent = [row.text for row in with_error_blocks(turn.rows) if isinstance(row, ToolMessage)]
        new, old = sent[-parallel:], sent[:-parallel]
        assert all(len(one) <= len(text) + ADVICE_LIMIT for one in new)
        assert sum(map(len, old)) <= 3 * SENT_LIMIT + LINE_LIMIT * number * parallel
