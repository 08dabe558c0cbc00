"""The waits for people in one process: deadlines, answers, and clocks that stand still."""

from __future__ import annotations

from math import inf

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.actors.runs.pending_approvals import PendingApprovals
from motet.actors.runs.run import Input, Run
from motet.protocols.budget import Budget
from motet.protocols.events import AnyEvent
from motet.protocols.limits import Limits
from motet.protocols.sessions import LOCAL
from tests.actors.runs.ops import ops


async def unpublished(_run: Run, _event: AnyEvent) -> None:
    """These tests look at no events."""


def run_of(name: str) -> Run:
    return Run(Input(name, "s", LOCAL, "go"), ops().agent, Limits())


async def test_approvals_expire_in_the_order_of_their_deadlines(autojump_clock: MockClock) -> None:
    pending, expired = PendingApprovals(unpublished), list[tuple[str, float]]()

    async def expire() -> None:
        while True:
            expired.append((await pending.expired(), trio.current_time()))

    async with trio.open_nursery() as nursery:
        begun = trio.current_time()
        nursery.start_soon(expire)
        await wait_all_tasks_blocked()
        pending.expect("late", 20.0)
        await wait_all_tasks_blocked()
        pending.expect("early", 10.0)
        await trio.sleep(15.0)
        pending.expect("last", 10.0)
        await trio.sleep(30.0)
        nursery.cancel_scope.cancel()
    assert [(name, at - begun) for name, at in expired] == [
        ("early", 10.0),
        ("late", 20.0),
        ("last", 25.0),
    ]
    assert set(pending.deadlines.values()) == {inf}


async def test_two_tasks_that_wait_for_changes_both_see_a_new_deadline() -> None:
    pending, seen = PendingApprovals(unpublished), list[str]()

    async def watch() -> None:
        await pending.any_pending()
        seen.append("watch")

    async def expire() -> None:
        seen.append(await pending.expired())

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expire)
            nursery.start_soon(watch)
            await wait_all_tasks_blocked()
            pending.expect("a", 0.0)
    assert sorted(seen) == ["a", "watch"]


async def test_overlapping_waits_stop_a_clock_until_the_last_one_ends(
    autojump_clock: MockClock,
) -> None:
    pending, run = PendingApprovals(unpublished), run_of("r")
    now = trio.current_time()
    run.lineage.budget = Budget(Limits(wall=10.0), started=now)
    run.follow_budget()
    assert run.scope.deadline == now + 10.0

    async def wait(seconds: float) -> None:
        with pending.paused([run]):
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, 100.0)
        nursery.start_soon(wait, 300.0)
    assert run.scope.deadline == now + 10.0 + 300.0
