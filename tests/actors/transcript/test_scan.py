"""What is known of rows is kept while others come in behind, and never of other rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.errors.tracker import any_failed
from motet.actors.transcript.history import EMPTY_SCAN, estimate
from motet.actors.transcript.window import ContextWindow
from motet.protocols.chat import AssistantMessage, ChatMessage, UserMessage
from tests.actors.runs.builders import any_rows
from tests.actors.runs.histories import histories

rows_of_any_kind = any_rows | histories().map(list)


@given(rows_of_any_kind, st.lists(st.integers(0, 40)))
def test_a_survey_is_the_same_in_however_many_pieces_the_rows_came(
    rows: list[ChatMessage], cuts: list[int]
) -> None:
    """Law: what came before is not looked at again, and it makes no difference."""
    whole = scan = EMPTY_SCAN.extended_to(tuple(rows))
    for at in cuts:
        scan = scan.extended_to(tuple(rows[:at])).extended_to(tuple(rows))
        assert scan == whole
    assert (whole.estimated, whole.any_failed) == (estimate(rows), any_failed(rows))


@given(rows_of_any_kind, rows_of_any_kind)
def test_of_other_rows_nothing_is_taken_over(
    rows: list[ChatMessage], others: list[ChatMessage]
) -> None:
    """Law: a scan of any rows at all gives that of these."""
    assert EMPTY_SCAN.extended_to(tuple(others)).extended_to(tuple(rows)) == EMPTY_SCAN.extended_to(
        tuple(rows)
    )


@given(histories(), histories(), st.sampled_from(["", "what was before"]), st.integers(0, 3))
def test_what_a_view_knows_already_changes_nothing_that_is_sent(
    rows: tuple[ChatMessage, ...], others: tuple[ChatMessage, ...], summary: str, turns: int
) -> None:
    """Law: a request is the same whatever the view has surveyed before."""
    view = ContextWindow(rows[:-1], summary, 1_000, turns)
    knows = ContextWindow(rows[:-1], summary, 1_000, turns, scan=EMPTY_SCAN.extended_to(others))
    again = ContextWindow(rows[:-1], summary, 1_000, turns, scan=view.prepare(()).scan)
    assert knows.prepare(rows[-1:]) == again.prepare(rows[-1:]) == view.prepare(rows[-1:])


def test_rows_of_one_role_do_not_follow_each_other() -> None:
    scan = EMPTY_SCAN.extended_to((UserMessage("hi"),))
    assert scan.can_follow(AssistantMessage("hello"))
    assert not scan.can_follow(UserMessage("hello"))
    assert EMPTY_SCAN.can_follow(UserMessage("hello"))
