"""Run a world of tasks and actors under a seeded schedule and a virtual clock.

The same world with the same seed, choices and faults gives the same trace byte for byte (G12), as
long as it draws random numbers from the simulation or from the ``random`` module, which is seeded
during the run, and does not iterate over sets of strings, whose order Python randomises.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Generic, TypeVar

import attrs
import trio
from trio.testing import MockClock

from motet.runtime import here
from motet.runtime.errors import only_error
from motet.runtime.testing.exploring import Guide, Search
from motet.runtime.testing.faults import Fault
from motet.runtime.testing.guards import DEFAULT_GUARDS, Guard, Guards
from motet.runtime.testing.invariants import Violation
from motet.runtime.testing.policies import Chooser, Mixed, Policy, played
from motet.runtime.testing.scheduler import Scheduler, patched, scheduling
from motet.runtime.testing.simulation import Ended, Recorder, Simulation, logged
from motet.runtime.testing.trace import Trace

__all__ = ["GuaranteeBroken", "Outcome", "SimulationError", "World", "explore", "run"]

T = TypeVar("T")

# A world is an async function of its simulation.
World = Callable[[Simulation], Awaitable[T]]

MAX_STEPS = 100_000


class SimulationError(Exception):
    """The simulator itself failed, so the run proves nothing. A defect, or a new name in Trio."""


class GuaranteeBroken(AssertionError):
    """At least one guarantee did not hold in the run; the report is in the message."""

    def __init__(self, violations: Sequence[Violation], report: str) -> None:
        listed = "\n".join(map(str, violations))
        super().__init__(f"{listed}\n\n{report}")
        self.violations = tuple(violations)


@attrs.frozen(eq=False)
class Outcome(Generic[T]):
    """The outcome of a run.

    ``error`` is the error that left the world, or :class:`~.simulation.Stuck`, or a guard's refusal
    even if the world swallowed it. ``choices`` repeat the schedule independent of its policy;
    ``widths`` are the numbers of ready tasks at each choice. ``seconds`` are virtual. ``targets``
    are the marks of the world, ``struck`` the faults that hit their targets.
    """

    value: T | None
    error: BaseException | None
    violations: tuple[Violation, ...]
    trace: Trace
    steps: int
    seconds: float
    seed: int
    choices: tuple[int, ...]
    widths: tuple[int, ...]
    faults: tuple[Fault, ...]
    struck: tuple[Fault, ...]
    targets: tuple[str, ...]
    max_steps: int

    @property
    def ok(self) -> bool:
        """No error, and no guarantee broken."""
        return self.error is None and not self.violations

    @property
    def hash(self) -> str:
        """The SHA-256 of the trace: equal for equal runs."""
        return self.trace.hash

    def report(self, last: int = 50) -> str:
        """The failures, and the last events with a lane for each actor; at most 100 columns."""
        head = [f"seed {self.seed}, {self.steps} steps, {self.seconds:g} virtual seconds"]
        head += [f"fault: {fault}" for fault in self.faults]
        head += [f"choices: {list(self.choices)}"] if len(self.choices) <= 30 else []
        head += [str(violation) for violation in self.violations]
        head += [f"error: {self.error!r}"] if self.error is not None else []
        wrapped = [line[i : i + 100] for line in head for i in range(0, len(line), 100)]
        return "\n".join([*wrapped, self.trace.report(last)])

    def check(self) -> T:
        """The world's result; raises :class:`GuaranteeBroken`, or the error with the report."""
        if self.violations:
            raise GuaranteeBroken(self.violations, self.report()) from self.error
        if self.error is not None:
            self.error.add_note(self.report())
            raise self.error
        return self.value  # type: ignore[return-value]  # without an error there is a value


def run(
    world: World[T],
    *,
    seed: int = 0,
    choices: Iterable[int] | None = None,
    policy: Policy | None = None,
    faults: Sequence[Fault] = (),
    clock: MockClock | None = None,
    guards: Collection[Guard] = DEFAULT_GUARDS,
    max_steps: int = MAX_STEPS,
    traced: bool = True,
) -> Outcome[T]:
    """Run ``world`` once, to its end, and return the outcome.

    ``choices`` give the schedule (see ``policies``); without them ``policy`` makes it from
    ``seed``, by default :class:`Mixed`. The clock stands still while any task can run, and jumps
    to the next deadline when none can. A world in which no task can ever run, or that takes more
    than ``max_steps``, is ended with the error :class:`Stuck`, which names its tasks. The log of
    ``motet`` goes into the trace. Not ``traced``, the trace stays empty, which saves a search a
    tenth of its time; it runs its findings again.

    Raises BaseExceptions that are no Exception (KeyboardInterrupt, a test's skip), and
    SimulationError.
    """
    chooser = played(choices) if choices is not None else (policy or Mixed()).start(seed)
    clock = clock if clock is not None else MockClock(autojump_threshold=0)
    return _run(world, chooser, seed, faults, clock, guards, max_steps, traced=traced)


def _run(
    world: World[T],
    chooser: Chooser,
    seed: int,
    faults: Sequence[Fault],
    clock: MockClock,
    guards: Collection[Guard],
    max_steps: int,
    *,
    traced: bool = True,
    guide: Guide | None = None,
) -> Outcome[T]:
    scheduler = Scheduler(chooser)
    sim = Simulation(seed, clock, scheduler, faults)
    sim.trace.muted = not traced
    recorder = Recorder(sim, max_steps)
    scheduler.when_idle(recorder.idle)
    for fault in faults:
        if fault.kind == "delay":
            scheduler.delay(fault.step, fault.length)
    value, error = _result(world, sim, recorder, guards, guide)
    sim.trace.forget_tasks()
    return Outcome(
        value=value if sim.error is None else None,
        error=sim.error or error,
        violations=tuple(sim.violations),
        trace=sim.trace,
        steps=scheduler.steps,
        seconds=clock.current_time(),
        seed=seed,
        choices=_trimmed(scheduler.taken),
        widths=tuple(scheduler.widths),
        faults=tuple(faults),
        struck=tuple(sim.struck),
        targets=tuple(sim.targets),
        max_steps=max_steps,
    )


def explore(
    world: World[T], *, limit: int = 10_000, seed: int = 0, max_steps: int = MAX_STEPS
) -> Generator[Outcome[T]]:
    """Run a tiny world under every schedule that may differ, beginning with first in, first out.

    Two schedules that differ only in the order of independent steps are the same: see
    ``exploring``. So three tasks that share nothing take one run, and each order of those that
    share something is run once. A run that turns out to be such a repetition is ended half-way,
    and not yielded; it counts.

    Raises SimulationError after ``limit`` runs, since then the search is not exhaustive, and for a
    world that does otherwise under the same choices.
    """
    search = Search()
    for _ in range(limit):
        guide = Guide(search)
        clock = MockClock(autojump_threshold=0)
        outcome = _run(world, guide.choose, seed, (), clock, DEFAULT_GUARDS, max_steps, guide=guide)
        if guide.strayed:
            raise SimulationError("the world did otherwise under the same choices")
        if not guide.redundant:
            yield outcome
        search.ran(guide.steps)
        if search.over:
            return
    raise SimulationError(f"more than {limit} schedules: make the world smaller, or raise limit")


def _result(
    world: World[T],
    sim: Simulation,
    recorder: Recorder,
    guards: Collection[Guard],
    guide: Guide | None,
) -> tuple[T | None, BaseException | None]:
    value: T | None = None
    error: BaseException | None = None
    ended = False

    guard_set = Guards(guards, sim.fail)

    async def main() -> None:
        nonlocal value, ended
        with trio.CancelScope() as scope:
            recorder.attach(scope)
            if guide is not None:
                guide.end_by(scope.cancel)
            guard_set.active = True
            value = await world(sim)
            ended = True
        guard_set.active = False

    instruments: list[trio.abc.Instrument] = [recorder]
    looking: AbstractContextManager[None] = nullcontext()
    if guide is not None:
        instruments.append(guide)
        looking = guide.looking()
    with _prepared(sim), guard_set.installed(), looking:
        try:
            trio.run(main, clock=sim.clock, instruments=instruments)
        except trio.TrioInternalError as failure:
            if not sim.scheduler.abandoned:
                raise SimulationError("Trio's loop failed inside the simulator") from failure
        except Exception as failure:
            error = only_error(failure)
        except (BaseExceptionGroup, Ended) as failure:
            # `Ended` is the simulator's own, for a world that would not end: the error of the run
            # says so already. Anything beside it, such as KeyboardInterrupt, is passed on.
            others = failure.split(Ended)[1] if isinstance(failure, BaseExceptionGroup) else None
            if others is not None:
                raise others from None
    # A world that failed may well leave actors behind: that is no violation of its own.
    if ended and sim.error is None:
        sim.end()
    _refuse_unsound(sim, recorder)
    return value, error


def _refuse_unsound(sim: Simulation, recorder: Recorder) -> None:
    """Raise if an instrument or the chooser failed, since such a run must not count as clean."""
    if sim.scheduler.failure is not None:
        raise SimulationError("the source of choices failed") from sim.scheduler.failure
    if not recorder.survived and not sim.scheduler.abandoned:
        raise SimulationError("Trio dropped the simulator's instrument; its log says why")


@contextmanager
def _prepared(sim: Simulation) -> Generator[None]:
    """Install the scheduler, a seeded ``random`` and the log; no garbage collection.

    The collector would run finalizers at times that no seed controls. A request that its asker may
    handle (``runtime/here.py``) takes the mailbox every other time, by chance.
    """
    collecting = gc.isenabled()
    chance = random.getstate()
    coin = random.Random(f"here {sim.seed}")  # its own, so that a world draws the same without it
    here_or_mailbox = patched([(here, "allowed", lambda: coin.random() < 0.5)])
    with scheduling(sim.scheduler), logged(sim), here_or_mailbox:
        random.seed(sim.seed)
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()
            random.setstate(chance)


def _trimmed(choices: Sequence[int]) -> tuple[int, ...]:
    """Without the zeros at the end, which do not change the schedule."""
    end = len(choices)
    while end and choices[end - 1] == 0:
        end -= 1
    return tuple(choices[:end])
