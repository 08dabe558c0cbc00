"""The private names of Trio that the simulator rests on; a failure here says what to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from motet.runtime.testing import run
from motet.runtime.testing.policies import played
from motet.runtime.testing.scheduler import (
    Scheduler,
    many_runs,
    processes_of_trio,
    scheduling,
    thread_cache,
)
from motet.runtime.testing.threads import inline_threads
from tests.runtime.testing.worlds import simultaneous

ADVICE = (
    f"Trio {trio.__version__} has changed what runtime/testing/scheduler.py relies on. Read "
    "`unrolled_run`, `CancelStatus.recalculate` and `Deadlines.add` in trio/_core/_run.py, adapt "
    "scheduler.py (no other file touches private names), then this test; until then pin Trio below "
    "this version in pyproject.toml."
)

# Any: private, so without types.
_run: Any = __import__("trio._core._run", fromlist=["_run"])


@pytest.mark.parametrize(
    "path",
    [
        "_r.shuffle",
        "_r.random",
        "_ALLOW_DETERMINISTIC_SCHEDULING",
        "GLOBAL_RUN_CONTEXT",
        "Runner.runq",
        "Runner.reschedule",
        "Runner.clock",
        "Runner.deadlines",
        "Runner.entry_queue",
        "Runner.instruments",
        "Runner.io_manager",
        "Runner.is_guest",
        "CancelStatus.recalculate",
        "CancelStatus._children",
        "CancelStatus._tasks",
        "CancelStatus._scope",
        "CancelStatus._parent",
        "Task._attempt_delivery_of_any_pending_cancel",
        "Task._counter",
        "Task._cancel_status",
        "Deadlines.add",
        "Deadlines._heap",
        "Deadlines._active",
        "heappush",
    ],
)
def test_trio_still_has(path: str) -> None:
    found = _run
    for name in path.split("."):
        assert hasattr(found, name), f"trio._core._run.{path} is gone. {ADVICE}"
        found = getattr(found, name)


def test_trio_shuffles_a_list_of_all_runnable_tasks_sorted_by_age_and_runs_what_is_left() -> None:
    seen: list[tuple[list[str], list[int]]] = []
    ran: list[str] = []

    class Spy(Scheduler):
        def shuffle(self, batch: list[trio.lowlevel.Task]) -> None:
            assert type(batch) is list, ADVICE
            assert all(isinstance(task, trio.lowlevel.Task) for task in batch), ADVICE
            seen.append(([task.name for task in batch], [_counter(task) for task in batch]))
            super().shuffle(batch)
            assert len(batch) <= 1, ADVICE

    async def main() -> None:
        async def child(name: str) -> None:
            ran.append(name)
            await trio.lowlevel.checkpoint()
            ran.append(name)

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(child, name, name=name)

    with scheduling(Spy(played([1] * 100))):
        trio.run(main, clock=MockClock(autojump_threshold=0))

    assert any(names == ["a", "b", "c"] for names, _ in seen), ADVICE
    assert all(counters == sorted(counters) for _, counters in seen), ADVICE
    # Each choice sends the first of the queue to its end: of abc runs b, of cab a, of bca c.
    assert ran == list("bacbac"), ADVICE


def _counter(task: trio.lowlevel.Task) -> int:
    number: int = task._counter  # pyright: ignore[reportPrivateUsage]  # what the canary is for
    return number


def test_cancellations_and_equal_deadlines_come_in_the_order_of_age() -> None:
    order = [str(number) for number in range(20)]
    late = [str(100 + number) for number in range(20)]

    outcome = run(simultaneous, choices=())

    assert outcome.check().split() == order + late, ADVICE


async def test_a_pass_of_the_loop_finds_what_the_choice_within_a_batch_looks_for() -> None:
    """An empty queue, no descriptor but the queue's own, and hooks by name: else a pass is made."""
    await trio.testing.wait_all_tasks_blocked()
    runner = _run.GLOBAL_RUN_CONTEXT.runner
    assert not runner.entry_queue.queue, ADVICE
    assert not runner.entry_queue.idempotent_queue, ADVICE
    assert len(runner.io_manager._registered) == 1, ADVICE
    assert isinstance(runner.instruments.data, dict), ADVICE
    clock: Any = MockClock()
    clock.jump(3)
    assert (clock._virtual_base, clock._rate) == (3, 0), ADVICE


def test_every_thread_of_trio_new_or_idle_comes_through_one_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[object] = []
    before: Any = vars(thread_cache())["start_thread_soon"]

    def counted(*args: Any, **kwargs: Any) -> None:
        started.append(args)
        before(*args, **kwargs)

    async def main() -> None:
        for _ in range(3):
            await trio.to_thread.run_sync(int)

    monkeypatch.setattr(thread_cache(), "start_thread_soon", counted)
    trio.run(main)

    assert len(started) == 3, ADVICE


async def test_all_that_starts_processes_does_so_by_one_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(command: object, **_: object) -> None:
        raise LookupError(command)

    assert trio.lowlevel.open_process is processes_of_trio()._open_process, ADVICE
    monkeypatch.setattr(processes_of_trio(), "_open_process", refuse)
    with pytest.raises(LookupError):
        await trio.run_process(["true"])


async def test_threads_are_started_and_reached_through_two_names_of_one_module() -> None:
    with inline_threads():
        assert await trio.to_thread.run_sync(threading.get_ident) == threading.get_ident(), ADVICE
        called = await trio.to_thread.run_sync(trio.from_thread.run_sync, threading.get_ident)
    assert called == threading.get_ident(), ADVICE


@pytest.mark.parametrize("around", [nullcontext, many_runs])
def test_a_run_restores_all_names_also_after_an_error(
    around: Callable[[], AbstractContextManager[None]],
) -> None:
    def names() -> list[object]:
        return [
            _run._r,
            _run._ALLOW_DETERMINISTIC_SCHEDULING,
            _run.CancelStatus.recalculate,
            _run.Task._attempt_delivery_of_any_pending_cancel,
            _run.Deadlines.add,
            thread_cache().start_thread_soon,  # type: ignore[attr-defined]  # pyright: ignore
        ]

    before = names()

    async def fails(sim: object) -> None:
        assert names() != before
        raise LookupError("of the world")

    async def skips(sim: object) -> None:
        raise KeyboardInterrupt

    with around():
        assert isinstance(run(fails).error, LookupError)
    assert names() == before
    with pytest.raises(KeyboardInterrupt), around():
        run(skips)
    assert names() == before
