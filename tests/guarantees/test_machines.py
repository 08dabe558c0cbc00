"""A state machine is in one state at a time, hears no timers of those that it has left, and loses
no mail of other threads by drains and passivation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from motet.protocols.messages import Message
from motet.runtime import Machine, ScheduledMessage, registry
from motet.runtime.cell import Cell
from motet.runtime.handlers import Call
from motet.runtime.incarnation import Incarnation
from motet.runtime.kernel import Owner
from motet.runtime.mailbox import Mailbox
from motet.runtime.schedule import TimerMessage
from motet.runtime.supervisor import Supervisor
from motet.runtime.testing.scheduler import Patch
from motet.runtime.threads import FutureAsk, Inbox, WaitingInbox
from tests.guarantees.law import ANY, SEARCH, Law, Mutant, first_finding, planted
from tests.guarantees.worlds import doors, machines

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

LAW = Law(ANY, machines.SEARCH)
DOORS = Law(ANY, doors.SEARCH)


def test_a_machine_is_in_one_state_whatever_fails_is_cancelled_or_is_late() -> None:
    """Law: for each schedule of asks that change the state, fail and are cancelled, of postponed
    messages, timers and crashes: states are entered and left in turn, when the handler has
    returned; an answered transition was taken once; jobs are done in their order; no timer of a
    state that was left, or of a key that was set again, is handled."""
    assert first_finding(LAW, range(60)) is None


def test_what_threads_hand_to_machines_is_lost_by_no_drain_and_no_passivation() -> None:
    """Law: for each schedule of messages and asks of other threads, of states that postpone, of
    crashes, passivations and drains: each message is noted once, in the order of its sender, or it
    is a dead letter of its own crash or of a drain; each future has one outcome."""
    assert first_finding(DOORS, range(40)) is None


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(5))
def test_machines_that_are_drained_in_10_000_schedules(part: int) -> None:
    assert first_finding(DOORS, range(part * 2_000, (part + 1) * 2_000)) is None


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(5))
def test_machines_in_10_000_schedules(part: int) -> None:
    assert first_finding(LAW, range(part * 2_000, (part + 1) * 2_000)) is None


def _change_the_state_at_once() -> list[Patch]:
    become = Machine[Any].become

    def at_once(self: Machine[Any], state: Any) -> None:
        become(self, state)
        self._enter()

    async def start(self: Machine[Any]) -> None:
        self.become(await self.initial())

    return [(Machine, "become", at_once), (Machine, "on_start", start)]


def _change_the_state_after_a_failure() -> list[Patch]:
    base: type[Machine[Any]] = Machine
    dispatched = base.__motet_handle__

    async def always(self: Machine[Any], message: Message, own: Call | None, *rest: Any) -> Any:
        try:
            return await dispatched(self, message, own, *rest)
        except BaseException:
            if self.__motet_next__ is not None:
                self._enter()
            raise

    return [(Machine, "__motet_handle__", always)]


def _forget_to_leave() -> list[Patch]:
    enter = Machine[Any]._enter

    def without(self: Machine[Any]) -> None:
        state = self.__motet_state__
        if state is not None:
            state.on_leave = lambda: None  # type: ignore[method-assign]
        enter(self)

    return [(Machine, "_enter", without)]


def _keep_the_timers_of_a_state() -> list[Patch]:
    def stop(self: ScheduledMessage) -> None:
        self.stop()

    return [(ScheduledMessage, "cancel", stop)]


def _postpone_at_the_end() -> list[Patch]:
    """Postponed messages are sent anew, behind all others."""

    def again(self: Machine[Any]) -> None:
        stash = [*self._cell.mailbox.stash]
        self._cell.mailbox.unstash()
        queue: Any = self._cell.mailbox.queue
        for _ in stash:
            queue.append(queue.popleft())

    return [(Machine, "unstash_all", again)]


def _handle_what_was_cancelled() -> list[Patch]:
    return [(TimerMessage, "is_cancelled", False)]


MUTANTS = (
    Mutant(ANY, "changes the state at once", _change_the_state_at_once),
    Mutant(ANY, "changes the state after a failure", _change_the_state_after_a_failure),
    Mutant(ANY, "does not leave a state", _forget_to_leave),
    Mutant(ANY, "keeps the timers of a state", _keep_the_timers_of_a_state),
    Mutant(ANY, "handles messages of cancelled timers", _handle_what_was_cancelled),
    Mutant(ANY, "handles postponed messages last", _postpone_at_the_end),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_law_finds_a_kernel_that(mutant: Mutant) -> None:
    """A planted defect is found within 200 schedules."""
    with planted(mutant):
        assert first_finding(LAW, range(SEARCH)) is not None


# ---------------------------------------------------------------------- mail of other threads


def _passivate_beside_an_inbox() -> list[Patch]:
    def end(_: Owner, end: Callable[[], None]) -> bool:
        end()
        return True

    return [(registry, "end_unused", end)]


def _passivate_with_postponed_mail() -> list[Patch]:
    def is_idle(cell: Cell) -> bool:
        box = cell.mailbox
        return cell.state == "running" and not (len(box.queue) > box.queue.gaps or box.running)

    return [(registry, "_is_idle", is_idle)]


def _make_the_successor_at_once() -> list[Patch]:
    """As if a stop had ended when it begins: the successor is not told when it may begin."""
    begin = Supervisor[Cell]._begin_successor

    def bury(self: Supervisor[Cell], name: str, reason: str) -> None:
        if name in self._successors:
            self._successors[name][0].bury(reason)
        begin(self, name, reason)

    return [(Supervisor, "_begin_successor", bury)]


def _overtake_in_the_inbox() -> list[Patch]:
    """An ask does not wait for the messages that its thread has told before it."""

    def put_ask(self: Inbox, envelope: FutureAsk) -> None:
        self.owner.kernel.loop.post(self._drain)
        self._items.appendleft(envelope)

    return [(Inbox, "put_ask", put_ask)]


def _forget_a_refused() -> list[Patch]:
    """A message that was refused the place that it waited for is forgotten."""

    def refused(self: WaitingInbox, error: Exception) -> None:
        self.inbox.leave_line()

    return [(WaitingInbox, "refused", refused)]


def _drain_without_what_is_queued() -> list[Patch]:
    async def wait(self: Owner) -> None:
        while self.mailbox.running:
            await trio.sleep(0.1)

    return [(Owner, "wait_idle", wait)]


def _drain_without_what_was_unstashed() -> list[Patch]:
    """A drain forgets that postponed messages may be handled yet."""
    unstash = Mailbox.unstash

    def drop(self: Mailbox, count: int | None = None) -> None:
        unstash(self, count)
        if self.shut is not None and self.holder is not None:
            for item in [*self.queue.present()]:
                self.bury(item, "it is being drained, so this is not handled")
            self.queue.clear()

    return [(Mailbox, "unstash", drop)]


def _postpone_for_ever() -> list[Patch]:
    """What the incarnation before a crash has postponed is forgotten by the next one."""
    enter = Machine[Any]._enter

    def first(self: Machine[Any]) -> None:
        if self.__motet_state__ is None:
            mailbox = self._cell.mailbox
            mailbox.stashed -= len(mailbox.stash)
            mailbox.stash.clear()
        enter(self)

    return [(Machine, "_enter", first)]


def _give_the_place_away() -> list[Patch]:
    """A sender that waits for room gets the place of the message that is going to be postponed."""

    def keeps_none(*_: object) -> bool:
        return False

    return [(Incarnation, "_keeps_place", keeps_none)]


def _postpone_without_a_bound() -> list[Patch]:
    def can(_: Mailbox) -> bool:
        return False

    return [(Mailbox, "_cannot_stash", can)]


MUTANTS_OF_DOORS = (
    Mutant(ANY, "passivates beside an inbox", _passivate_beside_an_inbox),
    Mutant(ANY, "passivates with postponed mail", _passivate_with_postponed_mail),
    Mutant(ANY, "buries a successor", _make_the_successor_at_once),
    Mutant(ANY, "lets asks of a thread overtake its tells", _overtake_in_the_inbox),
    Mutant(ANY, "forgets a message of a thread that it refuses", _forget_a_refused),
    Mutant(ANY, "drains without what is queued", _drain_without_what_is_queued),
    Mutant(ANY, "drains without what was unstashed", _drain_without_what_was_unstashed),
    Mutant(ANY, "forgets what was postponed before a crash", _postpone_for_ever),
    Mutant(ANY, "unstashes behind the queue", _postpone_at_the_end),
    Mutant(ANY, "gives the place of a postponed message away", _give_the_place_away),
    Mutant(ANY, "postpones without a bound", _postpone_without_a_bound),
)


@pytest.mark.parametrize("mutant", MUTANTS_OF_DOORS, ids=lambda mutant: mutant.name)
def test_the_law_of_drained_machines_finds_a_kernel_that(mutant: Mutant) -> None:
    """A planted defect is found within 200 schedules."""
    with planted(mutant):
        assert first_finding(DOORS, range(SEARCH)) is not None
