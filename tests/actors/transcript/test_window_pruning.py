"""Old results get shorter when the window fills up; nothing else changes, and nothing grows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.actors.transcript.history import Calibration, estimate, overhead
from motet.actors.transcript.window import (
    CLEARED,
    PRUNING,
    Pruning,
    assistant_cutoff,
    important_tail,
    prune,
    trimmed,
)
from motet.protocols.chat import (
    AssistantMessage,
    Call,
    ChatMessage,
    Outcome,
    ToolMessage,
    UserMessage,
)
from motet.protocols.tools import ToolSpec
from tests.actors.runs.histories import histories, rows_of

settings_of = st.builds(
    Pruning,
    trim_at=st.floats(0.01, 1),
    clear_at=st.floats(0.01, 1),
    clear_chars=st.sampled_from([0, 5_000, 50_000]),
    long=st.integers(0, 5_000),
    head=st.integers(0, 4_000),
    tail=st.integers(0, 4_000),
    keep_assistants=st.integers(0, 4),
    cleared=st.sampled_from(["", CLEARED, "cleared " * 40]),
)


@given(histories(), st.integers(0, 20_000), settings_of)
@settings(max_examples=120)
def test_pruning_never_makes_longer_and_never_touches_the_protected_zone(
    rows: tuple[ChatMessage, ...], window: int, how: Pruning
) -> None:
    """Law: rows keep number, order and kind; only results outside the zone change, and shrink."""
    after = prune(rows, window, how=how)
    assert len(after) == len(rows)
    first = next((at for at, row in enumerate(rows) if isinstance(row, UserMessage)), len(rows))
    cutoff = assistant_cutoff(rows, how.keep_assistants)
    for at, (row, now) in enumerate(zip(rows, after, strict=True)):
        if row == now:
            continue
        assert isinstance(row, ToolMessage)
        assert isinstance(now, ToolMessage)
        assert now.call_id == row.call_id
        assert len(now.text) < len(row.text)
        assert cutoff is not None
        assert first < at < cutoff
    assert list(prune(rows, window, how=how)) == list(after)


def with_results(*sizes: int) -> tuple[ChatMessage, ...]:
    rows: list[ChatMessage] = [UserMessage("go")]
    for at, size in enumerate(sizes):
        rows += [AssistantMessage("", (Call(f"{at}", "t"),)), ToolMessage(f"{at}", "t", "x" * size)]
    return (*rows, *rows_of("aua")[0:1], UserMessage("b"), AssistantMessage("c"))


def sizes(rows: tuple[ChatMessage, ...], window: int, how: Pruning = PRUNING) -> list[int]:
    after = prune(rows, window, how=how)
    return [len(row.text) for row in after if isinstance(row, ToolMessage)]


def test_below_three_tenths_of_the_window_nothing_happens() -> None:
    rows = with_results(9_000, 9_000)
    assert sizes(rows, 20_003) == [9_000, 9_000]
    assert sizes(rows, 20_000) == [3_086, 9_000]


def test_results_are_cleared_from_the_oldest_on_until_there_is_room() -> None:
    rows = with_results(*[4_000] * 20)
    window = estimate(rows) * 2 - 3_000
    cleared = sizes(rows, window).count(len(CLEARED))
    assert 0 < cleared < 10
    assert sizes(rows, window)[:cleared] == [len(CLEARED)] * cleared


def test_few_results_are_not_cleared_however_full_the_window_is() -> None:
    assert sizes(with_results(*[4_000] * 12), 1_000) == [4_000] * 12


FAILED = "Tool 't' failed: " + "no " * 20
grown = st.lists(st.sampled_from([FAILED, "fine", "x" * 3_000]), min_size=1, max_size=24)


@given(grown, st.sampled_from([1_000, 4_000, 20_000]), st.integers(1, 4))
def test_errors_are_shortened_only_when_another_result_is_pruned(
    texts: list[str], window: int, keep: int
) -> None:
    """Law: a request that prunes the same results as the last one, and as far, begins with it, byte
    for byte."""
    how = Pruning(keep_assistants=keep, long=1_000, head=300, tail=300, clear_chars=4_000)
    rows: list[ChatMessage] = [UserMessage("go")]
    sent, pruned = list[ChatMessage](), dict[int, str]()
    for at, text in enumerate(texts):
        outcome: Outcome = "failed" if text == FAILED else "done"
        rows += [
            AssistantMessage("", (Call(f"{at}", "t"),)),
            ToolMessage(f"{at}", "t", text, outcome, kind="timeout" if outcome == "failed" else ""),
        ]
        now = list(prune(rows, window, how=how))
        changed = {n for n, (a, b) in enumerate(zip(rows, now, strict=True)) if a.text != b.text}
        # A failed result is one of the others where it is cleared as any result is.
        others = {
            n: now[n].text for n in changed if rows[n].text != FAILED or now[n].text == CLEARED
        }
        assert not changed or others
        if others == pruned:
            assert now[: len(sent)] == sent
        sent, pruned = now, others


def test_an_important_tail_gets_seven_tenths_of_the_room() -> None:
    text = "x" * 5_000 + "\nexit code 1"
    assert important_tail(text)
    assert not important_tail("an error" + " and so on" * 60)
    short = trimmed(text)
    assert short.startswith("x" * 900 + "\n...\n")
    assert "kept first 900 chars and last 2100 chars of 5012 chars" in short


def test_the_providers_count_and_the_overhead_decide() -> None:
    rows = with_results(9_000, 3_000)
    assert prune(rows, 100_000) == rows
    assert prune(rows, 100_000, calibration=Calibration(estimate(rows), 40_000)) != rows
    assert prune(rows, 100_000, around=40_000) != rows


def test_a_provider_that_still_has_the_prompt_need_not_read_it_again() -> None:
    how = Pruning(cache_ttl="5m")
    rows = with_results(9_000, 3_000)
    assert prune(rows, 10_000, how=how, idle=299) == rows
    assert prune(rows, 10_000, how=how, idle=300) != rows
    assert prune(rows, 10_000, how=how) != rows
    assert prune(rows, 5_000, how=how, idle=1) != rows, "there is no room to be spared"


@pytest.mark.parametrize(
    "wrong",
    [{"trim_at": 0.0}, {"clear_at": 1.5}, {"head": -1}, {"cache_ttl": "soon"}, {"cache_ttl": "0s"}],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Pruning(**wrong)  # type: ignore[arg-type]  # the values are what is tested


@given(histories(), histories())
def test_an_estimate_is_the_sum_of_its_parts(
    one: tuple[ChatMessage, ...], two: tuple[ChatMessage, ...]
) -> None:
    """Law: estimates add up; a calibrated count grows and shrinks with the estimate."""
    assert estimate(one + two) == estimate(one) + estimate(two)
    calibration = Calibration(estimate(one), 5_000)
    counts = [calibration.tokens(size) for size in sorted([0, 1, estimate(one), estimate(two)])]
    assert counts == sorted(counts)
    if estimate(one):
        assert calibration.tokens(estimate(one)) == 5_000


def test_arguments_of_calls_and_descriptions_of_tools_count() -> None:
    call = AssistantMessage("", (Call("1", "write", '{"content": "' + "x" * 300 + '"}'),))
    assert estimate([call]) == 105
    assert overhead("x" * 30, [ToolSpec("t", "d" * 300, {"type": "object"})]) > 110
