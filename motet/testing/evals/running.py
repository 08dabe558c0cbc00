"""The run of an evaluation: its trials, some at a time, in one host.

Invariants: an agent, a tool or a judge that raises, hangs or answers nonsense costs its own trial
and no other; a trial is stored when it has ended; a stop ends the trials under way in order and
drops them, so that a resumed evaluation runs them anew.

Each trial has a session and a user of its own, so that no memory, grant or limit of one is met by
another.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
import msgspec
import trio

from motet.actors.agents.spec import AnyAgent
from motet.actors.host import Host, hosted
from motet.actors.hosting.config import ConfigSource
from motet.actors.rooms.definition import Room
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError
from motet.protocols.evals import (
    FORMAT,
    End,
    Journal,
    Judged,
    Outcome,
    Plan,
    TrialRecord,
    broken,
    by_case,
    fingerprint,
    judged,
    outcome_of,
    results,
    shortened,
    totals,
    unaffordable,
)
from motet.protocols.models import Model, Usage
from motet.protocols.redaction.redact import redact_text
from motet.protocols.run import RunResult
from motet.protocols.sessions import Principal
from motet.protocols.version import __version__
from motet.testing.evals.cases import EvalCase, Judge, Trial, asked, is_agent, name_of
from motet.testing.evals.journal import Writer, baseline, last, next_number
from motet.testing.evals.models import Cassettes, prepared
from motet.testing.evals.report import EvalReport, Previous, trials_of
from motet.testing.evals.talks import AgentTalk, RoomTalk, Talk, is_of_trio

__all__ = ["GRACE", "Order", "Watch", "run_order"]

GRACE = 5.0
"""Seconds that a trial may take to end after its time-out, before it is left behind."""
OUTPUT_CHARS = 2_000
REASON_CHARS = 2_000
_NOT_IN_A_KEY = re.compile(r"[^\w.-]+")
_NOT_IN_A_ROOM = re.compile(r"[^A-Za-z0-9_.-]+")
_ANSWERED = frozenset({"completed", "limited", "refused", "escalated", "waiting"})
"""Ends of runs that the agent has brought about; after all others nothing is known of it."""


class Watch(Protocol):
    """The observer of an evaluation. Its methods return at once and raise nothing."""

    def begin(self, planned: int, kept: Sequence[TrialRecord]) -> None:
        """The trials begin; ``kept`` are those of the resumed evaluation."""
        ...

    def started(self, case: str) -> None: ...

    def ended(self, trial: TrialRecord) -> None: ...

    def left_behind(self, report: EvalReport) -> None:
        """The report is complete, but cases of it do not end (``report.left``).

        The host is closed only when they have; a program may leave them to the system instead.
        """
        ...


@attrs.frozen
class Order:
    """An evaluation to run, checked. The fields are documented in :class:`Evaluation`."""

    name: str
    subject: AnyAgent | Room
    cases: tuple[EvalCase, ...]
    expected: tuple[object, ...]
    whole: bool
    judges: tuple[Judge[Any], ...] = ()
    deps: Callable[[EvalCase], Any] | None = None
    setup: Callable[[Host], None] | None = None
    repeats: int = 1
    timeout: float | None = None
    jobs: int = 1
    config: HostConfig = attrs.field(factory=HostConfig)
    source: ConfigSource = attrs.field(factory=ConfigSource)
    state: Path | None = None
    model: str | Model | None = None
    cassettes: Cassettes | None = None
    resume: bool = False
    against: EvalReport | None = None
    budget: float | None = None

    @property
    def room(self) -> Room | None:
        """The evaluated room; None: an agent is evaluated."""
        return self.subject if isinstance(self.subject, Room) else None

    @property
    def agents(self) -> tuple[AnyAgent, ...]:
        """The evaluated agents."""
        return self.subject.agents if isinstance(self.subject, Room) else (self.subject,)

    def judges_of(self, case: EvalCase) -> tuple[Judge[Any], ...]:
        """The judges of a case; without any, its output must equal what is expected."""
        from motet.testing.evals.judges import equals

        own = (*self.judges, *case.judges)
        return own or ((equals(),) if case.expected is not msgspec.UNSET else ())

    def setup_digest(self) -> str:
        """A digest of the agents, without which the trials of two evaluations do not compare."""
        found: list[object] = []
        for agent in self.agents:
            tools = [tool if isinstance(tool, str) else tool.name for tool in agent.tools]
            model = self.model or agent.model
            name = model if isinstance(model, str) else model.name
            found.append([agent.name, name, agent.instructions, sorted(tools)])
        return fingerprint([self.subject.name, found] if self.room else found[0])


@attrs.frozen
class _Task:
    """A trial to run."""

    case: EvalCase
    expected: object
    repeat: int
    session: str
    judges: tuple[tuple[str, Judge[Any]], ...]
    digest: str


async def run_order(order: Order, watch: Watch, stopping: trio.Event) -> EvalReport:
    """Run it, and report. ``stopping``: when it is set, the evaluation ends early, in order.

    Cancelling ends all runs and keeps the trials that have ended. Raises what ``open_host``
    raises, and ``ConfigError`` for a resumed evaluation of another agent.
    """
    state = order.state
    agents = [one for one in _judges(order) if is_agent(one)]
    with prepared(
        order.agents,
        agents,
        model=order.model,
        cassettes=order.cassettes,
        config=order.config.models,
    ) as recorded:
        resumed = _resumed(order) if order.resume and state is not None else None
        known = [*order.agents, *{id(one): one for one in agents}.values()]
        try:
            async with hosted(order.source, order.config, known, state) as host:
                if order.setup is not None:
                    order.setup(host)
                return await _Evaluation(order, host, watch).run(stopping, resumed)
        finally:
            with trio.CancelScope(shield=True):  # connections have to be closed
                for model in recorded:
                    await model.aclose()


def _judges(order: Order) -> Iterable[Judge[Any]]:
    yield from order.judges
    for case in order.cases:
        yield from case.judges


def _resumed(order: Order) -> Journal | None:
    """The evaluation to go on with. Raises ``ConfigError`` when there is none that fits."""
    assert order.state is not None
    found = last(order.state, order.name)
    if found is None:
        raise ConfigError(f"there is no evaluation {order.name!r} in {order.state} to resume")
    if found.plan.setup != order.setup_digest():
        raise ConfigError(
            f"the agent of {order.name} {found.plan.number} had another model, instructions or "
            "tools: evaluate it anew, without resuming"
        )
    return found


class _Evaluation:
    """An evaluation under way in a host."""

    def __init__(self, order: Order, host: Host, watch: Watch) -> None:
        self._order = order
        self._host = host
        self._watch = watch
        self._done: list[TrialRecord] = []
        self._left: list[str] = []
        self._spent = Usage()
        self._poor = ""
        # A judge that never ends must not take the place of another one.
        self._threads = trio.CapacityLimiter(math.inf)

    async def run(self, stopping: trio.Event, resumed: Journal | None) -> EvalReport:
        order, state = self._order, self._order.state
        began, number = trio.current_time(), next_number(state, order.name) if state else 1
        tasks = self._tasks(number)
        plan = Plan(
            FORMAT,
            __version__,
            order.name,
            number,
            order.subject.name,
            ", ".join(dict.fromkeys(one.model_name for one in order.agents)),
            order.setup_digest(),
            time.time(),
            len(tasks),
            order.whole,
        )
        before = baseline(state, order.name) if state else None
        journal = Writer.begin(state, plan)
        for one in _kept(tasks, resumed):
            self._done.append(one)
            journal.add(one)
        kept = {(one.case, one.repeat) for one in self._done}
        self._watch.begin(len(tasks), tuple(self._done))
        waiting = iter([one for one in tasks if (one.case.name, one.repeat) not in kept])
        async with trio.open_nursery() as background:
            async with trio.open_nursery() as workers:

                async def stop() -> None:
                    await stopping.wait()
                    working.cancel()

                async def work() -> None:
                    while not self._poor and (task := next(waiting, None)) is not None:
                        self._watch.started(task.case.name)
                        record = await self._trial(task, background)
                        self._done.append(record)
                        journal.add(record)
                        self._pay(record)
                        self._watch.ended(record)

                workers.start_soon(stop)
                with trio.CancelScope() as working:
                    async with trio.open_nursery() as all_of_them:
                        for _ in range(min(order.jobs, len(tasks))):
                            all_of_them.start_soon(work)
                workers.cancel_scope.cancel()
            seconds = trio.current_time() - began
            stopped = len(self._done) < len(tasks)
            journal.close(End(seconds, stopped))
            report = self._report(plan, tasks, before, seconds, journal.unsaved)
            if self._left:
                self._watch.left_behind(report)
            background.cancel_scope.cancel()
        return report

    def _pay(self, record: TrialRecord) -> None:
        """Count the cost of a trial; from the moment on at which all is spent, none begins."""
        self._spent += record.usage + record.judging
        if self._order.budget is not None:
            self._poor = unaffordable(self._order.budget, self._spent)

    def _tasks(self, number: int) -> list[_Task]:
        order, tasks = self._order, list[_Task]()
        slugs = dict[str, int]()
        for case, expected in zip(order.cases, order.expected, strict=True):
            judges = _named(order.judges_of(case))
            slug = _NOT_IN_A_KEY.sub("-", case.name).strip("-")[:60] or "case"
            slugs[slug] = slugs.get(slug, 0) + 1
            if slugs[slug] > 1:
                slug = f"{slug}~{slugs[slug]}"
            digest = case.fingerprint(name for name, _ in judges)
            repeats = case.repeats or order.repeats
            for repeat in range(1, repeats + 1):
                end = f"/{repeat}" if repeats > 1 else ""
                session = f"{order.name}/{number}/{slug}{end}"
                if order.room is not None:
                    session = _room_name(slug, session)
                tasks.append(_Task(case, expected, repeat, session, judges, digest))
        return tasks

    def _report(
        self,
        plan: Plan,
        tasks: Sequence[_Task],
        before: Journal | None,
        seconds: float,
        unsaved: str,
    ) -> EvalReport:
        against = self._order.against
        then = trials_of(against) if against else by_case(before.trials if before else ())
        places = {task.case.name: place for place, task in enumerate(reversed(tasks))}
        trials = sorted(self._done, key=lambda one: (-places[one.case], one.repeat))
        cases = results(trials, then)
        shared = [one for case in cases if case.before for one in then[case.name]]
        previous = None
        if against is not None:
            previous = Previous(against.number, against.started, against.model, totals(shared))
        elif before is not None:
            was = before.plan
            previous = Previous(was.number, was.started, was.model, totals(shared))
        return EvalReport(
            plan.name,
            plan.number,
            plan.agent,
            plan.model,
            plan.started,
            seconds,
            plan.trials,
            totals(trials),
            cases,
            previous,
            stopped=len(trials) < plan.trials,
            state=str(self._order.state or ""),
            unsaved=unsaved,
            left=tuple(self._left),
            why_stopped=self._poor if len(trials) < plan.trials else "",
            in_rooms=self._order.room is not None,
        )

    # One trial

    async def _trial(self, task: _Task, background: trio.Nursery) -> TrialRecord:
        """The record of a trial; raises only what cancels it."""
        limit = task.case.timeout or self._order.timeout or math.inf
        talk = self._talk(task)
        began = trio.current_time()
        # Not in this task: a tool that cannot be cancelled would hold up all that follows.
        background.start_soon(talk.hold)
        try:
            with trio.move_on_after(limit):
                await talk.ended.wait()
            timed_out = not talk.ended.is_set()
            talk.scope.cancel()
            with trio.move_on_after(GRACE):
                await talk.ended.wait()
        finally:
            talk.scope.cancel()
        seconds = trio.current_time() - began
        error = talk.error
        if timed_out:
            error = f"it took more than {limit:g} s, and was stopped"
        if not talk.ended.is_set():
            error = f"it took more than {limit:g} s, and does not end: a tool cannot be cancelled"
            self._left.append(task.case.name)
        verdicts: tuple[Judged, ...] = ()
        judging, judging_seconds = Usage(), 0.0
        outcome: Outcome = "error"
        if not error:
            outcome, error = _as_wanted(task.case, talk.results[-1])
        if not error:
            asked_at = trio.current_time()
            verdicts, judging = await self._judged(task, talk, seconds, limit)
            judging_seconds = trio.current_time() - asked_at
            outcome = outcome_of(verdicts)
        last = talk.last
        return TrialRecord(
            task.case.name,
            task.repeat,
            task.digest,
            outcome,
            task.session if talk.runs else "",
            tuple(talk.runs),
            last.status if last is not None else None,
            seconds,
            talk.usage,
            judging,
            tuple(_safe(one) for one in verdicts),
            redact_text(shortened(last.text, OUTPUT_CHARS)) if last is not None else "",
            redact_text(shortened(error, REASON_CHARS)),
            judging_seconds,
        )

    def _talk(self, task: _Task) -> Talk:
        order = self._order
        if isinstance(order.subject, Room):
            return RoomTalk(self._host, task.case, task.session, order.subject)
        return AgentTalk(self._host, task.case, task.session, order.subject, order.deps)

    async def _judged(
        self, task: _Task, talk: Talk, seconds: float, limit: float
    ) -> tuple[tuple[Judged, ...], Usage]:
        """The verdicts of all judges, each within the time of the case; and what agents spent."""
        trial = Trial(
            task.case,
            task.repeat,
            tuple(talk.results),
            seconds,
            talk.deps,
            tuple(talk.messages),
            expected=task.expected,
        )
        verdicts, spent = list[Judged](), Usage()
        for name, judge in task.judges:
            used = Usage()
            with trio.move_on_after(limit) as scope:
                try:
                    if is_agent(judge):
                        found, used = await self._asked(name, judge, trial, task.session)
                    else:
                        found = judged(name, await asked(judge, trial, self._threads))
                except AssertionError as error:
                    reason = str(error).partition("\n")[0] or "an assertion of it failed"
                    found = Judged(name, False, 0.0, reason)
                except BaseException as error:  # also of `pytest.fail` and `sys.exit`
                    if is_of_trio(error):
                        raise
                    hint = (
                        "; async judges run on Trio" if "running event loop" in str(error) else ""
                    )
                    found = broken(name, f"{type(error).__name__}: {error}{hint}")
                verdicts.append(found)
            if scope.cancelled_caught:
                verdicts.append(broken(name, f"it took more than {limit:g} s"))
            spent += used
        return tuple(verdicts), spent

    async def _asked(
        self, name: str, judge: AnyAgent, trial: Trial[Any], session: str
    ) -> tuple[Judged, Usage]:
        who = Principal(f"eval:{session}", "admin")
        key = f"{session}/judge-{_NOT_IN_A_KEY.sub('-', name)}"
        result = await self._host.run(
            judge, _question(trial), check=False, session=key, principal=who
        )
        if result.status != "completed":
            why = result.detail or result.limit or str(result.error or "")
            return broken(name, f"its run {result.run_id} was {result.status}: {why}"), result.usage
        if not result.structured:
            return broken(name, "an agent that judges needs output_type=mt.Score"), result.usage
        return judged(name, result.output), result.usage


def _as_wanted(case: EvalCase, result: RunResult[Any]) -> tuple[Outcome, str]:
    """The outcome and the reason, where a run did not end as its case wants it."""
    if result.status == case.status:
        return "passed", ""
    why = result.detail or result.limit or str(result.error or "")
    said = f"the run was {result.status}{': ' if why else ''}{why}"
    if case.status != "completed":
        said += f"; it should have been {case.status}"
    return ("failed" if result.status in _ANSWERED else "error"), said


def _room_name(slug: str, session: str) -> str:
    """The name of the room of a trial, which no other trial of any evaluation has."""
    return f"eval-{_NOT_IN_A_ROOM.sub('-', slug)[:40]}-{fingerprint(session)[:12]}"


def _named(judges: Sequence[Judge[Any]]) -> tuple[tuple[str, Judge[Any]], ...]:
    """The judges with their names; the second of a name is ``NAME 2``."""
    found, times = list[tuple[str, Judge[Any]]](), dict[str, int]()
    for judge in judges:
        name = name_of(judge)
        times[name] = times.get(name, 0) + 1
        found.append((name if times[name] == 1 else f"{name} {times[name]}", judge))
    return tuple(found)


def _kept(tasks: Sequence[_Task], resumed: Journal | None) -> list[TrialRecord]:
    """The trials of a resumed evaluation that need no second run: those without an error."""
    if resumed is None:
        return []
    wanted = {(task.case.name, task.repeat): task.digest for task in tasks}
    return [
        one
        for one in resumed.trials
        if one.outcome != "error" and wanted.get((one.case, one.repeat)) == one.fingerprint
    ]


def _safe(one: Judged) -> Judged:
    return msgspec.structs.replace(one, reason=redact_text(shortened(one.reason, REASON_CHARS)))


def _question(trial: Trial[Any]) -> str:
    """A trial for an agent that judges: JSON, so that an answer cannot pretend to be more."""
    shown: dict[str, object] = {"inputs": trial.case.inputs}
    if trial.case.expected is not msgspec.UNSET:
        shown["expected"] = trial.expected
    if trial.messages:
        shown["messages"] = [f"{one.author}: {one.text}" for one in trial.messages]
    shown |= {"answer": trial.text, "calls": trial.calls}
    if trial.result.status != "completed":
        shown["status"] = trial.result.status
    text = msgspec.json.format(msgspec.json.encode(shown, enc_hook=repr)).decode()
    return f"Judge the answer in this JSON document.\n\n{text}"
