"""Counted failures are rebuilt from the transcript, and errors are sent short."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.errors.classify import failure_text, parse_failure_text
from motet.actors.errors.tracker import (
    LINE_LIMIT,
    RESOLVED,
    SENT_LIMIT,
    ErrorTracker,
    Failures,
    failures_before,
    with_error_blocks,
)
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import (
    AssistantMessage,
    Call,
    ChatMessage,
    Outcome,
    ToolMessage,
    UserMessage,
)
from motet.protocols.limits import Limits

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
            calls = {call.id: call for call in row.calls}
        elif isinstance(row, ToolMessage):
            state, _ = state.ended(calls[row.call_id], row.outcome, row.text)
    return state


@given(batches)
def test_what_is_rebuilt_equals_what_was_kept(
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
    state, _ = Failures().ended(call, "failed", "whatever", "timeout")
    state, _ = state.ended(call, "failed", "no such file", "retry")
    assert [error.error_type for error in state.tracker.history] == ["timeout", "not_found"]
    assert isinstance(state.tracker, ErrorTracker)
