"""The assembler: events of one attempt to one response."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.chat import Call
from motet.protocols.model_answers import assemble, unique_ids
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelFailure,
    TextPart,
    ThinkingPart,
    Usage,
    UsageReport,
)

ids = st.sampled_from(["", "call_1", "call_2", "call_1_2", "x"])


def test_text_thinking_and_usage_are_put_together() -> None:
    events: list[ModelEvent] = [
        ThinkingPart("two "),
        ThinkingPart("and two"),
        TextPart("fo"),
        TextPart("ur"),
        UsageReport(Usage(1, 1)),
        UsageReport(Usage(3, 2)),
        Finished("stop"),
    ]
    response = assemble(events)
    assert (response.thinking, response.text) == ("two and two", "four")
    assert response.usage == Usage(3, 2)
    assert response.stop_reason == "stop"


def test_calls_come_in_index_order_however_their_parts_are_mixed() -> None:
    events: list[ModelEvent] = [
        CallStart(10, "b", "second"),
        CallArguments(10, '{"b"'),
        CallStart(2, "a", "first"),
        CallArguments(2, "{}"),
        CallArguments(10, ":1}"),
        Finished("tool_calls"),
    ]
    assert assemble(events).calls == (Call("a", "first", "{}"), Call("b", "second", '{"b":1}'))


def test_a_call_without_arguments_has_an_empty_object() -> None:
    events: list[ModelEvent] = [CallStart(0, "a", "now"), Finished("tool_calls")]
    assert assemble(events).calls == (Call("a", "now", "{}"),)


def test_a_second_start_fills_in_what_the_first_left_out() -> None:
    events: list[ModelEvent] = [
        CallStart(0, "a", ""),
        CallStart(0, "other", "late"),
        Finished("tool_calls"),
    ]
    assert assemble(events).calls == (Call("a", "late"),)


def test_an_answer_with_calls_stops_for_them_whatever_the_server_says() -> None:
    events: list[ModelEvent] = [CallStart(0, "a", "now"), Finished("stop")]
    assert assemble(events).stop_reason == "tool_calls"


def test_an_answer_cut_at_its_length_stays_cut_also_with_calls() -> None:
    events: list[ModelEvent] = [CallStart(0, "a", "now"), Finished("length")]
    assert assemble(events).stop_reason == "length"


def test_an_answer_that_never_finished_is_a_cut() -> None:
    with pytest.raises(ModelFailure) as caught:
        assemble([TextPart("half of")])
    assert caught.value.kind == "cut"


@pytest.mark.parametrize(
    ("given_ids", "made"),
    [
        (["call_1", "call_1"], ["call_1", "call_1_2"]),
        (["a", "a", "a"], ["a", "a_2", "a_3"]),
        (["", ""], ["call_1", "call_2"]),
        (["", "call_1"], ["call_1_2", "call_1"]),
        (["a", "a", "a_2"], ["a", "a_3", "a_2"]),
    ],
)
def test_bad_ids_become_unique(given_ids: list[str], made: list[str]) -> None:
    assert unique_ids(given_ids) == made


@given(st.lists(ids, max_size=8))
def test_ids_are_unique_and_the_first_holder_keeps_its_own(given_ids: list[str]) -> None:
    """Law: no two ids are equal, none is empty, and each given id stays with its first call."""
    made = unique_ids(given_ids)
    assert len(set(made)) == len(made) == len(given_ids)
    assert all(made)
    for place, id in enumerate(given_ids):
        if id and id not in given_ids[:place]:
            assert made[place] == id


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[Sequence[ModelEvent], Sequence[Call]]:
    """Calls, and their events mixed so that each call's own parts keep their order."""
    names = draw(st.lists(st.sampled_from(["f", "g"]), max_size=5))
    calls = [Call(f"c{i}", name, draw(st.text(min_size=1))) for i, name in enumerate(names)]
    queues: list[list[ModelEvent]] = []
    for index, call in enumerate(calls):
        at = draw(st.integers(0, len(call.arguments)))
        parts = [call.arguments[:at], call.arguments[at:]]
        arguments = [CallArguments(index, part) for part in parts]
        queues.append([CallStart(index, call.id, call.name), *arguments])
    mixed: list[ModelEvent] = []
    while queues:
        queue = draw(st.sampled_from(queues))
        mixed.append(queue.pop(0))
        queues = [queue for queue in queues if queue]
    return mixed, calls


@given(interleaved())
def test_the_mixing_of_parallel_calls_does_not_matter(
    made: tuple[Sequence[ModelEvent], Sequence[Call]],
) -> None:
    """Law: calls depend on the order of parts within each call only."""
    mixed, calls = made
    assert assemble([*mixed, Finished("tool_calls")]).calls == tuple(calls)
