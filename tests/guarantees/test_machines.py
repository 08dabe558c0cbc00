"""A state machine is in one state at a time, and hears no timers of those that it has left."""

from __future__ import annotations

from typing import Any

import pytest

from motet.protocols.messages import Message
from motet.runtime import Machine, ScheduledMessage
from motet.runtime.handlers import Call
from motet.runtime.schedule import TimerMessage
from motet.runtime.testing.scheduler import Patch
from tests.guarantees.law import ANY, SEARCH, Law, Mutant, first_finding, planted
from tests.guarantees.worlds import machines

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

LAW = Law(ANY, machines.SEARCH)


def test_a_machine_is_in_one_state_whatever_fails_is_cancelled_or_is_late() -> None:
    """Law: for each schedule of asks that change the state, fail and are cancelled, of postponed
    messages, timers and crashes: states are entered and left in turn, when the handler has
    returned; an answered transition was taken once; jobs are done in their order; no timer of a
    state that was left, or of a key that was set again, is handled."""
    assert first_finding(LAW, range(300)) is None


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
