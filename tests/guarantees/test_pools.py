"""A pool loses only the messages that crash its workers; a group delays no publisher."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from motet.protocols.messages import Message
from motet.runtime import ActorRef, Asks, Group, Pool
from motet.runtime.gather import Done
from motet.runtime.kernel import Owner
from motet.runtime.mailbox import Mailbox
from motet.runtime.ref import cell_of
from motet.runtime.testing.scheduler import Patch
from tests.guarantees.law import SEARCH, Law, Mutant, first_finding, planted
from tests.guarantees.worlds import groups, pools

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

POOLS = Law("pool", pools.SEARCH)
GROUPS = Law("group", groups.SEARCH)


def test_whatever_crashes_comes_and_goes_a_pool_loses_only_bad_jobs() -> None:
    """Law: for each schedule of tells and asks with crashes, cancellations, resizes and a drain,
    and each route: an accepted job is begun once, only those that crash their worker are lost,
    `ask_first` leaves no handler behind, and with `consistent_hash` a key has one worker."""
    assert first_finding(POOLS, range(60)) is None


def test_a_member_gets_in_order_what_was_published_and_publishing_never_waits() -> None:
    """Law: for each schedule of publishers and of members that are slow, crash, join, leave and
    end: each message that was published while an actor was a member is handled, in order, or is a
    dead letter that was counted; publishing takes no step; and no dead actor is a member."""
    # In the last two a reader is stopped before its task has taken its first step.
    assert first_finding(GROUPS, (*range(60), 1_646, 2_261)) is None


@pytest.mark.sweep
@pytest.mark.parametrize("law", [POOLS, GROUPS], ids=lambda law: law.guarantee)
@pytest.mark.parametrize("part", range(5))
def test_pools_and_groups_in_10_000_schedules(law: Law, part: int) -> None:
    assert first_finding(law, range(part * 2_000, (part + 1) * 2_000)) is None


async def _at_once(_: Owner) -> None:
    await trio.lowlevel.checkpoint()


def _keep_sending_to_leaving_workers() -> list[Patch]:
    def shrink(self: Pool[Any]) -> list[ActorRef[Any]]:
        return self._leaving + [ref for ref, _ in [*self._workers.values()][self._wanted :]]

    return [(Pool, "shrink", shrink)]


def _choose_by_turns() -> list[Patch]:
    def choose(self: Pool[Any], _: object) -> ActorRef[Any]:
        self._next += 1
        return self.workers[self._next % len(self)]

    return [(Pool, "_look_up", choose)]


def _leave_the_slower_handlers() -> list[Patch]:
    def stay(_: Asks[Any]) -> None:
        pass

    async def leave(self: Asks[Any], *_: object) -> None:
        entry = next((one for one in self.results if isinstance(one, Done)), None)
        if entry is None:
            await trio.lowlevel.checkpoint()

    return [(Asks, "_cut", stay), (Asks, "__aexit__", leave)]


def _take_messages_while_draining() -> list[Patch]:
    def open_(self: Pool[Any]) -> bool:
        return self._parent is not None and self._parent.state == "running"

    return [(Pool, "_is_open", property(open_))]


OF_POOLS = (
    Mutant("pool", "stops leaving workers at once", lambda: [(Owner, "wait_idle", _at_once)]),
    Mutant("pool", "sends to leaving workers", _keep_sending_to_leaving_workers),
    Mutant("pool", "ignores the key", _choose_by_turns),
    Mutant("pool", "leaves the slower handlers", _leave_the_slower_handlers),
    Mutant("pool", "takes messages while it drains", _take_messages_while_draining),
)


def _keep_the_dead() -> list[Patch]:
    def forget(self: Group[Any], owner: Owner) -> None:
        if owner.state != "dead":
            self._members.pop(owner, None)

    return [(Group, "_forget", forget)]


def _forget_to_count() -> list[Patch]:
    def put(self: Mailbox, message: Any) -> None:
        self.discard(message, "published: the mailbox was full")

    return [(Mailbox, "put_or_overflow", put)]


def _tell_the_oldest_only() -> list[Patch]:
    def publish(self: Group[Any], message: Message) -> int:
        for ref in self.members[:1]:
            cell_of(ref).mailbox.put(message)
        return len(self)

    return [(Group, "publish", publish)]


OF_GROUPS = (
    Mutant("group", "keeps the dead", _keep_the_dead),
    Mutant("group", "does not count what is lost", _forget_to_count),
    Mutant("group", "tells the oldest member only", _tell_the_oldest_only),
)


@pytest.mark.parametrize("mutant", OF_POOLS + OF_GROUPS, ids=lambda mutant: mutant.name)
def test_the_law_finds_a_kernel_that(mutant: Mutant) -> None:
    """A planted defect is found within 200 schedules."""
    law = POOLS if mutant.guarantee == "pool" else GROUPS
    with planted(mutant):
        assert first_finding(law, range(SEARCH)) is not None
