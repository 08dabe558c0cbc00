"""The context window of a run: prepared rows, compactions, and growing histories."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from motet.actors.transcript.grammar import violations
from motet.actors.transcript.history import estimate
from motet.actors.transcript.summary import HEADER
from motet.actors.transcript.window import ContextWindow
from motet.protocols.chat import AssistantMessage, ChatMessage, UserMessage
from motet.protocols.models import ModelResponse
from tests.actors.runs.histories import histories, rows_of

windows = st.sampled_from([200, 1_000, 5_000, 20_000, 200_000])
answers = st.sampled_from(["", "short", "a summary of what was said, " * 3, "long " * 9_000])


@given(histories(), windows, st.integers(0, 3), st.integers(0, 500))
@settings(max_examples=80)
def test_prepared_rows_are_valid_for_a_provider(
    rows: tuple[ChatMessage, ...], window: int, turns: int, around: int
) -> None:
    """Law: of a valid transcript, limit, prune and repair make valid rows, and so again."""
    view = ContextWindow(rows, "what was before", window, turns)
    sent = view.prepare((), around)
    assert violations(sent.messages) == ()
    assert isinstance(sent.messages[0], UserMessage)
    assert ContextWindow(sent.messages, window=0).prepare(()).messages == sent.messages


@given(histories(), windows, st.integers(0, 3), st.integers(0, 500))
@settings(max_examples=80)
def test_the_estimate_is_that_of_the_rows_that_are_sent(
    rows: tuple[ChatMessage, ...], window: int, turns: int, around: int
) -> None:
    """Law: whether or not rows were pruned or merged, what is sent is what is counted."""
    view = ContextWindow(rows, "what was before", window, turns)
    sent = view.prepare((), around)
    assert sent.estimated == estimate(sent.messages) + around
    assert view.count(rows) == len(view.visible(rows))


@given(histories(), st.integers(0, 40), windows, st.lists(answers, min_size=1, max_size=4))
@settings(max_examples=80)
def test_a_compaction_shrinks_the_request_or_says_that_it_cannot(
    rows: tuple[ChatMessage, ...], own: int, window: int, summaries: list[str]
) -> None:
    """Law: after each compaction what is sent is valid, and shorter, or ``stalled`` went up; the
    rows behind the cut and the request of the cut turn are still there."""
    split = max(len(rows) - own, 0)
    running = rows[split:]
    view = ContextWindow(rows[:split], "", window)
    for text in summaries:
        sent = view.prepare(running)
        plan = view.plan(sent, running, overflow=True)
        if plan is None:
            return
        after = view.compacted(plan, ModelResponse(text), running)
        now = after.prepare(running)
        assert violations(now.messages) == ()
        if after.covered == view.covered:
            assert after == replace(view, stalled=view.stalled + 1)
        else:
            assert now.estimated < sent.estimated
            kept = after.visible(running)
            assert after.count(running) == len(kept)
            assert kept[0] == (plan.pinned or rows[plan.covered])
            assert kept[-4:] == rows[-4:]
        view = after


def test_one_long_turn_is_compacted_between_two_batches_and_its_request_stays() -> None:
    rows = rows_of("u" + "ctt" * 8, size=4_000)
    view = ContextWindow(window=30_000)
    plan = view.plan(view.prepare(rows), rows)
    assert plan is not None
    after = view.compacted(plan, ModelResponse("Half of it is done, see /tmp/out.txt"), rows)
    messages = after.prepare(rows).messages
    assert after.stalled == 0
    assert messages[0] == UserMessage(
        f"{HEADER}\nHalf of it is done, see /tmp/out.txt", note="summary"
    )
    assert messages[2] == rows[0]
    assert isinstance(messages[3], AssistantMessage)
    assert messages[-1] == rows[-1]
    assert violations(messages) == ()


def test_the_next_compaction_covers_the_summary_of_the_one_before() -> None:
    rows = rows_of("u" + "ct" * 30, size=900)
    view = ContextWindow(window=10_000)
    first = view.plan(view.prepare(rows), rows, overflow=True)
    assert first is not None
    view = view.compacted(first, ModelResponse("the first summary"), rows)
    second = view.plan(view.prepare(rows), rows, overflow=True)
    assert second is not None
    assert second.previous == "the first summary"
    assert second.pinned == rows[0]
    assert second.rows[1:] == rows[first.covered : second.covered]


def test_no_compaction_is_due_below_three_quarters_of_the_window() -> None:
    rows = rows_of("uaua" * 10, size=30)
    view = ContextWindow(rows, window=534)
    assert view.prepare(()).tokens == 400
    assert view.plan(view.prepare(()), ()) is None
    assert ContextWindow(rows, window=533).plan(view.prepare(()), ()) is not None


def test_the_count_of_the_provider_decides_when_there_is_one() -> None:
    rows = rows_of("uaua" * 10, size=30)
    view = ContextWindow(rows, window=10_000)
    counted = view.calibrated(view.prepare(()), 7_600)
    assert counted.prepare(()).tokens == 7_600
    assert counted.plan(counted.prepare(()), ()) is not None
    assert view.calibrated(view.prepare(()), 0) == view


def test_a_model_that_fails_leaves_a_summary_made_of_the_rows() -> None:
    rows = rows_of("ua" * 20, size=900)
    view = ContextWindow(rows, window=5_000)
    plan = view.plan(view.prepare(()), ())
    assert plan is not None
    after = view.compacted(plan, None, ())
    assert "no model wrote it" in after.summary
    assert after.covered == plan.covered


def test_two_compactions_without_progress_end_the_run_with_a_clear_error() -> None:
    view = ContextWindow(window=1_000)
    assert view.stuck == ""
    assert view.without_progress().stuck == ""
    stuck = view.without_progress().without_progress().stuck
    assert "window of 1000 tokens" in stuck
    assert "reset the session" in stuck


# A run whose conversation grows beside it: what it shows its model.

OWN = (UserMessage("mine"), AssistantMessage("working"))


def talk(*texts: str) -> tuple[ChatMessage, ...]:
    return tuple(row for text in texts for row in (UserMessage(text), AssistantMessage(f"{text}!")))


def test_rows_added_by_others_come_before_the_running_turn() -> None:
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
