"""A plain function as a tool: it cannot be ended, is waited for, and is named while it holds."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import trio

import motet
from motet.actors.tools import tool as threads
from motet.actors.tools.tool import held_by, run_in_thread
from tests.scripted import Scripted, call, say


class Blocking:
    """A function that a test lets go of."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.leave = threading.Event()

    def grind(self) -> str:
        """Works until it may go."""
        self.entered.set()
        assert self.leave.wait(10)
        return "ground"

    async def wait_entered(self) -> None:
        assert await trio.to_thread.run_sync(partial(self.entered.wait, 10))


async def test_a_cancelled_call_waits_until_its_function_has_returned() -> None:
    work = Blocking()
    returned = False

    async def run() -> None:
        nonlocal returned
        try:
            await run_in_thread(work.grind, run_id="r", tool="grind")
        finally:
            returned = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await work.wait_entered()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            assert not returned
            work.leave.set()
    assert returned


async def test_a_stop_names_what_holds_it_up_and_where() -> None:
    """G2: never silently."""
    work = Blocking()
    model = Scripted(call(("grind", {})), say("done"))
    agent = motet.Agent("a", model=model, tools=[work.grind])
    async with motet.open_host(agents=[agent]) as host:
        ack = await host.submit("go", session="s")
        await work.wait_entered()
        report = await host.stop(run_id=ack.run_id, grace=0.01)
        assert report.still_running == [ack.run_id]
        (line,) = report.held_by
        assert line.startswith(f"{ack.run_id}: tool 'grind' runs in a thread")
        work.leave.set()
        again = await host.stop(session="s")
        assert again.still_running == again.held_by == []


async def test_a_call_that_waits_for_a_thread_is_named_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "THREADS", 1)
    first, second = Blocking(), Blocking()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run_in_thread, first.grind, run_id="r1", tool="one"))
        await first.wait_entered()
        nursery.start_soon(partial(run_in_thread, second.grind, run_id="r2", tool="two"))
        await trio.testing.wait_all_tasks_blocked()
        assert held_by(["r2"]) == [
            "r2: tool 'two' runs in a thread, which nothing can end: it waits for a thread"
        ]
        assert held_by(["other"]) == []
        for work in (first, second):
            work.leave.set()
    assert held_by(["r1", "r2"]) == []
