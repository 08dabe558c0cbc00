"""Counts of failures, escalation, and the errors that a model still sees."""

from __future__ import annotations

from functools import partial
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from motet.actors.errors.classify import (
    TAXONOMY,
    class_of,
    error_block,
    failure_text,
    parse_failure_text,
)
from motet.actors.errors.tracker import (
    LINE_LIMIT,
    RESOLVED,
    SENT_LIMIT,
    ErrorContext,
    ErrorLimits,
    ErrorTracker,
    Failures,
    any_failed,
    counts_as,
    failures_before,
    stored_result,
    with_error_blocks,
)
from motet.actors.transcript.grammar import violations
from motet.actors.transcript.history import begun_by, with_author
from motet.protocols.chat import (
    AssistantMessage,
    Call,
    ChatMessage,
    FailureClass,
    Outcome,
    ToolMessage,
    UserMessage,
)
from motet.protocols.errors import CompactError
from motet.protocols.limits import Limits
from motet.protocols.tools import CallResult
from tests.vectors.error_forms import escalation_result, render, without

OPS = st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=40)


def error(tool: str, message: str = "boom") -> CompactError:
    return CompactError(tool, "unknown", message)


def after(tracker: ErrorTracker, *tools: str) -> ErrorTracker:
    for tool in tools:
        tracker = tracker.failed(error(tool))
    return tracker


def test_the_third_error_of_a_tool_in_a_row_is_the_escalation() -> None:
    second = after(ErrorTracker(), "a", "a")
    assert second.escalation is None
    third = second.failed(error("a", "the third")).escalation
    assert third is not None
    assert (third.limit, third.count, third.reason) == ("consecutive", 3, "Too many errors with a")
    assert third.last_error.message == "the third"
    assert third.explanation == ("Too many errors with a (3 in a row); the last one, a: the third")
    assert len(third.history) == 3


def test_a_success_of_the_tool_resets_it_and_of_another_does_not() -> None:
    two = after(ErrorTracker(), "a", "a")
    assert two.succeeded("a").failed(error("a")).escalation is None
    assert two.succeeded("b").failed(error("a")).escalation is not None


def test_the_tenth_error_of_a_run_escalates_and_the_reason_says_so() -> None:
    nine = after(ErrorTracker(), *"abcdefghi")
    assert nine.escalation is None
    tenth = nine.failed(error("j")).escalation
    assert tenth is not None
    assert (tenth.limit, tenth.reason) == ("total", "Too many errors in this run: 10")
    assert escalation_result(tenth)["cause"] == "total"


def test_rows_live_with_the_session_and_the_total_with_the_run() -> None:
    next_run = after(ErrorTracker(), "a", "a", "b").new_run()
    assert (next_run.total, next_run.rows) == (0, {"a": 2, "b": 1})
    assert [one.tool_name for one in next_run.history] == ["a", "a", "b"]
    assert [one.tool_name for one in next_run.succeeded("a").new_run().history] == ["b"]
    assert next_run.failed(error("a")).escalation is not None
    assert next_run.forgiven().failed(error("a")).escalation is None


def test_limits_can_be_absent_or_none_at_all() -> None:
    assert after(ErrorTracker(ErrorLimits(None, None)), *"a" * 50).escalation is None
    assert after(ErrorTracker(ErrorLimits(0, None)), "a").escalation is not None
    assert after(ErrorTracker(ErrorLimits(None, 0)), "a").escalation is not None
    with pytest.raises(ValueError, match="at least 0"):
        ErrorLimits(consecutive=-1)


def test_only_the_tools_own_outcomes_count() -> None:
    assert counts_as("done") == "success"
    assert counts_as("failed") == "error"
    for outcome in (
        "answered",
        "denied",
        "cancelled_before_start",
        "cancelled_while_running",
        "unknown",
    ):
        assert counts_as(outcome) == "neither"


@given(OPS, st.integers(1, 5), st.integers(1, 12))
def test_it_escalates_exactly_when_a_recount_of_all_events_does(
    ops: list[tuple[bool, str]], consecutive: int, total: int
) -> None:
    """Law: the state after any events equals the one counted from scratch."""
    tracker, errors, rows = (
        ErrorTracker(ErrorLimits(consecutive, total)),
        0,
        dict.fromkeys("abc", 0),
    )
    for ok, tool in ops:
        if ok:
            tracker, rows[tool] = tracker.succeeded(tool), 0
            continue
        tracker, errors, rows[tool] = tracker.failed(error(tool)), errors + 1, rows[tool] + 1
        expected = rows[tool] >= consecutive or errors >= total
        assert (tracker.escalation is not None) == expected
        assert tracker.history[-1].tool_name == tool
    assert tracker.total == errors
    assert tracker.rows == {tool: n for tool, n in rows.items() if n}


FAILURES: tuple[FailureClass, ...] = ("fault", "infrastructure", "negative", "argument", "refusal")
RESULTS: tuple[tuple[Outcome, FailureClass | Literal[""]], ...] = (
    *(("failed", failure) for failure in FAILURES),
    *(("done", ""), ("done", ""), ("answered", ""), ("unknown", ""), ("denied", "refusal")),
)
results = st.sampled_from(RESULTS)
made_calls = st.tuples(st.sampled_from(["a", "b", "get_error_detail"]), results)
made_batches = st.lists(st.lists(made_calls, min_size=1, max_size=5), max_size=12)


@given(made_batches)
def test_an_attempt_is_a_batch_with_a_fault_of_a_tool(
    batches: list[list[tuple[str, tuple[Outcome, FailureClass | Literal[""]]]]],
) -> None:
    """Law: a row is the number of batches with a fault of the tool after its last success, in the
    order of the calls; the total is the number of pairs of a batch and a tool with a fault in it.
    No answer, mistake, refusal or look-up of an error is in either.
    """
    state, said = Failures(), list[tuple[int, str, Outcome, str]]()
    for number, batch in enumerate(batches):
        state = state.new_batch()
        for index, (tool, (outcome, failure)) in enumerate(batch):
            call = Call(f"c{number}_{index}", tool)
            state, _ = state.ended(call, CallResult(call.id, tool, "no", outcome, failure=failure))
            said.append((number, tool, outcome, failure))
    faults = [
        (at, number, tool)
        for at, (number, tool, outcome, failure) in enumerate(said)
        if outcome == "failed" and failure in ("fault", "infrastructure") and tool in "ab"
    ]
    last = {tool: at for at, (_, tool, outcome, _) in enumerate(said) if outcome == "done"}
    for tool in ("a", "b", "get_error_detail"):
        row = {n for at, n, failed in faults if failed == tool and at > last.get(tool, -1)}
        assert state.tracker.rows.get(tool, 0) == len(row)
    assert state.tracker.total == len({(number, tool) for _, number, tool in faults})
    history = [(one.tool_name, one.resolved) for one in state.tracker.history]
    assert history == [(tool, at < last.get(tool, -1)) for at, _, tool in faults]


# Counted failures are rebuilt from the transcript, and errors are sent short.

ID = "err_20241121_230334_abc123"
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(
    ["done", "answered", "failed", "failed", "denied", "cancelled_while_running", "unknown"]
)
texts = st.text(max_size=700) | st.just(failure_text("a", "it broke", ID))
ends = st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), outcomes, texts)
batches = st.lists(st.lists(ends, min_size=1, max_size=4), max_size=8)


def transcript(made: list[list[tuple[str, str, Outcome, str]]]) -> list[ChatMessage]:
    """One run in which the calls of each batch end like that."""
    rows: list[ChatMessage] = [UserMessage("go")]
    for number, batch in enumerate(made):
        calls = tuple(
            Call(f"c{number}_{i}", tool, f'{{"x": "{arg}"}}')
            for i, (tool, arg, _, _) in enumerate(batch)
        )
        rows.append(AssistantMessage("", calls))
        rows += [
            ToolMessage(call.id, call.name, text, outcome)
            for call, (_, _, outcome, text) in zip(calls, batch, strict=True)
        ]
    return rows


def lived(rows: list[ChatMessage]) -> Failures:
    """What a turn would have kept while these results came in."""
    state = Failures()
    calls: dict[str, Call] = {}
    for row in rows:
        if isinstance(row, AssistantMessage):
            state = state.new_batch()
            calls = {call.id: call for call in row.calls}
        elif isinstance(row, ToolMessage):
            state, _ = state.ended(calls[row.call_id], stored_result(row))
    return state


@given(batches)
def test_rebuilt_failures_equal_the_kept_ones(
    made: list[list[tuple[str, str, Outcome, str]]],
) -> None:
    """Law: rows and repeated calls survive in the transcript; only the total starts again."""
    rows = transcript(made)
    rebuilt, kept = failures_before(rows, Limits()), lived(rows)
    assert rebuilt.tracker.rows == kept.tracker.rows
    assert rebuilt.repeated == kept.repeated
    assert rebuilt.tracker.total == 0


def test_an_answered_escalation_forgives_and_an_open_one_does_not() -> None:
    rows = transcript([[("a", "x", "failed", "no")], [("a", "x", "failed", "no")]])
    rows.append(AssistantMessage("[Handed to a person]", note="escalated"))
    assert failures_before(rows, Limits()).tracker.rows == {}
    assert failures_before(rows, Limits(), needs_review=True).tracker.rows == {"a": 2}


@given(batches)
def test_each_error_is_sent_once_and_briefly(
    made: list[list[tuple[str, str, Outcome, str]]],
) -> None:
    """Law: rows, order and calls stay; an answered error is short; at most three are blocks."""
    rows = [*transcript(made), AssistantMessage("done")]
    sent = with_error_blocks(rows)
    assert violations(sent) == violations(rows)
    assert with_error_blocks(rows) == sent
    failed = [row for row in sent if isinstance(row, ToolMessage) and row.outcome == "failed"]
    blocks = [row.text for row in failed if row.text.startswith("<error>\n")]
    assert len(blocks) <= 3
    assert all(len(text) <= SENT_LIMIT for text in blocks)
    assert all(len(row.text) <= LINE_LIMIT for row in failed if row.text not in blocks)
    for before, after in zip(rows, sent, strict=True):
        if not (isinstance(before, ToolMessage) and before.outcome == "failed"):
            assert after == before


def test_a_new_error_is_three_lines_and_becomes_a_block_that_names_its_id() -> None:
    text = failure_text("fetch", "connection timed out", ID)
    rows = transcript([[("fetch", "x", "failed", text)]])
    assert with_error_blocks(rows) == tuple(rows)
    *_, told_row, _ = with_error_blocks([*rows, AssistantMessage("I see")])
    assert isinstance(told_row, ToolMessage)
    assert told_row.text == (
        "<error>\ntool: fetch\ntype: timeout\nmessage: connection timed out\n"
        f"suggestion: Try with a simpler query or smaller dataset\n[Error ID: {ID}]\n</error>"
    )


def test_older_errors_are_a_line_with_their_number_and_resolved_ones_say_so() -> None:
    ends: list[list[tuple[str, str, Outcome, str]]] = [
        [(tool, "x", "failed", f"{tool} broke")] for tool in "abcde"
    ]
    rows = [*transcript([*ends, [("e", "x", "done", "ok")]]), AssistantMessage("so")]
    texts = [row.text for row in with_error_blocks(rows) if isinstance(row, ToolMessage)]
    assert texts[0] == "[Error 1 of this session: not shown again, newer ones are]"
    assert [text.startswith("<error>") for text in texts[1:4]] == [True] * 3
    assert texts[4:] == [RESOLVED, "ok"]


@given(st.text(min_size=1, max_size=120), st.text(max_size=300))
def test_a_told_error_is_read_back(tool: str, summary: str) -> None:
    """Law: the three lines give back the line and the id that are in them."""
    text = failure_text(tool, summary, ID)
    line, error_id = parse_failure_text(text)
    assert error_id == ID
    assert text.split("\n")[0].endswith(f"failed: {line}")


def test_kinds_of_the_executor_are_used_and_others_are_read_from_the_words() -> None:
    call = Call("c", "t")
    whatever = CallResult("c", "t", "whatever", "failed", "timeout")
    state, _ = Failures().ended(call, whatever)
    state, _ = state.ended(call, replace(whatever, text="no such file", kind="retry"))
    assert [error.error_type for error in state.tracker.history] == ["timeout", "not_found"]
    assert isinstance(state.tracker, ErrorTracker)


# A model sees the open errors, the newest in full.


def context(*messages: str) -> ErrorContext:
    made = ErrorContext()
    for message in messages:
        made = made.failed(error("t", message))
    return made


def test_the_last_three_are_shown_and_the_others_counted() -> None:
    assert render(context("m1", "m2", "m3", "m4")) == (
        "<error_summary>\n1 older errors hidden\n</error_summary>\n\n"
        "<error>\ntool: t\ntype: unknown\nmessage: m2\n</error>\n\n"
        "<error>\ntool: t\ntype: unknown\nmessage: m3\n</error>\n\n"
        "<error>\ntool: t\ntype: unknown\nmessage: m4\n</error>"
    )


def test_nothing_open_is_nothing_to_show() -> None:
    assert render(ErrorContext()) == ""
    assert render(context("a", "b").succeeded("t")) == ""


def test_a_limit_of_none_shows_only_their_number() -> None:
    only_number = "<error_summary>\n2 older errors hidden\n</error_summary>"
    assert render(context("a", "b"), 0) == render(context("a", "b"), -1) == only_number


def test_a_success_resolves_its_own_tools_errors() -> None:
    both = ErrorContext().failed(error("a", "x")).failed(error("b", "y"), "err_1")
    assert render(both.succeeded("a")) == error_block(error("b", "y"), "err_1")


def test_equal_errors_are_resolved_one_by_one() -> None:
    twice = context("same", "same")
    assert render(without(twice, {twice.open[0].number})) == error_block(error("t", "same"))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab")), max_size=30), st.integers(-2, 6))
def test_what_is_shown_and_what_is_hidden_are_all_open_errors(
    ops: list[tuple[bool, str]], shown: int
) -> None:
    """Law: blocks and the hidden number add up to the open errors; numbers never come again."""
    state, expected, numbers = ErrorContext(), list[str](), set[int]()
    for ok, tool in ops:
        if ok:
            state, expected = state.succeeded(tool), [t for t in expected if t != tool]
        else:
            state, expected = state.failed(error(tool, "m")), [*expected, tool]
            assert state.last not in numbers
            numbers.add(state.last)
    assert [e.error.tool_name for e in state.open] == expected
    text = render(state, shown)
    blocks = text.count("<error>\n")
    assert blocks == min(max(shown, 0), len(expected))
    hidden = int(text.split("\n")[1].split(" ")[0]) if text.startswith("<error_summary>") else 0
    assert blocks + hidden == len(expected)
    assert text == render(state, shown)


# Classes of failures, and several people

classes = st.sampled_from(["", *FAILURES])
people = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob"]),
        st.lists(classes, max_size=4),
        st.sampled_from(["", "silent", "limited", "stopped", "failed"]),
    ),
    max_size=12,
)


@given(people)
def test_only_faults_of_the_same_person_count_until_an_answer(
    runs: list[tuple[str, list[str], str]],
) -> None:
    """Law: in a group, a person's row is their faults since their last success or answered run."""
    rows: list[ChatMessage] = []
    expected = 0
    for number, (person, ends, note) in enumerate(runs):
        rows.append(UserMessage(with_author(person, "go")))
        for index, failure in enumerate(ends):
            made = Call(f"c{number}_{index}", "t")
            outcome: Outcome = "failed" if failure else "done"
            rows.append(AssistantMessage("", (made,)))
            rows.append(ToolMessage(made.id, "t", "no", outcome, failure))  # type: ignore[arg-type]  # drawn
            if person == "ann":
                counted = failure in ("fault", "infrastructure")
                expected = 0 if not failure else expected + counted
        rows.append(AssistantMessage("so", (), note))  # type: ignore[arg-type]  # drawn
        if person == "ann" and note in ("", "silent"):
            expected = 0
    found = failures_before(rows, Limits(), said_by=partial(begun_by, sender="ann"))
    assert found.tracker.rows.get("t", 0) == expected


def test_the_text_of_an_answer_stays_in_later_requests() -> None:
    call = Call("c", "t")
    row = ToolMessage("c", "t", "FAILED test_sum\n" * 50, "failed", "negative")
    rows = (UserMessage("go"), AssistantMessage("", (call,)), row, AssistantMessage("I see"))
    assert with_error_blocks(rows) == rows
    assert not any_failed(rows)


def test_a_row_of_an_older_host_counts_as_a_fault() -> None:
    assert class_of("failed") == "fault"
    assert counts_as("failed") == "error"
    assert counts_as("failed", "negative") == "neither"


@pytest.mark.parametrize("failure", FAILURES)
def test_every_class_has_its_row_and_only_faults_count(failure: FailureClass) -> None:
    row = TAXONOMY[failure]
    faulty = failure in ("fault", "infrastructure")
    assert row.counted == (row.verdict in ("failed", "down")) == faulty
    assert row.watched != row.counted
