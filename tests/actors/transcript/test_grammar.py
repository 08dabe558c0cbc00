"""The grammar of a transcript, and the notices of sub-agents in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.transcript.grammar import (
    EndedChild,
    child_notice,
    close_calls,
    injected_row,
    recovered_rows,
    stopped_row,
    unreported_children,
    violations,
    with_unreported_children,
)
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from tests.actors.runs.builders import any_rows, call


def result(number: int) -> ToolMessage:
    return ToolMessage(f"call_{number}", "look", "ok")


def test_a_question_a_call_its_result_and_an_answer_are_valid() -> None:
    rows: list[ChatMessage] = [
        UserMessage("hi"),
        AssistantMessage("", (call(1), call(2))),
        result(1),
        result(2),
        AssistantMessage("done"),
        UserMessage("and now?"),
    ]
    assert violations(rows) == ()


def test_each_break_of_the_grammar_is_named_with_its_row() -> None:
    broken: dict[str, list[ChatMessage]] = {
        "row 0: a result without a call": [result(1)],
        "row 1: two user rows": [UserMessage("a"), UserMessage("b")],
        "row 0: an assistant row that answers nothing": [AssistantMessage("a")],
        "do not match calls": [UserMessage("a"), AssistantMessage("", (call(1),))],
        "share one id": [UserMessage("a"), AssistantMessage("", (call(1), call(1)))],
    }
    for problem, rows in broken.items():
        assert any(problem in found for found in violations(rows)), problem


def test_results_are_put_in_call_order_and_missing_ones_are_noted() -> None:
    asking = AssistantMessage("", (call(1), call(2), call(3)))
    rows: list[ChatMessage] = [UserMessage("a"), asking, result(3), result(1)]

    closed = close_calls(rows, "unknown")

    outcomes = [(row.call_id, row.outcome) for row in closed if isinstance(row, ToolMessage)]
    assert outcomes == [("call_1", "done"), ("call_2", "unknown"), ("call_3", "done")]


@given(any_rows)
def test_closing_leaves_no_call_without_exactly_one_result(rows: list[ChatMessage]) -> None:
    """Law: after ``close_calls`` no violation concerns calls and results, whatever went in."""
    found = violations(close_calls(rows, "unknown"))
    assert not [problem for problem in found if "result" in problem], found


@given(any_rows)
def test_closing_twice_is_closing_once(rows: list[ChatMessage]) -> None:
    """Law: idempotent."""
    once = close_calls(rows, "unknown")
    assert close_calls(once, "failed") == once


@given(any_rows)
def test_closing_keeps_every_user_and_assistant_row_in_order(rows: list[ChatMessage]) -> None:
    """Law: only tool rows are added, moved or left out."""

    def spoken(some: tuple[ChatMessage, ...] | list[ChatMessage]) -> list[ChatMessage]:
        return [row for row in some if not isinstance(row, ToolMessage)]

    assert spoken(close_calls(rows, "unknown")) == spoken(rows)


# What a transcript says of children, however little of it was left.

CHILDREN = st.lists(
    st.builds(
        EndedChild,
        st.integers(0, 10**6).map(lambda n: f"run_{n}"),
        st.sampled_from(["worker", "scout"]),
        st.sampled_from(["completed", "limited", "cancelled", "interrupted"]),
        st.sampled_from(["", "found it", "(run_1): completed"]),
        st.sampled_from(["", "turns", "the host stopped"]),
    ),
    max_size=4,
    unique_by=lambda one: one.run_id,
)


def transcript(children: list[EndedChild], told: int) -> list[ChatMessage]:
    """A run that started them all and was told of the first ``told``."""
    calls = tuple(Call(f"c{n}", "spawn") for n in range(len(children)))
    started = [
        ToolMessage(call.id, "spawn", f"Started {one.agent} ({one.run_id}). More comes by itself.")
        for call, one in zip(calls, children, strict=True)
    ]
    rows: list[ChatMessage] = [UserMessage("go"), AssistantMessage("", calls), *started]
    if told:
        rows.append(injected_row([child_notice(one) for one in children[:told]]))
        rows.append(AssistantMessage("I see"))
    return rows


@given(CHILDREN, st.integers(0, 4), st.integers(1, 9))
def test_a_cut_transcript_tells_once_of_each_child(
    children: list[EndedChild], told: int, kept: int
) -> None:
    """Law: whatever part of a journal is left, what is made of it is valid, and says of each child
    once what became of it; those that had something to say are quoted."""
    rows = [*close_calls(transcript(children, told)[:kept], "unknown")]
    if not isinstance(rows[-1], AssistantMessage) or rows[-1].calls:
        rows.append(AssistantMessage("[Interrupted]", note="interrupted"))
    whole = recovered_rows(rows, children)
    assert violations(whole) == ()
    text = "\n".join(row.text for row in whole if not isinstance(row, ToolMessage))
    for one in children:
        assert text.count(f"{one.head}") == 1
        assert not one.output or f"{one.head}]\n{one.output}" in text


@given(CHILDREN, st.integers(0, 4))
def test_a_reported_child_is_not_reported_again(children: list[EndedChild], told: int) -> None:
    """Law: untold and told are all of them, and a closed transcript names exactly the untold."""
    rows = transcript(children, told)
    late = unreported_children(rows, children)
    assert late == tuple(children[told:])
    end = with_unreported_children([*rows[:-1], stopped_row("")], late)[-1].text
    assert end.count("\n- ") == len(late)


def test_without_children_nothing_changes() -> None:
    rows = (UserMessage("go"), AssistantMessage("done"))
    assert with_unreported_children(rows, ()) == rows
    assert recovered_rows(rows, ()) == rows
    assert with_unreported_children((), [EndedChild("run_1", "worker", "cancelled")]) == ()
