"""``mt.judges``: what each of them lets pass, and the reason where it does not."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

import msgspec
import pytest
import trio

from motet import testing as mt
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, Outcome, ToolMessage
from motet.protocols.errors import ConfigError
from motet.protocols.evals import Judged, judged
from motet.protocols.models import Usage
from motet.protocols.run import RunResult
from motet.testing.evals.cases import asked, name_of
from motet.testing.evals.judges import ReadyJudge

USED = Usage(100, 20, cost=0.5)


def trial(
    text: str = "It is 7 km to Paris.",
    *,
    expected: object = msgspec.UNSET,
    calls: tuple[tuple[str, str, Outcome], ...] = (),
    usage: Usage = USED,
) -> mt.Trial[str]:
    """A trial as a run of a host leaves it."""
    rows: list[ChatMessage] = []
    for number, (tool, arguments, outcome) in enumerate(calls):
        rows.append(AssistantMessage(calls=(Call(f"c{number}", tool, arguments),)))
        rows.append(ToolMessage(f"c{number}", tool, "so it is", outcome))
    rows.append(AssistantMessage(text))
    result: RunResult[str] = RunResult(
        "run_1", "s", "a", "completed", text, usage=usage, rows=tuple(rows)
    )
    return mt.Trial(mt.EvalCase("c", "x"), 1, (result,), 3.0, expected=expected)


def verdict(judge: ReadyJudge, of: mt.Trial[Any]) -> Judged:
    return judged(name_of(judge), trio.run(asked, judge, of))


ORDERED: tuple[tuple[str, str, Outcome], ...] = (
    ("order", '{"item": "pear", "count": [1, 2]}', "done"),
    ("refund", '{"item": "pear"}', "denied"),
    ("broken", "{", "failed"),
)


@pytest.mark.parametrize(
    ("judge", "passes", "reason"),
    [
        (mt.judges.equals(" Paris "), False, "expected ' Paris ', got 'It is 7 km to Paris.'"),
        (mt.judges.equals("it IS 7 km to paris.", ignore_case=True), True, ""),
        (mt.judges.equals("it IS 7 km to paris."), False, "expected"),
        (mt.judges.contains("PARIS"), True, ""),
        (mt.judges.contains("PARIS", ignore_case=False), False, "'PARIS' is not in"),
        (mt.judges.contains("Rome"), False, "'rome' is not in"),
        (mt.judges.matches(r"\d+ km"), True, ""),
        (mt.judges.matches(r"^\d+"), False, "no match in"),
        (mt.judges.answers(), True, ""),
        (mt.judges.called("order"), True, ""),
        (mt.judges.called("order", item="pear", count=[1, 2]), True, ""),
        (mt.judges.called("order", item="plum"), False, "it was called with {'item': 'pear'"),
        (mt.judges.called("order", size=1), False, "it was called with"),
        (mt.judges.called("refund"), False, "it was called, and denied"),
        (mt.judges.called("broken"), False, "it was called, and failed"),
        (mt.judges.called("pay"), False, "called were: order, refund, broken"),
        (mt.judges.never_called("pay"), True, ""),
        (mt.judges.never_called("refund"), False, "it was called with {'item': 'pear'}"),
        (mt.judges.within(seconds=3, tokens=120, usd=0.5, calls=3), True, ""),
        (mt.judges.within(seconds=2.5), False, "3 seconds, 2.5 are allowed"),
        (mt.judges.within(tokens=119, calls=2), False, "120 tokens, 119 are allowed; 3 calls"),
        (mt.judges.within(usd=0.4), False, "0.5 usd, 0.4 are allowed"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_ready_made_judge_has_a_reason(judge: ReadyJudge, passes: bool, reason: str) -> None:
    found = verdict(judge, trial(calls=ORDERED))

    assert (found.passed, found.error) == (passes, False)
    assert found.reason.startswith(reason) or reason in found.reason
    assert bool(found.reason) != passes


def test_without_arguments_they_compare_with_the_expected_output() -> None:
    assert verdict(mt.judges.equals(), trial("Paris\n", expected="Paris")).passed
    assert verdict(mt.judges.contains(), trial("In Paris.", expected="Paris")).passed
    assert not verdict(mt.judges.equals(), trial("In Paris.", expected="Paris")).passed
    with pytest.raises(ConfigError, match="the case 'c' has no expected output"):
        verdict(mt.judges.equals(), trial("Paris"))


def test_an_unknown_price_and_an_empty_answer_do_not_pass() -> None:
    free = verdict(mt.judges.within(usd=1), trial(usage=Usage(10, 2)))
    assert not free.passed
    assert free.reason == "an unknown number of usd, 1 are allowed"
    assert not verdict(mt.judges.answers(), trial(" \n")).passed


@pytest.mark.parametrize(("value", "passes"), [(0.79, False), (0.8, True)])
def test_another_bound_for_a_judge_of_numbers(value: float, passes: bool) -> None:
    async def tone(_: mt.Trial[str]) -> float:
        await trio.lowlevel.checkpoint()
        return value

    judge = mt.judges.at_least(0.8, tone)
    found = verdict(judge, trial())

    assert (name_of(judge), found.passed, found.value) == ("tone>=0.8", passes, value)
    assert verdict(mt.judges.at_least(0.8, lambda _: value), trial()).passed == passes

    def nothing(_: mt.Trial[str]) -> None:
        """A judge that forgets its `return`."""

    with pytest.raises(TypeError, match="it returned None"):
        verdict(mt.judges.at_least(0.8, cast("Any", nothing)), trial())


def test_wrong_judges_are_refused_when_they_are_made() -> None:
    with pytest.raises(ConfigError, match="no regular expression"):
        mt.judges.matches("(")
    with pytest.raises(ConfigError, match="needs a bound"):
        mt.judges.within()
    with pytest.raises(ConfigError, match="from 0 to 1"):
        mt.judges.at_least(80, lambda _: 1)
    with pytest.raises(ConfigError, match="a rule in words"):
        mt.judges.rubric(" ", "demo")


def test_names_stay_the_same_from_one_evaluation_to_the_next() -> None:
    def polite(_: mt.Trial[str]) -> bool | Awaitable[bool]:
        return True

    assert name_of(polite) == "polite"
    assert name_of(lambda _: True) == "lambda"
    assert name_of(mt.judges.contains("Paris")) == "contains('Paris')"
    assert name_of(mt.judges.called("order", item="pear")) == "called(order, item='pear')"
    one, two = (mt.judges.rubric(rule, "demo") for rule in ("It is kind.", "It is short."))
    assert name_of(one) == name_of(mt.judges.rubric("It is kind. ", "demo"))
    assert name_of(one) != name_of(two)
