"""Reading a journal that a kill has cut anywhere: laws on generated runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.actors.sessions.recovery_plan import (
    has_begun,
    refusal,
    resumption,
    rows_of,
    unrepeatable,
)
from motet.actors.storage.recovery import UnfinishedRun, replace_journals
from motet.actors.storage.tables import decode_message
from motet.actors.transcript.grammar import close_calls, held, violations
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.limits import Limits
from motet.protocols.recovery import InputOptions, RecoveryConfig
from motet.protocols.sessions import RunInfo

CONFIG, LIMITS = RecoveryConfig(), Limits()
INFO = RunInfo("run_1", "s", "a", "alice", "running", "do it", created=100.0, updated=101.0)
OPERATOR = InputOptions("operator")


def left(
    *rows: ChatMessage, given: InputOptions | None = OPERATOR, seen: float = 110.0
) -> UnfinishedRun:
    return UnfinishedRun(INFO, given, seen, rows=rows)


def asks(*names: str, batch: int = 0) -> AssistantMessage:
    calls = (Call(f"c{batch}_{index}", name) for index, name in enumerate(names))
    return AssistantMessage("", tuple(calls))


def got(name: str, index: int = 0, batch: int = 0) -> ToolMessage:
    return ToolMessage(f"c{batch}_{index}", name, f"{name} done")


def is_read(name: str) -> bool:
    return name == "read"


NAMES = st.lists(st.sampled_from(["read", "write"]), min_size=1, max_size=3)


@st.composite
def cut_runs(draw: st.DrawFn) -> tuple[list[ChatMessage], list[str]]:
    """A journal as a kill leaves it, and the names of the calls whose results are not in it.

    Results of one answer are noted in any order, and some of the last one's are lost. An input
    that has no gates is not in it.
    """
    rows: list[ChatMessage] = [UserMessage("do it")] if draw(st.booleans()) else []
    batches = draw(st.lists(NAMES, max_size=4))
    lost: list[str] = []
    for number, names in enumerate(batches):
        rows.append(asks(*names, batch=number))
        results = [got(name, index, number) for index, name in enumerate(names)]
        if number == len(batches) - 1:
            known = draw(st.lists(st.sampled_from(results), unique_by=lambda row: row.call_id))
            lost = [row.name for row in results if row not in known]
            results = known
        elif draw(st.booleans()) and number < len(batches) - 2:
            results.reverse()
        rows += results
    return rows, lost


@settings(max_examples=200, deadline=None)
@given(cut_runs())
def test_a_resumed_run_repeats_exactly_the_calls_without_a_result(
    run: tuple[list[ChatMessage], list[str]],
) -> None:
    """Law: the calls that are run again are those that have no result, and all of them may be."""
    rows, lost = run
    one = left(*rows)
    assert refusal(one, CONFIG, now=120.0) == ""
    assert unrepeatable(one, is_read) == ("write" if "write" in lost else "")
    if not has_begun(one):
        assert lost == []
        return
    journal = rows_of(one, LIMITS)
    assert violations(close_calls(journal, "unknown")) == ()
    going = resumption(one, OPERATOR, journal, LIMITS)
    last = going.suspended.rows[-1]
    assert isinstance(last, AssistantMessage)
    done = {row.call_id for row in going.results}
    assert sorted(call.name for call in last.calls if call.id not in done) == sorted(lost)
    assert going.suspended.turn.turns == sum(isinstance(row, AssistantMessage) for row in journal)
    assert going.suspended.last == going.suspended.step + len(last.calls)


@settings(max_examples=100, deadline=None)
@given(cut_runs(), st.data())
def test_a_journal_with_results_of_a_missing_answer_is_refused(
    run: tuple[list[ChatMessage], list[str]], data: st.DataObject
) -> None:
    """Law: calls that were run and are not on record are never run again by guessing."""
    rows, _ = run
    answers = [
        at
        for at, row in enumerate(rows[:-1])
        if isinstance(row, AssistantMessage) and isinstance(rows[at + 1], ToolMessage)
    ]
    if answers:
        del rows[data.draw(st.sampled_from(answers))]
        assert refusal(left(*rows), CONFIG, now=120.0) == (
            "the host ended during this run, whose journal has gaps"
        )


def test_after_a_steering_message_the_model_is_asked_next() -> None:
    one = left(asks("read"), got("read"), UserMessage("and hurry", note="injected"))
    journal = rows_of(one, LIMITS)
    going = resumption(one, OPERATOR, journal, LIMITS)
    assert going.suspended.rows[-1] == UserMessage("and hurry", note="injected")
    assert going.results == ()


def test_a_hand_over_that_has_its_result_is_not_repeated_and_its_target_takes_over() -> None:
    one = left(asks("pass_on"), got("pass_on"), given=InputOptions("operator", next_agent="b"))
    assert one.given is not None
    journal = rows_of(one, LIMITS)
    going = resumption(one, one.given, journal, LIMITS)
    assert [row.name for row in going.results] == ["pass_on"]
    assert unrepeatable(one, is_read) == ""


def test_a_call_that_has_not_begun_on_record_begins_and_may_not_have_begun_before() -> None:
    mark = held(Call("c0_1", "write"))
    one = left(asks("read", "write", "read"), mark, got("read", 2))
    assert unrepeatable(one, is_read) == ""
    journal = rows_of(one, LIMITS)
    going = resumption(one, OPERATOR, journal, LIMITS)
    assert [row.call_id for row in going.results] == ["c0_2"]
    assert going.suspended.repeats == ("c0_0", "c0_2")
    assert mark in journal  # or a next kill would make it unknown


@settings(max_examples=100, deadline=None)
@given(cut_runs())
def test_a_result_keeps_its_place_when_a_run_is_resumed(
    run: tuple[list[ChatMessage], list[str]],
) -> None:
    """Law: in the journal of a resumed run each result is at the place that its call has in its
    answer: where another call's result would be stored, nothing is."""
    journal = rows_of(left(*run[0]), LIMITS)
    places = {
        int(str(step)): decode_message(body)
        for statement in replace_journals([("run_1", journal)])
        for _, step, body in statement.each
    }
    assert list(places.values()) == list(journal)
    for place, row in places.items():
        if isinstance(row, AssistantMessage):
            for at, call in enumerate(row.calls, place + 1):
                found = places.get(at)
                assert found is None or (
                    isinstance(found, ToolMessage) and found.call_id == call.id
                )


def test_an_unknown_outcome_is_no_result() -> None:
    begun = ToolMessage("c0_0", "write", "[Outcome unknown]", "unknown")
    assert unrepeatable(left(asks("write"), begun), is_read) == "write"


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (left(given=None), "the host ended during this run"),
        (left(given=InputOptions("operator", deps=True)), "deps that are not stored"),
        (left(seen=-200.0), "away for long"),
        (UnfinishedRun(INFO, OPERATOR, 110.0, quarantined=True), "quarantined"),
        (UnfinishedRun(INFO, OPERATOR, 110.0, broken=True), "has gaps"),
    ],
)
def test_the_reasons_why_a_run_does_not_resume(one: UnfinishedRun, why: str) -> None:
    assert why in refusal(one, CONFIG, now=120.0)


def test_published_calls_are_not_published_again() -> None:
    told = (("tool.call", "c0_0"), ("tool.result", "c0_0"), ("tool.call", "c0_1"), ("message", ""))
    one = UnfinishedRun(
        INFO, OPERATOR, 110.0, rows=(asks("read", "read"), got("read")), published=told
    )
    going = resumption(one, OPERATOR, rows_of(one, LIMITS), LIMITS)
    assert (set(going.announced), set(going.reported)) == ({"c0_0", "c0_1"}, {"c0_0"})
    assert going.suspended.messages == 1


def _kinds(rows: Sequence[ChatMessage]) -> list[str]:
    return [type(row).__name__ for row in rows]


def test_an_input_that_was_not_journalled_is_the_first_row() -> None:
    journal = rows_of(left(asks("read")), Limits(message_chars=2))
    assert _kinds(journal) == ["UserMessage", "AssistantMessage"]
    assert journal[0].text.startswith("do\n[Message cut")
