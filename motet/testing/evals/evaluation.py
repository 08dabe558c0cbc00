"""Evaluations of an agent: :func:`evaluate`, and :class:`Evaluation`, which ``motet eval`` runs.

Invariants: nothing runs before all cases and options were checked; Ctrl-C ends the runs under way
in order, and the trials that have ended are kept for a resumed evaluation.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack, cast, overload

import attrs
import trio

from motet.actors.agents.spec import AgentSpec
from motet.actors.host import Host
from motet.actors.hosting.config import ConfigSource
from motet.actors.rooms.definition import Room
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError, UnknownName
from motet.protocols.models import Model
from motet.runtime.errors import only_error
from motet.runtime.loops import refuse_in_asyncio, refuse_in_loop
from motet.testing.evals.cases import EvalCase, Judge, checked
from motet.testing.evals.models import Cassettes
from motet.testing.evals.progress import watching
from motet.testing.evals.report import EvalReport
from motet.testing.evals.running import Order, Watch, run_order

__all__ = ["STATE", "EvalOptions", "Evaluation", "RunOptions", "evaluate", "evaluate_async"]

D = TypeVar("D")
Out = TypeVar("Out")

STATE = Path(".motet", "evals")
"""The state directory of evaluations, apart from that of the program's own sessions."""
TIMEOUT = 300.0
JOBS = 4
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class EvalOptions(TypedDict, total=False):
    """The options of an evaluation.

    repeats: trials of each case; it passes if all of them do.
    timeout: seconds for the inputs of one trial, and for each judge; None: no limit.
    config: of the host: models, limits, tools; a configuration or its file. Calls that need an
        approval are denied, since there is no person to ask.
    setup: called with the open host before the first trial, to register hooks.
    """

    repeats: int
    timeout: float | None
    config: HostConfig | str | Path | None
    setup: Callable[[Host], None] | None


class RunOptions(TypedDict, total=False):
    """The options of one run of an evaluation.

    jobs: trials at a time.
    only: names of cases, or patterns such as ``refund-*``.
    model: in place of the agent's own.
    record: a folder; recorded answers of models are played, missing ones are asked for and added.
    replay: a folder; only recorded answers are played, and no request is sent.
    state: the directory of sessions, traces and results; None: in memory, and gone afterwards.
    resume: keep the trials of the last evaluation of this name that had no error.
    against: a report to compare with, in place of the last complete evaluation.
    budget: dollars for agents and judges together; when they are spent, no more trials begin. Those
        under way end, so that it may be exceeded by what ``jobs`` trials cost. None: no limit. For
        trials that are kept nothing is spent, and for ``replay`` at all.
    progress: show the progress on standard error; None: only at a terminal.
    """

    jobs: int
    only: Sequence[str]
    model: str | Model | None
    record: str | Path | None
    replay: str | Path | None
    state: str | Path | None
    resume: bool
    against: EvalReport | None
    budget: float | None
    progress: bool | None


class AllOptions(EvalOptions, RunOptions, total=False):
    """The options of :func:`evaluate`. ``name``: of the evaluation; default: the agent's."""

    name: str


class Evaluation:
    """A named set of cases for an agent, with its judges. ``motet eval FILE`` runs those in a file.

    Args:
        name: the results of one name are compared with each other.
        agent: the agent, or a room, of which each trial gets a copy; its output is the text that
            was said last.
        cases: of different names.
        judges: of all cases. Without any judge, an output must equal the expected one.
        deps: makes what the agent's tools are given, anew for each trial.

    The others are those of :class:`EvalOptions`. Raises ``ConfigError`` naming all that is wrong.
    """

    @overload
    def __init__(
        self,
        name: str,
        agent: AgentSpec[None, Out],
        cases: Iterable[EvalCase],
        judges: Sequence[Judge[Out]] = (),
        *,
        deps: None = None,
        **options: Unpack[EvalOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        agent: Room,
        cases: Iterable[EvalCase],
        judges: Sequence[Judge[str]] = (),
        *,
        deps: None = None,
        **options: Unpack[EvalOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        agent: AgentSpec[D, Out],
        cases: Iterable[EvalCase],
        judges: Sequence[Judge[Out]] = (),
        *,
        deps: Callable[[EvalCase], D],
        **options: Unpack[EvalOptions],
    ) -> None: ...

    def __init__(
        self,
        name: str,
        agent: AgentSpec[Any, Any] | Room,
        cases: Iterable[EvalCase],
        judges: Sequence[Judge[Any]] = (),
        *,
        deps: Callable[[EvalCase], Any] | None = None,
        **options: Unpack[EvalOptions],
    ) -> None:
        if not isinstance(cast("object", name), str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"the name {name!r} of an evaluation: use 1 to 64 letters, digits, '_', '.', '-'"
            )
        self.name = name
        self.agent = agent
        self.cases = _listed("cases", cases, EvalCase)
        self.judges = _listed("judges", judges, AgentSpec)
        if deps is not None and isinstance(agent, Room):
            raise ConfigError("the tools of a room are given no deps: leave deps= out")
        self._deps = deps
        self._options = options
        self._expected = checked(
            agent,
            self.cases,
            self.judges,
            repeats=options.get("repeats", 1),
            timeout=options.get("timeout", TIMEOUT),
        )

    def __repr__(self) -> str:
        return f"<Evaluation {self.name} of {self.agent.name}, {len(self.cases)} cases>"

    @property
    def configured(self) -> bool:
        """Whether it has a configuration of its own."""
        return self._options.get("config") is not None

    @property
    def config(self) -> HostConfig:
        """The configuration of its host. Raises ``ConfigError`` for a wrong file."""
        return self._configuration()[1]

    def changed(self, **options: Unpack[EvalOptions]) -> Evaluation:
        """The same evaluation with other options. Raises ``ConfigError``."""
        options = {**self._options, **options}
        # Of one overload: which of them it fits was seen when it was made.
        return Evaluation(
            self.name,
            cast("AgentSpec[Any, Any]", self.agent),
            self.cases,
            self.judges,
            deps=cast("Callable[[EvalCase], Any]", self._deps),
            **options,
        )

    def run(self, **options: Unpack[RunOptions]) -> EvalReport:
        """Evaluate and report; blocks.

        Ctrl-C stops the runs in order, keeps the trials that have ended and raises
        ``KeyboardInterrupt``. A failed case raises nothing: see :meth:`EvalReport.check`. Raises
        ``ConfigError``, ``StateInUse`` and ``StorageError`` when it cannot begin, and
        ``RuntimeError`` inside of a loop.
        """
        refuse_in_loop(
            "an evaluation",
            trio="use `await mt.evaluate_async(...)` or `run_async(...)` there",
            asyncio="use `await asyncio.to_thread(mt.evaluate, ...)` there",
        )
        stopping = trio.Event()
        report = trio.run(partial(self._attended, stopping, options))
        if stopping.is_set() and report.stopped:
            interrupt = KeyboardInterrupt()
            done = f"{report.totals.trials} of {report.planned} trials are done"
            interrupt.add_note(f"{done}; run(resume=True) goes on" if report.state else done)
            raise interrupt
        return report

    async def run_async(
        self, *, stopping: trio.Event | None = None, **options: Unpack[RunOptions]
    ) -> EvalReport:
        """As :meth:`run`, on Trio. ``stopping``: when it is set, the evaluation ends early.

        Cancelling ends all runs, and keeps the trials that have ended.
        """
        refuse_in_asyncio("run_async()", "use `await asyncio.to_thread(evaluation.run)`")
        order = self.order(**options)
        with watching(options.get("progress")) as watch:
            return await run_order(order, watch, trio.Event() if stopping is None else stopping)

    async def watched(
        self, watch: Watch, stopping: trio.Event, **options: Unpack[RunOptions]
    ) -> EvalReport:
        """As :meth:`run_async`, with an observer of one's own."""
        return await run_order(self.order(**options), watch, stopping)

    def order(self, **options: Unpack[RunOptions]) -> Order:
        """The checked evaluation. Raises ``ConfigError``."""
        own, (source, config) = self._options, self._configuration()
        state, jobs = options.get("state", STATE), options.get("jobs", JOBS)
        if jobs < 1:
            raise ConfigError(f"jobs must be at least 1, not {jobs!r}")
        if state is None and options.get("resume"):
            raise ConfigError("an evaluation in memory cannot be resumed: give it a state")
        budget = options.get("budget")
        if budget is not None and not budget > 0:
            raise ConfigError(f"budget must be above 0 dollars or None, not {budget!r}")
        chosen = self._chosen(options.get("only", ()))
        return Order(
            self.name,
            self.agent,
            tuple(self.cases[at] for at in chosen),
            tuple(self._expected[at] for at in chosen),
            len(chosen) == len(self.cases),
            self.judges,
            self._deps,
            own.get("setup"),
            own.get("repeats", 1),
            own.get("timeout", TIMEOUT),
            jobs,
            config,
            source,
            None if state is None else Path(state),
            options.get("model"),
            _cassettes(options.get("record"), options.get("replay")),
            options.get("resume", False),
            options.get("against"),
            None if options.get("replay") is not None else budget,
        )

    def _configuration(self) -> tuple[ConfigSource, HostConfig]:
        given = self._options.get("config")
        source, config = ConfigSource.of(HostConfig() if given is None else given, {}, None)
        approvals = attrs.evolve(config.approvals, ask=False)
        return source, attrs.evolve(config, approvals=approvals, state=None)

    def _chosen(self, only: Sequence[str]) -> list[int]:
        """The places of the chosen cases. Raises ``UnknownName`` for a pattern without a case."""
        if isinstance(only, str):
            only = (only,)
        names = [case.name for case in self.cases]
        for pattern in only:
            if not any(_fits(name, pattern) for name in names):
                raise UnknownName("case", pattern, names)
        fitting = [not only or any(_fits(name, one) for one in only) for name in names]
        return [place for place, fits in enumerate(fitting) if fits]

    async def _attended(self, stopping: trio.Event, options: RunOptions) -> EvalReport:
        """Run until the end or Ctrl-C. A second one interrupts what has not ended yet."""

        async def listen() -> None:
            with trio.open_signal_receiver(signal.SIGINT) as signals:
                async for _ in signals:
                    stopping.set()
                    return

        try:
            async with trio.open_nursery() as nursery:
                if threading.current_thread() is threading.main_thread():
                    nursery.start_soon(listen)
                report = await self.run_async(stopping=stopping, **options)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_error(group) from None
        return report


T = TypeVar("T")


def _listed(what: str, given: Iterable[T], single: type) -> tuple[T, ...]:
    """The items. Raises ``ConfigError`` for a single one without its list."""
    if isinstance(given, single) or not isinstance(cast("object", given), Iterable):
        raise ConfigError(f"{what} are a list: write [{type(given).__name__}(...)]")
    return tuple(given)


def _fits(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def _cassettes(record: str | Path | None, replay: str | Path | None) -> Cassettes | None:
    if record is not None and replay is not None:
        raise ConfigError("give `record` or `replay`, not both: `record` plays what there is")
    if replay is not None:
        return Cassettes(Path(replay), "replay")
    return None if record is None else Cassettes(Path(record), "record")


@overload
def evaluate(
    agent: AgentSpec[None, Out],
    cases: Iterable[EvalCase],
    judges: Sequence[Judge[Out]] = (),
    *,
    deps: None = None,
    **options: Unpack[AllOptions],
) -> EvalReport: ...


@overload
def evaluate(
    agent: Room,
    cases: Iterable[EvalCase],
    judges: Sequence[Judge[str]] = (),
    *,
    deps: None = None,
    **options: Unpack[AllOptions],
) -> EvalReport: ...


@overload
def evaluate(
    agent: AgentSpec[D, Out],
    cases: Iterable[EvalCase],
    judges: Sequence[Judge[Out]] = (),
    *,
    deps: Callable[[EvalCase], D],
    **options: Unpack[AllOptions],
) -> EvalReport: ...


def evaluate(
    agent: AgentSpec[Any, Any] | Room,
    cases: Iterable[EvalCase],
    judges: Sequence[Judge[Any]] = (),
    *,
    deps: Callable[[EvalCase], Any] | None = None,
    **options: Unpack[AllOptions],
) -> EvalReport:
    """Evaluate an agent on named cases; blocks. See :class:`Evaluation`, :class:`RunOptions`.

    The report is a table when it is printed; ``report.check()`` fails a test. The results are kept
    below ``.motet/evals``, and the next evaluation of the same name says what got better or worse.
    Raises as :meth:`Evaluation.run`.
    """
    evaluation, rest = _divided(agent, cases, judges, deps, options)
    return evaluation.run(**rest)


@overload
async def evaluate_async(
    agent: AgentSpec[None, Out],
    cases: Iterable[EvalCase],
    judges: Sequence[Judge[Out]] = (),
    *,
    deps: None = None,
    **options: Unpack[AllOptions],
) -> EvalReport: ...


@overload
async def evaluate_async(
    agent: Room,
    cases: Iterable[EvalCase],
    judges: Sequence[Judge[str]] = (),
    *,
    deps: None = None,
    **options: Unpack[AllOptions],
) -> EvalReport: ...


@overload
async def evaluate_async(
    agent: AgentSpec[D, Out],
    cases: Iterable[EvalCase],
    judges: Sequence[Judge[Out]] = (),
    *,
    deps: Callable[[EvalCase], D],
    **options: Unpack[AllOptions],
) -> EvalReport: ...


async def evaluate_async(
    agent: AgentSpec[Any, Any] | Room,
    cases: Iterable[EvalCase],
    judges: Sequence[Judge[Any]] = (),
    *,
    deps: Callable[[EvalCase], Any] | None = None,
    **options: Unpack[AllOptions],
) -> EvalReport:
    """As :func:`evaluate`, on Trio. Cancelling keeps the trials that have ended."""
    evaluation, rest = _divided(agent, cases, judges, deps, options)
    return await evaluation.run_async(**rest)


_OF_EVALUATION = frozenset(EvalOptions.__annotations__)
_OF_RUN = frozenset(RunOptions.__annotations__)


def _divided(
    agent: AgentSpec[Any, Any] | Room,
    cases: Iterable[EvalCase],
    judges: Sequence[Judge[Any]],
    deps: Callable[[EvalCase], Any] | None,
    options: AllOptions,
) -> tuple[Evaluation, RunOptions]:
    """The evaluation, and the options of its run. Raises ``TypeError`` for an unknown option."""
    known = _OF_EVALUATION | _OF_RUN | {"name"}
    if unknown := sorted(options.keys() - known):
        raise TypeError(f"unknown option {unknown[0]!r}; known: {', '.join(sorted(known))}")
    given = cast("dict[str, Any]", options)
    own = cast("EvalOptions", {key: given[key] for key in given if key in _OF_EVALUATION})
    rest = cast("RunOptions", {key: given[key] for key in given if key in _OF_RUN})
    known_kind = isinstance(cast("object", agent), AgentSpec | Room)
    name = options.get("name") or (agent.name if known_kind else "evaluation")
    # Of one overload: the caller's types fit one of them.
    given_deps = cast("Callable[[EvalCase], Any]", deps)
    subject = cast("AgentSpec[Any, Any]", agent)
    return Evaluation(name, subject, cases, judges, deps=given_deps, **own), rest
