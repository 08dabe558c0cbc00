"""Defects of the mailbox and of turns: mail lost, doubled, reordered; more than is allowed."""

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from motet.protocols.messages import Message
from motet.runtime import kernel as kernel_module
from motet.runtime.cell import Cell
from motet.runtime.incarnation import Incarnation
from motet.runtime.mailbox import Item, Mailbox
from motet.runtime.testing.scheduler import Patch
from motet.runtime.workers import Workers
from tests.guarantees.law import Mutant
from tests.guarantees.worlds.beside import NAME as BESIDE

__all__ = ["MUTANTS"]


def _lose_the_mailbox() -> list[Patch]:
    """A crash takes the told messages of the mailbox with it, as in OTP."""
    crash = Incarnation.crash

    def crash_with_mail(life: Incarnation, error: Exception) -> None:
        queue = life.owner.mailbox.queue
        kept = [item for item in queue if not isinstance(item, Message)]
        queue.clear()
        queue.extend(kept)
        crash(life, error)

    return [(Incarnation, "crash", crash_with_mail), (Incarnation, "fail", crash_with_mail)]


def _lose_silently() -> list[Patch]:
    """The failing message is counted, but is no dead letter."""

    def lose(box: Mailbox, item: Item, error: BaseException) -> None:
        box.lost += 1
        box.dead_lettered += 1

    return [(Mailbox, "lose", lose)]


def _retry_and_bury() -> list[Patch]:
    """The failing message becomes a dead letter, and is tried once more."""
    lose = Mailbox.lose

    def lose_and_retry(box: Mailbox, item: Item, error: BaseException) -> None:
        lose(box, item, error)
        if isinstance(error, Exception) and box.closed is None:
            box.accepted += 1
            box.queue.append(item)

    return [(Mailbox, "lose", lose_and_retry)]


def _reorder_at_restart() -> list[Patch]:
    """The next incarnation begins with the newest message."""
    begin = Cell.begin

    def begin_rotated(cell: Cell, *args: object, **kwargs: object) -> None:
        cell.mailbox.queue.rotate(1)
        begin(cell, *args, **kwargs)  # type: ignore[arg-type]  # whatever it takes

    return [(Cell, "begin", begin_rotated)]


def _forget_withdrawals() -> list[Patch]:
    withdraw = Mailbox.withdraw

    def withdraw_uncounted(box: Mailbox, *args: object) -> None:
        before = box.withdrawn
        withdraw(box, *args)  # type: ignore[arg-type]  # whatever it takes
        box.withdrawn = before

    return [(Mailbox, "withdraw", withdraw_uncounted)]


# ---------------------------------------------------------------------- room


def _have_no_limit() -> list[Patch]:
    def put(box: Mailbox, item: Item) -> bool:
        if box.closed is not None:
            return False
        box.accepted += 1
        box._enqueue(item)
        return True

    return [(Mailbox, "put", put)]


def _count_no_stashes() -> list[Patch]:
    """What waits for concurrent handlers takes up no room."""

    def set_limit(box: Mailbox) -> None:
        box.limit = 0 if box.closed is not None or box.waiting else box.spec.capacity

    return [(Mailbox, "_set_limit", set_limit)]


def _drop_the_wrong_end() -> list[Patch]:
    """``drop_oldest`` drops the newest of those that wait."""
    drop = Mailbox._drop

    def drop_last(box: Mailbox, item: Item, reason: str) -> None:
        if "oldest" in reason and box.queue:
            box.queue.appendleft(item)
            item = box.queue.pop()
        drop(box, item, reason)

    return [(Mailbox, "_drop", drop_last)]


# ---------------------------------------------------------------------- turns


def _run_one_more_aside() -> list[Patch]:
    """The limit of concurrent handlers is not looked at."""
    attend = Workers.notify

    def attend_always(workers: Workers, kind: type[Message]) -> None:
        running = workers.busy.pop(kind, 0)
        attend(workers, kind)
        if running:
            workers.busy[kind] = workers.busy.get(kind, 0) + running

    return [(Workers, "notify", attend_always)]


def _share_messages() -> list[Patch]:
    """The receiver holds what the sender holds, also where messages are checked."""

    def as_it_is(message: Message) -> Message:
        return message

    return [(kernel_module, "round_trip", as_it_is)]


def _end_all_at_once() -> list[Patch]:
    """The failure of one handler cancels those beside it."""
    return [(Incarnation, "fail", Incarnation.crash)]


def _wait_for_all() -> list[Patch]:
    """The next incarnation waits for the handlers of this one, however long they take."""

    def fail(life: Incarnation, error: Exception) -> None:
        life.failure = life.failure or error
        life.finish()

    return [(Incarnation, "fail", fail)]


def _end_the_turn_at_once() -> list[Patch]:
    """The failure of a concurrent handler cancels the one in the turn."""
    fail = Incarnation.fail

    def fail_and_cut(life: Incarnation, error: Exception) -> None:
        if life.scope is not None and life.owner.mailbox.receiver is None:
            life.scope.cancel()
        fail(life, error)

    return [(Incarnation, "fail", fail_and_cut)]


MUTANTS = (
    Mutant("G4", "loses the mailbox in a crash", _lose_the_mailbox),
    Mutant("G4", "loses the failing message silently", _lose_silently),
    Mutant("G4", "buries and retries the failing message", _retry_and_bury),
    Mutant("G4", "reorders the mail at a restart", _reorder_at_restart),
    Mutant("G4", "forgets withdrawals", _forget_withdrawals),
    Mutant(BESIDE, "ends all handlers at the failure of one", _end_all_at_once),
    Mutant(BESIDE, "ends the turn at the failure of a handler beside it", _end_the_turn_at_once),
    Mutant(BESIDE, "has the next incarnation wait without a limit", _wait_for_all),
    Mutant("G5", "runs more handlers aside than declared", _run_one_more_aside),
    Mutant("G5", "shares messages with the sender", _share_messages),
    Mutant("G13", "has no limit", _have_no_limit),
    Mutant("G13", "counts no stashed messages", _count_no_stashes),
    Mutant("G13", "drops from the wrong end", _drop_the_wrong_end),
)
