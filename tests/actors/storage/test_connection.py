"""A thread of one's own: jobs one after the other, each with its true outcome, nothing left."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from motet.actors.storage.connection import JobThread


@pytest.fixture
def alone() -> Iterator[None]:
    """No thread of that name is there before and after."""
    assert not named()
    yield
    for thread in named():
        thread.join(5)
        assert not thread.is_alive()


def named() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "test writer"]


@pytest.mark.usefixtures("alone")
async def test_values_and_errors_of_jobs_are_delivered_and_the_thread_is_one_and_ends() -> None:
    jobs = JobThread("test writer")
    threads = {await jobs.run(threading.get_ident) for _ in range(5)}
    with pytest.raises(ZeroDivisionError):
        await jobs.run(lambda: 1 // 0)
    threads.add(await jobs.run(threading.get_ident))
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    jobs.end()


@pytest.mark.usefixtures("alone")
async def test_jobs_of_two_tasks_do_not_meet() -> None:
    jobs, gate, order = JobThread("test writer"), threading.Event(), list[str]()

    def first() -> None:
        gate.wait(5)
        order.append("first")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(jobs.run, first)
        await wait_all_tasks_blocked()
        nursery.start_soon(jobs.run, lambda: order.append("second"))
        await wait_all_tasks_blocked()
        gate.set()
    assert order == ["first", "second"]
    jobs.end()


@pytest.mark.usefixtures("alone")
async def test_a_job_that_has_begun_is_waited_for_and_not_reported_as_cancelled() -> None:
    jobs, gate, got = JobThread("test writer"), threading.Event(), list[bool]()

    async def ask() -> None:
        got.append(await jobs.run(lambda: gate.wait(5)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        gate.set()
    assert got == [True]
    jobs.end()


@pytest.mark.usefixtures("alone")
async def test_a_thread_leaves_no_descriptor_behind() -> None:
    await trio.to_thread.run_sync(bool)  # whatever Trio opens once is open
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        jobs = JobThread("test writer")
        await jobs.run(bool)
        jobs.end()
        for thread in named():
            await trio.to_thread.run_sync(thread.join)
    assert len(os.listdir("/dev/fd")) == before
