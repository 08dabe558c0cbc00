"""Other threads and loops: what they may not do raises, and the ways in lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest
import trio

from motet.protocols.messages import Message, Request
from motet.runtime import (
    ActorDead,
    ActorRef,
    AskCycle,
    AskTimeout,
    LoopFuture,
    MailboxFull,
    NotInProtocol,
    Portal,
    System,
    ThreadsafeRef,
    WrongLoop,
    handles,
    open_system,
)
from tests.threaded import (
    Block,
    Dropping,
    Echo,
    Failing,
    Hold,
    Log,
    Note,
    Read,
    Small,
    error_of,
    flood,
    in_thread,
    until,
)


def driven(coroutine: Awaitable[Any]) -> None:
    """Take the first step of a coroutine, as any loop does."""
    coroutine.__await__().__next__()


MISUSES: dict[str, Callable[[System, ActorRef[Any]], object]] = {
    "tell": lambda _, ref: driven(ref.tell(Note(0, 0))),
    "tell_nowait": lambda _, ref: ref.tell_nowait(Note(0, 0)),
    "ask": lambda _, ref: driven(ref.ask(Read())),
    "ask here": lambda _, ref: driven(ref.ask(Echo(0))),
    "ask in another Trio": lambda _, ref: trio.run(ref.ask, Read()),
    "ask here in another Trio": lambda _, ref: trio.run(ref.ask, Echo(0)),
    "tell in another Trio": lambda _, ref: trio.run(ref.tell, Note(0, 0)),
    "ask in asyncio": lambda _, ref: asyncio.run(ref.ask(Read())),
    "tell in asyncio": lambda _, ref: asyncio.run(ref.tell(Note(0, 0))),
    "stop in another Trio": lambda _, ref: trio.run(ref.stop),
    "suspend": lambda _, ref: ref.suspend(),
    "resume": lambda _, ref: ref.resume(),
    "end": lambda _, ref: trio.run(ref.wait_terminated),
    "start": lambda system, _: trio.run(lambda: system.start(Log, name="new")),
    "stop the system": lambda system, _: trio.run(system.stop),
    "inject": lambda system, ref: system.inject(ref.path, "kill"),
}


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_misuse_in_another_thread_raises_and_changes_nothing(
    misuse: Callable[[System, ActorRef[Any]], object], busy: bool
) -> None:
    async def main() -> None:
        actor = Log()
        async with open_system() as system, trio.open_nursery() as nursery:
            ref = await system.start(lambda: actor, name="log")
            if busy:
                nursery.start_soon(ref.ask, Hold())
                await until(lambda: bool(actor.events))
            before = ref.statistics()

            assert await in_thread(lambda: error_of(lambda: misuse(system, ref))) is WrongLoop

            assert ref.statistics() == before
            actor.go.set()
            assert await ref.ask(Echo(3)) == 3
            await ref.tell(Note(1, 1))
            assert await ref.ask(Read()) == [(1, 1)]
            assert [info.path for info in system.snapshot()] == [ref.path]

    trio.run(main)


def test_an_observed_system_refuses_other_threads_too() -> None:
    async def main() -> None:
        async with open_system() as system:
            ref = await system.start(Log, name="log")
            with system.trace("/system/log"):
                driving = partial(driven, ref.ask(Read()))
                assert await in_thread(lambda: error_of(driving)) is WrongLoop

    trio.run(main)


def test_asyncio_within_a_task_of_trio_leaves_no_request_behind() -> None:
    async def main() -> None:
        async with open_system() as system:
            ref = await system.start(Small, name="log")

            async def fill() -> None:
                for number in range(5):
                    await ref.tell(Note(0, number))

            assert error_of(lambda: asyncio.run(ref.ask(Read()))) is RuntimeError
            assert ref.statistics().withdrawn == 1
            assert error_of(lambda: asyncio.run(fill())) is RuntimeError  # the fifth has to wait
            assert ref.statistics().waiting == 0
            assert await ref.ask(Read()) == [(0, number) for number in range(4)]

    trio.run(main)


def test_asyncio_that_is_the_host_of_trio_tells_directly_and_asks_by_a_future() -> None:
    outcomes: list[object] = []

    async def main(ready: asyncio.Event, go: trio.Event, refs: list[ActorRef[Any]]) -> None:
        async with open_system() as system:
            refs.append(await system.start(Log, name="log"))
            ready.set()
            await go.wait()

    async def host() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        ready, go, refs = asyncio.Event(), trio.Event(), list[ActorRef[Any]]()
        trio.lowlevel.start_guest_run(
            main, ready, go, refs,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=lambda _: ended.set(),
        )  # fmt: skip
        await ready.wait()
        ref = refs[0]
        safe = ref.threadsafe()
        ref.tell_nowait(Note(0, 0))
        safe.tell(Note(0, 1))
        outcomes.append(error_of(lambda: driven(ref.ask(Read()))))
        future = safe.ask(Read())
        outcomes.append(error_of(future.result))  # would wait for its own thread
        outcomes.append(error_of(lambda: safe.ask_sync(Read())))
        notes: list[tuple[int, int]] = await asyncio.wrap_future(future)
        outcomes.append(notes)
        held = asyncio.wrap_future(safe.ask(Hold()))
        await asyncio.wrap_future(safe.ask(Echo(1)))
        held.cancel()
        outcomes.append(await asyncio.wrap_future(safe.ask(Echo(2))))
        go.set()
        await ended.wait()

    asyncio.run(host())
    assert outcomes == [WrongLoop, WrongLoop, WrongLoop, [(0, 0), (0, 1)], 2]


def test_a_thread_waits_for_room_within_its_timeout_only() -> None:
    async def main() -> None:
        async with open_system() as system:
            ref = await system.start(Small, name="log")
            ref.suspend()
            safe = ref.threadsafe()

            def send() -> int:
                for number in range(100):
                    try:
                        safe.tell(Note(0, number), timeout=60 if number < 8 else 0.01)
                    except MailboxFull:
                        return number
                raise AssertionError("the mailbox has no bound")

            sent = await in_thread(send)
            assert 8 <= sent <= 9  # the mailbox, the inbox, and one in line between the two
            assert ref.statistics().queued == 4  # G13
            refused = await in_thread(lambda: error_of(lambda: safe.tell_nowait(Note(0, 0))))
            assert refused is MailboxFull
            ref.resume()
            assert len(await in_thread(lambda: safe.ask_sync(Read()))) == sent

    trio.run(main)


@pytest.mark.parametrize("kind", [Failing, Dropping])
def test_a_mailbox_that_makes_nobody_wait_does_not_block_threads(kind: type[Log]) -> None:
    async def main() -> None:
        async with open_system() as system:
            ref = await system.start(kind, name="log")
            ref.suspend()
            sent = lost = 0

            def send() -> None:
                nonlocal sent, lost
                for number in range(50):
                    try:
                        ref.threadsafe().tell(Note(0, number))
                        sent += 1
                    except MailboxFull:
                        lost += 1

            await in_thread(send)
            await until(lambda: ref.statistics().accepted == sent)
            counted = ref.statistics()
            assert sent + lost == 50
            assert (counted.queued, counted.dead_lettered) == (4, sent - 4)
            assert (kind is Failing) == bool(lost)
            ref.resume()

    trio.run(main)


def test_errors_and_time_limits_reach_the_thread() -> None:
    async def main() -> None:
        async with open_system() as system:
            ref: ActorRef[Any] = await system.start(Log, name="log")
            safe = ref.threadsafe()

            def use() -> None:
                assert safe.ask_sync(Echo(1)) == 1
                with pytest.raises(NotInProtocol):
                    safe.tell(Another())
                with pytest.raises(NotInProtocol):
                    safe.ask(AnotherRequest())
                with pytest.raises(AskTimeout):
                    safe.ask_sync(Hold(), timeout=0.01)
                assert safe.ask_sync(Echo(2), timeout=60) == 2

            await in_thread(use)
            ref.suspend(refuse=True)
            refused = safe.ask(Read())
            assert type(refused.exception()).__name__ == "ActorPaused"

    trio.run(main)


class Another(Message, frozen=True, tag="threads.another"):
    pass


class AnotherRequest(Request[int], frozen=True, tag="threads.another-request"):
    pass


@pytest.mark.parametrize("where", ["running", "queued", "inbox", "done"])
def test_a_cancelled_future_withdraws_its_ask_or_waits_for_the_handler(where: str) -> None:
    async def main() -> None:
        actor = Small()
        async with open_system() as system, trio.open_nursery() as nursery:
            ref = await system.start(lambda: actor, name="log")
            safe = ref.threadsafe()
            if where in ("queued", "inbox"):
                nursery.start_soon(ref.ask, Hold())
                await until(lambda: bool(actor.events))
            if where == "inbox":
                for number in range(4):
                    ref.tell_nowait(Note(0, number))
                for number in range(3):
                    await in_thread(partial(safe.tell, Note(1, number)))
            future = await in_thread(lambda: safe.ask(Hold() if where == "running" else Read()))
            if where == "running":
                await until(lambda: bool(actor.events))
            elif where == "done":
                await until(future.done)

            assert await in_thread(future.cancel) is (where != "done")
            await until(future.done)

            if where == "done":
                assert future.result() == []
            else:
                assert future.cancelled()
                with pytest.raises(CancelledError):
                    future.result()
                assert not wait([future], timeout=0).not_done
            if where == "running":
                assert actor.events == ["begun", "ended"]  # the clean-up has ended too (G1)
            actor.go.set()
            assert len(await ref.ask(Read())) == (7 if where == "inbox" else 0)
            counted = ref.statistics()
            assert counted.accepted == counted.handled + counted.withdrawn

    trio.run(main)


def test_a_handler_that_finishes_although_its_future_was_cancelled_gives_its_value() -> None:
    async def main() -> None:
        class Stubborn(Log):
            @handles(Hold)
            async def hold(self, request: Hold) -> str:
                self.events.append("begun")
                with trio.CancelScope(shield=True):
                    await self.go.wait()
                return "held"

        actor = Stubborn()
        async with open_system() as system:
            ref = await system.start(lambda: actor, name="log")
            future = ref.threadsafe().ask(Hold())
            await until(lambda: bool(actor.events))
            assert future.cancel()
            await trio.lowlevel.checkpoint()
            assert not future.done()
            actor.go.set()
            await until(future.done)
            assert future.result() == "held"

    trio.run(main)


def test_the_end_of_the_system_ends_every_future_and_frees_every_blocked_thread() -> None:
    async def main() -> tuple[ActorRef[Any], ThreadsafeRef[Any], Portal]:
        actor = Small()
        with ThreadPoolExecutor(4) as pool:
            async with open_system() as system:
                ref = await system.start(lambda: actor, name="log")
                safe, portal = ref.threadsafe(), system.portal()
                running = safe.ask(Hold())
                await until(lambda: bool(actor.events))
                tells = pool.submit(flood, safe, 1, 100)  # blocks before the full inbox
                blocked = pool.submit(lambda: portal.call(trio.sleep_forever))
                await until(lambda: ref.statistics().waiting > 0)
                queued = await in_thread(lambda: safe.ask(Read()))
                asleep = portal.submit(trio.sleep_forever)
                await system.stop(grace=0)
            await until(lambda: tells.done() and blocked.done())
            for future in (running, queued, asleep, tells, blocked):
                assert isinstance(future.exception(), ActorDead)
            # Every message that a thread has handed over became a dead letter (G4).
            counted = ref.statistics()
            assert counted.accepted == counted.handled + counted.dead_lettered + counted.withdrawn
            assert not system.inboxes
        return ref, safe, portal

    ref, safe, portal = trio.run(main)
    late: list[Callable[[], object]] = [
        lambda: safe.tell(Note(0, 0)),
        lambda: safe.ask(Read()),
        lambda: safe.ask_sync(Read()),
        lambda: ref.threadsafe().tell_nowait(Note(0, 0)),
        lambda: portal.submit(trio.sleep, 0),
        lambda: portal.call(trio.sleep, 0),
    ]
    with ThreadPoolExecutor(1) as pool:
        assert [pool.submit(error_of, call).result() for call in late] == [ActorDead] * 6
        foreign = pool.submit(error_of, lambda: trio.run(ref.ask, Read())).result()
    assert foreign is WrongLoop
    # In the next run of this thread, nothing is there.
    assert error_of(lambda: trio.run(ref.ask, Read())) is ActorDead
    assert error_of(lambda: trio.run(ref.tell, Note(0, 0))) is ActorDead


def test_a_blocking_call_in_the_loops_own_thread_raises_at_once() -> None:
    async def main() -> None:
        async with open_system() as system:
            ref = await system.start(Log, name="log")
            safe = ref.threadsafe()
            future = safe.ask(Hold())
            assert error_of(lambda: safe.ask_sync(Read())) is WrongLoop
            assert error_of(lambda: system.portal().call(trio.sleep, 0)) is WrongLoop
            assert error_of(future.result) is WrongLoop
            assert error_of(future.exception) is WrongLoop
            future.cancel()

            async def elsewhere() -> None:
                safe.ask_sync(Read())  # would hold up the loop of its own thread

            assert await in_thread(lambda: error_of(lambda: trio.run(elsewhere))) is WrongLoop

    trio.run(main)


def test_a_blocking_ask_in_a_worker_thread_is_an_ask_of_the_handler() -> None:
    """So a cycle through a thread is refused (G11), and a cancellation reaches the ask (G1)."""

    seen: list[str] = []

    async def main() -> None:
        refs: list[ActorRef[Any]] = []

        def second() -> None:
            seen.append(refs[1].threadsafe().ask_sync(Block()))

        def first() -> None:
            refs[0].threadsafe().ask_sync(Read())

        async with open_system() as system:
            refs.append(await system.start(lambda: Log(second), name="first"))
            refs.append(await system.start(lambda: Log(first), name="second"))
            assert await refs[0].ask(Block()) == "done"
            assert seen == [AskCycle.__name__]
            held = Log()
            third = (await system.start(lambda: held, name="third")).threadsafe()
            fourth = await system.start(lambda: Log(lambda: third.ask_sync(Hold())), name="fourth")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fourth.ask, Block())
                await until(lambda: held.events == ["begun"])
                nursery.cancel_scope.cancel()
            assert held.events == ["begun", "ended"]

    trio.run(main)


def test_an_interrupted_wait_cancels_its_ask() -> None:
    class Interrupted(BaseException):
        pass

    async def main() -> None:
        actor = Log()
        async with open_system() as system:
            ref = await system.start(lambda: actor, name="log")
            future = ref.threadsafe().ask(Hold())
            await until(lambda: bool(actor.events))
            error = Interrupted()

            def interrupt(timeout: float | None = None) -> str:
                raise error

            future.result = interrupt  # type: ignore[method-assign]
            assert await in_thread(lambda: error_of(future.wait)) is Interrupted
            await until(future.done)
            assert future.cancelled()
            assert actor.events == ["begun", "ended"]

    trio.run(main)


def test_the_portal_runs_functions_in_the_loop() -> None:
    async def double(number: int) -> int:
        await trio.lowlevel.checkpoint()
        if number < 0:
            raise ValueError(number)
        return 2 * number

    async def main() -> None:
        ended: list[str] = []

        async def forever() -> None:
            try:
                await trio.sleep_forever()
            finally:
                ended.append("ended")

        async with open_system() as system:
            portal = system.portal()

            def use() -> None:
                assert portal.call(double, 3) == 6
                with pytest.raises(ValueError, match="-1"):
                    portal.call(double, -1)
                ref = portal.call(lambda: system.start(Log, name="log"))
                assert ref.threadsafe().ask_sync(Echo(5)) == 5
                futures = [portal.submit(double, number) for number in range(20)]
                assert [future.result() for future in futures] == list(range(0, 40, 2))
                asleep = portal.submit(forever)
                portal.call(double, 0)
                assert asleep.cancel()
                with pytest.raises(CancelledError):
                    asleep.result(timeout=60)
                assert ended == ["ended"]

            await in_thread(use)
            await trio.to_thread.run_sync(use_in_worker, portal, double)

    def use_in_worker(portal: Any, fn: Any) -> None:
        assert portal.call(fn, 4) == 8
        with pytest.raises(ValueError, match="-1"):
            portal.call(fn, -1)

    trio.run(main)


@pytest.mark.parametrize("seed", range(8))
def test_random_calls_of_threads_have_one_outcome_each(seed: int) -> None:
    """The law: whatever threads ask, cancel and tell while the actor crashes, is suspended and
    stops, every future ends, and every accepted message is accounted for (G3, G4)."""

    async def main() -> None:
        chance = Random(seed)
        async with open_system() as system:
            ref = await system.start(Small, name="log")
            safe = ref.threadsafe()

            def use(own: Random) -> list[LoopFuture[Any]]:
                futures: list[LoopFuture[Any]] = []
                for number in range(60):
                    match own.randrange(5):
                        case 0 if futures:
                            own.choice(futures).cancel()
                        case 1:
                            futures.append(safe.ask(Hold(), timeout=own.choice((0.001, 0.01))))
                        case 2:
                            futures.append(safe.ask(Echo(number)))
                        case _:
                            with suppress(MailboxFull, ActorDead):
                                safe.tell(Note(0, number), timeout=0.001)
                    if ref.statistics().state == "dead":
                        break
                return futures

            def guarded(own: Random) -> list[LoopFuture[Any]]:
                try:
                    return use(own)
                except ActorDead:
                    return []

            with ThreadPoolExecutor(3) as pool:
                runs = [pool.submit(guarded, Random(chance.random())) for _ in range(3)]
                while not all(run.done() for run in runs):
                    match chance.randrange(6):
                        case 0:
                            ref.suspend(refuse=chance.random() < 0.5)
                        case 1:
                            system.inject(
                                ref.path, "crash"
                            ) if ref.statistics().restarts < 3 else None
                        case 2 if chance.random() < 0.02:
                            await ref.stop(grace=0)
                        case _:
                            ref.resume()
                    await trio.sleep(0)
                ref.resume() if ref.is_alive else None
                futures = [future for run in runs for future in run.result()]
                await system.stop(grace=1)
                await until(lambda: all(future.done() for future in futures))
            counted = ref.statistics()
            total = counted.handled + counted.withdrawn + counted.dead_lettered
            assert (counted.accepted, counted.running, counted.queued) == (total, 0, 0)

    trio.run(main)
