"""The queue of one session: pure rules, the plain object that applies them to its runs, and what
people have set for sessions.

An input is held while its sender may still be typing; then it is placed: it enters a run, ends
one, or waits. Waiting inputs start in order of arrival, some of them joined into one.

Laws: the inputs of one sender start in their order, and one sender has one run at a time; there are
never more runs than allowed; the queue is bounded; a run that leaves it is returned to the caller,
or is in ``dropped``, so that its sender is told once. Nothing here awaits. Source: agent loop
specification, section 11.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from math import inf
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

import attrs
import trio
from msgspec.structs import replace

from motet.actors.agents.spec import AnyAgent
from motet.actors.runs.run import Burst, Carried, Input, Placement, Run
from motet.protocols.approvals import StoredSuspendedRun
from motet.protocols.queueing import QueueConfig, QueueMode
from motet.protocols.room_copies import Fix, fixed_end, fixed_text
from motet.protocols.sessions import (
    Ack,
    FinishRun,
    Principal,
    QueueFull,
    SessionBusy,
    SessionInfo,
    SessionSetting,
)

Way: TypeAlias = Literal["enter", "wait", "join", "drop"]


class UnderWay(Protocol):
    """A run that has begun and not ended, as the rules see it: it works, or is suspended.

    Attributes:
        conversation_key: only an input that is equal in it to a run can enter that.
        is_stopping: it has been asked to end.
    """

    @property
    def id(self) -> str: ...
    @property
    def author(self) -> str: ...
    @property
    def conversation_key(self) -> object: ...
    @property
    def is_stopping(self) -> bool: ...


class Queued(UnderWay, Protocol):
    """An input as the rules see it. ``merge_key``: equal for inputs that can be answered as one."""

    @property
    def placement(self) -> Placement: ...
    @property
    def merge_key(self) -> object: ...


In = TypeVar("In", bound=Queued)
Going = TypeVar("Going", bound=UnderWay)


@attrs.frozen
class Placed(Generic[In, Going]):
    """Where an input belongs, and what has to give way to it.

    Attributes:
        into: the run that it enters.
        ends: runs that it ends.
        drops: inputs that will not be answered, since it is there.
        frees: inputs of others that were to enter a run that it ends.
    """

    way: Way
    into: Going | None = None
    ends: tuple[Going, ...] = ()
    drops: tuple[In, ...] = ()
    frees: tuple[In, ...] = ()


def allowed(most: int, tokens: int | None, window: int, throttle: float) -> int:
    """Runs that may go on at once: one as soon as the conversation fills much of the window."""
    if tokens is None or window <= 0:
        return most
    return 1 if tokens >= throttle * window else most


def held_with(queue: Iterable[In], new: In, now: float, pause: float) -> Burst:
    """The burst of a new input: that of its sender that is still held, or its own."""
    for one in queue:
        burst = one.placement.burst
        if burst is not None and burst.until > now and _alike(one, new):
            burst.grow(now, pause)
            return burst
    return Burst(now, now + pause)


def place(new: In, queue: Sequence[In], running: Sequence[Going], limit: int) -> Placed[In, Going]:
    """The fate of an input that is no longer held; ``queue`` has it already.

    ``running``: all runs under way, the suspended ones among them, here and in the rules below.
    """
    # By far the most common case, and all rules below agree with it.
    if not running and len(queue) == 1:
        return Placed("wait")
    others = [one for one in queue if one is not new and not _one_burst(one, new)]
    if new.placement.mode == "steer" and (target := entered(new, running, limit)) is not None:
        return Placed("enter", target)
    if new.placement.mode == "interrupt":
        return _interrupting(new, others, running)
    joins = new.placement.mode == "collect" and (
        running or any(_joined(new, one, limit) for one in others)
    )
    return Placed("join" if joins else "wait")


def _interrupting(new: In, others: Sequence[In], running: Sequence[Going]) -> Placed[In, Going]:
    # A sender interrupts only what is their own. What others had sent to steer the ended run was
    # not withdrawn by anybody, so it becomes a run of its own instead of going down with it.
    ends = tuple(one for one in running if one.author == new.author)
    ending = {one.id for one in ends}
    drops = tuple(one for one in others if one.author == new.author)
    frees = tuple(
        one for one in others if one.author != new.author and one.placement.steers in ending
    )
    return Placed("wait", ends=ends, drops=drops, frees=frees)


def entered(new: Queued, running: Sequence[Going], limit: int) -> Going | None:
    """The run that a text which steers enters: its sender's, or if no other may start, the newest.

    None: it is to be a run of its own.
    """
    going_on = [
        one
        for one in running
        if not one.is_stopping and one.conversation_key == new.conversation_key
    ]
    own = [one for one in going_on if one.author == new.author]
    if own:
        return own[-1]
    return going_on[-1] if going_on and len(running) >= limit else None


def surplus(queue: Sequence[In], rules: QueueConfig) -> tuple[In, ...]:
    """The inputs that leave a queue that has grown too long."""
    over = len(queue) - rules.capacity
    if over <= 0 or rules.overflow == "reject":
        return ()
    waiting = tuple(queue)
    return waiting[:over] if rules.overflow == "drop_oldest" else waiting[-over:]


def next_batch(
    queue: Sequence[In], running: Sequence[UnderWay], limit: int, now: float
) -> tuple[In, ...]:
    """The inputs to start next, answered as one; empty when none may start."""
    if not queue or len(running) >= limit:
        return ()
    if not running and len(queue) == 1:
        return () if is_held(queue[0], now) else (queue[0],)
    at_work = {one.id for one in running}
    waiting = [one for one in queue if one.placement.steers not in at_work]
    passed_over = {one.author for one in running}  # whose later inputs must not come first
    batch: list[In] = []
    # One pass from the oldest on. An input that cannot start now blocks the later ones of its
    # sender, whose order must hold, and nobody else's: a chat of two must not stall on one of them.
    for one in waiting:
        free = one.author not in passed_over and not is_held(one, now)
        if free and (not batch or _joined(batch[0], one, limit) or _one_burst(batch[0], one)):
            batch.append(one)
        else:
            passed_over.add(one.author)
    return tuple(batch)


def is_held(one: Queued, now: float) -> bool:
    return one.placement.burst is not None and one.placement.burst.until > now


def wakes(queue: Iterable[Queued], now: float) -> float:
    """When the next of them is not held any more; infinity when none is."""
    return min(
        (one.placement.burst.until for one in queue if one.placement.burst and is_held(one, now)),
        default=inf,
    )


def _joined(one: In, other: In, limit: int) -> bool:
    """Whether both are collected: what one sender said, or if only one run may go on, what all."""
    both = (
        one.placement.mode == other.placement.mode == "collect" and one.merge_key == other.merge_key
    )
    return both and (limit == 1 or one.author == other.author)


def _one_burst(one: In, other: In) -> bool:
    return one.placement.burst is not None and one.placement.burst is other.placement.burst


def _alike(one: In, other: In) -> bool:
    return (one.author, one.placement.mode, one.merge_key) == (
        other.author,
        other.placement.mode,
        other.merge_key,
    )


INTERRUPTED = "interrupted by a newer input"
SUPERSEDED = "a newer input has taken its place"
TOO_LATE = "the run that it was for has ended"

_UNLOCKED: Final = nullcontext()
"""Has no state, so that one is enough."""


@attrs.define(eq=False)
class SuspendedRun:
    """A run that waits for a person outside of any task. All the rest of it is on disk.

    Attributes:
        agent: its name; ``code``: the agent itself, if it ran in this process.
        deps: what the program gave it; after a restart it has to give them again.
        sender: who said its input, in a group; ``durable``: no caller waits for it.
        due: it has an answer that it has not made use of.
        resumed: how often it was taken up and came to nothing.
        blocked: what keeps it from going on, in words; ``warned``: what was told of that.
    """

    id: str
    session: str
    agent: str
    user: str
    text: str
    code: AnyAgent | None = None
    deps: object = None
    sender: str = ""
    durable: bool = False
    due: bool = False
    resumed: int = 0
    blocked: str = ""
    warned: str = ""

    @classmethod
    def of(cls, run: Run) -> SuspendedRun:
        """A run whose task ends now."""
        one, durable = run.input, run.carried.durable or run.input.key is not None
        who, agent = one.principal.user, run.agent
        return cls(
            run.id, run.session, agent.name, who, one.text, agent, one.deps, one.sender, durable
        )

    @classmethod
    def stored(cls, run: StoredSuspendedRun) -> SuspendedRun:
        one = cls(run.run_id, run.session, run.agent, run.user, run.text, sender=run.sender)
        one.durable, one.due, one.resumed = run.durable, run.due, run.resumed
        return one

    def correct(self, fix: Fix, people: Iterable[Principal] = ()) -> None:  # noqa: ARG002
        """Change a message in its text; the rest of it is changed on disk."""
        self.text = fixed_text(fix, self.text)

    @property
    def author(self) -> str:
        return self.sender or self.user

    @property
    def conversation_key(self) -> object:
        return self.agent, self.user

    @property
    def is_stopping(self) -> bool:
        """A stop makes it a live run first."""
        return False

    def live(self, agent: AnyAgent) -> Run:
        """The run that goes on; its stored state has to be loaded."""
        who = Principal(self.user)
        return Run(
            Input(self.id, self.session, who, self.text, self.deps, sender=self.sender),
            agent,
            agent.limits,
            carried=Carried(durable=self.durable),
            state="suspended",
        )


PlacedRun: TypeAlias = Placed[Run, Run | SuspendedRun]


@attrs.define(eq=False)
class SessionQueue:
    """The inputs and runs of one session while it is busy.

    Attributes:
        inputs: that wait, oldest first.
        running: its runs under way, the newest last; several in a ``group``.
        starting: those of ``running`` that its actor has not begun yet.
        dropped: inputs that have left the queue, to be put on record by its actor.
        arriving: how many inputs are on their way to disk.
        chores: how many jobs are done for it after its runs, such as a summary.
        unsaved: ends of runs and inputs that could not be stored yet, oldest first.
        saving: a task of its actor stores them when it can.
        ended: how many of its runs have ended, for those that run at the same time.
        tasks: for its actor to start; each is called with the actor.
        filled: the tokens of its last request, or None, and how many the model takes.
        touched: when it was used last.
    """

    session: str
    inputs: list[Run] = attrs.field(factory=list[Run])
    running: list[Run] = attrs.field(factory=list[Run])
    starting: list[Run] = attrs.field(factory=list[Run])
    dropped: list[Run] = attrs.field(factory=list[Run])
    group: bool = False
    arriving: int = 0
    chores: int = 0
    unsaved: list[FinishRun] = attrs.field(factory=list[FinishRun])
    saving: bool = False
    ended: int = 0
    tasks: list[Callable[[Any], None]] = attrs.field(factory=list[Callable[[Any], None]])
    filled: tuple[int | None, int] = (None, 0)
    touched: float = 0.0
    _lock: trio.Lock | None = attrs.field(default=None, init=False, repr=False)

    @property
    def has_work(self) -> bool:
        """Whether there is something that its actor has to begin."""
        return bool(self.inputs or self.starting or self.dropped or self.unsaved or self.tasks)

    @property
    def idle(self) -> bool:
        return not (self.running or self.arriving or self.chores or self.has_work)

    def correct(self, user: str, fix: Fix | None) -> bool:
        """Change messages in a user's ends that are not stored yet; whether there are any."""
        found = [end.user == user for end in self.unsaved]
        self.unsaved[:] = [
            fixed_end((fix,), end) if is_ours and fix else end
            for end, is_ours in zip(self.unsaved, found, strict=True)
        ]
        return any(found)

    def storing(self) -> AbstractAsyncContextManager[None]:
        """A lock on ``unsaved``, where several tasks may store at once."""
        if not self.group and not self.saving:
            return _UNLOCKED
        if self._lock is None:
            self._lock = trio.Lock()
        return self._lock

    def steering(self, run_id: str) -> list[Run]:
        """The inputs that are to enter a run, in their order."""
        return [run for run in self.inputs if run.placement.steers == run_id]

    def limit(self, rules: QueueConfig) -> int:
        """How many of its runs may be under way at once; a suspended one keeps its place."""
        if not self.group:
            return 1
        return allowed(rules.concurrent, *self.filled, rules.throttle)

    # Coming in

    def check(
        self, run: Run, rules: QueueConfig, suspended: Sequence[SuspendedRun], *, held: bool
    ) -> None:
        """Whether an input may come in. Raises ``QueueFull``, ``SessionBusy``."""
        live, user = (*self.running, *self.inputs), run.input.principal.user
        if live or suspended:
            users = {one.input.principal.user for one in live} | {one.user for one in suspended}
            if users != {user}:
                return  # it is told nothing of another's session: the store does not know it there
        busy = bool(live or suspended or self.arriving) or held
        if run.placement.mode == "reject" and busy:
            raise SessionBusy(
                f"session {run.session!r} is at work, and its inputs are refused meanwhile: "
                "try again when it has answered, or choose another queue mode"
            )
        waiting = self.arriving if rules.overflow != "reject" else len(self.inputs) + self.arriving
        if waiting >= rules.capacity:
            raise QueueFull(
                f"session {run.session!r} has {rules.capacity} inputs waiting; "
                "try again when a run has ended, or stop one"
            )

    def arrive(
        self, run: Run, rules: QueueConfig, suspended: Sequence[SuspendedRun], now: float
    ) -> PlacedRun:
        """Queue an input that is on disk, or let it enter a run. The caller ends ``ends``."""
        shared, place = False, run.placement
        if place.pause and place.steers is None:
            place.burst = burst = held_with(self.inputs, run, now, place.pause)
            shared = burst.began < now or any(one.placement.burst is burst for one in self.inputs)
        self.inputs.append(run)
        if over := surplus(self.inputs, rules):
            self._drop(over, f"the queue was full: {rules.capacity} inputs wait already")
            if run in over:
                return Placed("drop")
        if place.burst is not None and is_held(run, now):
            return Placed("join" if shared else "wait")
        return self.place(run, rules, (*suspended, *self.running))

    def ack(self, run: Run, way: Way, *going: Container[str | None]) -> Ack:
        """The acknowledgement of an input that came ``way``, by its state now.

        ``going``: the ids of the runs that it may enter.
        """
        if way == "drop":
            return Ack(run.id, "dropped")
        if way == "wait" and run.result is not None:
            return Ack(run.id, "queued")  # for the next host
        if run not in self.inputs:
            return Ack(run.id, "accepted" if run.is_running else "collected")
        waiting = [
            one for one in self.inputs if not any(one.placement.steers in ids for ids in going)
        ]
        if run not in waiting:
            return Ack(run.id, "steered")
        position = waiting.index(run) + 1
        return Ack(run.id, "collected" if way == "join" else "queued", position)

    def place(self, run: Run, rules: QueueConfig, going: Sequence[Run | SuspendedRun]) -> PlacedRun:
        """Place an input that is not held any more. ``going``: the runs under way."""
        run.placement.placed = True
        if run.placement.steers is not None:
            return Placed("enter")
        placed = place(run, self.inputs, going, self.limit(rules))
        if (into := placed.into) is not None:
            run.placement.steers = into.id
            if run.input.deps is None:
                deps = into.deps if isinstance(into, SuspendedRun) else into.input.deps
                run.input = attrs.evolve(run.input, deps=deps)
        for one in placed.frees:
            one.free()
        if placed.drops:
            self._drop(placed.drops, SUPERSEDED)
        return placed

    # Leaving

    def take_next(
        self, rules: QueueConfig, suspended: Sequence[SuspendedRun], now: float
    ) -> tuple[Run, ...]:
        """Take out what starts next, to be answered as one."""
        waiting = [run for run in self.inputs if run.placement.only_enters is None]
        batch = next_batch(waiting, (*suspended, *self.running), self.limit(rules), now)
        for run in batch:
            self.inputs.remove(run)
        if len(batch) > 1:
            first, text = batch[0], "\n".join(run.input.text for run in batch)
            first.input = attrs.evolve(first.input, text=text)
            first.placement.joined = tuple(run.id for run in batch[1:])
        return batch

    def drop_strays(self) -> None:
        """Drop inputs that were only to enter a run which has ended or is suspended since."""
        lost = [
            run
            for run in self.inputs
            if (into := run.placement.only_enters) is not None and into.result is not None
        ]
        if lost:
            self._drop(lost, TOO_LATE)

    def give_up(self, reason: str) -> list[Run]:
        """Take out everything: nobody will begin it."""
        runs = [*self.dropped, *self.starting, *self.inputs]
        for waiting in (self.dropped, self.starting, self.inputs):
            waiting.clear()
        for run in runs:
            if run.is_running:
                run.cancel(reason)
            else:
                run.drop(reason)
        return runs

    def _drop(self, runs: Iterable[Run], reason: str) -> None:
        for run in runs:
            self.inputs.remove(run)
            run.drop(reason)
            self.dropped.append(run)


class SessionSettings:
    """The queue mode and the model that people have set for their sessions, as stored.

    Law (G16): a setting counts for the session that it was made for, whatever comes first: news of
    its deletion, of another session of its name, or of the setting itself.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, SessionSetting]] = {}
        self._gone: deque[str] = deque(maxlen=1_000)

    def load(self, stored: Iterable[SessionSetting]) -> None:
        """The store has these, when a host starts."""
        self._known.update((one.session, {one.generation: one}) for one in stored)

    def of(self, session: str, user: str | None) -> SessionSetting:
        """The settings of a session, if it is this user's; None: of any user."""
        known = self._known.get(session, {}).values()
        none = SessionSetting(session, user or "", "")
        return next((one for one in reversed(known) if user in (None, one.owner)), none)

    def change(self, info: SessionInfo, **stored: QueueMode | str | None) -> None:
        """These were stored. ``mode`` None: the configured one; ``model`` "": the agent's."""
        if info.generation not in self._gone:
            known = self._known.setdefault(info.session, {})
            fresh = SessionSetting(info.session, info.owner, info.generation)
            known[info.generation] = replace(known.get(info.generation, fresh), **stored)

    def forget(self, session: str, generation: str) -> None:
        """The session is deleted."""
        self._gone.append(generation)
        known = self._known.get(session, {})
        known.pop(generation, None)
        if not known:
            self._known.pop(session, None)
