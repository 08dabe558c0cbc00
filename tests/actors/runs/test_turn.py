"""The turn as a state machine: what it decides, and that its rows are valid wherever it is cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.runs.turn import CallModel, Decision, Finish, RunCalls, Turn, TurnStateError
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import AssistantMessage, Call, ToolMessage, UserMessage
from motet.protocols.limits import Limits
from motet.protocols.models import ModelResponse
from tests.actors.runs.builders import answer, call, done, heard


def test_a_plain_answer_completes_the_turn() -> None:
    turn = Turn(Limits())

    assert turn.begin("hi") == CallModel(1)
    assert heard(turn, answer("hello", tokens=7)) == Finish("completed", "hello")

    assert turn.rows == [UserMessage("hi"), AssistantMessage("hello")]
    assert turn.usage.total_tokens == 7


def test_calls_are_run_and_their_results_stand_in_call_order() -> None:
    turn = Turn(Limits())
    turn.begin("hi")

    assert turn.answered(answer("", call(2), call(1))) == RunCalls((call(2), call(1)))
    assert turn.observed([done(call(2)), done(call(1))]) == CallModel(2)

    assert [row.call_id for row in turn.rows if isinstance(row, ToolMessage)] == [
        "call_2",
        "call_1",
    ]


def test_results_in_another_order_are_refused_as_a_bug() -> None:
    turn = Turn(Limits())
    turn.begin("hi")
    turn.answered(answer("", call(1), call(2)))
    with pytest.raises(TurnStateError, match="do not match"):
        turn.observed([done(call(2)), done(call(1))])


def test_an_observation_out_of_turn_is_refused() -> None:
    turn = Turn(Limits())
    with pytest.raises(TurnStateError, match="'ready', not 'model'"):
        turn.answered(answer("hi"))


def test_the_last_request_offers_no_tools_and_ends_the_turn_as_limited() -> None:
    turn = Turn(Limits(turns=2))
    turn.begin("go")
    turn.answered(answer("", call(1)))

    last = turn.observed([done(call(1))])

    assert isinstance(last, CallModel)
    assert not last.offer_tools
    assert "final answer" in last.hint
    assert turn.answered(answer("best so far")) == Finish("limited", "best so far", "turns")


def test_one_allowed_request_still_answers_a_simple_question_as_completed() -> None:
    turn = Turn(Limits(turns=1))
    assert turn.begin("hi") == CallModel(1)
    assert turn.answered(answer("hello")) == Finish("completed", "hello")


def test_a_model_that_calls_on_when_tools_are_gone_is_ended() -> None:
    turn = Turn(Limits(turns=2))
    turn.begin("go")
    turn.answered(answer("", call(1)))
    turn.observed([done(call(1))])

    assert turn.answered(answer("", call(2))) == Finish("limited", "", "turns")
    assert violations(turn.rows) == ()
    row = turn.rows[-2]
    assert isinstance(row, ToolMessage)
    assert row.outcome == "cancelled_before_start"
    assert row.text == "[Not run: the limit of this run is reached (turns)]"


def test_a_call_that_was_not_run_says_what_has_ended_its_turn() -> None:
    """Law: only a stop is called a stop."""
    ends: dict[str, Callable[[Turn], Finish]] = {
        "was stopped": lambda turn: turn.stop(),
        "limit of this run is reached (wall)": lambda turn: turn.limit("wall"),
        "the run failed": lambda turn: turn.fail("no such model"),
    }
    for words, end in ends.items():
        turn = Turn(Limits())
        turn.begin("go")
        turn.answered(answer("", call(1)))
        end(turn)
        texts = [row.text for row in turn.rows if isinstance(row, ToolMessage)]
        assert len(texts) == 1
        assert words in texts[0]


def test_of_a_batch_over_the_call_limit_the_first_are_run_and_the_model_may_close() -> None:
    turn = Turn(Limits(tool_calls=1))
    turn.begin("go")

    assert turn.answered(answer("", call(1), call(2))) == RunCalls((call(1),))
    decision = turn.observed([done(call(1))])

    assert isinstance(decision, CallModel)
    assert not decision.offer_tools
    assert [result.outcome for result in turn.results] == ["done", "denied"]
    assert turn.answered(answer("ok")) == Finish("limited", "ok", "tool_calls")


def test_used_up_tokens_end_the_turn_before_the_next_request() -> None:
    turn = Turn(Limits(tokens=10))
    turn.begin("go")
    heard(turn, answer("", call(1), tokens=10))
    assert turn.observed([done(call(1))]) == Finish("limited", "", "tokens")


def test_the_model_is_told_at_seventy_and_ninety_percent() -> None:
    turn = Turn(Limits(turns=20))
    decision = turn.begin("go")
    hints: dict[int, str] = {}
    while isinstance(decision, CallModel):
        number = decision.iteration
        hints[number] = decision.hint
        look = Call("c", "look", f'{{"page": {number}}}')
        step = turn.answered(answer("", look))
        decision = turn.observed([done(look, str(number))]) if isinstance(step, RunCalls) else step
    assert [number for number, hint in hints.items() if hint] == [15, 19, 20]


def test_a_stop_keeps_what_was_said_and_closes_every_call() -> None:
    turn = Turn(Limits())
    turn.begin("go")
    turn.answered(answer("looking", call(1), call(2), call(3)))

    finish = turn.stop(done=[done(call(2))])

    assert finish.status == "cancelled"
    assert [row.outcome for row in turn.rows if isinstance(row, ToolMessage)] == [
        "cancelled_before_start",
        "done",
        "cancelled_before_start",
    ]
    assert turn.rows[-1] == AssistantMessage("[Stopped by user]", note="stopped")


def test_text_that_was_streamed_before_a_stop_is_kept() -> None:
    turn = Turn(Limits())
    turn.begin("go")
    turn.stop(partial="Once upon")
    assert turn.rows[-1] == AssistantMessage("Once upon\n\n[Stopped by user]", note="stopped")


def test_a_long_input_is_cut_with_a_notice_behind() -> None:
    turn = Turn(Limits(message_chars=5))
    turn.begin("é" * 6)
    assert turn.rows == [UserMessage("é" * 5 + "\n[Message cut: 6 characters, 5 kept]")]


def answer_with(text: str, numbers: list[int], tokens: int) -> ModelResponse:
    return answer(text, *map(call, numbers), tokens=tokens)


answers = st.builds(
    answer_with,
    st.sampled_from(["", "text"]),
    st.lists(st.integers(0, 9), unique=True, max_size=3),
    st.integers(0, 50),
)
limits = st.builds(
    Limits,
    turns=st.integers(1, 6),
    tool_calls=st.none() | st.integers(1, 6),
    tokens=st.none() | st.integers(1, 200),
)


def play(turn: Turn, script: list[ModelResponse], steps: int) -> Decision:
    """Feed the turn from the script until it ends or ``steps`` observations were made."""
    decision = turn.begin("go")
    for response in script[:steps]:
        match decision:
            case CallModel():
                decision = heard(turn, response)
            case RunCalls(calls=calls):
                decision = turn.observed([done(one) for one in calls])
            case Finish():
                break
    return decision


@given(limits, st.lists(answers, max_size=15), st.integers(0, 15), st.integers(0, 3))
def test_rows_are_valid_wherever_the_turn_is_cut(
    limit: Limits, script: list[ModelResponse], steps: int, known: int
) -> None:
    """Law (G7): after the end, natural or forced, the rows satisfy the provider's grammar."""
    turn = Turn(limit)
    decision = play(turn, script, steps)
    if not isinstance(decision, Finish):
        calls = decision.calls if isinstance(decision, RunCalls) else ()
        turn.stop("partial", [done(one) for one in calls[:known]])
    assert violations(turn.rows) == ()
    assert isinstance(turn.rows[-1], AssistantMessage)


@given(limits, st.lists(answers, min_size=30, max_size=30))
def test_a_turn_never_asks_the_model_more_often_than_allowed(
    limit: Limits, script: list[ModelResponse]
) -> None:
    """Law: at most ``turns`` requests and ``tool_calls`` calls, and every turn ends."""
    turn = Turn(limit)
    decision = play(turn, script, len(script))
    assert isinstance(decision, Finish)
    assert turn.iteration <= limit.turns
    assert limit.tool_calls is None or turn.budget.tool_calls <= limit.tool_calls
