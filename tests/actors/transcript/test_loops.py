"""When a run goes in circles, by three detectors, and what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from motet.actors.errors.classify import failure_text
from motet.actors.transcript.guards import (
    Detector,
    Kind,
    Level,
    Loop,
    LoopDetector,
    before_request,
    kind_of,
)
from motet.protocols.chat import Call, FailureClass, Outcome
from motet.protocols.tools import CallResult

KINDS: dict[str, Kind] = {"save": "write", "poll": "polling"}
ID = "err_20261121_070501_a1b2c3"
OTHER_ID = "err_20261121_070502_d4e5f6"

Played = tuple[str, str, str]
"""Tool, arguments, result."""


def pair(
    tool: str,
    arguments: str = "{}",
    text: str = "same",
    outcome: Outcome = "done",
    failure: FailureClass | Literal[""] = "",
) -> tuple[Call, CallResult]:
    return Call("c", tool, arguments), CallResult("c", tool, text, outcome, failure=failure)


def levels(loops: LoopDetector, played: Sequence[tuple[Call, CallResult]]) -> list[Level | None]:
    """The word on each of these calls, one to an answer."""
    found = [loops.observe_batch([one]) for one in played]
    return [one.level if one else None for one in found]


def test_the_third_equal_call_is_a_warning_and_the_fifth_is_critical() -> None:
    assert levels(LoopDetector(), [pair("look")] * 5) == [
        None,
        None,
        "warning",
        "warning",
        "critical",
    ]


def test_another_result_is_another_call() -> None:
    assert (
        levels(LoopDetector(KINDS), [pair("save", text=str(n)) for n in range(30)]) == [None] * 30
    )


def test_a_failure_is_the_same_under_whatever_id_it_is_stored() -> None:
    texts = [failure_text("look", "disk is full", one) for one in (ID, OTHER_ID, ID)]
    played = [pair("look", text=text, outcome="failed") for text in texts]
    assert levels(LoopDetector(), played) == [None, None, "warning"]


def test_a_refusal_is_the_same_however_long_it_still_holds() -> None:
    texts = [f"taken out after 5 failures; it can be tried again in {n} s" for n in (29, 28, 9)]
    refused = [pair("look", text=text, outcome="failed", failure="refusal") for text in texts]
    assert levels(LoopDetector(), refused) == [None, None, "warning"]
    faults = [pair("look", text=text, outcome="failed", failure="fault") for text in texts]
    assert levels(LoopDetector(), faults) == [None] * 3


def test_equal_results_of_different_calls_are_a_loop_from_the_fourth_on() -> None:
    played = [pair("look", f'{{"n":{n}}}', "nothing found") for n in range(6)]
    assert levels(LoopDetector(), played) == [None, None, None, "warning", "warning", "critical"]


def test_writes_that_are_confirmed_in_the_same_words_are_no_loop_but_failing_ones_are() -> None:
    confirmed = [pair("save", f'{{"n":{n}}}', "ok") for n in range(9)]
    refused = [pair("save", f'{{"n":{n}}}', "no", "denied") for n in range(6)]
    assert levels(LoopDetector(KINDS), confirmed) == [None] * 9
    assert levels(LoopDetector(KINDS), refused)[-1] == "critical"


def test_a_negative_result_is_no_loop_when_another_tool_has_written_in_between() -> None:
    tested = pair("run_tests", text="1 failed", outcome="failed", failure="negative")
    edits = [pair("save", f'{{"n":{n}}}', "ok") for n in range(9)]
    assert levels(LoopDetector(KINDS), [tested] * 5)[-1] == "critical"
    loop = [one for edit in edits for one in (edit, tested)]
    assert levels(LoopDetector(KINDS), loop) == [None] * 18
    done = [one for edit in edits for one in (edit, pair("run_tests", text="1 failed"))]
    assert levels(LoopDetector(KINDS), done)[-1] == "critical"


def test_a_row_of_reads_of_few_things_is_a_loop_and_a_write_ends_it() -> None:
    reads = [pair("look", f'{{"n":{n % 4}}}', str(n)) for n in range(12)]
    assert levels(LoopDetector(KINDS), reads) == [None] * 7 + ["warning"] * 4 + ["critical"]
    assert levels(LoopDetector(KINDS), [*reads[:7], pair("save"), *reads[:7]]) == [None] * 15


def test_reads_of_many_different_things_are_remarked_on_late_and_never_critical() -> None:
    reads = [pair("look", f'{{"n":{n}}}', str(n)) for n in range(60)]
    assert levels(LoopDetector(), reads) == [None] * 23 + ["warning"] * 37


def test_polling_is_never_a_loop_and_does_not_end_one() -> None:
    loops = LoopDetector(KINDS)
    assert levels(loops, [pair("poll")] * 40) == [None] * 40
    assert levels(loops, [pair("look"), pair("poll")] * 3)[-2] == "warning"


def test_calls_outside_the_window_are_forgotten() -> None:
    others = [pair("save", f'{{"n":{n}}}', str(n)) for n in range(28)]
    assert levels(LoopDetector(KINDS), [pair("look")] * 2 + others + [pair("look")]) == [None] * 31
    kept = [pair("look")] * 2 + others[:27] + [pair("look")]
    assert levels(LoopDetector(KINDS), kept)[-1] == "warning"


def test_no_run_is_closed_without_a_warning() -> None:
    loops = LoopDetector()
    first, second = loops.observe_batch([pair("look")] * 9), loops.observe_batch([pair("look")])
    assert first is not None
    assert (first.level, first.count) == ("warning", 9)
    assert second is not None
    assert second.level == "critical"


def test_a_tool_is_known_by_its_name_its_action_or_its_prefix() -> None:
    kinds: dict[str, Kind] = {
        "board": "write",
        "board:": "polling",
        "board:list": "read",
        "mcp_*": "polling",
        "mcp_git_*": "write",
    }
    expected: dict[tuple[str, str], Kind] = {
        ("board", '{"action":"list"}'): "read",
        ("board", '{"action":"claim"}'): "write",
        ("board", "{}"): "polling",
        ("board", "{"): "polling",
        ("board", '{"action":1}'): "polling",
        ("mcp_x", "{}"): "polling",
        ("mcp_git_push", "{}"): "write",
        ("unknown", "{}"): "read",
    }
    assert {pair: kind_of(Call("c", *pair), kinds) for pair in expected} == expected


@pytest.mark.parametrize("detector", ["same_call", "same_result", "reads"])
def test_a_warning_names_the_tool_and_the_count_and_says_what_to_do(detector: Detector) -> None:
    finding = Loop(detector, "warning", "look", 7, 2)
    for text in (before_request(5, 20, closing, finding) for closing in ("", "tool_loop")):
        assert text.startswith("[System: ")
        assert text.endswith("]")
        assert "look" in text
        assert "7" in text
        assert "answer" in text
        assert len(text) < 300


played = st.lists(
    st.tuples(
        st.sampled_from(["look", "find", "save", "poll"]),
        st.sampled_from(['{"n":1}', '{"n":2}', '{ "n": 1.0 }', '{"n":']),
        st.sampled_from(["a", "b"]),
    ),
    max_size=60,
)
MEANING = {'{ "n": 1.0 }': '{"n":1}'}


def recount(before: Sequence[Played]) -> set[tuple[str, Level]]:
    """What the detectors say of the last of these calls, counted anew from all of them."""
    meant = [(tool, MEANING.get(args, args), text) for tool, args, text in before if tool != "poll"]
    if not before or before[-1][0] == "poll":
        return set()
    tool, _, text = last = meant[-1]
    window = meant[-30:]
    calls = window.count(last)
    results = sum((t, r) == (tool, text) for t, _, r in window)
    writes = [at for at, (t, _, _) in enumerate(meant) if t == "save"]
    reads = meant[writes[-1] + 1 :] if writes else meant
    few = len({(t, a) for t, a, _ in reads}) <= 0.6 * len(reads)
    counts: list[tuple[str, int, int, float]] = [
        ("same_call", calls, 3, 5),
        ("same_result", 0 if tool == "save" else results, 4, 6),
        ("reads", len(reads), 8 if few else 24, 12 if few else inf),
    ]
    return {
        (name, "critical" if count >= critical else "warning")
        for name, count, warning, critical in counts
        if count >= warning
    }


@given(played)
@example([("look", '{"n":1}', "a")] * 40)
def test_detection_equals_a_recount_of_all_calls(calls: list[Played]) -> None:
    """Law: after every call each detector says what counting from the beginning says."""
    loops = LoopDetector(KINDS)
    for place, (tool, arguments, text) in enumerate(calls):
        found = loops.observe(*pair(tool, arguments, text))
        assert {(one.detector, one.level) for one in found} == recount(calls[: place + 1])
