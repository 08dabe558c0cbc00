"""The schedule of a program: a policy as data, its deviations from first in, first out, in words.

A schedule is drawn before the run, whose length nobody knows then. So holds and change points have
numbers of choices, and a dense policy is followed within a part of the run only: a finding shrinks
to the shortest part that still shows it, and :func:`as_holds` says what is left of it as holds of
tasks, which a person can read.

Invariant: the same schedule gives the same choices in the same program (G12).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from types import CodeType, CoroutineType, FrameType
from typing import Any, Literal, TypeAlias, cast

import attrs
import trio

from motet.runtime.testing.lines import is_installed
from motet.runtime.testing.loop import SimulatedLoop
from motet.runtime.testing.policies import (
    AT_REST,
    Chooser,
    Holds,
    Pct,
    Places,
    Speeds,
    Uniform,
    played,
    within,
)
from motet.runtime.testing.trace import Event, Trace, awaited_by, position
from motet.testing.stories.acts import SourceRepr

__all__ = [
    "Deviation",
    "Observed",
    "Schedule",
    "ScheduleKind",
    "as_holds",
    "followed",
    "held",
    "own_place",
]

ScheduleKind: TypeAlias = Literal["holds", "places", "pct", "speeds", "uniform"]


class Schedule(SourceRepr, frozen=True, omit_defaults=True):
    """The order in which the tasks of a program run: first in, first out, but as said here.

    Attributes:
        kind: ``holds`` and ``places`` are held as listed; ``pct``, ``speeds`` and ``uniform`` are
            policies, see ``motet.runtime.testing``.
        holds: pairs: the number of a choice, and for how many choices the task whose turn it is
            waits; 0: until no other task can run.
        places: triples: the number of a place at which the tested program waits, in the order in
            which they are reached; which turn of a task at this place, 0: each; and for how many
            choices the task waits.
        seed, depth: of the policy.
        first, end: the choices that follow the policy; ``end`` -1: to the last one.
    """

    kind: ScheduleKind = "holds"
    holds: tuple[tuple[int, int], ...] = ()
    places: tuple[tuple[int, int, int], ...] = ()
    seed: int = 0
    depth: int = 1
    first: int = 0
    end: int = -1

    def start(self) -> Chooser:
        """The chooser of one execution."""
        match self.kind:
            case "holds":
                return Holds(self.holds).start(0) if self.holds else played(())
            case "places":
                return Places(self.places).start(own_place)
            case "pct":
                chooser = Pct(self.depth, None).start(self.seed)
            case "speeds":
                chooser = Speeds().start(self.seed)
            case "uniform":
                chooser = Uniform().start(self.seed)
        return within(chooser, self.first, self.end) if self.end >= 0 else chooser


# ---------------------------------------------------------------------- whose code

_own: dict[CodeType, bool] = {}
_LIBRARIES = ("motet", "trio")


def own_place(task: object) -> tuple[CodeType, int] | None:
    """The place at which a task waits in code of the tested program: its tools, hooks, clients.

    None for a task of the host alone, and for one that has not begun.
    """
    found: tuple[CodeType, int] | None = None
    # Any: cr_await promises nothing. Below the last coroutine there is an object of Trio.
    awaitable: Any = cast(trio.lowlevel.Task, task).coro
    while isinstance(awaitable, CoroutineType):
        code: CodeType = awaitable.cr_code
        frame: FrameType | None = awaitable.cr_frame
        awaitable = awaited_by(awaitable)
        if frame is None or awaitable is None:
            break
        own = _own.get(code)
        if own is None:
            module: str = frame.f_globals.get("__name__", "")
            library = module.partition(".")[0] in _LIBRARIES or is_installed(code.co_filename)
            own = _own[code] = not library
        if own:
            found = code, frame.f_lasti
    return found


# ---------------------------------------------------------------------- what was chosen


@attrs.frozen
class Deviation:
    """One choice that was not first in, first out.

    Attributes:
        choice, step: its number among the choices, from 0, and the step of the scheduler.
        overtaken: the tasks that were passed over, each with its name and the function in which
            it waits.
    """

    choice: int
    step: int
    overtaken: tuple[tuple[str, str], ...]


@attrs.define
class Observed:
    """Records the choices of one execution. ``taken`` repeat it without its schedule."""

    trace: Trace
    steps: Callable[[], int]
    taken: list[int] = attrs.field(factory=list[int])
    deviations: list[Deviation] = attrs.field(factory=list[Deviation])

    def of(self, choose: Chooser) -> Chooser:
        """The same chooser, recorded."""

        def chosen(ready: Sequence[object]) -> int:
            index = choose(ready) % len(ready)
            if index:
                passed = tuple(map(self._named, ready[:index]))
                self.deviations.append(Deviation(len(self.taken), self.steps(), passed))
            self.taken.append(index)
            return index

        return chosen

    def _named(self, task: object) -> tuple[str, str]:
        assert isinstance(task, trio.lowlevel.Task)
        place = own_place(task)
        code = place[0] if place is not None else position(task)
        where = code.co_qualname.rpartition("<locals>.")[2] if code is not None else ""
        return self.trace.label(task), where

    def words(self, most: int = 6) -> list[str]:
        """What the schedule does, a sentence for each task that waits, in their order."""
        waits = self._waits()
        said = [wait.sentence() for wait in waits[:most]]
        left = len(waits) - len(said)
        return [*said, f"and {left} more waits"] if left > 0 else said

    def _waits(self) -> list[_Wait]:
        """Each task that was passed over, until it has run again."""
        events = self.trace.events()
        found: list[_Wait] = []
        until: dict[str, int] = {}
        for deviation in self.deviations:
            for who, where in deviation.overtaken:
                if until.get(who, -1) >= deviation.step:
                    continue
                later = [event for event in events if event.step >= deviation.step]
                meanwhile = list(takewhile(lambda event: event.who != who, later))  # noqa: B023
                until[who] = meanwhile[-1].step if meanwhile else deviation.step
                found.append(_Wait(who, where, deviation.step, meanwhile))
        return found


def followed(loop: SimulatedLoop, choices: Sequence[int], schedule: Schedule | None) -> Observed:
    """Have a world follow a schedule from now on, else these choices; what it chooses is noted."""
    observed = Observed(loop.sim.trace, lambda: loop.scheduler.steps)
    chooser = played(choices) if schedule is None else schedule.start()
    loop.scheduler.choose_by(observed.of(chooser))
    return observed


@attrs.frozen
class _Wait:
    """A task, the function in which it waits from ``step`` on, and the events until it runs."""

    who: str
    where: str
    step: int
    meanwhile: Sequence[Event]

    def sentence(self) -> str:
        task = f"`{self.where}` ({self.who})" if self.where else self.who
        return f"from step {self.step} on, {task} waits{self._until()}"

    def _until(self) -> str:
        """Until what: the last step of the program's own code, else of anybody, meanwhile."""
        own = {f"resumes in {_shown(code)}" for code, is_own in _own.items() if is_own}
        ran = [event for event in self.meanwhile if event.what in own]
        ran = ran or [event for event in self.meanwhile if event.what.startswith("resumes in")]
        if not ran:
            return ""
        last = ran[-1]
        name = f"`{_last_name(last.what)}` ({last.who})"
        ended = any(event.who == last.who and event.what == "ends" for event in self.meanwhile)
        return f" until {name} has {'ended' if ended else 'run'}"


def _shown(code: CodeType) -> str:
    return code.co_qualname.replace("<locals>.", "")


def _last_name(what: str) -> str:
    return what.removeprefix("resumes in ").rpartition(".")[2]


# ---------------------------------------------------------------------- the fewest deviations


def as_holds(observed: Observed) -> tuple[tuple[int, int], ...]:
    """The holds that do about the same as the observed choices, the longest first.

    A task that is passed over is held from that choice on, until the choice at which it has run.
    """
    begun: dict[str, tuple[int, int]] = {}
    holds: list[tuple[int, int]] = []
    for deviation in observed.deviations:
        for who, _ in deviation.overtaken:
            first, last = begun.get(who, (deviation.choice, deviation.choice))
            # Tasks in a queue of several come to its head every few choices.
            if deviation.choice - last > _GAP:
                holds.append((first, last - first + 1))
                first = deviation.choice
            begun[who] = first, deviation.choice
    holds += [(first, last - first + 1) for first, last in begun.values()]
    return tuple(sorted(dict(holds).items(), key=lambda hold: (-hold[1], hold[0])))


_GAP = 8
_TRIES = 40


def held(
    observed: Observed, fails: Callable[[Schedule], bool], tries: int = _TRIES
) -> Schedule | None:
    """The fewest holds with which a program fails as it did; None: no holds were found.

    ``fails`` executes the program with a schedule; it is called ``tries`` times at most.
    """
    left = tries
    candidates = list(as_holds(observed))

    def shows(holds: Sequence[tuple[int, int]]) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(Schedule(holds=tuple(sorted(holds))))

    found: list[tuple[int, int]] | None = None
    for at, length in candidates[: tries // 4]:  # most often one task waits too long
        for one in ((at, AT_REST), (at, length)):
            if shows([one]):
                found = [one]
                break
        if found:
            break
    if found is None:
        if not shows(candidates):
            return None
        found = candidates
    for hold in sorted(found, key=lambda one: one[1]):
        fewer = [one for one in found if one != hold]
        if fewer and shows(fewer):
            found = fewer
    return Schedule(holds=tuple(sorted(found)))
