"""A run whose conversation grows beside it: what it shows its model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.transcript.window import ContextWindow
from motet.protocols.chat import AssistantMessage, ChatMessage, UserMessage

OWN = (UserMessage("mine"), AssistantMessage("working"))


def talk(*texts: str) -> tuple[ChatMessage, ...]:
    return tuple(row for text in texts for row in (UserMessage(text), AssistantMessage(f"{text}!")))


def test_what_others_have_added_comes_before_the_running_turn() -> None:
    view = ContextWindow(history=talk("a")).rebased(talk("a", "b"), "")
    assert view.visible(OWN) == (*talk("a", "b"), *OWN)


def test_a_summary_that_another_has_stored_takes_the_place_of_its_rows() -> None:
    view = ContextWindow(history=talk("a")).rebased(talk("b"), "they spoke of a")
    assert (view.visible(OWN), view.summary) == ((*talk("b"), *OWN), "they spoke of a")


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 8), st.booleans())
def test_a_view_that_is_rebased_loses_nothing_that_it_has_shown(
    before: int, after: int, covered: int, moved: bool
) -> None:
    """Law: what a run has shown of itself and, once it has summarised a part, of the rows behind,
    stays; what was added is shown whole or not at all.
    """
    old, new = talk(*"abc"[:before]), talk(*"xyz"[:after])
    view = ContextWindow(
        history=old, covered=min(covered, len(old) + 1), summary="s" if covered else ""
    )
    rebased = view.rebased(new if moved else old + new, view.summary)
    shown, now = view.visible(OWN), rebased.visible(OWN)
    assert now[-1:] == shown[-1:] == OWN[-1:]
    if view.covered:
        kept = [row for row in now if row in shown]
        assert kept == list(shown)
        assert len(now) in (len(shown), len(shown) + len(new))
