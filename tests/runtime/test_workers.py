"""The tasks of an actor beside its turn: started when needed, ended before the actor."""

from __future__ import annotations

from contextvars import ContextVar

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorDead, ActorRef, MotetRuntimeError, handles, open_system
from tests.guarantees.worlds.looking import tasks_of

who: ContextVar[str] = ContextVar("who", default="nobody")


class Watch(Message, frozen=True, tag="workers.watch"):
    name: str
    fails: bool = False
    shielded: bool = False


class Turn(Request[int], frozen=True, tag="workers.turn"):
    seconds: float = 0


class Aside(Request[int], frozen=True, tag="workers.aside"):
    seconds: float = 0


class Busy(Actor[Watch | Turn | Aside]):
    def __init__(self, log: list[str]) -> None:
        self.log = log

    @handles(Watch)
    async def watch_on(self, message: Watch) -> None:
        who.set(message.name)
        self.start_soon(self.task, message, name=message.name)

    async def task(self, message: Watch) -> None:
        try:
            with trio.CancelScope(shield=message.shielded):
                await trio.sleep(2 if message.fails else 1000)
            raise OSError("the watch failed")
        finally:
            self.log.append(f"{message.name} of {who.get()} ended")

    @handles(Turn)
    async def turn(self, request: Turn) -> int:
        return await self._work("turn", request.seconds)

    @handles(Aside, concurrent=3)
    async def aside(self, request: Aside) -> int:
        return await self._work("aside", request.seconds)

    async def _work(self, name: str, seconds: float) -> int:
        try:
            await trio.sleep(seconds)
        finally:
            self.log.append(f"{name} ended")
        return 1

    async def on_stop(self) -> None:
        self.log.append("clean-up")
        with pytest.raises(MotetRuntimeError, match="starts no tasks"):
            self.start_soon(trio.sleep, 1)


async def _fails(ask: object) -> None:
    with pytest.raises(ActorDead):
        await ask  # type: ignore[misc]


async def test_an_actor_has_one_task_until_it_needs_another() -> None:
    async with open_system() as system:
        ref = await system.start(lambda: Busy([]), name="busy")
        await ref.ask(Turn())
        assert list(tasks_of(ref.path)) == [ref.path]
        await ref.ask(Aside())
        assert sorted(tasks_of(ref.path)) == [ref.path, f"{ref.path} aside"]


async def test_a_task_has_the_context_of_the_handler_that_began_it(
    autojump_clock: MockClock,
) -> None:
    log: list[str] = []
    async with open_system() as system:
        ref = await system.start(lambda: Busy(log), name="busy")
        for name in ("a", "b"):
            await ref.tell(Watch(name))
            await wait_all_tasks_blocked()
        await ref.stop()
    assert sorted(log[:-1]) == ["a of a ended", "b of b ended"]
    assert log[-1] == "clean-up"


async def test_a_patient_stop_lets_handlers_end_then_cancels_tasks_then_cleans_up(
    autojump_clock: MockClock,
) -> None:
    log: list[str] = []
    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.start(lambda: Busy(log), name="busy")
        await ref.tell(Watch("a"))
        nursery.start_soon(ref.ask, Turn(1))
        nursery.start_soon(ref.ask, Aside(3))
        await wait_all_tasks_blocked()
        await ref.stop(grace=20)
        assert trio.current_time() == 3
    assert log == ["turn ended", "aside ended", "a of a ended", "clean-up"]


async def test_the_crash_of_a_task_ends_the_turn_and_all_other_tasks(
    autojump_clock: MockClock,
) -> None:
    log: list[str] = []
    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.start(lambda: Busy(log), name="busy", restart="temporary")
        await ref.tell(Watch("a", fails=True))
        await ref.tell(Watch("b"))
        nursery.start_soon(_fails, ref.ask(Turn(100)))
        nursery.start_soon(_fails, ref.ask(Aside(100)))
        assert "the watch failed" in str((await ref.wait_terminated()).error)
        assert trio.current_time() == 2
        assert not list(tasks_of(ref.path))
    assert sorted(log[:-1]) == ["a of a ended", "aside ended", "b of b ended", "turn ended"]
    assert log[-1] == "clean-up"


async def test_a_report_names_the_task_that_ignores_cancellation_and_not_the_actor_that_waits(
    autojump_clock: MockClock,
) -> None:
    async with open_system() as system:
        ref = await system.start(lambda: Busy([]), name="busy", restart="temporary")
        await ref.tell(Watch("stubborn", shielded=True))
        await wait_all_tasks_blocked()
        report = await ref.stop(grace=1)
        (left,) = report.still_running
        assert "stubborn" in left.what
        assert "trio.sleep(2 if" in left.stack


class Torn(Actor[Watch | Aside]):
    """Its tasks have tasks of their own, whose clean-up fails when they are cancelled."""

    @handles(Watch)
    async def watch_on(self, message: Watch) -> None:
        self.start_soon(self._tear)

    @handles(Aside, concurrent=3)
    async def aside(self, request: Aside) -> int:
        await self._tear()
        return 1

    async def _tear(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._fail_late)
            nursery.start_soon(trio.sleep_forever)

    async def _fail_late(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("the clean-up failed")


@pytest.mark.parametrize("grace", [0, 2])
async def test_a_clean_up_that_fails_among_cancelled_tasks_is_a_crash_of_the_actor(
    grace: float, autojump_clock: MockClock
) -> None:
    async with open_system() as system, trio.open_nursery() as nursery:
        other = await system.start(lambda: Busy([]), name="other")
        torn = await system.start(Torn, name="torn")
        await torn.tell(Watch("a"))
        nursery.start_soon(_fails_as_its_handler, torn)
        await wait_all_tasks_blocked()

        await torn.stop(grace=grace)

        assert "the clean-up failed" in str((await torn.wait_terminated()).error)
        assert await other.ask(Turn()) == 1


async def _fails_as_its_handler(torn: ActorRef[Watch | Aside]) -> None:
    with pytest.raises(OSError, match="the clean-up failed"):
        await torn.ask(Aside())


async def test_a_task_started_while_others_are_cancelled_is_cancelled_and_awaited(
    autojump_clock: MockClock,
) -> None:
    log: list[str] = []

    class Heir(Busy):
        async def task(self, message: Watch) -> None:
            try:
                await super().task(message)
            finally:
                if message.name != "last":
                    self.start_soon(self.task, Watch("last"))

    async with open_system() as system:
        ref = await system.start(lambda: Heir(log), name="busy")
        for name in ("a", "b"):
            await ref.tell(Watch(name))
        await wait_all_tasks_blocked()
        assert (await ref.stop()).complete
        assert not list(tasks_of(ref.path))
        assert trio.current_time() == 0
    assert sorted(log[:-1]) == [
        "a of a ended",
        "b of b ended",
        "last of a ended",
        "last of b ended",
    ]
    assert log[-1] == "clean-up"


async def _missing_file() -> None:
    """Fail as ``trio.open_file`` would, whose thread takes real time: the clock would jump."""
    await trio.lowlevel.checkpoint()
    raise FileNotFoundError(2, "No such file or directory")


async def test_no_task_overlaps_with_the_next_incarnation(
    autojump_clock: MockClock,
) -> None:
    alive: list[str] = []
    met: list[list[str]] = []

    class Slow(Busy):
        async def on_start(self) -> None:
            met.append(alive.copy())

        async def task(self, message: Watch) -> None:
            await self._live(message.name, 1000)

        async def aside(self, request: Aside) -> int:
            await self._live("aside", 1000)
            return 1

        async def turn(self, request: Turn) -> int:
            self.start_soon(_missing_file, name="broken")
            await self._live("turn", 1000)
            return 1

        async def _live(self, name: str, seconds: float) -> None:
            alive.append(name)
            try:
                await trio.sleep(seconds)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(len(name))
                alive.remove(name)

    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.start(lambda: Slow([]), name="slow")
        await ref.tell(Watch("background"))
        nursery.start_soon(_fails, ref.ask(Aside()))
        await wait_all_tasks_blocked()
        nursery.start_soon(_fails, ref.ask(Turn()))
        await ref.tell(Watch("after"))
        while ref.statistics().restarts == 0:
            await trio.sleep(1)
        assert met == [[], []]
        assert trio.current_time() >= len("background")


async def test_a_task_started_while_the_actor_ends_is_cancelled_with_the_others(
    autojump_clock: MockClock,
) -> None:
    log: list[str] = []

    class Late(Busy):
        async def turn(self, request: Turn) -> int:
            await trio.sleep(request.seconds)
            self.start_soon(self.task, Watch("late"))
            return 1

    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.start(lambda: Late(log), name="busy")
        nursery.start_soon(ref.ask, Turn(1))
        await wait_all_tasks_blocked()
        await ref.stop(grace=20)
        assert trio.current_time() == 1
    assert log == ["late of nobody ended", "clean-up"]
