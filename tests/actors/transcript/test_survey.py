"""What is known of rows is kept while others come in behind, and never of other rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.errors.tracker import any_failed
from motet.actors.transcript.history import NOTHING, estimate
from motet.actors.transcript.window import View
from motet.protocols.chat import AssistantMessage, ChatMessage, UserMessage
from tests.actors.runs.builders import any_rows
from tests.actors.runs.histories import histories

rows_of_any_kind = any_rows | histories().map(list)


@given(rows_of_any_kind, st.lists(st.integers(0, 40)))
def test_a_survey_is_the_same_in_however_many_pieces_the_rows_came(
    rows: list[ChatMessage], cuts: list[int]
) -> None:
    """Law: what came before is not looked at again, and it makes no difference."""
    whole = survey = NOTHING.over(tuple(rows))
    for at in cuts:
        survey = survey.over(tuple(rows[:at])).over(tuple(rows))
        assert survey == whole
    assert (whole.estimated, whole.any_failed) == (estimate(rows), any_failed(rows))


@given(rows_of_any_kind, rows_of_any_kind)
def test_of_other_rows_nothing_is_taken_over(
    rows: list[ChatMessage], others: list[ChatMessage]
) -> None:
    """Law: a survey of any rows at all gives that of these."""
    assert NOTHING.over(tuple(others)).over(tuple(rows)) == NOTHING.over(tuple(rows))


@given(histories(), histories(), st.sampled_from(["", "what was before"]), st.integers(0, 3))
def test_what_a_view_knows_already_changes_nothing_that_is_sent(
    rows: tuple[ChatMessage, ...], others: tuple[ChatMessage, ...], summary: str, turns: int
) -> None:
    """Law: a request is the same whatever the view has surveyed before."""
    view = View(rows[:-1], summary, 1_000, turns)
    knows = View(rows[:-1], summary, 1_000, turns, survey=NOTHING.over(others))
    again = View(rows[:-1], summary, 1_000, turns, survey=view.sent(()).survey)
    assert knows.sent(rows[-1:]) == again.sent(rows[-1:]) == view.sent(rows[-1:])


def test_rows_of_one_role_do_not_follow_each_other() -> None:
    survey = NOTHING.over((UserMessage("hi"),))
    assert survey.may_follow(AssistantMessage("hello"))
    assert not survey.may_follow(UserMessage("hello"))
    assert NOTHING.may_follow(UserMessage("hello"))
