"""Defects of an ask that its asker handles: a count, an edge, a refusal, a scope, a place."""

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import trio
from trio.lowlevel import Task

from motet.protocols.messages import Message
from motet.runtime.envelope import TakingAsk
from motet.runtime.handlers import Handler
from motet.runtime.here import HereAsk
from motet.runtime.incarnation import Incarnation
from motet.runtime.mailbox import Item, Mailbox
from motet.runtime.queues import Queue
from motet.runtime.scopes import cancel_at
from motet.runtime.testing.scheduler import Patch
from motet.runtime.waits import Groups
from motet.runtime.workers import Workers
from tests.guarantees.law import ANY, Mutant

__all__ = ["MUTANTS"]


def _do_not_count() -> list[Patch]:
    """The counters see nothing of the request: none is accepted, none is handled."""
    leave = Workers._leave_here

    def leave_uncounted(workers: Workers, ask: HereAsk, kind: type[Message]) -> None:
        box = workers._incarnation.owner.mailbox
        box.handled -= 1
        leave(workers, ask, kind)

    return [(Workers, "_leave_here", leave_uncounted)]


def _have_no_edge() -> list[Patch]:
    """The wait-for graph does not have who asks here."""

    def groups(_: HereAsk) -> Groups:
        return ()

    return [(HereAsk, "groups", groups)]


def _begin_while_it_ends() -> list[Patch]:
    """An incarnation that ends still takes requests."""
    finish = Incarnation.finish

    def finish_and_take(life: Incarnation) -> None:
        places = life.owner.mailbox.places
        finish(life)
        life.owner.mailbox.places = places

    return [(Incarnation, "finish", finish_and_take)]


def _begin_when_closed() -> list[Patch]:
    """A stop closes the mailbox, and who does not use it is handled."""
    close = Mailbox.close
    put = Mailbox.put

    def close_the_queue(box: Mailbox, reason: str) -> None:
        close(box, reason)
        box.limit = box.spec.capacity

    def put_if_open(box: Mailbox, item: Item) -> bool:
        return box.closed is None and put(box, item)

    changed: list[Patch] = [(Mailbox, "close", close_the_queue), (Mailbox, "put", put_if_open)]
    return changed + _begin_while_it_ends()


def _begin_while_suspended() -> list[Patch]:
    pause = Incarnation.pause

    def pause_and_take(life: Incarnation) -> None:
        places = life.owner.mailbox.places
        pause(life)
        life.owner.mailbox.places = places

    return [(Incarnation, "pause", pause_and_take)]


def _do_not_reach() -> list[Patch]:
    """The end of the actor cancels its own tasks, and no handler in the task of another."""

    def cancel_own(workers: Workers, when: float) -> None:
        workers._until = min(workers._until, when)
        for scope in workers._scopes.values():
            cancel_at(scope, when)

    return [(Workers, "cancel_at", cancel_own)]


def _do_not_wait() -> list[Patch]:
    """The end of the actor does not wait for them."""
    answer = Workers.answer_here

    class Unseen(dict[HereAsk, trio.CancelScope | None]):
        def __bool__(self) -> bool:
            return False

    async def answer_unknown(workers: Workers, ask: HereAsk, handler: Handler) -> object:
        workers._here = Unseen(workers._here)
        return await answer(workers, ask, handler)

    return [(Workers, "answer_here", answer_unknown)]


def _keep_the_place() -> list[Patch]:
    """A handler that fails keeps its place."""
    leave = Workers._leave_here

    def leave_if_well(workers: Workers, ask: HereAsk, kind: type[Message]) -> None:
        if ask.result is not None:
            workers.busy[kind] += 1
        leave(workers, ask, kind)

    return [(Workers, "_leave_here", leave_if_well)]


def _let_them_wait() -> list[Patch]:
    """Those that came to the mailbox meanwhile are not told that a place is free."""
    leave = Workers._leave_here

    def leave_silently(workers: Workers, ask: HereAsk, kind: type[Message]) -> None:
        box = workers._incarnation.owner.mailbox
        places, box.places = box.places, None
        leave(workers, ask, kind)
        box.places = places

    return [(Workers, "_leave_here", leave_silently)]


def _overtake() -> list[Patch]:
    """Who asks here goes before those that wait."""
    take = Workers.take_place

    def take_before_others(workers: Workers, handler: Handler, task: Task) -> bool:
        queues = workers._incarnation.owner.mailbox.concurrent
        queue, queues[handler.message_type] = queues[handler.message_type], Queue()
        try:
            return take(workers, handler, task)
        finally:
            queues[handler.message_type] = queue

    return [(Workers, "take_place", take_before_others)]


def _have_no_limit() -> list[Patch]:
    """More run in the tasks of askers than there are places."""
    take = Workers.take_place

    def take_any(workers: Workers, handler: Handler, task: Task) -> bool:
        kind = handler.message_type
        busy = workers.busy.pop(kind, 0)
        taken = take(workers, handler, task)
        if busy:
            workers.busy[kind] = workers.busy.get(kind, 0) + busy
        return taken

    return [(Workers, "take_place", take_any)]


def _give_to_the_cancelled() -> list[Patch]:
    """An asker that is cancelled while its handler is at work is still given items."""
    return [(HereAsk, "finds_asker_gone", TakingAsk.finds_asker_gone)]


MUTANTS = (
    Mutant(ANY, "does not count those handled here", _do_not_count),
    Mutant(ANY, "has no edge for an ask here", _have_no_edge),
    Mutant(ANY, "begins here while it ends", _begin_while_it_ends),
    Mutant(ANY, "begins here when it is closed", _begin_when_closed),
    Mutant(ANY, "begins here while it is suspended", _begin_while_suspended),
    Mutant(ANY, "does not end what runs here", _do_not_reach),
    Mutant(ANY, "does not wait for what runs here", _do_not_wait),
    Mutant(ANY, "keeps the place of a failure here", _keep_the_place),
    Mutant(ANY, "wakes nobody when a place here is free", _let_them_wait),
    Mutant(ANY, "lets those here overtake", _overtake),
    Mutant(ANY, "has no limit here", _have_no_limit),
    Mutant(ANY, "gives items here to the cancelled", _give_to_the_cancelled),
)
