"""A program: actions of users, answers of models, faults, and the schedule.

A :class:`Program` is data; a :class:`BoundProgram` adds the agent or room; a :class:`Play` is one
execution: each step in turn, and then the host comes to rest.

Invariants: the same program with the same agents gives the same trace byte for byte (G12). Its
``repr`` is the Python that makes it. A refused user gets an error and the program continues; any
other error is a finding, and is raised with the program. The invariants on the history alone are
checked after each step.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property, partial
from itertools import islice
from typing import Any, Protocol

import attrs
import msgspec
import trio

from motet.actors.agents.spec import AnyAgent
from motet.actors.host import Host
from motet.protocols.approvals import ApprovalDecision
from motet.protocols.errors import ConfigError
from motet.protocols.models import Model
from motet.protocols.sessions import LOCAL, Principal
from motet.runtime.testing.simulation import Stuck
from motet.runtime.testing.trace import report
from motet.testing.host import SimulatedHost
from motet.testing.invariants import CHEAP, Invariant, Violation, broken
from motet.testing.invariants.snapshot import Sent, Snapshot
from motet.testing.processes import answers
from motet.testing.scripted import Step
from motet.testing.stories import acts, people
from motet.testing.stories.acts import Act, Mishap
from motet.testing.stories.foreign import system_tasks_known
from motet.testing.stories.people import refused
from motet.testing.stories.printing import as_test, current_test, source
from motet.testing.stories.schedule import Observed, Schedule, followed
from motet.testing.stories.stage import (
    PATIENCE,
    PER_INPUT,
    Player,
    Stage,
    being_replayed,
    events_published,
    tasks_of_runs,
    told,
    uncollected,
)
from motet.testing.stories.target import Receive, Subject, Target, instrumented
from motet.testing.stories.vocabulary import GIVEN, Rule, rules_of
from motet.testing.survey import current_survey, in_search

__all__ = [
    "BoundProgram",
    "InvariantBroken",
    "Mishap",
    "Play",
    "Program",
    "latest",
    "play_in",
]

REST = 3600.0
"""Virtual seconds in which a host must come to rest without further input."""

ROUND, ROUNDS, SAYING_NO = 120.0, 80, 20
"""Virtual seconds between two looks for pending approvals, the number of looks, and of the last
looks, which deny all."""

DOOR = 60.0
"""Virtual seconds in which the program's own ``receive`` must have delivered its messages."""

RUNS = 60.0
"""Virtual seconds that some steps of the scheduler may take: in a host at rest only timers run."""

NOT_FOUND = answers("", exit=127, stderr="there is no such program\n")
"""The result of shell commands of drawn models, as on an empty machine."""

STEPS = 50_000
"""Scheduler steps that one step of a program may take."""


class Program(msgspec.Struct, frozen=True, omit_defaults=True):
    """One story of users, models and faults, to be played in a ``simulated_host``.

    Attributes:
        steps: the actions, in this order.
        script: the answers of each agent's model, by the agent's name, request by request across
            all sessions; afterwards, and for other agents, the answer is ``ok``.
        mishaps: the faults of tools.
        choices: the schedule from the first step on; empty: first in, first out.
        seed: of the host.
        approves: people allow the approvals that are pending at the end; else they deny them.
        schedule: in place of ``choices``: a policy, or the tasks that are held back.
    """

    steps: Sequence[Act]
    script: Mapping[str, Sequence[Step]] = {}
    mishaps: Sequence[Mishap] = ()
    choices: Sequence[int] = ()
    seed: int = 0
    approves: bool = False
    schedule: Schedule | None = None

    def bind(
        self,
        subject: Subject,
        *,
        receive: Receive | None = None,
        own_models: bool = False,
        rules: Sequence[Rule | Callable[..., object]] = (),
    ) -> BoundProgram:
        """The program for this agent or room; see :func:`motet.testing.programs`."""
        return BoundProgram(self, Target(subject, receive, own_models, rules_of(rules)))

    def execute(
        self,
        host: SimulatedHost,
        subject: Subject,
        *,
        receive: Receive | None = None,
        own_models: bool = False,
        rules: Sequence[Rule | Callable[..., object]] = (),
    ) -> None:
        """Execute the program in ``host``; see :meth:`BoundProgram.execute`."""
        bound = self.bind(subject, receive=receive, own_models=own_models, rules=rules)
        bound.execute(host)


class Printer(Protocol):
    """Hypothesis' printer of examples."""

    def text(self, text: str, /) -> None: ...


@attrs.frozen(repr=False)
class BoundProgram:
    """A :class:`Program` for one agent or room. It has the attributes of the program."""

    program: Program
    target: Target

    def __repr__(self) -> str:
        return source(self.program)

    def _repr_pretty_(self, printer: Printer, _cycle: bool) -> None:
        """How Hypothesis shows an example."""
        printer.text(repr(self))

    @property
    def steps(self) -> Sequence[Act]:
        return self.program.steps

    @property
    def script(self) -> Mapping[str, Sequence[Step]]:
        return self.program.script

    @property
    def mishaps(self) -> Sequence[Mishap]:
        return self.program.mishaps

    @property
    def choices(self) -> Sequence[int]:
        return self.program.choices

    @property
    def seed(self) -> int:
        return self.program.seed

    def execute(self, host: SimulatedHost) -> None:
        """Execute all steps in ``host``, and then let the host come to rest.

        The invariants on the history are checked after each step. Raises ``InvariantBroken``, and
        every error of a step that is not a refusal of a user.
        """
        Play(self, host).execute()

    def as_test(self, agent_import: str = "", *, name: str = "test_found") -> str:
        """The source of an equivalent test, to be pasted into a file.

        ``agent_import``: the place of the agent or room, as ``myapp.agents:agent``; by default the
        imported module that has it.
        """
        return as_test(self.program, self.target, agent_import, name=name)


class InvariantBroken(AssertionError):
    """At least one invariant does not hold.

    Attributes:
        violations: all findings at that moment.
        program: the executed program, if it was one of :func:`motet.testing.programs`.
        verdict: what came of running the printed test again; empty: it was not.
    """

    def __init__(
        self,
        violations: Sequence[Violation],
        lanes: str | Callable[[], str] = "",
        program: BoundProgram | None = None,
        test: str | Callable[[], str] = "",
    ) -> None:
        super().__init__(*violations)
        self.violations = tuple(violations)
        self.program = program
        self.verdict = ""
        self._lanes = lanes
        self._test = test

    # Computed lazily: while an example shrinks, each failing try raises an error nobody reads.

    @cached_property
    def lanes(self) -> str:
        """The last events, one lane for each actor."""
        return self._lanes if isinstance(self._lanes, str) else self._lanes()

    @cached_property
    def test(self) -> str:
        """The program as a test that can be pasted into a file; empty without a program."""
        return self._test if isinstance(self._test, str) else self._test()

    def __str__(self) -> str:
        parts = ["\n".join(map(str, self.violations))]
        if self.test:
            verdict = f" ({self.verdict})" if self.verdict else ""
            parts.append(f"As a test{verdict}:\n\n{self.test}")
        if self.lanes:
            parts.append(f"The last events:\n\n{self.lanes}")
        return "\n\n".join(parts)


_latest: list[Play] = []  # one at most, as there is one simulation at a time


def play_in(host: SimulatedHost) -> Play | None:
    """The last play in a host."""
    return next((play for play in _latest if play.host is host), None)


def latest(bound: BoundProgram) -> Play | None:
    """The last execution of all, if it was of this program."""
    return next((play for play in _latest if play.bound.program == bound.program), None)


class Play:
    """One execution of a program."""

    def __init__(self, bound: BoundProgram, host: SimulatedHost) -> None:
        self.bound, self.host = bound, host
        self.program, self.target = bound.program, bound.target
        self.setup = tuple(host.setup)
        self.host_seed = host.seed
        self.test = current_test()
        self._past: Snapshot | None = None
        self.restless = ""
        self.settled = False
        self.observed: Observed | None = None
        self._length = 0
        self._last: dict[tuple[str, str], acts.Send] = {}
        inputs = sum(isinstance(step, acts.INPUTS) for step in self.program.steps)
        turns = self.target.room.max_turns if self.target.room is not None else PER_INPUT
        self.stage = Stage(
            host.history,
            {(mishap.of, mishap.call): mishap for mishap in self.program.mishaps},
            PATIENCE + inputs * max(turns, PER_INPUT),
            lambda: (host.now(), host.loop.scheduler.steps),
        )

    def execute(self) -> None:
        """See :meth:`BoundProgram.execute`."""
        agents = self.target.agents
        self._refuse_known()
        _latest[:] = [self]
        if self.host.processes.commands is None:
            self.host.processes.commands = NOT_FOUND
        with (
            uncollected(),
            instrumented(agents, self._model, self.stage.watched),
            self._watched(),
            self._noting_program(),
        ):
            for agent in agents:
                self.host.know(agent)
            if self.target.room is not None:
                self.host.room(self.target.room)
            with self._scheduled():
                for step in self.program.steps:
                    self._take(step)
                    self._judge()
                self._come_to_rest()
            self._judge()

    # ------------------------------------------------------------------ before

    def _refuse_known(self) -> None:
        """A host that knows an agent already uses the agent's own model and tools."""
        known = {info.name for info in self.host.host.agents()}
        again = sorted(known & {agent.name for agent in self.target.agents})
        if again:
            raise ConfigError(
                f"the simulated host knows {', '.join(again)} already: leave agents= to the "
                "program, and execute one program in each host"
            )

    def _model(self, agent: AnyAgent) -> Model | str:
        if self.target.own_models:
            return agent.model
        script = self.program.script.get(agent.name, ())
        return Player(f"script:{agent.name}", script, self.stage)

    @contextmanager
    def _watched(self) -> Generator[None]:
        """Watch the hooks of every host, and the tasks that the project starts, in the block."""
        watch = self.stage.watch_hooks
        watch(self.host.host)
        web = self.host.web
        web.plan = {one.call: one for one in self.program.mishaps if one.of == "http"}
        web.struck = self.stage.struck
        self.host.setup.append(watch)
        try:
            with system_tasks_known():
                yield
        finally:
            self.host.setup.remove(watch)

    @contextmanager
    def _scheduled(self) -> Generator[None]:
        """Use the program's schedule in the block, and limit the steps of each call."""
        loop = self.host.loop
        before = loop.max_steps
        loop.max_steps = STEPS
        self.observed = followed(loop, self.program.choices, self.program.schedule)
        try:
            yield
        finally:
            loop.max_steps = before

    @contextmanager
    def _noting_program(self) -> Generator[None]:
        """Add the program as a note to an error that ends it."""
        replaying = being_replayed()
        try:
            yield
        except InvariantBroken:
            raise
        except Exception as error:
            error.add_note(f"It came from this program:\n\n{self.as_test()}")
            raise
        finally:
            self._count()
            self._length = len(self.host.trace)
            self._past = self.history()
            if replaying is not None:
                replaying.compare(self.lines())

    def _count(self) -> None:
        """Count a drawn program in the survey of its search."""
        if not in_search():
            return
        stage, room = self.stage, self.target.room
        current_survey().add(
            self.history(),
            tools=self.target.tools,
            room=room.name if room is not None else "",
            steps=[type(step).__name__.lower() for step in self.program.steps],
            verdicts=stage.verdicts,
            faults=stage.faults,
            schedule=hash(tuple(self.host.loop.scheduler.taken)),
            unused=self.target.unused,
        )

    # ------------------------------------------------------------------ steps

    def _take(self, step: acts.Act) -> None:
        # Functions of the project that are called between steps are outside of the world.
        within = nullcontext() if isinstance(step, acts.Do) else self.host.loop.inside()
        with within:
            self._do_step(step)

    def _do_step(self, step: acts.Act) -> None:
        host = self.host
        match step:
            case acts.Send():
                self._last[step.user, step.session] = step
                self._send(step, again=False)
            case acts.Resend(user, session):
                if (last := self._last.get((user, session))) is not None:
                    self._send(last, again=True)
            case acts.Steer(user, text, session):
                with refused():
                    host.send(session, text, user=user)
            case acts.Stop(user, session):
                self._stop(user, session)
            case acts.Disconnect():
                self._disconnect(step)
            case acts.Reset(user, session):
                self._call(people.reset, session, Principal(user))
            case acts.Approve(user):
                # What is asked or has failed in a room, its owner decides: here, the operator.
                who = Principal(user) if self.target.room is None else LOCAL
                host.call(people.answer, who, people.decision_of(step))
            case acts.Resolve(user):
                who = Principal(user) if self.target.room is None else LOCAL
                host.call(people.resolve, step, who)
            case acts.Post(user, text, key):
                room = self.target.room
                assert room is not None
                reply = host.call(people.replied, room.name, step.reply) if step.reply else None
                with refused():
                    host.post(room, text, user=user, key=key, reply_to=reply)
            case acts.Do():
                self._do(step)
            case acts.Wait(seconds):
                host.advance(seconds)
            case acts.Run(count):
                self._run(count)
            case acts.Crash():
                host.crash()

    def _run(self, count: int) -> None:
        loop = self.host.loop
        last = loop.scheduler.steps + count
        with loop.inside():
            clock = loop.start(trio.sleep, RUNS, name="clock")
            loop.drive(lambda: clock.over or loop.scheduler.steps >= last, RUNS + 1)
            loop.cancel([clock])

    def _do(self, step: acts.Do) -> None:
        rule = self.target.rules.get(step.name)
        if rule is None:
            raise ConfigError(f"the program has no rule {step.name!r}: give rules=[...]")
        given: dict[str, Any] = {**step.arguments}
        given |= {
            name: getattr(step, name)
            for name in GIVEN
            if name in rule.parameters and name not in given
        }
        with refused():
            if inspect.iscoroutinefunction(rule.function):
                self.host.call(partial(rule.function, **given))
            else:
                rule.function(self.host, **given)

    def _send(self, step: acts.Send, *, again: bool) -> None:
        user, text, session = step.user, step.text, step.session
        receive = self.target.receive
        if receive is None and step.soon and not again:
            agent = self.target.agent
            self.host.start_soon(agent, text, session=session, user=user, key=step.key)
            return
        if receive is None:
            with refused():
                self.host.start(self.target.agent, text, session=session, user=user, key=step.key)
            return
        why = self._call(receive, user, session, text, step.key)
        history = self.host.history
        at = history.next_at()
        sent = Sent(at, user, session, text, step.key, accepted=not why, why=why, again=again)
        history.sent.append(sent)

    def _stop(self, user: str, session: str) -> None:
        stops = self.host.history.stops
        count = len(stops)
        with refused():
            if self.target.room is not None:
                self.host.stop(room=self.target.room.name)
            else:
                self.host.stop(session=session, user=user)
        if len(stops) > count:
            report = stops[-1].report
            ended = {*report.stopped, *report.already_stopping}
            alive = self.host.call(_alive)
            left = tuple(f"the task {name} of run {run}" for run, name in alive if run in ended)
            stops[-1] = msgspec.structs.replace(stops[-1], left=left)

    def _disconnect(self, step: acts.Disconnect) -> None:
        agent = self.target.agent
        assert agent is not None
        runs: list[str] = []
        why = self._call(people.watch, agent, step, runs)
        history, run_id = self.host.history, runs[0] if runs else None
        at, user, session, text = history.next_at(), step.user, step.session, step.text
        sent = Sent(at, user, session, text, run_id=run_id, accepted=not why, why=why)
        history.sent.append(sent)

    def _call(self, function: Callable[..., Awaitable[object]], *args: object) -> str:
        """Call in the world; returns the reason of a refusal, empty without one."""
        with refused() as why:
            self.host.call(function, *args)
        return "".join(why)

    def _come_to_rest(self) -> None:
        try:
            with self.host.loop.inside():
                if self.target.receive is not None:
                    self.host.advance(DOOR)  # a host at rest may still get messages by `receive`
                self._settle()
                self.host.call(events_published)
            self.settled = True
        except Stuck as stuck:
            self.restless = f"the host does not come to rest: {stuck}"
        if self.stage.endless:
            self.restless = (
                f"agents keep each other going: they asked their models {self.stage.beyond} times "
                "after their script had ended, and nobody had said anything more"
            )

    def _settle(self) -> None:
        """Let all activity end; answer all approvals that are still pending."""
        decision: ApprovalDecision = "allow-once" if self.program.approves else "deny"
        for number in range(ROUNDS):
            # An unreferenced input counts as pending until it is collected: it may be an old one.
            for generation in (0, 2):
                if self.host.unheard:
                    gc.collect(generation)
            if number == ROUNDS - SAYING_NO:
                decision = "deny"  # a model that calls again and again would be allowed for ever
            with suppress(Stuck):
                self.host.settle(ROUND)
                if not self.host.call(people.answer, LOCAL, decision):
                    return
            self.host.call(people.answer, LOCAL, decision)
        self.host.settle(REST)

    # ------------------------------------------------------------------ judging

    def _judge(self) -> None:
        self.stage.left()
        wrong = broken(self.history(), CHEAP)
        if wrong:
            raise self.broken(wrong)

    def broken(
        self, wrong: Sequence[Violation], invariants: Sequence[Invariant] = ()
    ) -> InvariantBroken:
        """The error for these violations, with the program as a test that fails in the same way."""
        self._length = self._length or len(self.host.trace)
        return InvariantBroken(
            wrong,
            lambda: report(self.host.trace.events()[: self._length], 50),
            self.bound,
            lambda: self.as_test(invariants),
        )

    def lines(self) -> tuple[str, ...]:
        """The trace of the program until its end or its first finding, and its data.

        The data are the arguments and results of tools, the requests of models with their rows, and
        all events.
        """
        data = told(self._past, self.host.workspace) if self._past is not None else ()
        return (*islice(self.host.trace.lines(), self._length or None), *data)

    def as_test(self, invariants: Sequence[Invariant] = ()) -> str:
        """The source of a test with this program, and with the body of the test that drew it."""
        words = self.observed.words() if self.observed is not None else ()
        return as_test(
            self.program,
            self.target,
            setup=self.setup,
            invariants=invariants,
            words=words,
            test=self.test,
        )

    def history(self) -> Snapshot:
        """A snapshot of the history alone, without a call of the host."""
        seen = self.host.history
        return Snapshot(
            sent=tuple(seen.sent),
            asked=tuple(seen.asked),
            events=tuple(seen.events),
            stops=tuple(seen.stops),
            crashes=tuple(seen.crashes),
            ran=tuple(self.stage.ran),
            misbehaved=tuple(self.stage.findings),
            limits={agent.name: agent.limits for agent in self.target.agents},
            settled=self.settled,
            restless=self.restless,
        )


async def _alive(_host: Host) -> list[tuple[str, str]]:
    return tasks_of_runs(trio.lowlevel.current_root_task())
