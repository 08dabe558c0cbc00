"""The transcript's grammar and its repair (G7)."""

from __future__ import annotations

from hypothesis import given

from motet.actors.transcript.grammar import close_calls, violations
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
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


def test_results_are_put_in_call_order_and_gaps_say_what_happened() -> None:
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
