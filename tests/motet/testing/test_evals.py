"""``mt.evaluate``: cases and judges of all kinds, what breaks, what is kept, what is compared."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import pytest
import trio
from rich.console import Console
from trio.testing import MockClock

import motet
from motet import testing as mt
from motet.protocols.errors import ConfigError
from motet.protocols.evals import Plan, TrialRecord
from motet.protocols.models import ModelRequest
from motet.testing.evals import running
from motet.testing.evals.journal import Writer, baseline, last
from motet.testing.evals.progress import Silent, Told, bar_on
from motet.testing.evals.report import EvalReport, load_report
from motet.testing.scripted import Slow

AN_HOUR = 3_600.0


class City(msgspec.Struct, frozen=True):
    name: str
    people: int = 0


def reply(request: ModelRequest) -> mt.Step:
    """Repeats what it is told; some words make it do something else."""
    text = request.messages[-1].text
    match text.partition(" ")[0]:
        case "fail":
            return mt.fail(400, message="no such thing")
        case "refuse":
            return mt.fail(kind="content_filter", message="SAFETY")
        case "hang":
            return mt.slow(mt.say("late"), seconds=100 * AN_HOUR)
        case "look":
            return mt.call("look_up", city="Paris")
        case "block":
            return mt.call("block")
        case _:
            return mt.say(text)


def echo(name: str = "echo", **options: Any) -> motet.Agent[Any, str]:
    return motet.Agent(name, model=mt.FunctionModel(reply), **options)


def evaluated(cases: Sequence[mt.EvalCase], *judges: mt.Judge[str], **options: Any) -> EvalReport:
    own: Any = {"state": None, **options}
    return mt.evaluate(echo(), cases, judges, **own)


def outcomes(report: EvalReport) -> dict[str, str]:
    return {case.name: case.outcome for case in report.cases}


def reason(report: EvalReport, case: str) -> str:
    return "; ".join(report.case(case).trials[0].reasons)


def has_no_digit(trial: mt.Trial[str]) -> bool:
    return not any(char.isdigit() for char in trial.text)


async def is_short(trial: mt.Trial[str]) -> mt.Score:
    await trio.sleep(0)
    return mt.Score(len(trial.text) < 10, 1 / len(trial.text), f"{len(trial.text)} characters")


def test_an_output_is_compared_with_the_expected_one_or_judged_by_functions() -> None:
    cases = [
        mt.EvalCase("right", "Paris", "Paris"),
        mt.EvalCase("wrong", "Lyon", "Paris"),
        mt.EvalCase("long", "a text that is long", judges=[is_short]),
        mt.EvalCase("digits", "room 7", judges=[has_no_digit, is_short]),
    ]

    report = evaluated(cases)

    assert outcomes(report) == {
        "right": "passed",
        "wrong": "failed",
        "long": "failed",
        "digits": "failed",
    }
    assert reason(report, "wrong") == "equals: expected 'Paris', got 'Lyon'"
    assert reason(report, "long") == "is_short: 19 characters"
    assert report.case("digits").totals.score == pytest.approx((0 + 1 / 6) / 2)
    assert (report.passed, report.share, report.totals.passed) == (False, 0.25, 1)
    with pytest.raises(mt.EvaluationFailed, match="1 of 4 cases passed") as failed:
        report.check()
    assert "expected 'Paris', got 'Lyon'" in str(failed.value)
    assert report.check(least=0.25) is report


def raises(_: mt.Trial[str]) -> bool:
    raise ZeroDivisionError("by zero")


def leaves(_: mt.Trial[str]) -> bool:
    raise SystemExit(3)


async def on_asyncio(_: mt.Trial[str]) -> bool:
    await asyncio.sleep(0.01)
    return True


def says_nothing(_: mt.Trial[str]) -> None:
    pass


def asserts(trial: mt.Trial[str]) -> bool:
    if trial.text != "a":
        raise AssertionError("not an a")
    return True


def timed(clock: MockClock, cases: Sequence[mt.EvalCase], agent: motet.Agent[None, str]) -> Any:
    """Evaluate while the test moves the clock: without that, no time-out strikes."""
    evaluation = mt.Evaluation("timed", agent, cases, timeout=None)
    return trio.run(partial(evaluation.run_async, state=None, jobs=len(cases)), clock=clock)


def test_whatever_a_judge_does_costs_its_own_case_only() -> None:
    clock = MockClock(rate=1.0)

    async def hangs(_: mt.Trial[str]) -> bool:
        clock.jump(AN_HOUR)
        await trio.sleep_forever()
        return True

    own: list[tuple[str, Callable[[mt.Trial[str]], Any]]] = [
        ("raises", raises),
        ("leaves", leaves),
        ("nothing", says_nothing),
        ("loop", on_asyncio),
        ("not called", mt.judges.equals),
        ("asserts", asserts),
        ("hangs", hangs),
        ("fails", lambda _: pytest.fail("in a judge")),
    ]
    cases = [
        mt.EvalCase(name, "b", judges=[judge], timeout=AN_HOUR if name == "hangs" else None)
        for name, judge in own
    ]

    report = timed(clock, [*cases, mt.EvalCase("good", "a", "a", judges=[asserts])], echo())

    assert outcomes(report) == {
        "raises": "error",
        "leaves": "error",
        "nothing": "error",
        "loop": "error",
        "not called": "error",
        "asserts": "failed",
        "hangs": "error",
        "fails": "error",
        "good": "passed",
    }
    assert reason(report, "raises") == "raises: ZeroDivisionError: by zero"
    assert "it returned None: return a bool" in reason(report, "nothing")
    assert "async judges run on Trio" in reason(report, "loop")
    assert "call it in the list of judges, `equals()`" in reason(report, "not called")
    assert reason(report, "asserts") == "asserts: not an a"
    assert "it took more than 3600 s" in reason(report, "hangs")
    assert "in a judge" in reason(report, "fails")


def test_whatever_the_agent_does_costs_its_own_case_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MockClock(rate=1.0)

    def hung(request: ModelRequest) -> mt.Step:
        step = reply(request)
        if isinstance(step, Slow):
            clock.jump(AN_HOUR)
        return step

    monkeypatch.setattr(running, "GRACE", 10 * AN_HOUR)
    cases = [
        mt.EvalCase("fails", "fail now", "x"),
        mt.EvalCase("hangs", "hang on", "x", timeout=AN_HOUR),
        mt.EvalCase("refuses", "refuse this", status="refused"),
        mt.EvalCase("wrongly refuses", "refuse this", "x"),
        mt.EvalCase("should refuse", "hello", status="refused"),
        mt.EvalCase("good", "hello", "hello"),
    ]

    report = timed(clock, cases, motet.Agent("echo", model=mt.FunctionModel(hung)))

    assert outcomes(report) == {
        "fails": "error",
        "hangs": "error",
        "refuses": "passed",
        "wrongly refuses": "failed",
        "should refuse": "failed",
        "good": "passed",
    }
    assert "the run was failed" in reason(report, "fails")
    assert reason(report, "hangs") == "it took more than 3600 s, and was stopped"
    assert report.case("hangs").trials[0].status == "cancelled"
    assert "the run was completed; it should have been refused" in reason(report, "should refuse")
    assert all(trial.runs for case in report.cases for trial in case.trials)


def test_an_agent_that_cannot_be_cancelled_is_left_behind_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, released = threading.Event(), threading.Event()
    clock, agent = MockClock(rate=1.0), echo()

    @agent.tool
    def block() -> str:
        """Never ends by itself."""
        begun.set()
        released.wait(60)
        return "over"

    left: list[EvalReport] = []

    class Releasing(Silent):
        def left_behind(self, report: EvalReport) -> None:
            left.append(report)
            released.set()

    monkeypatch.setattr(running, "GRACE", 0.05)
    cases = [
        mt.EvalCase("stuck", "block", "x", timeout=AN_HOUR),
        *[mt.EvalCase(f"good {n}", "a", "a") for n in range(3)],
    ]
    evaluation = mt.Evaluation("blocked", agent, cases, timeout=None)

    async def evaluate() -> EvalReport:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(jump)
            return await evaluation.watched(Releasing(), trio.Event(), state=None, jobs=1)

    async def jump() -> None:
        await trio.to_thread.run_sync(begun.wait)
        clock.jump(AN_HOUR)

    report = trio.run(evaluate, clock=clock)

    assert left == [report]
    assert report.left == ("stuck",)
    assert "a tool cannot be cancelled" in reason(report, "stuck")
    assert [case.outcome for case in report.cases] == ["error", "passed", "passed", "passed"]


def test_outputs_have_the_agents_type_and_so_has_what_is_expected() -> None:
    def larger(trial: mt.Trial[City]) -> bool:
        return trial.output.people >= trial.expected.people

    model = mt.FunctionModel(lambda _: '{"name": "Paris", "people": 3}')
    agent = motet.Agent("typed", model=model, output_type=City)
    cases = [
        mt.EvalCase("struct", "Paris", City("Paris", 2)),
        mt.EvalCase("data", "Paris", {"name": "Paris", "people": 4}),
    ]

    report = mt.evaluate(agent, cases, [larger], state=None)

    assert outcomes(report) == {"struct": "passed", "data": "failed"}


def test_a_case_may_be_a_conversation_and_be_run_several_times() -> None:
    seen: list[tuple[str, ...]] = []

    def looks(trial: mt.Trial[str]) -> bool:
        seen.append(tuple(result.text for result in trial.results))
        return trial.repeat != 2

    cases = [mt.EvalCase("talk", ("one", "two"), judges=[looks]), mt.EvalCase("x", "x", "x")]

    report = evaluated(cases, repeats=3)

    assert seen == [("one", "two")] * 3
    talk = report.case("talk")
    assert (talk.outcome, talk.totals.passed, talk.totals.trials) == ("failed", 2, 3)
    assert len({trial.session for trial in talk.trials}) == 3
    assert all(len(trial.runs) == 2 for trial in talk.trials)
    assert "talk  ✗ 2/3" in str(report)


def test_deps_are_made_anew_for_each_trial_and_judges_see_them() -> None:
    agent = motet.Agent("shop", model=mt.FunctionModel(reply), deps_type=list[str])

    @agent.tool
    async def look_up(ctx: motet.Context[list[str]], city: str) -> str:
        ctx.deps.append(city)
        return f"{city} is there"

    def looked(trial: mt.Trial[str]) -> bool:
        return trial.deps == ["Paris"]

    judges: list[mt.Judge[str]] = [looked, mt.judges.called("look_up", city="Paris")]
    cases = [mt.EvalCase("a", "look"), mt.EvalCase("b", "look")]

    report = mt.evaluate(agent, cases, judges, deps=lambda _: list[str](), state=None)

    assert outcomes(report) == {"a": "passed", "b": "passed"}


def test_an_agent_judges_and_what_it_spends_is_counted_apart() -> None:
    def critic(request: ModelRequest) -> str:
        asked = request.messages[-1].text
        assert "Judge the answer in this JSON document." in asked
        passed = "true" if '"answer": "kind words"' in asked else "false"
        return f'{{"passed": {passed}, "value": 0.75, "reason": "tone"}}'

    polite = mt.judges.rubric("It is polite.", mt.FunctionModel(critic, name="critic"), name="tone")
    talks = motet.Agent("talks", model=mt.FunctionModel(lambda _: "fine", name="talker"))
    cases = [mt.EvalCase("kind", "kind words"), mt.EvalCase("rude", "go away")]

    report = evaluated(cases, polite)

    assert outcomes(report) == {"kind": "passed", "rude": "failed"}
    assert reason(report, "rude") == "tone: tone"
    assert report.totals.judging.total_tokens > report.totals.usage.total_tokens > 0
    wrong = evaluated(cases[:1], talks)
    assert "an agent that judges needs output_type=mt.Score" in reason(wrong, "kind")


def test_the_next_evaluation_says_what_got_better_or_worse(tmp_path: Path) -> None:
    def run(*words: str, **options: Any) -> EvalReport:
        cases = [mt.EvalCase(f"{n}", word, "a") for n, word in enumerate(words)]
        return evaluated(cases, state=tmp_path, **options)

    first = run("a", "b", "a")
    second = run("a", "a", "b", "a")
    only = run("a", "b", "b", "a", only=["1"])

    assert first.previous is None
    assert second.previous is not None
    assert [case.change for case in second.cases] == ["same", "changed", "changed", "new"]
    assert only.number == 3
    assert outcomes(only) == {"1": "failed"}
    found = baseline(tmp_path, "echo")
    assert found is not None
    assert found.plan.number == 2  # one with chosen cases only is no base of a comparison
    assert load_report_of(second, tmp_path).cases == second.cases

    def fickle(trial: mt.Trial[str]) -> bool:
        return (trial.case.name in passing) == (trial.text == "a")

    passing = {"0", "1"}
    cases = [mt.EvalCase(f"{n}", "a") for n in range(3)]
    evaluated(cases, fickle, state=tmp_path, name="fickle")
    passing = {"1", "2"}
    report = evaluated(cases, fickle, state=tmp_path, name="fickle")
    assert (report.better, report.worse) == (("2",), ("0",))
    assert "▲ better" in str(report)
    assert "worse: 0" in str(report)


def load_report_of(report: EvalReport, folder: Path) -> EvalReport:
    file = folder / "report.json"
    file.write_bytes(msgspec.json.encode(report))
    return load_report(file)


def test_a_resumed_evaluation_keeps_all_trials_but_those_with_an_error(tmp_path: Path) -> None:
    broken = [True]
    asked: list[str] = []

    def sometimes_fails(trial: mt.Trial[str]) -> bool:
        asked.append(trial.case.name)
        if broken[0] and trial.text == "b":
            raise ConnectionError("down")
        return trial.text != "c"

    cases = [mt.EvalCase(text, text) for text in "abc"]
    first = evaluated(cases, sometimes_fails, state=tmp_path)
    assert outcomes(first) == {"a": "passed", "b": "error", "c": "failed"}
    broken[0], asked[:] = False, []

    second = evaluated(cases, sometimes_fails, state=tmp_path, resume=True)

    assert asked == ["b"]
    assert outcomes(second) == {"a": "passed", "b": "passed", "c": "failed"}
    assert second.case("a").trials == first.case("a").trials
    other = echo(instructions="Be brief.")
    with pytest.raises(ConfigError, match="another model, instructions or tools"):
        mt.evaluate(other, cases, [sometimes_fails], state=tmp_path, resume=True)
    with pytest.raises(ConfigError, match="to resume"):
        evaluated(cases, sometimes_fails, state=tmp_path, resume=True, name="new")


def test_a_stop_ends_the_trials_under_way_and_keeps_those_that_have_ended(tmp_path: Path) -> None:
    stopping = trio.Event()

    class Stops(Silent):
        def ended(self, trial: TrialRecord) -> None:
            stopping.set()

    cases = [mt.EvalCase("a", "a", "a"), mt.EvalCase("h", "hang", "x"), mt.EvalCase("b", "b", "b")]
    evaluation = mt.Evaluation("stops", echo(), cases)

    report = trio.run(lambda: evaluation.watched(Stops(), stopping, state=tmp_path, jobs=2))

    assert report.stopped
    assert not report.passed
    assert report.case("a").outcome == "passed"
    assert "h" not in outcomes(report)
    with pytest.raises(mt.EvaluationFailed, match="stopped after"):
        report.check(least=0)
    journal = last(tmp_path, "stops")
    assert journal is not None
    assert journal.end is not None
    assert journal.end.stopped
    assert baseline(tmp_path, "stops") is None


def test_the_sessions_and_traces_of_trials_stay_in_the_state(tmp_path: Path) -> None:
    report = evaluated([mt.EvalCase("Côte d'Ivoire?", "hi", "hi")], state=tmp_path)
    (trial,) = report.case("Côte d'Ivoire?").trials
    assert trial.session == "echo/1/Côte-d-Ivoire"

    async def look() -> tuple[str, int]:
        async with motet.open_host(tmp_path) as host:
            trace = await host.trace(trial.runs[0])
            rows = await host.history(trial.session)
            return trace.info.user, len(rows)

    user, rows = trio.run(look)

    assert user == f"eval:{trial.session}"
    assert rows == 2


def test_a_full_disk_ends_no_evaluation(tmp_path: Path) -> None:
    class Full:
        """A file on a disk on which half of the second line fits."""

        def __init__(self) -> None:
            self.lines = 0

        def write(self, data: bytes) -> int:
            self.lines += 1
            if self.lines > 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            return len(data) // self.lines

        def close(self) -> None:
            """Nothing is open."""

    writer = Writer.begin(tmp_path, PLAN_LINE)
    file = writer._file  # pyright: ignore[reportPrivateUsage]
    assert file is not None
    file.close()
    writer._file = cast("BinaryIO", Full())  # pyright: ignore[reportPrivateUsage]
    for name in "abc":
        writer.add(TrialRecord(name, 1, "x", "passed"))
    assert writer.unsaved == "No space left on device"

    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "results").write_text("a file where a folder should be")
    report = evaluated([mt.EvalCase("a", "a", "a")], state=blocked)
    assert report.passed
    assert report.unsaved
    assert "the results are not all stored" in str(report)


PLAN_LINE = Plan(1, "0", "full", 1, "a", "m", "s", 0.0, 3)


def test_models_are_recorded_and_replayed_with_those_of_sub_agents_and_judges(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    def answer(request: ModelRequest) -> mt.Step:
        asked.append(request.messages[-1].text)
        if "Judge the answer" in request.messages[-1].text:
            return mt.say('{"passed": true}')
        if request.tools and len(request.messages) == 1:
            return mt.call("helper", task="help me")
        return mt.say("done")

    def agents() -> tuple[motet.Agent[None, str], mt.Judge[str]]:
        helper = motet.Agent("helper", model=mt.FunctionModel(answer, name="small"))
        boss = motet.Agent(
            "boss", model=mt.FunctionModel(answer, name="large"), tools=[helper.as_tool()]
        )
        return boss, mt.judges.rubric("Good.", mt.FunctionModel(answer, name="judge"))

    cases = [mt.EvalCase("a", "go", "done")]
    boss, judge = agents()
    model = boss.model
    with pytest.raises(ConfigError, match="no recording of"):
        mt.evaluate(boss, cases, [judge], state=None, replay=tmp_path)
    assert asked == []
    assert boss.model is model

    assert mt.evaluate(boss, cases, [judge], state=None, record=tmp_path).passed
    assert len(asked) == 4
    assert {file.name for file in tmp_path.iterdir()} == {
        "small.jsonl",
        "large.jsonl",
        "judge.jsonl",
    }
    boss, judge = agents()
    assert mt.evaluate(boss, cases, [judge], state=None, replay=tmp_path).passed
    assert len(asked) == 4


def test_hooks_config_and_loops(tmp_path: Path) -> None:
    heard: list[str] = []

    def setup(host: motet.Host) -> None:
        @host.on("run_end")
        async def end(event: motet.RunEnd) -> None:
            heard.append(event.session)

    report = evaluated([mt.EvalCase("a", "a", "a")], setup=setup, config=motet.HostConfig())
    assert report.passed
    assert heard == ["echo/1/a"]

    async def inside() -> None:
        with pytest.raises(RuntimeError, match="evaluate_async"):
            evaluated([mt.EvalCase("a", "a", "a")])
        report = await mt.evaluate_async(echo(), [mt.EvalCase("a", "a", "a")], state=None)
        assert report.passed

    trio.run(inside)
    with pytest.raises(TypeError, match="unknown option 'job'"):
        evaluated([mt.EvalCase("a", "a", "a")], job=3)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_bar_keeps_its_counts_on_a_narrow_terminal(width: int) -> None:
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    bar = bar_on(console)  # not entered, so that no thread draws it
    told = Told(console, bar, None)
    told.begin(1_000, [TrialRecord("kept", 1, "x", "failed")])
    for number in range(6):
        told.started(f"a case with a long name {number}")
    told.ended(TrialRecord("a case with a long name 0", 1, "x", "passed"))

    (line,) = [
        "".join(part.text for part in parts).rstrip()
        for parts in console.render_lines(bar.get_renderable())
    ]

    assert len(line) <= width
    assert "2/1000" in line
    assert "1 passed, 1 not" in line
    assert ("tokens a case" in line) == (width >= 80)
