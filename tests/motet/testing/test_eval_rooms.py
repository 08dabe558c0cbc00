"""Evaluations of rooms, with a limit of money, and the time of judges."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

import motet
from motet import testing as mt
from motet.protocols.errors import ConfigError
from motet.protocols.evals import unaffordable
from motet.protocols.models import Model, ModelEvent, ModelRequest, Usage, UsageReport
from motet.testing.evals.report import EvalReport

Said = Callable[[ModelRequest], str | mt.Step]


def member(name: str, says: Said | str, **options: Any) -> motet.Agent[None, str]:
    answer: Said = says if callable(says) else lambda _: says
    return motet.Agent(name, model=mt.FunctionModel(answer, name=f"model of {name}"), **options)


def duo(first: Said | str, second: Said | str, **options: Any) -> motet.Room:
    """Two members, of whom the first answers people."""
    members = [member("ann", first), member("ben", second)]
    speakers = motet.mentions() | motet.when_alone()
    return motet.Room("duo", members=members, speakers=speakers, **options)


def evaluated(room: motet.Room, *cases: mt.EvalCase, **options: Any) -> EvalReport:
    own: Any = {"state": None, **options}
    return mt.evaluate(room, cases, **own)


# ---------------------------------------------------------------- rooms


def test_the_answer_of_a_room_is_what_was_said_last_and_judges_see_all_of_it() -> None:
    seen: list[list[str]] = []

    def both_spoke(trial: mt.Trial[str]) -> bool:
        seen.append([f"{one.author}: {one.text}" for one in trial.messages])
        return {one.author for one in trial.messages} == {"ann", "ben"}

    room = duo("@ben what do you say?", "it is noon")
    cases = [
        mt.EvalCase("noon", "@ann what time is it?", "it is noon", judges=[both_spoke]),
        mt.EvalCase("wrong", "@ann what time is it?", "midnight"),
    ]

    report = evaluated(room, *cases)

    assert seen == [["ann: @ben what do you say?", "ben: it is noon"]]
    assert report.case("noon").outcome == "passed"
    assert report.case("wrong").trials[0].reasons == (
        "equals: expected 'midnight', got 'it is noon'",
    )
    assert (report.agent, report.model) == ("duo", "model of ann, model of ben")
    (trial,) = report.case("noon").trials
    assert len(trial.runs) == 2
    assert trial.usage.total_tokens > 0


def test_each_trial_has_a_room_of_its_own_and_a_case_may_be_a_conversation() -> None:
    def counts(request: ModelRequest) -> str:
        return str(request.messages[-1].text.count("once") + len(request.messages))

    room = motet.Room("alone", members=[member("ann", counts)])
    talk = mt.EvalCase("talk", ("once", "once more"), judges=[mt.judges.answers()], repeats=3)

    trials = evaluated(room, talk).case("talk").trials

    assert len({trial.session for trial in trials}) == 3
    assert len({trial.output for trial in trials}) == 1
    assert [len(trial.runs) for trial in trials] == [2, 2, 2]


def test_judges_see_the_calls_of_a_rooms_members() -> None:
    def asks(request: ModelRequest) -> mt.Step:
        looked = request.messages[-1].text == "a pear"
        return mt.say("you have a pear") if looked else mt.call("look", place="basket")

    ann = member("ann", asks)

    @ann.tool
    async def look(place: str) -> str:
        """Look into a place."""
        return "a pear" if place == "basket" else "nothing"

    room = motet.Room("kitchen", members=[ann])
    case = mt.EvalCase("pear", "what is there?", judges=[mt.judges.called("look", place="basket")])

    assert evaluated(room, case).check()


def fails(_: ModelRequest) -> mt.Step:
    return mt.fail(400, message="no such thing")


BOUND: dict[str, int] = {"max_turns": 3}
NONE: dict[str, int] = {}


@pytest.mark.parametrize(
    ("first", "limits", "outcome", "reason"),
    [
        ("@ben go on", BOUND, "failed", "the run was limited: max_turns"),
        (fails, NONE, "error", "the turn of ann was failed"),
    ],
)
def test_a_room_that_does_not_come_to_its_end_does_not_pass(
    first: Said | str, limits: dict[str, int], outcome: str, reason: str
) -> None:
    case = mt.EvalCase("any", "@ann hello", judges=[mt.judges.answers()])

    report = evaluated(duo(first, "@ann go on", max_depth=9, **limits), case)

    assert report.case("any").outcome == outcome
    assert reason in "; ".join(report.case("any").trials[0].reasons)


def test_a_room_that_hangs_is_stopped_and_what_it_spent_is_counted() -> None:
    def first(request: ModelRequest) -> mt.Step:
        return mt.say("@ben now you")

    def never(_: ModelRequest) -> mt.Step:
        return mt.slow(mt.say("late"), seconds=1e6)

    case = mt.EvalCase("hang", "@ann hello", judges=[mt.judges.answers()])
    evaluation = mt.Evaluation("hangs", duo(first, never), [case], timeout=5)
    clock = MockClock(rate=10.0)

    report = trio.run(partial(evaluation.run_async, state=None), clock=clock)

    (trial,) = report.case("hang").trials
    assert (trial.outcome, trial.error) == ("error", "it took more than 5 s, and was stopped")
    assert len(trial.runs) == 2
    assert trial.usage.total_tokens > 0


def test_the_table_of_rooms_names_them_and_the_next_evaluation_compares(tmp_path: Path) -> None:
    case = mt.EvalCase("hi", "@ann hello", "hello you")

    first = evaluated(duo("hello", "-"), case, state=tmp_path)
    second = evaluated(duo("hello you", "-"), case, state=tmp_path)

    assert (first.share, second.better) == (0.0, ("hi",))
    session = second.case("hi").trials[0].session
    assert session.startswith("eval-hi-")
    assert session != first.case("hi").trials[0].session
    assert f"motet rooms show ROOM --state {tmp_path}" in str(second)
    assert "session" not in str(second).splitlines()[0]


def test_what_a_room_cannot_be_given_is_refused() -> None:
    case = mt.EvalCase("hi", "hello", "hello")
    with pytest.raises(ConfigError, match=r"the members \['ann'\] of room 'r' are only names"):
        mt.Evaluation("names", motet.Room("r", members=["ann"]), [case])
    options: Any = {"deps": len}
    with pytest.raises(ConfigError, match="the tools of a room are given no deps"):
        mt.Evaluation("deps", duo("a", "b"), [case], **options)


# ---------------------------------------------------------------- money


class Priced:
    """A model whose every answer costs the same; None: nobody knows how much."""

    def __init__(self, cost: float | None) -> None:
        self.name = "priced"
        self._cost = cost
        self._inner: Model = mt.FunctionModel(lambda _: "fine")

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        async with self._inner.request(request) as events:
            yield self._priced(events)

    async def _priced(self, events: AsyncIterator[ModelEvent]) -> AsyncIterator[ModelEvent]:
        async for event in events:
            if isinstance(event, UsageReport):
                yield UsageReport(replace(event.usage, cost=self._cost))
            else:
                yield event


CASES = [mt.EvalCase(f"case {number}", "hi", judges=[mt.judges.answers()]) for number in range(6)]


def of_price(cost: float | None, **options: Any) -> EvalReport:
    agent = motet.Agent("dear", model=Priced(cost))
    own: Any = {"state": None, "jobs": 1, **options}
    return mt.evaluate(agent, CASES, **own)


def test_no_trial_begins_when_the_budget_is_spent_and_the_next_evaluation_goes_on(
    tmp_path: Path,
) -> None:
    report = of_price(0.5, budget=1.2, state=tmp_path)

    assert (report.totals.trials, report.stopped) == (3, True)
    assert report.why_stopped == "the budget of $1.20 is spent"
    assert "stopped: the budget of $1.20 is spent" in str(report)
    with pytest.raises(mt.EvaluationFailed):
        report.check(0.0)
    rest = of_price(0.5, budget=1.6, state=tmp_path, resume=True)
    assert (rest.totals.trials, rest.stopped, rest.why_stopped) == (6, False, "")


def test_a_budget_that_lasts_changes_nothing() -> None:
    assert of_price(0.1, budget=10.0).check().why_stopped == ""
    assert of_price(0.0, budget=0.01).check().totals.trials == len(CASES)


def test_without_a_price_there_is_no_budget() -> None:
    report = of_price(None, budget=100.0)
    assert report.totals.trials == 1
    assert "a price is unknown" in report.why_stopped
    assert of_price(None).check()


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan")])
def test_a_budget_of_nothing_is_refused(budget: float) -> None:
    with pytest.raises(ConfigError, match="budget must be above 0 dollars"):
        of_price(0.5, budget=budget)


def test_what_is_spent_is_never_above_the_budget_before_a_trial_begins() -> None:
    """Law: more may be spent exactly when less than the budget is, and all of it is known."""
    for cents in range(0, 300, 7):
        spent = Usage(1, 1, cost=cents / 100)
        assert bool(unaffordable(1.5, spent)) == (cents >= 150)
    assert not unaffordable(1.5, Usage())
    assert unaffordable(1.5, Usage(3, 1))


# ---------------------------------------------------------------- the time of judges


def test_the_time_of_judges_is_counted_apart() -> None:
    async def slow(_: mt.Trial[str]) -> bool:
        await trio.sleep(30)
        return True

    agent = member("quick", "fine")
    evaluation = mt.Evaluation("timed", agent, [mt.EvalCase(one, "hi") for one in "ab"], [slow])

    report = trio.run(
        partial(evaluation.run_async, state=None, jobs=1), clock=MockClock(autojump_threshold=0)
    )

    assert [case.totals.judging_seconds for case in report.cases] == [30, 30]
    assert report.totals.seconds < 1
    assert report.totals.judging_seconds == 60
    assert str(report).splitlines()[0].split() == [
        "case", "passed", "score", "tokens", "time", "judges",
    ]  # fmt: skip
    assert str(report).splitlines()[1].endswith("30.00 s")
