"""The part of an actor that survives its restarts: path, mailbox, reference, place in the tree.

Invariants: the state changes only by the table of ``lifecycle.py``; there is at most one living
incarnation; a cell that is dead has a closed mailbox and no task.

Four orders end an incarnation or the actor. ``lifecycle.py`` has the states that follow:

    order              given by                              event  mailbox  next incarnation
    stop(final=True)   the supervisor: a stop, a removal     stop   closed   none
    stop(final=False)  the supervisor: restart of a group    fail   open     follows
    end_normally()     the actor, or its supervisor, by      fail   open     as the restart type
                       ``auto_shutdown``                                     says
    bury()             the supervisor, when no incarnation   bury   closed   none
                       lives and none will follow

An incarnation that crashes takes the way of ``end_normally``, with an error.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Final, cast

import trio

from motet.protocols.messages import Message
from motet.runtime.behaviour import Behaviour
from motet.runtime.errors import ActorDead, StartFailed, unwrapped
from motet.runtime.foreign import shown
from motet.runtime.incarnation import Incarnation
from motet.runtime.kernel import Kernel, Owner
from motet.runtime.links import break_links, drop_links
from motet.runtime.mailbox import Mailbox
from motet.runtime.monitors import report_end
from motet.runtime.observe import Observer
from motet.runtime.order import order_of
from motet.runtime.outside import foreign_code
from motet.runtime.stopping import Leftover, StopPlan, at_once
from motet.runtime.supervision import Restart
from motet.runtime.supervisor import Factory, Supervisor
from motet.runtime.waits import Groups, StartWait, Work, current_work, refuse_cycle

__all__ = ["Cell"]

_log = logging.getLogger("motet.runtime")


class Cell(Owner):
    """The life cycle of one actor, see the module. Users hold it through :class:`ActorRef` only."""

    __slots__ = (
        "_actor",
        "_budget",
        "_ended",
        "_factory",
        "_on_stop_scope",
        "_started",
        "failed_before",
        "generation",
        "incarnation",
        "parent",
        "plan",
        "stop_grace",
        "supervisor",
        "task",
        "was_ready",
    )

    def __init__(
        self,
        kernel: Kernel,
        parent: Supervisor[Cell],
        name: str,
        factory: Factory,
        before: Cell | None = None,
    ) -> None:
        path = f"{parent.path}/{name}"
        # The factory of a successor runs when its predecessor has ended, as that of a restart does:
        # it may read the state that the other's on_stop is writing now. Until then the protocol and
        # the mailbox are those of the predecessor.
        actor = None if before is not None else _build(factory, path)
        if before is not None:
            spec, concurrent = before.mailbox.spec, list(before.mailbox.concurrent)
            kind, handlers, budget = before.kind, before.handlers, before._own_budget()
            grace, ordered = before.stop_grace, before.mailbox.order is not None
        else:
            assert actor is not None
            spec, concurrent = actor.mailbox, actor.__motet_calls__.concurrent
            kind, handlers = type(actor).__name__, actor.__motet_handlers__
            budget, grace = _budget_of(actor), actor.stop_grace
            ordered = actor.__motet_calls__.ordered or spec.overflow == "drop_oldest"
        # Most have none, and to look through their handlers is a fiftieth of a start and stop.
        order = order_of(spec, handlers) if ordered else None
        direct = handlers, kernel.plain_in
        mailbox = Mailbox(path, spec, kernel.dead_letters, concurrent, order, *direct)
        super().__init__(kernel, name, path, kind, handlers, mailbox)
        if actor is not None:
            actor.__motet_owner__ = self
        self.parent = parent
        self.generation = 0  # counts incarnations, so that a stale exit is recognised
        self.incarnation: Incarnation | None = None
        self.supervisor: Supervisor[Cell] | None = None  # of the children
        self.failed_before: Exception | None = None  # the error that ended the incarnation before
        self.was_ready = False  # some incarnation has started
        self.plan: StopPlan | None = None  # of this incarnation, once its end was ordered
        self.task: trio.lowlevel.Task | None = None
        self._factory = factory
        self._actor = actor  # of the first incarnation, if it is built, until that begins
        self._budget = budget  # of the actor built last: the next is like it
        # The same: seconds of a stop that names none; None: the default.
        self.stop_grace: float | None = grace
        self._on_stop_scope: trio.CancelScope | None = None  # while on_stop runs
        self._started: trio.Event | None = None
        self._ended: trio.Event | None = None

    # ------------------------------------------------------------------ observing, suspending

    def observe(self) -> None:
        """The observers of this actor may have changed."""
        if self.incarnation is not None:
            self.incarnation.observe_with(self._observer())

    def _observer(self) -> Observer | None:
        return Observer(self.kernel, self.path) if self.kernel.is_observed(self.path) else None

    def suspend(self, *, refuse: bool) -> None:
        """Begin no handler until resumed; ``refuse`` new requests, or let them wait (G3, G6)."""
        self.paused = True
        self.mailbox.refuse_requests(refuse)
        if self.incarnation is not None:
            self.incarnation.pause()

    def resume(self) -> None:
        """Undo :meth:`suspend`; does nothing if the actor is not suspended."""
        self.paused = False
        self.mailbox.refuse_requests(False)
        incarnation = self.incarnation
        if incarnation is not None and incarnation.ready and not incarnation.finishing:
            incarnation.resume()
        self.mailbox.refuse_all_endless()  # while it was suspended, they waited for this call

    # ------------------------------------------------------------------ orders of the supervisor

    def begin(self, nursery: trio.Nursery) -> None:
        """Start an incarnation in the supervisor's nursery."""
        self.change("begin")
        self.generation += 1
        if self.generation > 1:
            observer = self._observer()
            if observer is not None:
                # In the supervisor's task, which no failing meter may end.
                with suppress(Exception), foreign_code:
                    observer.restarted()
        self.plan = None
        self.cancel_at = math.inf
        self.failed_before, self.failed_with = self.failed_with, None
        self.nursery = nursery
        nursery.start_soon(self._run, name=self.path)

    async def wait_started(self) -> None:
        """Wait until ``on_start`` has returned or the incarnation has ended."""
        if not self.is_occupied or (self.incarnation is not None and self.incarnation.ready):
            return
        if self._started is None:
            self._started = trio.Event()
        work = current_work.get()
        if work is None:
            await self._started.wait()
            return
        # An actor that starts a child in a handler waits like an asker, so the same cycles are
        # possible: a child whose on_start asks its parent (G11).
        wait = StartWait(self.turn, self._started)
        refuse_cycle(work, wait.groups())
        work.waits.append(wait)
        try:
            await self._started.wait()
        finally:
            work.waits.remove(wait)

    def stop(self, plan: StopPlan, *, final: bool) -> None:
        """Order the end of the incarnation; ``final``: for ever, so intake closes (G2)."""
        if final:
            self.is_final = True
            self.mailbox.close("it was stopped")
            if self.rested is not None:
                self.rest()
            if self.links is not None:
                drop_links(self)
        if not self.is_occupied:
            if final and self.state == "suspended":  # in back-off: a stop ends that too
                plan.ledger.ended.append(self.path)
            return
        self.change("stop" if final else "fail")
        if self.links is not None:
            break_links(self, None)
        self.plan = plan
        # Only ever earlier: a second stop with more patience must not prolong the first.
        self.cancel_at = min(
            self.cancel_at, plan.cancel_at(self.total_budget(), trio.current_time())
        )
        if self.incarnation is not None:
            self.incarnation.cancel_at(self.cancel_at)
            self.incarnation.finish()
        # The order may come while the actor ends already. Then it must reach the part of the end
        # that is under way: on_stop, or the end of the children.
        if self._on_stop_scope is not None:
            self._on_stop_scope.deadline = min(self._on_stop_scope.deadline, plan.until)
        elif self.supervisor is not None and self.supervisor.closing:
            self.supervisor.close(plan.less(self._own_budget(), trio.current_time()))

    def before_restart(self) -> Groups:
        return self.parent.before_restart(self)

    def refuse_all_endless(self) -> None:
        """Refuse the waits for this actor that would never end, since less can end now (G11)."""
        self.mailbox.refuse_all_endless()

    def works(self) -> Iterator[Work]:
        """All that has to end before this actor and all below it have."""
        for cell in self.tree():
            yield from cell.own_works()

    def bury(self, reason: str) -> None:
        """No incarnation will follow: settle all mail and tell the watchers."""
        if self.state != "dead":
            self.change("bury")
        self.mailbox.close(reason)
        if self.rested is not None:
            self.rest()
        if self.links is not None:
            drop_links(self)
        if self.watchers is not None or self.watching is not None:
            report_end(self)

    async def wait_ended(self) -> None:
        """Wait until no incarnation lives."""
        # A loop, since the next incarnation may have begun before this task had its turn.
        while self.is_occupied:
            if self._ended is None:
                self._ended = trio.Event()
            await self._ended.wait()

    @property
    def restarts(self) -> int:
        """Incarnations after the first; no incarnation follows a failed ``on_start``."""
        return max(0, self.generation - 1)

    @property
    def is_occupied(self) -> bool:
        """An incarnation lives, or its clean-up runs."""
        return self.state not in ("new", "suspended", "dead")

    def total_budget(self) -> float:
        """Seconds that the ``on_stop`` of this actor and all below it may take."""
        below = self.supervisor.total_budget() if self.supervisor is not None else 0.0
        return self._own_budget() + below

    def _own_budget(self) -> float:
        """Seconds; also between two incarnations, since the next one has an ``on_stop`` again."""
        return 0.0 if self.state == "dead" else self._budget

    # ------------------------------------------------------------------ for the actor itself

    def end_normally(self) -> None:
        """End after this turn, without an error."""
        self.kernel.loop.check(self.path)
        if self.state in ("starting", "running") and self.incarnation is not None:
            self.change("fail")
            if self.links is not None:
                drop_links(self)
            self.incarnation.finish()

    def fail(self, error: Exception) -> None:
        """Fail as by a handler, unless the incarnation ends already, or has not begun."""
        incarnation = self.incarnation
        if incarnation is not None and not incarnation.finishing:
            # What has not started has no handlers beside it that could end first.
            (incarnation.fail if incarnation.ready else incarnation.crash)(error)

    def children(self) -> Supervisor[Cell]:
        """The supervisor of this actor's children, begun on first use."""
        incarnation = self.incarnation
        if incarnation is None or incarnation.finishing:
            raise ActorDead(self.path, "it is ending, so it starts no children")
        if self.supervisor is None:
            assert self.nursery is not None, "an incarnation lives in its supervisor's nursery"
            self.supervisor = Supervisor(
                self.kernel,
                self.path,
                incarnation.actor.supervision,
                Cell,
                escalate=incarnation.crash,
                shut_down=self.end_normally,
                on_child_end=self._child_ended,
            )
            # In the nursery of its own supervisor, beside the actor's task, not below it: the
            # children end after the turn and before on_stop, which is no order of a nursery.
            self.nursery.start_soon(self.supervisor.run, name=f"{self.path} (supervisor)")
        return self.supervisor

    def spawn(self, factory: Factory, name: str, restart: Restart, *, significant: bool) -> Cell:
        """Begin a child, as :meth:`Supervisor.spawn`, from any task.

        The child and its supervisor get the context variables of this actor, not the caller's.
        """
        assert self.task is not None, "an actor of this cell lives"
        context = self.task.context.copy()
        supervisor = context.run(self.children)
        return context.run(supervisor.spawn, factory, name, restart, significant=significant)

    def _child_ended(self, child: Cell, limit: Exception | None) -> None:
        if self.incarnation is not None:
            error = limit if child.was_ready else child.failed_with
            self.incarnation.child_ended(child.name, error)

    def tree(self) -> Iterator[Cell]:
        """This cell and all below, parents first, siblings in start order."""
        yield self
        if self.supervisor is not None:
            yield from self.supervisor.tree()

    # ------------------------------------------------------------------ one incarnation

    async def _run(self) -> None:
        """One incarnation from its factory to the end of its clean-up."""
        current_work.set(self.turn)
        self.task = trio.lowlevel.current_task()
        orderly = False
        try:
            self.incarnation = self._next_incarnation()
            if self.incarnation is not None:
                await self.incarnation.run()
                self.failed_with = self.incarnation.failure
            elif self.links is not None:  # made before it failed to begin
                break_links(self, self.failed_with)
            orderly = True
        finally:
            # Not orderly: Trio cancels the task from outside, or something that is no Exception
            # passes through. The supervisor ends with it, so no incarnation can follow: "stop".
            if self.state != "stopping":
                self.change("fail" if orderly else "stop")
            try:
                await self._clean_up()
            finally:
                self._end(cancelled=not orderly)

    def _next_incarnation(self) -> Incarnation | None:
        actor, self._actor = self._actor, None
        if actor is None:
            try:
                actor = _build(self._factory, self.path)
            except StartFailed as error:
                self.failed_with = error
                return None
            if actor.__motet_handlers__.keys() != self.handlers.keys():
                why = f"its factory returned a {type(actor).__name__}, which takes other messages"
                self.failed_with = StartFailed(self.path, f"{why} than the {self.kind} before it")
                return None
            actor.__motet_owner__ = self
            self._budget, self.stop_grace = _budget_of(actor), actor.stop_grace
        observer = self._observer() if self.kernel.observing else None
        incarnation = Incarnation(self, actor, observer)
        # It was stopped before its task took its first step: then on_start must not run.
        if self.state != "starting":
            incarnation.finish()
        return incarnation

    def became_ready(self) -> None:
        self.change("ready")
        self.was_ready = True
        # Its traceback would keep the objects of the dead incarnation alive as long as this one.
        self.failed_before = None
        self._signal_started()

    async def _clean_up(self) -> None:
        """End the children, then run ``on_stop``. Shielded, so that any cancellation leaves it."""
        if self.supervisor is not None:
            self.supervisor.close(self._orders().less(self._own_budget(), trio.current_time()))
            # No deadline of its own: each child has one, and they are stopped one by one.
            with trio.CancelScope(shield=True):
                await self.supervisor.ended.wait()
        incarnation = self.incarnation
        if incarnation is None or not incarnation.ready:
            return
        if type(incarnation.actor).on_stop is not _INHERITED_ON_STOP:
            await self._run_on_stop(incarnation.actor)

    async def _run_on_stop(self, actor: Behaviour[Any]) -> None:
        """Run ``on_stop`` within its budget."""
        began = trio.current_time()
        # Looked up now: a stop may have been ordered while the children were ending.
        until = min(began + actor.cleanup_budget, self._orders().until)
        scope = self._on_stop_scope = trio.CancelScope(deadline=until, shield=True)
        try:
            with scope, foreign_code:
                await actor.on_stop()
        except Exception as error:
            self._abandon(f"clean-up failed: {shown(error)}")
            self.failed_with = self.failed_with or unwrapped(error)
        if scope.cancelled_caught:
            self._abandon(f"clean-up cut after {trio.current_time() - began:g} s")
        self._on_stop_scope = None

    def _end(self, *, cancelled: bool) -> None:
        error = self.failed_with
        if error is not None:
            with suppress(Exception), foreign_code:  # of a log handler, or of the error itself
                what = f"{shown(error)}{self._handling(error)}"
                _log.error("%s crashed: %s", self.path, what, exc_info=error)
        self.mailbox.failing = None
        self.supervisor = None
        if self.deferred is not None:  # after on_stop, which may still answer
            self.deferred.refuse(self.path)
            self.deferred = None
        self.change("ended")
        if self.plan is not None:
            self.plan.ledger.ended.append(self.path)
        self.incarnation = None
        self.nursery = None
        self.task = None
        self._signal_started()
        # The supervisor first: it buries the cell in this step if none will follow, so that the
        # tasks that wait for the end find a closed mailbox and a free name.
        self.parent.child_ended(self, cancelled=cancelled)
        if self._ended is not None:
            self._ended.set()
            self._ended = None

    def _handling(self, error: Exception) -> str:
        """The message that the actor crashed with, for the log."""
        failed, item = self.mailbox.failing or (None, None)
        if item is None or failed is None or unwrapped(failed) is not error:
            return ""  # of a task, of a start or of a clean-up
        message = shown(item if isinstance(item, Message) else item.message)
        return f", handling {message[:_SHOWN]}{'...' if len(message) > _SHOWN else ''}"

    def _orders(self) -> StopPlan:
        """The plan of this end; made here if the actor ends by itself, with no order."""
        if self.plan is None:
            self.plan = at_once()
        return self.plan

    def _abandon(self, what: str) -> None:
        self._orders().ledger.abandoned.append(Leftover(self.path, what))
        with suppress(Exception), foreign_code:
            _log.warning("%s: %s", self.path, what)

    def _signal_started(self) -> None:
        if self._started is not None:
            self._started.set()
            self._started = None


def _build(factory: Factory, path: str) -> Behaviour[Any]:
    # A class first, as most are: to ask an abstract base takes as long as to call one of them.
    if not isinstance(factory, type) and isinstance(factory, Behaviour):
        raise StartFailed(
            path,
            f"it was given a {type(cast('object', factory)).__name__}, which is one actor, and not "
            "its class or a function that makes it: each restart needs a new one",
        )
    try:
        with foreign_code:
            actor = factory()
    except Exception as error:
        raise StartFailed(path, f"its factory raised {shown(error)}") from error
    if actor.__motet_owner__ is not None:
        raise StartFailed(
            path, "its factory returned an actor that was started before, not a new one"
        )
    return actor


def _budget_of(actor: Behaviour[Any]) -> float:
    return actor.cleanup_budget if type(actor).on_stop is not _INHERITED_ON_STOP else 0.0


_SHOWN: Final = 500  # characters of a message in the log
_INHERITED_ON_STOP: Final[Callable[[Any], Awaitable[None]]] = Behaviour[Any].on_stop
