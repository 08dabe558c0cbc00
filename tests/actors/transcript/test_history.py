"""The rows a provider is sent: the last turns, every call with one result, roles in turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.transcript.grammar import violations, with_unique_ids
from motet.actors.transcript.history import (
    EMPTY_SCAN,
    MISSING,
    begins_turn,
    last_turns,
    make_sendable,
    repair,
    sendable,
)
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from tests.actors.runs.builders import any_rows
from tests.actors.runs.histories import histories, rows_of


def broken(rows: tuple[ChatMessage, ...]) -> list[str]:
    """What a provider refuses; a first row of the agent's own it mostly takes."""
    first = "an assistant row that answers nothing"
    return [problem for problem in violations(rows) if problem != f"row 0: {first}"]


@given(any_rows)
def test_whatever_is_stored_what_is_sent_is_well_formed(rows: list[ChatMessage]) -> None:
    """Law: sendable rows of any rows are well formed, and stay as they are when sent again."""
    sent = sendable(rows)
    assert broken(sent) == []
    assert sendable(sent) == sent


@given(any_rows | histories().map(list))
def test_rows_that_are_let_through_are_those_that_would_not_be_changed(
    rows: list[ChatMessage],
) -> None:
    """Law: the look at the rows says exactly whether the whole work would give them back."""
    made = make_sendable(rows)
    assert EMPTY_SCAN.extended_to(tuple(rows)).is_sendable == (made == tuple(rows))
    assert sendable(rows) == made
    assert EMPTY_SCAN.extended_to(made).is_sendable


@given(histories())
def test_a_valid_transcript_is_only_merged(rows: tuple[ChatMessage, ...]) -> None:
    """Law: nothing is dropped, nothing made up, no text is lost."""
    done = repair(rows)
    assert (done.rows, done.dropped) == (rows, 0)
    words = "\n\n".join(row.text for row in rows if row.text)
    assert "\n\n".join(row.text for row in sendable(rows) if row.text) == words


@given(histories(), st.integers(-1, 8))
def test_a_limit_keeps_the_last_turns_whole(rows: tuple[ChatMessage, ...], turns: int) -> None:
    """Law: it is the end of the rows, begins with a turn, and holds that many, if there are."""
    kept = last_turns(rows, turns)
    starts = sum(map(begins_turn, rows))
    assert tuple(kept) == rows[len(rows) - len(kept) :]
    if turns <= 0 or starts <= turns:
        assert len(kept) == len(rows)
    else:
        assert sum(map(begins_turn, kept)) == turns
        assert begins_turn(kept[0])


def test_what_was_put_into_a_turn_does_not_count_as_one() -> None:
    rows = rows_of("uctiaua")
    assert last_turns(rows, 2) == rows
    assert last_turns(rows, 1) == rows[5:]


def test_a_users_row_between_two_results_comes_after_them() -> None:
    calls = AssistantMessage("", (Call("1", "x"), Call("2", "x")))
    one, two = ToolMessage("1", "x", "one"), ToolMessage("2", "x", "two")
    asked, hurry = UserMessage("go"), UserMessage("hurry", note="injected")
    assert repair([asked, calls, two, hurry, one]).rows == (asked, calls, one, two, hurry)


def test_a_missing_result_is_said_to_be_missing_in_call_order() -> None:
    calls = AssistantMessage("", (Call("1", "x"), Call("2", "y"), Call("3", "x")))
    done = repair([UserMessage("go"), calls, ToolMessage("2", "y", "two")])
    results = [row for row in done.rows if isinstance(row, ToolMessage)]
    assert [(row.call_id, row.text) for row in results] == [
        ("1", MISSING),
        ("2", "two"),
        ("3", MISSING),
    ]
    assert done.dropped == 2


def test_of_two_calls_with_one_id_the_first_is_sent() -> None:
    calls = AssistantMessage("", (Call("1", "x"), Call("1", "y")))
    one = ToolMessage("1", "x", "one")
    asked = UserMessage("go")
    assert sendable((asked, calls, one)) == (asked, AssistantMessage("", (Call("1", "x"),)), one)


def test_rows_of_one_role_are_merged_and_speakers_stay_told_apart() -> None:
    rows = (UserMessage("hi", "ann"), UserMessage("ho", "bob"), AssistantMessage("a"))
    assert sendable(rows) == (UserMessage("ann: hi\n\nbob: ho"), AssistantMessage("a"))


@given(st.lists(st.sampled_from(["", "call_1", "x" * 80]), max_size=5), st.integers(0, 9))
def test_own_ids_are_short_and_no_two_calls_share_one(ids: list[str], iteration: int) -> None:
    calls = [Call(id, "look") for id in ids]
    own = with_unique_ids(calls, "run", iteration)
    elsewhere = with_unique_ids(calls, "run", iteration + 1)
    assert len({call.id for call in (*own, *elsewhere)}) == 2 * len(calls)
    assert all(len(call.id) == 40 for call in own)
    assert with_unique_ids(calls, "run", iteration) == own
