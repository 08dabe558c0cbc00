"""Other threads and identities: what a thread has handed over is not lost by passivation."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from random import Random
from threading import Thread
from typing import Any

import pytest
import trio

from motet.runtime import (
    ActorDead,
    ActorPaused,
    ActorRef,
    LoopFuture,
    MailboxFull,
    open_system,
)
from tests.threaded import Echo, Note, Read, Small, in_thread, until


class Noted(Small):
    """Notes what it is told in one place for all incarnations."""

    def __init__(self, found: list[tuple[int, int]]) -> None:
        super().__init__()
        self.notes = found

    async def on_start(self) -> None:
        await trio.lowlevel.checkpoint()


def test_an_identity_is_not_passivated_while_a_thread_has_told_it_something() -> None:
    async def main() -> None:
        found: list[tuple[int, int]] = []
        async with open_system() as system:
            kind = await system.registry.kind("log", lambda _: Noted(found), idle_after=math.inf)
            assert await kind.ref("a").ask(Read()) == []
            ref = kind.present("a", "a")
            safe = ref.threadsafe()
            await until(lambda: ref.statistics().running == 0)
            kind.idle_after = 1e-9
            kind.sweep()  # it is idle since now
            thread = Thread(target=lambda: safe.tell(Note(1, 1)))
            thread.start()
            thread.join()  # in the loop's own thread, which cannot look into the inbox meanwhile
            kind.sweep()
            await until(lambda: bool(found) or not ref.is_alive)
            assert found == [(1, 1)]
            assert ref.statistics().dead_lettered == 0

    trio.run(main)


@pytest.mark.parametrize("seed", range(6))
def test_what_threads_hand_to_identities_is_handled_or_accounted_for(seed: int) -> None:
    """Law: whatever threads tell and ask identities that are passivated, suspended, and end with
    their system, each future has one outcome, no tell that was taken is lost by passivation, and
    no thread waits after the end of the system (G3, G4)."""
    lost = played(seed)
    assert not lost


def played(seed: int) -> list[str]:
    chance, found, told = Random(seed), list[tuple[int, int]](), list[tuple[int, int]]()
    futures: list[LoopFuture[Any]] = []
    dead: list[str] = []

    async def main() -> None:
        async with open_system() as system:
            kind = await system.registry.kind("log", lambda _: Noted(found), idle_after=math.inf)
            kind.idle_after = 1e-9
            portal = system.portal()

            async def present(key: str) -> ActorRef[Any]:
                return kind.present(key, key)

            def use(sender: int, own: Random) -> None:
                for number in range(60):
                    safe = portal.call(present, own.choice("ab")).threadsafe()
                    with suppress(ActorDead, MailboxFull, ActorPaused):
                        if own.random() < 0.7:
                            safe.tell(Note(sender, number), timeout=1)
                            told.append((sender, number))
                        else:
                            futures.append(safe.ask(Echo(number)))

            with ThreadPoolExecutor(3) as pool:
                runs = [pool.submit(use, one, Random(chance.random())) for one in range(3)]
                while not all(run.done() for run in runs):
                    kind.sweep()
                    if chance.random() < 0.2:
                        cell = kind.find(chance.choice("ab"))
                        if cell is not None:
                            ref: ActorRef[Any] = ActorRef(cell)
                            ref.suspend()
                            await trio.sleep(0)
                            ref.resume()
                    await trio.sleep(0)
                for run in runs:
                    run.result()
            for key in "ab":  # of a thread, so that it is behind all that was told
                safe = (await present(key)).threadsafe()
                await in_thread(partial(safe.ask_sync, Read()))
            if missing := {*told} - {*found}:
                dead.append(f"told and not handled: {sorted(missing)}")
            late = kind.present("a", "a").threadsafe().ask(Read())
            await system.stop(grace=1)
            await until(late.done)
        for future in futures:
            if not future.done():
                dead.append("a future has no outcome")

    trio.run(main)
    dead.extend(f"{one} twice" for one, times in Counter(found).items() if times > 1)
    return dead
