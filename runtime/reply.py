"""Reply tokens: a handler returns one instead of its answer, and the answer comes later.

Once the handler has returned, nothing of the actor works for the ask. It is in a :class:`Deferred`,
as it is in a mailbox before: the asker's cancellation and its time limit take it out at once. The
invariants:

* an ask has one outcome (G3): the first of ``send``, ``fail``, ``run`` and ``forward`` takes it
  out, each later one finds the token closed; the end of the incarnation settles what is left;
* while ``run`` works, the ask is as in a handler: a cancellation of the asker cancels the work and
  waits for its end (G1), the work inherits the deadline, its waits are edges of the graph (G11);
* a forwarded ask is an ask of the other actor, with all that this means.

A channel or an event for each answer (as in ractor's ports) can be answered after the asker has
left. The tokens are the asks themselves, so that there is nothing to leak.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar, TypeVarTuple

import trio

from motet.runtime.envelope import Address, Answer, Ask, Deferred, Raised, Result
from motet.runtime.errors import MotetRuntimeError
from motet.runtime.waits import Work, current_work

__all__ = ["DEFERRED", "ReplyTo", "reply_later"]

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)
Ts = TypeVarTuple("Ts")

DEFERRED: Final = Answer("deferred")
"""As the result of a handler: its ask is not to be settled."""


class ReplyTo(Address, Generic[R_contra]):
    """The way to answer one request; made by :meth:`Actor.reply_later` in its handler.

    It may be kept, and used once, by any code in the thread of the system. Until its handler has
    returned it, all that is done with it waits for that (G1); if the handler raises, or returns an
    answer after all, that counts and the token is closed.
    """

    __slots__ = ("_act", "_ask", "_handled", "_store")

    def __init__(self, ask: Ask | None) -> None:
        self._ask = ask  # None: closed
        self._store: Deferred | None = None  # None: the handler runs
        self._act: Callable[[Ask], None] | None = None  # to be done when it returns
        self._handled = trio.Event()

    @property
    def is_open(self) -> bool:
        """Whether an answer would reach its asker: not when it has one, has left or is too late."""
        ask = self._ask
        if ask is None or self._act is not None or ask.settled:
            return False
        return ask.cancelled_at is None if self._store is None else ask in self._store

    def send(self, value: R_contra) -> bool:
        """Answer with ``value``; False, and nothing happens, if the token is closed."""
        return self.act(lambda ask: ask.settle(Answer(value)))

    def fail(self, error: Exception) -> bool:
        """Raise ``error`` at the asker; False, and nothing happens, if the token is closed."""
        return self.act(lambda ask: ask.settle(Raised(error)))

    async def run(self, fn: Callable[[*Ts], Awaitable[R_contra]], *args: *Ts) -> None:
        """Answer with what ``await fn(*args)`` returns or raises, as a handler would.

        For a task: ``self.start_soon(token.run, self.fetch, url)``. The asker's cancellation
        cancels ``fn`` and waits for its end (G1). Cancelled itself: the asker gets ActorDead.
        ``fn`` is not called if the token is closed.
        """
        if self._store is None:
            await self._handled.wait()
        ask = self._take()
        if ask is None:
            await trio.lowlevel.checkpoint()
            return
        work = Work(ask.mailbox.path)
        ask.target, work.serves = work, ask
        before = current_work.set(work)
        try:
            with trio.CancelScope() as ask.scope:
                try:
                    ask.result = Answer(await fn(*args))
                except BaseException as error:
                    if ask.fail_with(error):
                        raise
        finally:
            # In a `finally`, so that no way out leaves the asker waiting (G3).
            work.serves = None
            current_work.reset(before)
            ask.settle(ask.result)

    # ------------------------------------------------------------------ for the kernel

    def act(self, act: Callable[[Ask], None]) -> bool:
        """Do what settles the ask or hands it on, once its handler has returned the token."""
        if not self.is_open:
            return False
        if self._store is None:
            self._act = act
            return True
        ask = self._take()
        assert ask is not None, "it is open"
        act(ask)
        return True

    def returned(self, ask: Ask, store: Deferred) -> Result | None:
        """The handler of ``ask`` has returned this token: the result of the handler."""
        if self._ask is not ask:
            error = MotetRuntimeError(
                f"a handler of {ask.mailbox.path} returned the reply token of another request"
            )
            return Raised(error)
        self._store = store
        self._handled.set()
        act, self._act = self._act, None
        if ask.cancelled_at is not None:
            return None  # its asker has left
        ask.scope = None
        if act is not None:
            act(ask)
        else:
            store[ask] = None
            ask.queue = store
        return DEFERRED

    def _take(self) -> Ask | None:
        ask, self._ask = self._ask, None
        if ask is None or self._store is None or ask not in self._store:
            return None
        del self._store[ask]
        return ask

    def __repr__(self) -> str:
        return f"<ReplyTo {'open' if self.is_open else 'closed'}>"


def reply_later(path: str, request: object) -> ReplyTo[Any]:
    """The token for ``request``, whose handler of the actor at ``path`` runs now."""
    work = current_work.get()
    ask = None if work is None or work.path != path else work.serves
    if ask is None:
        return ReplyTo(None)  # it was told, so nobody waits for an answer
    if not isinstance(ask, Ask) or ask.message is not request:
        raise MotetRuntimeError(
            f"{path} does not handle this {type(request).__name__} here: call reply_later(request) "
            "in the handler of that very request"
        )
    return ReplyTo(ask)
