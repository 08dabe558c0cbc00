"""Asks that are handled in the asker's task: declared, taken if possible, as the mailbox's."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request, StreamRequest
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    Replies,
    Statistics,
    current_deadline,
    handles,
    here,
    open_system,
)
from motet.runtime.foreign import ForeignError
from motet.runtime.testing.scheduler import patched


class Do(Request[str], frozen=True, tag="here.do"):
    """The name of a method of the actor below."""

    what: str
    seconds: float = 0.0


class Brief(Do, frozen=True, tag="here.brief"):
    pass


class Flow(StreamRequest[str, str], frozen=True, tag="here.stream"):
    what: str
    seconds: float = 0.0


class Stop(Message, frozen=True, tag="here.stop"):
    pass


class Own(BaseException):
    """An error of a library that is no Exception."""


class Host(Actor[Do | Brief | Flow | Stop]):
    """Does in the asker's task what it is asked to, if it may."""

    def __init__(self) -> None:
        self.tasks: list[trio.lowlevel.Task] = []

    @handles(Do, concurrent=2, here=True)
    async def do(self, request: Do) -> str:
        return await self._run(request, Replies())

    @handles(Brief, concurrent=2, here=True, brief=True)
    async def brief(self, request: Brief) -> str:
        return await self._run(request, Replies())

    @handles(Flow, concurrent=2, here=True)
    async def flow(self, request: Flow, replies: Replies[str]) -> str:
        return await self._run(request, replies)

    @handles(Stop)
    async def stop(self, _: Stop) -> None:
        self.stop_soon()

    async def _run(self, request: Do | Flow, replies: Replies[str]) -> str:
        self.tasks.append(trio.lowlevel.current_task())
        found: str = await getattr(self, request.what)(request.seconds, replies)
        return found

    async def value(self, seconds: float, replies: Replies[str]) -> str:
        await replies.send("one")
        await trio.sleep(seconds)
        replies.send_nowait("two")
        return "value"

    async def at_once(self, seconds: float, replies: Replies[str]) -> str:
        return "value"

    async def deadline(self, seconds: float, replies: Replies[str]) -> str:
        return str(current_deadline() - trio.current_time())

    async def error(self, seconds: float, replies: Replies[str]) -> str:
        await trio.sleep(seconds)
        raise OSError("of the handler")

    async def group(self, seconds: float, replies: Replies[str]) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.error, seconds, replies)
        raise AssertionError("the nursery raises")

    async def two_errors(self, seconds: float, replies: Replies[str]) -> str:
        raise ExceptionGroup("two", [OSError("first"), ValueError("second")])

    async def foreign(self, seconds: float, replies: Replies[str]) -> str:
        raise Own("of a library")

    async def stop_iteration(self, seconds: float, replies: Replies[str]) -> str:
        raise StopAsyncIteration

    async def kept_cancelled(self, seconds: float, replies: Replies[str]) -> str:
        """Raise a Cancelled that belongs to no scope any more."""
        kept: BaseException = AssertionError("a checkpoint of a cancelled scope raises")
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as cancelled:
                kept = cancelled
        raise kept

    async def finishes(self, seconds: float, replies: Replies[str]) -> str:
        """Finish, whoever cancels."""
        with trio.CancelScope(shield=True):
            await trio.sleep(seconds)
        return "value"

    async def fails_late(self, seconds: float, replies: Replies[str]) -> str:
        """Fail in the clean-up."""
        try:
            await trio.sleep(seconds)
        finally:
            raise OSError("of the clean-up")

    async def torn(self, seconds: float, replies: Replies[str]) -> str:
        """A task of it fails in its clean-up when the others are cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.fails_late, seconds, replies)
            nursery.start_soon(trio.sleep_forever)
        raise AssertionError("the nursery raises")

    async def sends_late(self, seconds: float, replies: Replies[str]) -> str:
        """Send an item in the clean-up, and another out of a scope of its own that is cancelled."""
        with trio.move_on_after(0.25):
            try:
                await trio.sleep(seconds)
            finally:
                replies.send_nowait("inside")
        try:
            await trio.sleep(seconds)
        finally:
            replies.send_nowait("late")
        return "value"

    async def ends_itself(self, seconds: float, replies: Replies[str]) -> str:
        self.start_soon(self._crash)
        await trio.sleep_forever()
        raise AssertionError("it is cancelled")

    async def _crash(self) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("of a task")


WHAT = [
    *("value", "at_once", "deadline", "error", "group", "two_errors", "foreign", "stop_iteration"),
    *("kept_cancelled", "finishes", "fails_late", "torn", "sends_late", "ends_itself"),
]
Ref = ActorRef[Do | Brief | Flow | Stop]
Asking: TypeAlias = Callable[[Ref, list[str]], Awaitable[str]]
"""Asks, and notes the items that it takes."""


@asynccontextmanager
async def _host() -> AsyncGenerator[tuple[Ref, Host]]:
    host = Host()
    async with open_system() as system:
        yield await system.start(lambda: host, name="host", restart="temporary"), host


async def _outcome(ask: Asking, ends: str) -> tuple[object, list[str], Statistics]:
    """What becomes of an ask, the items that were taken, and the books afterwards."""
    items: list[str] = []
    result: object = None
    async with _host() as (ref, _), trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            if ends == "cancelled":
                nursery.start_soon(_after, 1, scope.cancel)
            elif ends == "deadline":
                scope.deadline = trio.current_time() + 1
            elif ends == "killed":
                nursery.start_soon(
                    _after, 1, partial(nursery.start_soon, partial(ref.stop, grace=0))
                )
            try:
                result = await ask(ref, items)
            except trio.Cancelled:
                result = "Cancelled"
                raise
            except BaseException as error:
                result = _shown(error)
        await trio.sleep(5)
        return result, items, ref.statistics()


def _shown(error: BaseException) -> object:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return [_shown(one) for one in group.exceptions]
    return type(error).__name__, "" if isinstance(error, ForeignError) else str(error)


async def _after(seconds: float, act: Callable[[], object]) -> None:
    await trio.sleep(seconds)
    act()


def _asking(what: str, way: str) -> Asking:
    def fail(items: list[str], item: str) -> None:
        items.append(item)
        raise LookupError("of the asker")

    match way:
        case "ask":
            return lambda ref, _: ref.ask(Do(what, 2))
        case "brief":
            return lambda ref, _: ref.ask(Brief(what))
        case "time limit":
            return lambda ref, _: ref.ask(Brief(what, 2), timeout=0.5)
        case "stream":
            return lambda ref, items: ref.stream_to(Flow(what, 2), items.append)
        case _:
            return lambda ref, items: ref.stream_to(Flow(what, 2), partial(fail, items))


CASES = [
    (what, way)
    for what in WHAT
    for way in ("ask", "brief", "time limit", "stream", "failing stream")
    if (what, way) != ("ends_itself", "brief")  # it waits for its end, so it is not brief
]


@pytest.mark.parametrize("ends", ["", "cancelled", "deadline", "killed"])
@pytest.mark.parametrize(("what", "way"), CASES)
async def test_each_outcome_is_that_of_the_mailbox(
    what: str, way: str, ends: str, autojump_clock: MockClock
) -> None:
    """Law: the result or error, the items and the counters, whoever ends the ask, and when."""
    in_place = await _outcome(_asking(what, way), ends)
    with patched([(here, "allowed", lambda: False)]):
        by_mailbox = await _outcome(_asking(what, way), ends)

    assert _without_times(in_place) == _without_times(by_mailbox)


def _without_times(
    found: tuple[object, list[str], Statistics],
) -> tuple[str, list[str], Statistics]:
    return str(found[0]), found[1], found[2]


async def test_it_runs_in_the_askers_task_and_begins_in_the_same_step(
    autojump_clock: MockClock,
) -> None:
    async with _host() as (ref, host):
        for request in (Do("value"), Brief("value"), Flow("value")):
            before = ref.statistics()
            assert await ref.ask(request) == "value"
            assert ref.statistics().handled == before.handled + 1
        assert set(host.tasks) == {trio.lowlevel.current_task()}


async def test_it_takes_the_mailbox_when_its_place_is_taken_or_it_is_observed(
    autojump_clock: MockClock,
) -> None:
    async with _host() as (ref, host), trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ref.ask, Do("value", 1))
        await wait_all_tasks_blocked()
        assert (ref.statistics().running, ref.statistics().stashed) == (2, 1)
        await trio.sleep(3)
        assert [task.name for task in host.tasks[2:]] == [f"{ref.path} do"]

    async with open_system() as system:
        observed = Host()
        ref = await system.start(lambda: observed, name="host")
        with system.trace(ref.path):
            await ref.ask(Do("at_once"))
        assert observed.tasks[0] is not trio.lowlevel.current_task()


async def test_it_is_refused_by_an_actor_that_was_stopped() -> None:
    async with _host() as (ref, _):
        await ref.ask(Do("at_once"))
        await ref.stop()
        with pytest.raises(ActorDead):
            await ref.ask(Do("at_once"))


async def test_a_stop_ends_it_and_waits_for_its_clean_up(autojump_clock: MockClock) -> None:
    async with _host() as (ref, _), trio.open_nursery() as nursery:
        nursery.start_soon(_dies, ref.ask(Do("value", 100)))
        await wait_all_tasks_blocked()
        report = await ref.stop(grace=2)
        assert report.complete
        assert trio.current_time() <= 2


async def _dies(ask: object) -> None:
    with pytest.raises(ActorDead):
        await ask  # type: ignore[misc]


async def test_a_stop_reports_one_that_ignores_its_cancellation_by_method_and_task(
    autojump_clock: MockClock,
) -> None:
    async with _host() as (ref, _), trio.open_nursery() as nursery:
        nursery.start_soon(partial(ref.ask, Do("finishes", 100)), name="the asker")
        await wait_all_tasks_blocked()
        (left,) = (await ref.stop(grace=1)).still_running
        assert left.path == ref.path
        assert "/system/host do, in the task" in left.what
        assert "finishes" in left.stack


async def test_a_dump_shows_who_waits_for_it(autojump_clock: MockClock) -> None:
    class Asker(Actor[Do]):
        @handles(Do)
        async def do(self, request: Do) -> str:
            found = self.system.find("/system/host")
            assert found is not None
            return str(await found.ask(request))

    async with open_system() as system, trio.open_nursery() as nursery:
        await system.start(Host, name="host")
        asker = await system.start(Asker, name="asker")
        nursery.start_soon(asker.ask, Do("value", 1))
        await wait_all_tasks_blocked()
        shown = {info.path: info.waiting_on for info in system.snapshot()}
        assert shown["/system/asker"] == "answer of /system/host"


async def test_askers_in_a_loop_let_others_run() -> None:
    """One in 65 takes the mailbox, since these handlers have no checkpoint."""
    async with _host() as (ref, host):
        for _ in range(130):
            await ref.ask(Brief("at_once"))
        assert len(set(host.tasks)) == 2
        assert sum(task is not trio.lowlevel.current_task() for task in host.tasks) == 2


async def test_a_crowd_of_askers_is_no_loop() -> None:
    """Each of them has waited for the one before, so that none takes the mailbox."""
    async with _host() as (ref, host):
        askers: set[trio.lowlevel.Task] = set()

        async def one() -> None:
            askers.add(trio.lowlevel.current_task())
            await ref.ask(Brief("at_once"))

        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(one)
        assert set(host.tasks) == askers


async def test_a_failed_or_cancelled_ask_leaves_no_reference_cycle() -> None:
    async with _host() as (ref, host):
        gc.collect()
        gc.disable()
        try:
            with pytest.raises(OSError, match="of the handler") as caught:
                await ref.ask(Do("error"))
            del caught
            with trio.CancelScope() as scope:
                scope.cancel()
                await ref.ask(Do("value", 1))
            host.tasks.clear()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = [one for one in gc.garbage if isinstance(one, here.HereAsk | OSError)]
            assert left == []
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()


def test_what_cannot_be_handled_here_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ValueError, match="needs concurrent=k"):
        handles(Do, here=True)
    with pytest.raises(ValueError, match="Stop is told"):
        handles(Stop, concurrent=2, here=True)  # type: ignore[type-var]  # pyright: ignore
    with pytest.raises(ValueError, match="brief=True says"):
        handles(Do, concurrent=2, brief=True)
