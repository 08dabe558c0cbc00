"""The order of what threads send: none is lost, and none overtakes, also before a full mailbox."""

from __future__ import annotations

import threading
from random import Random

import pytest
import trio

from motet.runtime import LoopFuture, open_system
from tests.threaded import Count, Hold, Log, Note, Read, Small, flood, in_thread, until


async def flooded(kind: type[Log], threads: int, count: int) -> None:
    """Several threads tell one actor: none is lost, and the order of each thread is kept."""
    async with open_system() as system:
        ref = await system.start(kind, name="log")
        own = [
            threading.Thread(target=flood, args=(ref.threadsafe(), i, count))
            for i in range(threads)
        ]
        for thread in own:
            thread.start()
        await until(lambda: not any(thread.is_alive() for thread in own))
        notes = await in_thread(lambda: ref.threadsafe().ask_sync(Read()))
        assert len(notes) == threads * count
        for sender in range(threads):
            assert [number for who, number in notes if who == sender] == list(range(count))
        counted = ref.statistics()
        assert (counted.accepted, counted.dead_lettered) == (threads * count + 1, 0)


@pytest.mark.parametrize("kind", [Log, Small])
def test_threads_lose_no_message_and_keep_their_order(kind: type[Log]) -> None:
    trio.run(flooded, kind, 4, 1_000)


@pytest.mark.sweep
def test_eight_threads_lose_none_of_their_hundred_thousand_messages() -> None:
    trio.run(flooded, Log, 8, 100_000)


def test_tells_and_asks_of_one_thread_keep_their_order_before_a_full_mailbox() -> None:
    async def main() -> None:
        actor = Small()
        async with open_system() as system, trio.open_nursery() as nursery:
            ref = await system.start(lambda: actor, name="log")
            safe = ref.threadsafe()
            nursery.start_soon(ref.ask, Hold())
            await until(lambda: bool(actor.events))
            for number in range(4):
                ref.tell_nowait(Note(0, number))

            def send() -> list[LoopFuture[list[tuple[int, int]]]]:
                safe.tell(Note(1, 0))
                first = safe.ask(Read())
                safe.tell(Note(1, 1))
                return [first, safe.ask(Read())]

            first, second = await in_thread(send)
            actor.go.set()
            await until(lambda: first.done() and second.done())
            assert first.result() is second.result() is actor.notes
            assert len(actor.notes) == 6
            assert actor.notes[4:] == [(1, 0), (1, 1)]

    trio.run(main)


@pytest.mark.parametrize("seed", range(20))
def test_all_that_a_thread_of_a_task_does_keeps_its_order_before_a_full_mailbox(seed: int) -> None:
    """Also what its task sends when the thread has ended."""

    async def main() -> None:
        rng = Random(seed)
        told = 0

        async def hold_up() -> None:
            while True:
                ref.suspend()
                for _ in range(rng.randrange(200)):
                    await trio.lowlevel.checkpoint()
                ref.resume()
                await trio.lowlevel.checkpoint()

        async with open_system() as system, trio.open_nursery() as nursery:
            ref = await system.start(Small, name="log")
            nursery.start_soon(hold_up)
            safe = ref.threadsafe()

            def send() -> None:
                nonlocal told
                seen: list[tuple[int, LoopFuture[int]]] = []
                for _ in range(rng.randrange(1, 60)):
                    act = rng.random()
                    if act < 0.8:
                        safe.tell(Note(0, told))
                        told += 1
                    elif act < 0.9:
                        seen.append((told, safe.ask(Count())))
                    else:
                        assert safe.ask_sync(Count()) == told
                assert [future.result() for _, future in seen] == [count for count, _ in seen]
                for _ in range(rng.randrange(9)):
                    safe.tell(Note(0, told))
                    told += 1

            for _ in range(5):
                await trio.to_thread.run_sync(send)
                if rng.random() < 0.5:
                    await ref.tell(Note(0, told))
                    told += 1
                assert await ref.ask(Count()) == told
            assert await ref.ask(Read()) == [(0, number) for number in range(told)]
            nursery.cancel_scope.cancel()

    trio.run(main)
