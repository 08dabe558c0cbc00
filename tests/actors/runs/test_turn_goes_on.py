"""A turn that is not over with an answer: cut off, interrupted by messages, or going in circles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.runs.turn import CallModel, Decision, Finish, RunCalls, Turn, TurnStateError
from motet.actors.transcript.grammar import violations
from motet.actors.transcript.guards import BEGIN_AGAIN, CONTINUE, CUT_CALL, LoopDetector
from motet.protocols.budget import Budget
from motet.protocols.chat import AssistantMessage, Call, Outcome, ToolMessage, UserMessage
from motet.protocols.limits import Limits
from motet.protocols.models import ModelResponse, StopReason, Usage
from motet.protocols.tools import CallResult
from tests.actors.runs.builders import answer, call, done, heard


def begun(limits: Limits | None = None) -> Turn:
    turn = Turn(limits or Limits())
    turn.begin("go")
    return turn


def cut(text: str = "", *calls: Call) -> ModelResponse:
    return ModelResponse(text, calls=calls, stop_reason="length")


def write(number: int, arguments: str) -> Call:
    return Call(f"call_{number}", "write", arguments)


# Answers that were cut off


def test_an_answer_that_was_cut_off_goes_on_and_is_one_row() -> None:
    turn = begun()

    first = turn.answered(cut("Once upon "))
    assert isinstance(first, CallModel)
    assert first.hint == CONTINUE
    assert turn.rows[-1] == AssistantMessage("Once upon ")
    assert turn.draft == "Once upon "

    assert turn.answered(answer("a time.")) == Finish("completed", "Once upon a time.")
    assert turn.rows == [UserMessage("go"), AssistantMessage("Once upon a time.")]


def test_after_three_continuations_what_there_is_is_the_answer_and_says_that_it_is_not_whole() -> (
    None
):
    turn = begun()
    for part in "abc":
        assert isinstance(turn.answered(cut(part)), CallModel)
    assert turn.answered(cut("d")) == Finish("limited", "abcd", "length")
    assert turn.rows[1:] == [AssistantMessage("abcd")]


def test_without_a_request_left_a_cut_answer_is_the_last_one() -> None:
    turn = begun(Limits(turns=1))
    assert turn.answered(cut("Once")) == Finish("limited", "Once", "length")


def test_an_answer_that_was_cut_off_before_its_first_word_is_asked_for_anew() -> None:
    turn = begun()
    decision = turn.answered(cut(""))
    assert isinstance(decision, CallModel)
    assert decision.hint == BEGIN_AGAIN
    assert turn.rows == [UserMessage("go")]


def test_calls_may_follow_the_rest_of_an_answer() -> None:
    turn = begun()
    turn.answered(cut("Let me "))
    assert turn.answered(answer("look.", call(1))) == RunCalls((call(1),))
    assert turn.rows[-1] == AssistantMessage("Let me look.", (call(1),))


@pytest.mark.parametrize("broken", ['{"text": "half', "", "{}", '{"n": 1} x', "[1]", "1"])
def test_a_call_that_was_cut_off_is_not_run_but_answered(broken: str) -> None:
    turn = begun()
    whole, half = write(1, '{"text":"a"}'), write(2, broken)

    assert turn.answered(cut("", whole, half)) == RunCalls((whole,))
    assert isinstance(turn.observed([done(whole)]), CallModel)

    results = [row for row in turn.rows if isinstance(row, ToolMessage)]
    assert [(row.call_id, row.text) for row in results] == [("call_1", "ok"), ("call_2", CUT_CALL)]
    assert violations(turn.rows) == ()


def test_a_whole_call_behind_one_that_was_cut_off_is_run_and_stays_in_its_place() -> None:
    turn = begun()
    half, whole = write(1, '{"text": "half'), write(2, '{"text":"a"}')
    assert turn.answered(cut("", half, whole)) == RunCalls((whole,))
    turn.observed([done(whole)])
    results = [row.text for row in turn.rows if isinstance(row, ToolMessage)]
    assert results == [CUT_CALL, "ok"]


def test_broken_arguments_of_a_whole_answer_are_the_executors_matter() -> None:
    half = write(1, '{"text": "half')
    assert begun().answered(answer("", half)) == RunCalls((half,))


def test_the_fourth_call_in_a_row_that_was_cut_off_closes_the_turn() -> None:
    turn = begun()
    half = write(1, '{"text": "half')
    for _ in range(3):
        decision = turn.answered(cut("", half))
        assert isinstance(decision, CallModel)
        assert decision.offer_tools
    last = turn.answered(cut("", half))
    assert isinstance(last, CallModel)
    assert not last.offer_tools
    assert turn.answered(answer("sorry")) == Finish("limited", "sorry", "length")


def test_a_stop_within_a_cut_answer_keeps_all_that_was_said_of_it() -> None:
    turn = begun()
    turn.answered(cut("Once "))
    turn.stop(partial="upon")
    assert turn.rows[1:] == [AssistantMessage("Once upon\n\n[Stopped by user]", note="stopped")]


def test_used_up_tokens_within_a_cut_answer_keep_what_was_said_of_it() -> None:
    turn = begun(Limits(tokens=10))
    response = ModelResponse("Once ", usage=Usage(10), stop_reason="length")
    assert heard(turn, response) == Finish("limited", "Once ", "tokens")
    assert violations(turn.rows) == ()


def test_calls_that_share_an_id_are_told_apart() -> None:
    turn = begun()
    decision = turn.answered(answer("", Call("a", "look"), Call("a", "look"), Call("", "look")))
    assert isinstance(decision, RunCalls)
    assert [one.id for one in decision.calls] == ["a", "a_2", "call_3"]


def test_a_gate_is_asked_of_the_whole_answer_and_only_of_the_last() -> None:
    turn = begun()
    assert not turn.is_last(cut("a"))
    assert not turn.is_last(answer("", call(1)))
    turn.answered(cut("a"))
    assert turn.is_last(answer("b"))
    assert turn.answered(answer("AB"), whole=True) == Finish("completed", "AB")


# Messages that come in


def test_a_message_enters_after_the_results_of_a_batch() -> None:
    turn = begun()
    turn.answered(answer("", call(1)))
    turn.inject(UserMessage("only errors please", "bob"))
    assert isinstance(turn.observed([done(call(1))]), CallModel)
    assert turn.rows[-1] == UserMessage("only errors please", "bob", note="injected")


def test_a_message_that_comes_late_forces_one_more_request() -> None:
    turn = begun()
    turn.inject(UserMessage("and then?"))
    assert isinstance(turn.answered(answer("first")), CallModel)
    assert turn.answered(answer("second")) == Finish("completed", "second")
    assert [row.text for row in turn.rows] == ["go", "first", "and then?", "second"]
    assert violations(turn.rows) == ()


def test_several_messages_enter_as_one_row_with_their_authors_names() -> None:
    turn = begun()
    turn.inject(UserMessage("a", "ann"), UserMessage("b", "bob"))
    turn.answered(answer("first"))
    assert turn.rows[-1] == UserMessage("[ann] a\n\n[bob] b", note="injected")


def test_a_message_does_not_enter_in_the_middle_of_an_answer() -> None:
    turn = begun()
    turn.inject(UserMessage("and then?"))
    turn.answered(cut("fir"))
    assert [row.text for row in turn.rows] == ["go", "fir"]
    turn.answered(answer("st"))
    assert [row.text for row in turn.rows] == ["go", "first", "and then?"]


def test_a_message_that_finds_no_request_left_is_left_over() -> None:
    turn = begun(Limits(turns=1))
    turn.inject(UserMessage("and then?"))
    assert turn.answered(answer("first")) == Finish("completed", "first")
    assert turn.waiting == [UserMessage("and then?")]
    with pytest.raises(TurnStateError):
        turn.inject(UserMessage("hello?"))


# Silence and sanitizing


def test_a_silent_answer_completes_the_turn_with_nothing_and_leaves_a_marked_row() -> None:
    turn = begun()
    assert turn.answered(answer("**NO_REPLY**")) == Finish("completed", "")
    assert turn.rows[-1] == AssistantMessage("**NO_REPLY**", note="silent")


def test_the_last_answer_is_sanitized_as_a_whole() -> None:
    turn = begun()
    turn.answered(cut("<think>let me "))
    assert turn.answered(answer("see</think>It is 7.")) == Finish("completed", "It is 7.")
    assert turn.rows[-1] == AssistantMessage("It is 7.")


def test_an_answer_of_nothing_but_reasoning_says_that_it_is_empty() -> None:
    turn = begun()
    assert turn.answered(answer("<think>hm</think>")) == Finish("completed", "")
    assert turn.rows[-1] == AssistantMessage("[The model gave an empty answer]")


# Loops and budgets


def test_a_model_that_goes_in_circles_is_warned_and_then_closed() -> None:
    turn = begun()
    asked: list[CallModel] = []
    for _ in range(5):
        turn.answered(answer("", call(1)))
        decision = turn.observed([done(call(1))])
        assert isinstance(decision, CallModel)
        asked.append(decision)
    hints = [decision.hint for decision in asked]
    assert [bool(hint) for hint in hints] == [False, False, True, True, True]
    assert "look was called 3 times" in hints[2]
    assert "look was called 5 times" in hints[4]
    assert "final answer" in hints[4]
    assert not asked[4].offer_tools
    assert turn.answered(answer("7, as far as I see")) == Finish(
        "limited", "7, as far as I see", "tool_loop"
    )


def test_one_thing_is_said_of_a_call_that_fails_again_and_again() -> None:
    turn = begun(Limits(tool_errors=None, total_errors=None))
    for times in range(1, 5):
        turn.answered(answer("", call(1)))
        failed = CallResult("call_1", "look", "no such file", "failed")
        decision = turn.observed([failed])
        assert isinstance(decision, CallModel)
        row = turn.rows[-1]
        assert ("[Advice:" in row.text) == (times > 1)
        assert decision.hint == ""
    turn.answered(answer("", call(1)))
    closed = turn.observed([CallResult("call_1", "look", "no such file", "failed")])
    assert isinstance(closed, CallModel)
    assert not closed.offer_tools


def test_failures_with_a_limit_of_their_own_are_not_counted_as_a_loop() -> None:
    turn = begun(Limits(tool_errors=7, total_errors=None))
    decision: Decision = CallModel(1)
    while not isinstance(decision, Finish):
        turn.answered(answer("", call(1)))
        decision = turn.observed([CallResult("call_1", "look", "no such file", "failed")])
    assert (decision.status, turn.iteration) == ("escalated", 7)


def test_a_child_ends_when_its_parents_budget_is_used_up() -> None:
    parent = Budget(Limits(tokens=10))
    child = Turn(Limits(), budget=parent.child(Limits()))
    child.begin("go")
    heard(child, answer("", call(1), tokens=10))
    assert child.observed([done(call(1))]) == Finish("limited", "", "tokens")


# Laws

ids = st.sampled_from(["call_0", "call_1", "call_2", ""])
arguments = st.sampled_from(["{}", '{"n":1}', '{"n":', ""])
model_calls = st.lists(st.builds(Call, ids, st.sampled_from("ab"), arguments), max_size=3)
reasons: st.SearchStrategy[StopReason] = st.sampled_from(["stop", "length", "length"])
responses = st.builds(
    ModelResponse,
    st.sampled_from(["", "text", " ", "NO_REPLY", "<think>a"]),
    calls=model_calls.map(tuple),
    usage=st.builds(Usage, st.integers(0, 40)),
    stop_reason=reasons,
)
limits = st.builds(
    Limits,
    turns=st.integers(1, 7),
    tool_calls=st.none() | st.integers(1, 9),
    tokens=st.none() | st.integers(1, 200),
    tool_errors=st.none() | st.just(3),
)
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(["done", "failed", "denied"])
ways = st.sampled_from(["goes on", "goes on", "a gate continues", "a message", "two messages"])
script = st.lists(
    st.tuples(responses, ways, outcomes),
    min_size=25,
    max_size=25,
)


@given(limits, script, st.integers(0, 25))
def test_whatever_happens_the_rows_are_valid_and_the_limits_are_kept(
    limit: Limits, happening: list[tuple[ModelResponse, str, Outcome]], steps: int
) -> None:
    """Law (G7): under any observations, and cut at any of them, a turn makes at most ``turns``
    requests and ends with rows that a provider accepts, no call unanswered or answered twice."""
    turn = Turn(limit, loops=LoopDetector({"b": "write"}))
    decision = turn.begin("go")
    for response, way, outcome in happening[:steps]:
        if isinstance(decision, Finish):
            break
        if way.endswith(("message", "messages")):
            turn.inject(*[UserMessage(way, who) for who in way.split()[:2]])
        if isinstance(decision, RunCalls):
            results = [CallResult(one.id, one.name, "x", outcome) for one in decision.calls]
            decision = turn.observed(results)
        elif way == "a gate continues" and turn.is_last(response):
            turn.spend(response.usage)
            decision = turn.continued(response, "go on")
        else:
            last = turn.is_last(response)
            decision = heard(turn, response)
            assert isinstance(decision, Finish) or not last
    if steps == len(happening):
        assert isinstance(decision, Finish)
    if not isinstance(decision, Finish):
        done_ones = decision.calls[:1] if isinstance(decision, RunCalls) else ()
        turn.stop("partial", [done(one) for one in done_ones])
    assert violations(turn.rows) == ()
    assert isinstance(turn.rows[-1], AssistantMessage)
    assert turn.iteration <= limit.turns
    assert limit.tool_calls is None or turn.budget.tool_calls <= limit.tool_calls
    assert turn.budget.usage == turn.usage
    assert turn.draft == ""
