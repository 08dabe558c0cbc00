"""Exhaustive search of a tiny world, without schedules that differ only in the order of strangers.

Two steps of different tasks are independent when they touch nothing in common: then their order
changes nothing, and one of the two orders is enough. This is dynamic partial-order reduction
(Flanagan and Godefroid, 2005) with sleep sets (Godefroid, 1996): a run shows which of its steps
depend on each other, and only those are tried in the other order.

A step touches the objects that the world's own code loads in it, and all that can be reached from
them: variables of functions and modules, arguments, attributes. An actor, and a reference to it,
stand for themselves alone: what a message does to another actor is that actor's own step. Whatever
cannot be seen counts as touching everything: a cancellation, an error, a start or an end of an
actor, an object of a library with a state of its own. So the reduction errs on the safe side, but
for state that only library code touches, such as a file.

Invariant: of each order of dependent steps at least one schedule is run.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any, TypeAlias, cast

import attrs
import msgspec
import trio

from motet.runtime import kernel
from motet.runtime.lifecycle import LifeState
from motet.runtime.ref import ActorRef
from motet.runtime.testing.lines import is_installed
from motet.runtime.testing.scheduler import Patch, age, patched
from motet.runtime.testing.simulation import Instrument

__all__ = ["Footprints", "Guide", "Search", "Step"]

Thing: TypeAlias = object
"""What a step touches: the id of an object, the name of a variable or an actor, or EVERYTHING."""

EVERYTHING = "everything"
"""Depends on all steps."""

_MOST = 5_000
"""Objects that a step may reach before it counts as touching everything."""


@attrs.frozen
class Step:
    """One step of a run.

    Attributes:
        task: its number in the order of creation.
        ready: the tasks that could have taken the step, the queue's first one first.
        reads, writes: what it touched; only a write makes another step depend on it.
        kinds: the types of the objects that it touched.
        wakes: the tasks that it made ready.
        idle: the tasks that Trio made ready after it, since none was: at a deadline, for one.
    """

    task: int
    ready: tuple[int, ...]
    reads: frozenset[Thing] = frozenset()
    writes: frozenset[Thing] = frozenset()
    kinds: frozenset[str] = frozenset()
    wakes: frozenset[int] = frozenset()
    idle: frozenset[int] = frozenset()

    def depends_on(self, other: Step) -> bool:
        """True unless both steps have the same effect in any order."""
        if EVERYTHING in self.writes or EVERYTHING in other.writes:
            return True
        return not (
            self.writes.isdisjoint(other.writes)
            and self.writes.isdisjoint(other.reads)
            and self.reads.isdisjoint(other.writes)
        )

    def may_depend_on(self, other: Step) -> bool:
        """The same for a step of another run, in which the same objects have other ids."""
        return self.depends_on(other) or not self.kinds.isdisjoint(other.kinds)


# ---------------------------------------------------------------------- the search, pure


@attrs.define
class _Node:
    """A point of the current run: the tasks tried there, and those that need not be."""

    ready: tuple[int, ...]
    chosen: int
    sleeping: dict[int, Step]
    wanted: set[int] = attrs.field(factory=set[int])
    done: dict[int, Step] = attrs.field(factory=dict[int, Step])


class Search:
    """The schedules that are still to be run. ``prefix`` gives the tasks of the next run's steps.

    After the prefix the first ready task runs that does not sleep; a run in which all sleep is
    redundant, and may be ended.
    """

    def __init__(self) -> None:
        self.prefix: tuple[int, ...] = ()
        self.over = False
        self._nodes: list[_Node] = []

    def asleep(self) -> dict[int, Step]:
        """The tasks that sleep before the last step of the prefix, with their next steps."""
        if not self._nodes:
            return {}
        last = self._nodes[-1]
        return {**last.sleeping, **last.done}

    def ran(self, steps: Sequence[Step]) -> None:
        """Learn from a run with this prefix, and choose the next one."""
        self._extend(steps)
        self._find_races(steps)
        while self._nodes:
            node = self._nodes[-1]
            index = len(self._nodes) - 1
            node.done[node.chosen] = steps[index] if index < len(steps) else _unknown(node)
            left = [
                task
                for task in node.ready
                if task in node.wanted and task not in node.done and task not in node.sleeping
            ]
            if left:
                node.chosen = left[0]
                self.prefix = tuple(one.chosen for one in self._nodes)
                return
            self._nodes.pop()
        self.over = True

    def _extend(self, steps: Sequence[Step]) -> None:
        for index in range(len(self._nodes), len(steps)):
            step = steps[index]
            before = self._nodes[-1] if self._nodes else None
            sleeping: dict[int, Step] = {}
            if before is not None:
                asleep = {**before.sleeping, **before.done}
                sleeping = _awake(asleep, steps[index - 1])
            self._nodes.append(_Node(step.ready, step.task, sleeping, {step.task}))

    def _find_races(self, steps: Sequence[Step]) -> None:
        """Want the other order of each two steps that could come in it, and depend on it."""
        clocks: list[dict[int, int]] = []  # of each step: the last earlier step of each task
        last: dict[int, dict[int, int]] = {}  # of each task: the clock of what it waited for
        for index, step in enumerate(steps):
            known = last.get(step.task, {})
            for earlier in range(index - 1, -1, -1):
                other = steps[earlier]
                if other.task == step.task or known.get(other.task, -1) >= earlier:
                    continue
                if step.depends_on(other):
                    self._want(earlier, step.task, steps, known)
                    known = _joined(known, clocks[earlier])
            clock = {**known, step.task: index}
            clocks.append(clock)
            last[step.task] = clock
            for woken in step.wakes:
                last[woken] = _joined(last.get(woken, {}), clock)
            for woken in step.idle:
                for before in clocks:
                    last[woken] = _joined(last.get(woken, {}), before)

    def _want(self, at: int, task: int, steps: Sequence[Step], known: dict[int, int]) -> None:
        node = self._nodes[at]
        if task in node.ready:
            node.wanted.add(task)
            return
        # It was not ready yet: a task on its way there may come first, else any of them.
        on_the_way = [
            one for one in node.ready if known.get(one, -1) > at and one != steps[at].task
        ]
        node.wanted.update(on_the_way[:1] or node.ready)


def _awake(sleeping: dict[int, Step], step: Step) -> dict[int, Step]:
    """Those that go on sleeping after a step: what they would do does not depend on it."""
    return {
        task: own
        for task, own in sleeping.items()
        if task != step.task and not own.may_depend_on(step)
    }


def _joined(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    joined = dict(one)
    for task, index in other.items():
        if index > joined.get(task, -1):
            joined[task] = index
    return joined


def _unknown(node: _Node) -> Step:
    return Step(node.chosen, node.ready, writes=frozenset({EVERYTHING}))


# ---------------------------------------------------------------------- what a step touches

_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FAST"}
_STORES = {"STORE_GLOBAL", "STORE_NAME", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_DEREF"}
_ATOMS = (int, float, complex, str, bytes, bool, type(None), CodeType, range, slice)
_Variable: TypeAlias = tuple[bool, str, str]  # stored, its scope, its name


@attrs.define
class Footprints:
    """Records the steps of one run. It is a tracing function of the interpreter."""

    actor_of: Callable[[object], str | None]
    steps: list[Step] = attrs.field(factory=list[Step])
    _first: int = -1
    _task: int = -1
    _ready: tuple[int, ...] = ()
    _reads: set[Thing] = attrs.field(factory=set[Thing])
    _writes: set[Thing] = attrs.field(factory=set[Thing])
    _roots: dict[int, object] = attrs.field(factory=dict[int, object])
    _kinds: set[str] = attrs.field(factory=set[str])
    _wakes: set[int] = attrs.field(factory=set[int])
    _kept: list[object] = attrs.field(factory=list[object])

    def number(self, task: trio.lowlevel.Task) -> int:
        """The number of a task, the same in each run with the same beginning."""
        if self._first < 0:
            self._first = age(task)
        return age(task) - self._first

    def begin(self, task: trio.lowlevel.Task, ready: Sequence[trio.lowlevel.Task]) -> None:
        """A step begins; ``ready`` are all tasks that could take it."""
        self._task = self.number(task)
        self._ready = tuple(map(self.number, ready)) or (self._task,)
        actor = task.name.partition(" ")[0]
        if actor.startswith("/"):
            self._writes.add(actor)

    def end(self) -> None:
        """The step is over."""
        if self._task < 0:
            return
        for root in self._roots.values():
            self._touch(root)
        self.steps.append(
            Step(
                self._task,
                self._ready,
                frozenset(self._reads),
                frozenset(self._writes),
                frozenset(self._kinds),
                frozenset(self._wakes),
            )
        )
        self._task = -1
        self._reads, self._writes, self._kinds, self._wakes = set(), set(), set(), set()
        self._roots = {}

    def woken(self, task: trio.lowlevel.Task) -> None:
        """A task has become ready: by the step, or by Trio itself, whatever has run before."""
        if self._task >= 0:
            self._wakes.add(self.number(task))
        elif self.steps:
            last = self.steps[-1]
            self.steps[-1] = attrs.evolve(last, idle=last.idle | {self.number(task)})

    def everything(self, *_: object) -> None:
        """What happens now may touch anything."""
        if self._task >= 0:
            self._writes.add(EVERYTHING)

    # ------------------------------------------------------------------ tracing

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """The function for ``sys.settrace``: it looks at each operation of the world's code."""
        if event == "call":
            if not _is_world(frame):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            variable = _variables(frame.f_code).get(frame.f_lasti)
            if variable is not None:
                self._load(frame, *variable)
        return self.trace

    def _load(self, frame: FrameType, stored: bool, scope: str, name: str) -> None:
        if scope == "global":
            place: Thing = ("global", frame.f_globals.get("__name__"), name)
            value = frame.f_globals.get(name)
        else:
            place = ("cell", name) if scope == "cell" else None
            value = frame.f_locals.get(name)
        if place is not None:
            (self._writes if stored else self._reads).add(place)
        if not stored and not isinstance(value, _ATOMS):
            self._roots[id(value)] = value

    def _touch(self, root: object) -> None:
        """Note an object and all that can be reached from it, as far as it can change."""
        waiting, seen = [root], set[int]()
        while waiting:
            thing = waiting.pop()
            if id(thing) in seen or isinstance(thing, _ATOMS):
                continue
            seen.add(id(thing))
            if len(seen) > _MOST:
                self.everything()
                return
            below = self._below(thing)
            if below is None:
                continue
            waiting += below

    def _below(self, thing: object) -> Iterable[object] | None:
        """The objects below one that counts itself, if it does; None: nothing below counts."""
        actor = self.actor_of(thing)
        if actor is not None:
            self._writes.add(actor)
            return None
        if isinstance(thing, ModuleType):
            if thing.__name__ == "random" or _is_program(thing.__name__):
                self._writes.add(("module", thing.__name__))
            return None
        if isinstance(thing, type):
            return _class_data(thing)
        if isinstance(thing, FunctionType):
            cells = thing.__closure__ or ()
            return [*cells, *(thing.__defaults__ or ())] if _is_code_of_world(thing) else None
        if isinstance(thing, CellType | MethodType | BuiltinFunctionType):
            owner: object = getattr(thing, "__self__", None)
            inner = gc.get_referents(thing)
            return [one for one in (owner, *inner) if not isinstance(one, ModuleType)]
        if isinstance(thing, tuple | frozenset):
            return gc.get_referents(thing)
        if isinstance(thing, trio.lowlevel.Task):
            return None
        module: str = getattr(type(thing), "__module__", "")
        if isinstance(thing, partial) or _is_frozen(thing):
            return gc.get_referents(thing)
        self._writes.add(id(thing))
        self._kinds.add(f"{module}.{type(thing).__qualname__}")
        self._kept.append(thing)  # so that its id is not given to another
        # What the kernel and Trio hold of others is not the world's to touch; but both ends of a
        # channel share what is in it.
        hidden = module.startswith("motet.runtime") or (
            module.startswith("trio.") and module not in _SHARED
        )
        return None if hidden else gc.get_referents(thing)


_SHARED = ("trio._channel", "trio._sync", "trio._core._parking_lot")


def _is_frozen(thing: object) -> bool:
    return isinstance(thing, msgspec.Struct) and bool(thing.__struct_config__.frozen)


def _class_data(owner: type) -> list[object]:
    """What a class itself holds, besides its methods and the members of its objects."""
    if not _is_program(owner.__module__):
        return []
    return [
        value
        for name, value in vars(owner).items()
        if not name.startswith("__") and not callable(value) and not hasattr(value, "__get__")
    ]


_known: dict[CodeType, dict[int, _Variable]] = {}


def _variables(code: CodeType) -> dict[int, _Variable]:
    """The operations of a code object on variables that others may see, by their place."""
    found = _known.get(code)
    if found is None:
        found = _known[code] = {}
        shared = {*code.co_cellvars, *code.co_freevars}
        for one in dis.get_instructions(code):
            if one.opname in _LOADS or one.opname in _STORES:
                name = str(one.argval)
                scope = "cell" if name in shared else "local"
                if one.opname.endswith(("GLOBAL", "NAME")):
                    scope = "global"
                found[one.offset] = one.opname in _STORES, scope, name
    return found


def _is_world(frame: FrameType) -> bool:
    return _is_program(frame.f_globals.get("__name__", "")) and not is_installed(
        frame.f_code.co_filename
    )


def _is_code_of_world(function: FunctionType) -> bool:
    return _is_program(function.__module__ or "")


def _is_program(module: str) -> bool:
    top = module.partition(".")[0]
    return top not in ("motet", "trio", "outcome", "msgspec", "attr") and (
        top not in sys.stdlib_module_names or top == "__main__"
    )


class Guide(Instrument):
    """Follows a search in one run: chooses its tasks, and records what its steps touch."""

    def __init__(self, search: Search) -> None:
        self.redundant = False
        self.strayed = False
        self._prefix = search.prefix
        self._asleep = search.asleep()
        self._ready: Sequence[trio.lowlevel.Task] = ()
        self._end: Callable[[], None] = lambda: None
        self.seen = Footprints(_actor_of)
        self._useful = 0

    @property
    def steps(self) -> Sequence[Step]:
        """The steps of the run, up to the first redundant one."""
        return self.seen.steps[: self._useful]

    def end_by(self, end: Callable[[], None]) -> None:
        """How to end a run that has become redundant."""
        self._end = end

    def choose(self, ready: Sequence[object]) -> int:
        """The index of the next task; see ``policies.Chooser``."""
        self._ready = [cast(trio.lowlevel.Task, task) for task in ready]
        numbers = [self.seen.number(task) for task in self._ready]
        at = len(self.seen.steps)
        if at < len(self._prefix):
            if self._prefix[at] in numbers:
                return numbers.index(self._prefix[at])
            self.strayed = True
        awake = [index for index, one in enumerate(numbers) if one not in self._asleep]
        return awake[0] if awake else 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name.startswith("<"):
            return
        self.seen.begin(task, self._ready)
        self._ready = ()
        if not self.redundant and self._after_prefix() and self.seen.number(task) in self._asleep:
            self.redundant = True
            self._end()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name.startswith("<"):
            return
        at = len(self.seen.steps)
        self.seen.end()
        if self.redundant:
            return
        self._useful = at + 1
        if at >= len(self._prefix) - 1:
            self._asleep = _awake(self._asleep, self.seen.steps[-1])

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        if not task.name.startswith("<"):
            self.seen.woken(task)

    def _after_prefix(self) -> bool:
        return len(self.seen.steps) >= len(self._prefix)

    @contextmanager
    def looking(self) -> Generator[None]:
        """See what the world's code touches in the block; no other tracing function sees it."""
        before = sys.gettrace()
        with patched(_marked(self.seen)):
            sys.settrace(self.seen.trace)
            try:
                yield
            finally:
                sys.settrace(before)


def _marked(seen: Footprints) -> list[Patch]:
    """Replacements by which cancellations and lives of actors count as touching everything."""
    cancel: Callable[..., None] = trio.CancelScope.cancel
    moves: Callable[..., LifeState] = vars(kernel)["next_state"]

    def cancelled(scope: trio.CancelScope, *args: Any, **more: Any) -> None:
        seen.everything()
        cancel(scope, *args, **more)

    def moved(*args: Any) -> LifeState:
        seen.everything()
        return moves(*args)

    return [(trio.CancelScope, "cancel", cancelled), (kernel, "next_state", moved)]


def _actor_of(thing: object) -> str | None:
    return thing.path if isinstance(thing, ActorRef) else None
