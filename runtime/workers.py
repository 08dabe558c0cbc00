"""The tasks of an actor beside its turn: concurrent handlers, and what ``start_soon`` began.

Most actors never have one. They are siblings of the actor's own task, in its supervisor's nursery,
so that nobody pays for a nursery, and each is in a scope that is known here. Invariants: the actor
ends only after all of these have; when its turn is over, the concurrent handlers may finish, and
then the rest is cancelled, and whatever begins later as well.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection
from contextvars import Context, copy_context
from typing import Protocol, TypeVarTuple

import trio
from trio.lowlevel import Abort, RaiseCancelT, current_task, reschedule, wait_task_rescheduled

from motet.protocols.messages import Message
from motet.runtime.envelope import WOKEN, Ask, Told
from motet.runtime.errors import unwrapped
from motet.runtime.kernel import Owner
from motet.runtime.scopes import cancel_at
from motet.runtime.waits import Work, current_work

__all__ = ["Workers"]

Ts = TypeVarTuple("Ts")

RESTING = 4  # workers of one message type that are kept for the next message


class IncarnationApi(Protocol):
    """The incarnation that the workers belong to, as far as they need it."""

    @property
    def owner(self) -> Owner: ...
    @property
    def finishing(self) -> bool: ...
    def crash(self, error: Exception) -> None: ...
    async def answer(self, ask: Ask, scope: trio.CancelScope) -> None: ...
    def call(self, told: Told) -> Awaitable[object]: ...


class Workers:
    """The tasks of one incarnation beside its turn; see the module."""

    __slots__ = (
        "_background",
        "_begun",
        "_busy",
        "_closing",
        "_context",
        "_incarnation",
        "_none_left",
        "_resting",
        "_scopes",
        "_until",
    )

    def __init__(self, incarnation: IncarnationApi) -> None:
        self._incarnation = incarnation
        self._until = incarnation.owner.cancel_at
        self._begun = 0  # tasks that have not ended
        self._scopes: dict[trio.lowlevel.Task, trio.CancelScope] = {}  # from a task's first step on
        self._none_left: trio.Event | None = None  # somebody waits for it
        self._closing = False
        self._background = 0
        self._busy: dict[type[Message], int] = {}  # concurrent handlers, by message type
        self._resting: dict[type[Message], list[trio.lowlevel.Task]] = {}
        self._context: Context | None = None  # that of concurrent handlers

    @property
    def at_work(self) -> bool:
        """Any task is there that does not rest."""
        return bool(self._background or self._busy)

    @property
    def tasks(self) -> Collection[trio.lowlevel.Task]:
        """Those that have not ended, and have taken a step."""
        return self._scopes.keys()

    # ------------------------------------------------------------------ all of them

    def _scope(self, task: trio.lowlevel.Task) -> trio.CancelScope:
        """A scope for ``task``, in place of the one it had before."""
        scope = self._scopes[task] = trio.CancelScope(deadline=self._until)
        return scope

    def _leave(self, task: trio.lowlevel.Task) -> None:
        """This is the last step of ``task``."""
        self._scopes.pop(task, None)
        self._begun -= 1
        if not self._begun and self._none_left is not None:
            self._none_left.set()

    def cancel_at(self, when: float) -> None:
        """Cancel all of them at ``when``, or earlier if that was said before."""
        self._until = min(self._until, when)
        for scope in self._scopes.values():
            cancel_at(scope, when)

    async def end(self) -> None:
        """Let the concurrent handlers finish, cancel the rest, and wait until none is left."""
        self._closing = True
        if not self._busy:
            self.cancel_at(-math.inf)
        while self._begun:
            self._none_left = trio.Event()
            # Shielded without a limit, as the end of any nursery: what it waits for is cancelled
            # at the time that was ordered.
            with trio.CancelScope(shield=True):
                await self._none_left.wait()

    # ------------------------------------------------------------------ background tasks

    def start_soon(
        self, fn: Callable[[*Ts], Awaitable[object]], args: tuple[*Ts], name: str
    ) -> None:
        """Run a background task of the actor; its crash is the actor's."""
        _nursery_of(self._incarnation.owner).start_soon(self._in_background, fn, args, name=name)
        self._begun += 1
        self._background += 1

    async def _in_background(
        self, fn: Callable[[*Ts], Awaitable[object]], args: tuple[*Ts]
    ) -> None:
        task = current_task()
        try:
            current_work.set(None)  # what it waits for, the turn does not
            with self._scope(task):
                await fn(*args)
        except Exception as error:
            self._incarnation.crash(unwrapped(error))
        finally:
            self._background -= 1
            self._leave(task)

    # ------------------------------------------------------------------ concurrent handlers

    def attend_to_stashes(self) -> None:
        """Take what was put aside, now and from now on. First called in the actor's own task."""
        if self._context is None:
            self._context = copy_context()
        mailbox = self._incarnation.owner.mailbox
        if self._incarnation.finishing or self._incarnation.owner.paused:
            return
        mailbox.attend = self.attend
        for kind, stash in mailbox.stashes.items():
            for _ in stash:  # none leaves it before a worker takes its first step
                self.attend(kind)

    def attend(self, kind: type[Message]) -> None:
        """Something was put aside for ``kind``: let a worker take it, if the limit allows."""
        handler = self._incarnation.owner.handlers[kind]
        busy = self._busy.get(kind, 0)
        if busy >= handler.concurrent or self._context is None:
            return
        self._busy[kind] = busy + 1
        resting = self._resting.get(kind)
        if resting:
            reschedule(resting.pop(), WOKEN)
            return
        # This runs in the sender's task: without a context of its own, the handler would see the
        # sender's context variables.
        self._context.run(self._begin, kind, handler.method)

    def release(self) -> None:
        """Let those that rest end: there will be nothing for them to do."""
        for kind, resting in self._resting.items():
            if resting:
                self._busy[kind] = self._busy.get(kind, 0) + len(resting)  # until they have ended
            for task in resting:
                reschedule(task, WOKEN)
            resting.clear()

    def _begin(self, kind: type[Message], method: str) -> None:
        owner = self._incarnation.owner
        _nursery_of(owner).start_soon(self._serve, kind, name=f"{owner.path} {method}")
        self._begun += 1

    async def _serve(self, kind: type[Message]) -> None:
        """A worker: a task that handles one message of ``kind`` after the other, and rests."""
        task = current_task()
        try:
            needed = True
            while needed:
                # As the turn's: one scope for all messages, until one of them is cancelled in it.
                with self._scope(task) as scope:
                    needed = await self._work(kind, task, scope)
        except Exception as error:
            self._incarnation.crash(unwrapped(error))
        finally:
            self._is_free(kind)
            self._leave(task)

    async def _work(
        self, kind: type[Message], task: trio.lowlevel.Task, scope: trio.CancelScope
    ) -> bool:
        """Handle messages until ``scope`` is used up, or the worker is not needed: False."""
        mailbox = self._incarnation.owner.mailbox
        while not (self._incarnation.finishing or self._incarnation.owner.paused):
            # An ask stays in the stash, and can be withdrawn, until this very step.
            item = mailbox.unstash(kind)
            if item is None:
                if len(self._resting.setdefault(kind, [])) == RESTING:
                    return False
                await self._rest(kind, task)
                continue
            mailbox.running_aside += 1
            try:
                if isinstance(item, Ask):
                    current_work.set(item.target)
                    await self._incarnation.answer(item, scope)
                else:
                    await self._handle(item)
            finally:
                mailbox.running_aside -= 1
            if isinstance(item, Ask) and item.cancelled_at is not None:
                return True
        return False

    async def _handle(self, item: Message | Told) -> None:
        life = self._incarnation
        current_work.set(Work(life.owner.path))
        told = item if isinstance(item, Told) else Told(item)
        try:
            await life.call(told)
        except BaseException as error:
            life.owner.mailbox.lose(told, error)
            raise
        life.owner.mailbox.handled += 1

    def _rest(self, kind: type[Message], task: trio.lowlevel.Task) -> Awaitable[None]:
        """Wait for ``attend``: waking a task is much cheaper than to start and end one."""
        resting = self._resting[kind]

        def abort(_: RaiseCancelT) -> Abort:
            resting.remove(task)
            self._busy[kind] = self._busy.get(kind, 0) + 1  # until it has ended
            return Abort.SUCCEEDED

        resting.append(task)
        self._is_free(kind)
        return wait_task_rescheduled(abort)

    def _is_free(self, kind: type[Message]) -> None:
        """A worker has nothing to do any more."""
        self._busy[kind] -= 1
        if not self._busy[kind]:
            del self._busy[kind]
            if self._closing and not self._busy:
                self.cancel_at(-math.inf)


def _nursery_of(owner: Owner) -> trio.Nursery:
    assert owner.nursery is not None, "an incarnation lives in its supervisor's nursery"
    return owner.nursery
