"""One run of a host, as plain data that a stop can reach while everything is stuck.

It is touched by one Trio thread only, and no method awaits. Invariants: the state changes as
:mod:`~motet.protocols.run_states` allows; ``ended`` is set exactly once, with a result; of many
stops of a run one is the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

import attrs
import msgspec
import trio

from motet.actors.agents.spec import AnyAgent
from motet.actors.agents.toolkit import Toolkit
from motet.protocols.approvals import Resumption
from motet.protocols.budget import Budget
from motet.protocols.error_records import Origin
from motet.protocols.escalations import AnswerEscalation
from motet.protocols.limits import Limits
from motet.protocols.models import is_repeatable
from motet.protocols.policy import Subject
from motet.protocols.queueing import QueueMode
from motet.protocols.room_copies import Fix, fix_of, fixed_text
from motet.protocols.run import Progress, RunResult
from motet.protocols.run_states import (
    NEVER_STARTS,
    RUNNING,
    TRANSITIONS,
    LifeEvent,
    RunState,
    is_over,
    next_state,
)
from motet.protocols.sessions import Principal, RunStatus
from motet.runtime.outside import fresh_hex

StartSoon: TypeAlias = Callable[..., None]

# Inputs before the run table


@attrs.define(eq=False)
class PendingInput:
    """An input from when it was sent until the run ``run_id`` is in the run table.

    Attributes:
        session: empty until it is known.
        sender: who said it, in a group whose session the principal keeps.
        stopped: why its run must not start; empty: it may.
    """

    session: str
    principal: Principal
    sender: str = ""
    run_id: str = attrs.field(factory=lambda: f"run_{fresh_hex(6)}")
    stopped: str = ""


class PendingInputs:
    """The inputs that were sent and are no runs yet, oldest first: a later stop covers them too.

    Agents and sessions are looked up before an input is in the run table, and on a connection
    other messages may come before it. Invariants: a pending input that was stopped never becomes a
    run that starts; one that is no longer referenced is gone.
    """

    def __init__(self) -> None:
        self._open: WeakValueDictionary[str, PendingInput] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._open)

    def expect(self, session: str, principal: Principal, sender: str = "") -> PendingInput:
        """Note that an input was sent, for as long as the note is referenced."""
        pending = PendingInput(session, principal, sender)
        self._open[pending.run_id] = pending
        return pending

    def remove(self, pending: PendingInput) -> None:
        """The input is in the run table, or will never be."""
        self._open.pop(pending.run_id, None)

    def find(self, meant: Callable[[PendingInput], bool]) -> list[PendingInput]:
        """The inputs that ``meant`` accepts, the newest last."""
        return [one for one in self._open.values() if meant(one)]


# The place in the queue

LONGEST = 5
"""Pauses for which a burst is held at most, however fast its inputs come."""


@attrs.define(eq=False)
class Burst:
    """Inputs of one sender that come close together: held until ``until``, answered as one."""

    began: float
    until: float

    def grow(self, now: float, pause: float) -> None:
        """One more has come."""
        self.until = max(self.until, min(now + pause, self.began + LONGEST * pause))


class Placement(msgspec.Struct, eq=False):
    """Where an input stands in its session.

    Attributes:
        mode: what becomes of it if the session is at work.
        steers: the id of the run that it is to enter; None: it is to be a run of its own.
        only_enters: the run that it may enter, and never becomes a run itself. Once that run has
            ended or is suspended, it is too late, and its sender is told; the run that resumes
            under the same id is another one.
        pause: seconds for which it is held, in case its sender types on; ``burst``: with what.
        placed: it is not held any more, and was looked at since.
        joined: the runs of inputs that it answers too.
    """

    mode: QueueMode = "followup"
    steers: str | None = None
    only_enters: Run | None = None
    pause: float = 0.0
    burst: Burst | None = None
    placed: bool = False
    joined: tuple[str, ...] = ()


CLOSING = "the host is closing"
SHUTDOWN = "the host is shutting down"
"""The same when the next host can go on with it."""
CALLER_ENDED = "its caller has ended"  # also while that still cleans up


@attrs.frozen(eq=False)
class Input:
    """An input: its text, its author, and the way it came in. Replaced as a whole, if at all.

    Attributes:
        key: the idempotency key, scoped to (principal, ``method``): the API method it came through.
        sender: the author, among those who share the session; empty: the principal's user.
        asked_by: in a room, the people whose words it answers: policy is asked about each of them.
        payers, turn, round: as of ``InputOptions``.
        deps, extra: the program's, for tools; what the system prompt says beside instructions.
        answers: the answer to an escalation that it carries out.
    """

    id: str
    session: str
    principal: Principal
    text: str
    deps: object = None
    key: str | None = None
    sender: str = ""
    method: str = "chat.send"
    extra: str = ""
    answers: AnswerEscalation | None = None
    asked_by: tuple[Principal, ...] = ()
    payers: tuple[str, ...] = ()
    turn: str = ""
    round: str = ""

    @property
    def author(self) -> str:
        return self.sender or self.principal.user


class Lineage(msgspec.Struct, eq=False):
    """The runs above and below a run.

    Attributes:
        caller: the run that this one is a child of, and the call that asked for it.
        in_background: its caller goes on while it works, and is told of its end.
        child_limit: how many children of its caller work at once; it waits for a place.
        limiter: the same for its own children; None until it has one.
        children: that work beside it; None until there is one.
        below: the live runs that work for it, beside it or for a call.
        ancestors: on whose behalf it works, outermost first: it may call no tool that policy
            denies one of them. A child has its parent's ``subjects``.
        budget: what it may spend; None until it starts, if it is nobody's child.
        start_soon: starts a task of its session's actor.
    """

    caller: tuple[str, str] | None = None
    in_background: bool = False
    child_limit: trio.CapacityLimiter | None = None
    limiter: trio.CapacityLimiter | None = None
    children: ChildSet | None = None
    below: list[Run] = []
    ancestors: tuple[Subject, ...] = ()
    budget: Budget | None = None
    start_soon: StartSoon | None = None


class Carried(msgspec.Struct, eq=False):
    """The state that a run carries from host to host, or over a wait for a person.

    Attributes:
        durable: nobody waits for it here, so that another host may go on with it.
        resumption: where it was left, if it was suspended, or if its host has ended.
        started: the same, if its host died before its first answer: it starts anew, unless stopped.
        start_published: whether its start was announced before it resumed; None: it begins here.
        has_approval, approval_missed: one is stored; one was answered after its call was suspended.
        entered: inputs in its rows that wait on disk; stored with the next intent, or its end.
        handed_to: the agents that have taken over, while the disk has another one.
        fixes: changes of messages in its rows, also for rows that are loaded or stored later.
    """

    durable: bool = False
    resumption: Resumption | None = None
    started: Resumption | None = None
    start_published: bool | None = None
    has_approval: bool = False
    approval_missed: bool = False
    entered: tuple[str, ...] = ()
    handed_to: tuple[str, ...] = ()
    fixes: list[Fix] = []


@attrs.define(eq=False)
class Run:
    """One run, from the moment its input arrived.

    Attributes:
        input: what it answers; ``pending``: the note of it before it was registered.
        agent, limits: those in force; a hand-over changes the agent.
        state: see :mod:`~motet.protocols.run_states`.
        stop_reason: why it is to end, in the words of the first who asked; empty until then.
        by_user: a person asked for it, and not the end of its caller or of the host.
        soft_stop: it ends before its next model request.
        toolkit: its own; None: the current one of its host.
        model: that was chosen for its session; empty: its agent's own.
        workspace: of its tools; None until it has been prepared.
        next_agent: to which its agent has handed the conversation, from the next request on.
        found: tools of MCP servers that it has looked for and found.
        admission: higher than that of every run admitted before it.
        reads_anew: changes the rows that its model reads, and tells whether there were any to
            change; None: it has not begun, or is over.
        is_cut: it ends with what it runs under, and not by a stop of its own.
    """

    input: Input = attrs.field(repr=False)
    agent: AnyAgent
    limits: Limits
    toolkit: Toolkit | None = attrs.field(default=None, repr=False)
    pending: Final[PendingInput | None] = attrs.field(default=None, repr=False)
    # Of the input; here too, since they never change and are read everywhere.
    id: Final[str] = attrs.field(
        default=attrs.Factory(lambda self: self.input.id, takes_self=True), init=False
    )
    session: Final[str] = attrs.field(
        default=attrs.Factory(lambda self: self.input.session, takes_self=True), init=False
    )
    placement: Final[Placement] = attrs.field(factory=Placement, repr=False)
    lineage: Final[Lineage] = attrs.field(factory=Lineage, repr=False)
    carried: Final[Carried] = attrs.field(factory=Carried, repr=False)
    progress: Final[Progress] = attrs.field(factory=Progress, repr=False)
    found: Final[set[str]] = attrs.field(factory=set[str], repr=False)
    scope: Final[trio.CancelScope] = attrs.field(factory=trio.CancelScope, repr=False)
    ended: Final[trio.Event] = attrs.field(factory=trio.Event, repr=False)
    state: RunState = "new"
    stop_reason: str = ""
    by_user: bool = False
    soft_stop: bool = False
    result: RunResult[Any] | None = attrs.field(default=None, repr=False)
    model: str = ""
    workspace: Path | None = None
    next_agent: AnyAgent | None = None
    admission: int = 0
    reads_anew: Callable[[Fix], bool] | None = attrs.field(default=None, repr=False)
    is_cut: bool = False

    @property
    def child_limiter(self) -> trio.CapacityLimiter:
        """For children that work at once."""
        # A `cached_property` would give the class a `__getattr__`, and make each attribute slow.
        if self.lineage.limiter is None:
            self.lineage.limiter = trio.CapacityLimiter(self.limits.parallel_children)
        return self.lineage.limiter

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """Whom policy is asked about when it calls a tool: its ancestors, the people whose words
        it answers, and itself.
        """
        agent, session, who = self.agent.name, self.session, self.input.principal
        own = Subject(agent, who.user, who.role, session)
        if not self.input.asked_by:  # as almost always
            return (*self.lineage.ancestors, own)
        others = [Subject(agent, who.user, who.role, session) for who in self.input.asked_by]
        return (*self.lineage.ancestors, *others, own)

    def ask_also(self, who: Principal) -> None:
        """Words of this person enter it too: from now on policy is asked about them."""
        if who not in self.input.asked_by:
            self.input = attrs.evolve(self.input, asked_by=(*self.input.asked_by, who))

    def correct(self, fix: Fix, people: Iterable[Principal] = ()) -> None:
        """Change what its model reads from its next request on; see ``room_messages``.

        ``people``: those whose words it is now, if it reads them.
        """
        before, text = self.input.text, fixed_text(fix, self.input.text)
        self.input = attrs.evolve(self.input, text=text)
        self.carried.fixes.append(fix_of(self.agent.name, fix))
        may_read = self.reads_anew is None or self.reads_anew(fix)
        for who in people if may_read or text != before else ():
            self.ask_also(who)
            if (into := self.placement.only_enters) is not None:
                into.ask_also(who)

    @property
    def model_name(self) -> str:
        """The model that it asks."""
        agent = self.agent
        return self.model or (agent.model if isinstance(agent.model, str) else agent.model.name)

    @property
    def author(self) -> str:
        return self.input.author

    @property
    def whose(self) -> tuple[str, str]:
        """Its agent and its user."""
        return self.agent.name, self.input.principal.user

    def origin(self, part: str) -> Origin:
        """Of an error in a part of the run that is no call."""
        return Origin(self.session, part, self.id, "", *self.whose)

    @property
    def conversation_key(self) -> object:
        """A text may enter the run if this is equal for both."""
        return self.whose

    @property
    def merge_key(self) -> object:
        """Inputs can be answered as one if this is equal for all."""
        one, caller = self.input, self.lineage.caller
        whose, role = self.conversation_key, one.principal.role
        return whose, role, self.limits, id(one.deps), one.extra, caller

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING

    @property
    def is_stopping(self) -> bool:
        """Whether it works and was asked to end."""
        return self.state == "stopping"

    @property
    def was_stopped(self) -> bool:
        """Whether somebody wants its end, and not only that of its host."""
        return self.by_user or self.stop_reason not in ("", CLOSING, SHUTDOWN)

    @property
    def never_starts(self) -> bool:
        """Whether a stop came first."""
        if self.result is not None:
            return self.result.status == "dropped"
        return self.state in NEVER_STARTS

    @property
    def is_part(self) -> bool:
        """Before it starts: whether its caller, or a round of a room, pays for it."""
        return self.lineage.budget is not None

    @property
    def is_for_next_host(self) -> bool:
        """Whether it is cut off so that the next host goes on with it.

        A run that an earlier host has left is left again by a host that is only opened shortly; a
        room's turn that can be made again as by a kill, at any depth.
        """
        carried, why = self.carried, self.stop_reason
        again = self.input.turn and why in (CLOSING, SHUTDOWN) and is_repeatable(self.agent.model)
        cut_off = (why == CLOSING and carried.start_published is not None) or why == SHUTDOWN
        kept = cut_off and (carried.durable or self.input.key is not None)
        return not self.by_user and bool(again or (kept and not self.lineage.caller))

    def move(self, event: LifeEvent) -> None:
        """Change the state. Raises ``LifecycleError``."""
        # In place of `next_state`, except where that raises.
        after = TRANSITIONS[self.state].get(event)
        self.state = after or next_state(self.state, event, self.id)

    def cancel(self, reason: str, *, by_user: bool = False) -> bool:
        """Ask the run to end now, and all that work for it; whether nobody had before.

        It has ended when ``ended`` is set, not before. Its children are asked in this step, since
        the clean-up of its tools may take long: they would begin tools meanwhile.
        """
        if is_over(self.state):
            return False
        first = not self.stop_reason or (by_user and not self.was_stopped)
        if first:
            self.stop_reason, self.by_user = reason, by_user
        self.move("stop")
        self.scope.cancel()
        for child in tuple(self.lineage.below):
            child.cancel(self.stop_reason if self.is_for_next_host else CALLER_ENDED)
        return first

    def cut(self) -> None:
        """End it now with what it runs under: no stop, and its end gives that no reason."""
        self.is_cut = True
        self.scope.cancel()

    def follow_budget(self) -> None:
        """Have its wall time, and that of the runs below it, end as the budgets say now."""
        if self.lineage.budget is not None:
            self.scope.deadline = self.lineage.budget.deadline
        for child in self.lineage.below:
            child.follow_budget()

    def drop(self, reason: str, *, by_user: bool = False) -> None:
        """It was taken out of its queue and will not be answered."""
        if not is_over(self.state):  # as the end of the host may have made it meanwhile
            self.cancel(reason, by_user=by_user)
            self.move("drop")

    def free(self) -> None:
        """The input is to become a run of its own, and enters none."""
        self.placement.steers = None

    def end(self, result: RunResult[Any]) -> None:
        """Set its result; the first one counts."""
        if not is_over(self.state):
            self.move("suspend" if result.status == "waiting" else "end")
            self.result = result
            self.reads_anew = None  # or its runner and the run would be garbage in a circle
            self.ended.set()

    def ends_as(self, status: RunStatus, detail: str) -> RunResult[Any]:
        return RunResult(
            self.id,
            self.session,
            self.agent.name,
            status,
            detail=detail,
            structured=self.agent.form is not None,
        )


# Children

TOGETHER = 1.0
"""Seconds for which an end waits for others, so that the caller's model is told of all at once."""


@attrs.define(eq=False)
class Child:
    """A child that works beside its caller.

    Attributes:
        label: what its caller calls the work.
        told: its caller knows its end.
        at_work: the task that owns it has begun.
        begun: its input is on disk, or will never be, which is a ``failure``.
        gone: it has ended, and so has what watches over it.
    """

    run: Run
    label: str = ""
    told: bool = False
    at_work: bool = False
    begun: trio.Event = attrs.field(factory=trio.Event)
    gone: trio.Event = attrs.field(factory=trio.Event)
    failure: Exception | None = None


@attrs.define(eq=False)
class ChildSet:
    """The children that work beside a run, in the order in which they began.

    Invariants: a child's end is taken once, and in the order in which children end; who waits is
    woken by every end; after :meth:`end` none of them is alive, nor anything they started (G1).
    """

    members: dict[str, Child] = attrs.field(factory=dict[str, Child])
    _ended: list[Child] = attrs.field(factory=list[Child])
    _news: trio.Event = attrs.field(factory=trio.Event)

    @property
    def alive(self) -> tuple[Child, ...]:
        return tuple(child for child in self.members.values() if not child.gone.is_set())

    @property
    def has_news(self) -> bool:
        """Whether a child has ended whose caller has not been told."""
        return any(not child.told for child in self._ended)

    @property
    def open(self) -> bool:
        """Whether there is a child whose end its caller does not know."""
        return any(not child.told for child in self.members.values())

    def begins(self, child: Child) -> None:
        self.members[child.run.id] = child

    def ends(self, child: Child) -> None:
        """Its run has ended, with all that it had started."""
        if child not in self._ended:
            self._ended.append(child)
        self._news.set()

    def never_began(self, child: Child) -> None:
        self.members.pop(child.run.id, None)
        self._news.set()

    def take(self) -> tuple[Child, ...]:
        """Those that have ended since the last time, first the one that ended first."""
        news = tuple(child for child in self._ended if not child.told)
        for child in news:
            child.told = True
        return news

    def nudge(self) -> None:
        """Wake who waits: there is something else for it to look at."""
        self._news.set()

    async def settled(self, enough: Callable[[], bool]) -> None:
        """Wait for news, until nobody is alive, or until it is ``enough``. Cancellable.

        What ends within a moment of the first is waited for too.
        """
        while self.alive and not self.has_news and not enough():
            await self._next()
        with trio.move_on_after(TOGETHER):
            while self.alive and not enough():
                await self._next()

    async def end(self, why: str) -> None:
        """Ask all of them to end, and wait until they have, without limit: less would break G1."""
        for child in self.alive:
            child.run.cancel(why)
        for child in tuple(self.members.values()):
            await child.gone.wait()

    async def _next(self) -> None:
        if self._news.is_set():
            self._news = trio.Event()
        await self._news.wait()
