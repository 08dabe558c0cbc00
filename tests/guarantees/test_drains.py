"""Mail gets old in time, leaves the stash in its order, and is handled before a drain ends."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio

from motet.runtime import ActorRef
from motet.runtime.kernel import Owner
from motet.runtime.mailbox import Mailbox
from motet.runtime.order import AgedMessage, Order
from motet.runtime.stopping import StopReport
from motet.runtime.testing.scheduler import Patch
from tests.guarantees.law import ANY, SEARCH, Law, Mutant, first_finding, planted
from tests.guarantees.worlds import drains

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

LAW = Law(ANY, drains.SEARCH)


def test_a_drain_handles_all_that_was_accepted_in_time_and_in_order() -> None:
    """Law: for each schedule of jobs that get old, of stashed messages that keys let through, of
    crashes and of a drain: what was accepted begins once or is a dead letter for the reason it is,
    in time, in the order of the stash; and a drain ends no handler and accepts nothing."""
    assert first_finding(LAW, range(60)) is None


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(5))
def test_drains_in_10_000_schedules(part: int) -> None:
    assert first_finding(LAW, range(part * 2_000, (part + 1) * 2_000)) is None


# ---------------------------------------------------------------------- drains


def _stop_instead() -> list[Patch]:
    async def drain(
        self: ActorRef[Any], *, timeout: float = math.inf, grace: float | None = None
    ) -> StopReport:
        del timeout
        return await self.stop(grace=grace)

    return [(ActorRef, "drain", drain)]


def _accept_on() -> list[Patch]:
    def accept(self: Mailbox, reason: str) -> None:
        del self, reason

    return [(Mailbox, "accept_no_more", accept)]


def _look_at_the_queue_only() -> list[Patch]:
    async def wait(self: Owner) -> None:
        while len(self.mailbox.queue) > self.mailbox.queue.gaps:
            await trio.sleep(0.1)

    return [(Owner, "wait_idle", wait)]


def _wait_one_time_only() -> list[Patch]:
    """A rest is the end of all mail, also that of a crash."""

    async def wait(self: Owner) -> None:
        self.rested = trio.Event()
        with trio.move_on_after(20):
            while self.state == "running" and self.mailbox.running:
                await trio.sleep(0.1)

    return [(Owner, "wait_idle", wait)]


def _stop_with_the_call() -> list[Patch]:
    """The senders that wait for room are let in while the drain goes on."""
    drain = ActorRef[Any].drain

    async def late(self: ActorRef[Any]) -> StopReport:
        await trio.sleep(2)
        return await drain(self)

    return [(ActorRef, "drain", late)]


# ---------------------------------------------------------------------- ages


def _handle_what_is_too_old() -> list[Patch]:
    return [(AgedMessage, "is_cancelled", False)]


def _bury_too_early() -> list[Patch]:
    aged = Order._aged

    def half(item: Any, age: float, now: float) -> Any:
        return aged(item, age / 2, now)

    return [(Order, "_aged", staticmethod(half))]


def _bury_at_the_limit() -> list[Patch]:
    def is_cancelled(self: AgedMessage) -> bool:
        return trio.current_time() >= self.until

    return [(AgedMessage, "is_cancelled", property(is_cancelled))]


def _bury_silently() -> list[Patch]:
    """What is too old is not even a dead letter."""
    return [(AgedMessage, "lost_by", None)]


# ---------------------------------------------------------------------- the stash


def _take_all() -> list[Patch]:
    unstash = Mailbox.unstash

    def all_of_it(self: Mailbox, count: int | None = None) -> None:
        del count
        unstash(self)

    return [(Mailbox, "unstash", all_of_it)]


def _take_the_newest() -> list[Patch]:
    unstash = Mailbox.unstash

    def newest(self: Mailbox, count: int | None = None) -> None:
        self.stash.rotate(count or 0)
        unstash(self, count)

    return [(Mailbox, "unstash", newest)]


def _go_last() -> list[Patch]:
    unstash = Mailbox.unstash

    def last(self: Mailbox, count: int | None = None) -> None:
        before = len(self.stash)
        unstash(self, count)
        self.queue.rotate(len(self.stash) - before)

    return [(Mailbox, "unstash", last)]


def _forget_the_rest() -> list[Patch]:
    unstash = Mailbox.unstash

    def forget(self: Mailbox, count: int | None = None) -> None:
        unstash(self, count)
        self.stashed -= len(self.stash)
        self.stash.clear()

    return [(Mailbox, "unstash", forget)]


MUTANTS = (
    Mutant(ANY, "stops instead of draining", _stop_instead),
    Mutant(ANY, "accepts mail while it is drained", _accept_on),
    Mutant(ANY, "ends a drain with the queue", _look_at_the_queue_only),
    Mutant(ANY, "ends a drain with the handler", _wait_one_time_only),
    Mutant(ANY, "begins a drain later", _stop_with_the_call),
    Mutant(ANY, "handles what is too old", _handle_what_is_too_old),
    Mutant(ANY, "buries what is young", _bury_too_early),
    Mutant(ANY, "buries at the limit", _bury_at_the_limit),
    Mutant(ANY, "loses what is too old", _bury_silently),
    Mutant(ANY, "unstashes all", _take_all),
    Mutant(ANY, "unstashes the newest", _take_the_newest),
    Mutant(ANY, "unstashes behind the queue", _go_last),
    Mutant(ANY, "forgets the rest of the stash", _forget_the_rest),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_law_finds_a_kernel_that(mutant: Mutant) -> None:
    """A planted defect is found within 200 schedules."""
    with planted(mutant):
        assert first_finding(LAW, range(SEARCH)) is not None
