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

from motet.protocols.messages import Request
from motet.runtime import (
    ActorDead,
    ActorPaused,
    ActorRef,
    DeadLetter,
    Feed,
    LoopFuture,
    Machine,
    MailboxFull,
    MailboxSpec,
    State,
    handles,
    open_system,
)
from motet.runtime.cell import Cell
from motet.runtime.ref import cell_of
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


def test_a_reference_whose_actor_is_looked_up_names_the_portal_as_the_way_for_threads() -> None:
    async def main() -> None:
        found: list[tuple[int, int]] = []
        async with open_system() as system:
            kind = await system.registry.kind("log", lambda _: Noted(found))
            identity, portal = kind.ref("a"), system.portal()
            with pytest.raises(TypeError, match=r"IdentityRef log/a.*portal\(\)\.call\(ref\.tell"):
                identity.threadsafe()

            def work() -> list[tuple[int, int]]:  # what the error says to do
                for number in range(20):
                    portal.call(identity.tell, Note(1, number))
                return portal.submit(identity.ask, Read()).result()

            assert await trio.to_thread.run_sync(work) == [(1, number) for number in range(20)]

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


# ---------------------------------------------------------------------- machines that are drained


class Go(Request[bool], frozen=True, tag="threads.go"):
    """Open the door, or close it; the answer is whether it is open."""

    open: bool


class Door(Machine[Note | Go]):
    """Notes what comes while it is open, and postpones it while it is closed."""

    mailbox = MailboxSpec(capacity=256)  # all that is sent can be postponed

    def __init__(self, found: list[tuple[int, int]]) -> None:
        self.found = found

    async def initial(self) -> State[Any, Door]:
        await trio.lowlevel.checkpoint()
        return Closed()


class Closed(State[Go, Door]):
    postpones = (Note,)

    @handles(Go)
    async def go(self, request: Go) -> bool:
        if request.open:
            self.become(Opened())
        return request.open


class Opened(State[Note | Go, Door]):
    @handles(Note)
    async def note(self, message: Note) -> None:
        self.machine.found.append((message.sender, message.number))

    @handles(Go)
    async def go(self, request: Go) -> bool:
        if not request.open:
            self.become(Closed())
        return request.open


@pytest.mark.parametrize("seed", range(6))
def test_what_threads_hand_to_machines_that_are_drained_is_handled_or_a_dead_letter(
    seed: int,
) -> None:
    """Law: whatever threads tell identities that are machines, while these are passivated, drained
    and made again: each message is noted once, in the order of its sender, or it is a dead letter
    of a drain; none is lost by passivation, or while it was postponed; each future has one
    outcome."""
    assert not doors(seed)


def doors(seed: int) -> list[str]:
    chance, found, told = Random(seed), list[tuple[int, int]](), list[tuple[int, int]]()
    futures: list[LoopFuture[Any]] = []
    gone: set[tuple[int, int]] = set()
    met, drained = set[Cell](), set[Cell]()

    async def main() -> None:
        async with open_system() as system:
            kind = await system.registry.kind("door", lambda _: Door(found), idle_after=math.inf)
            kind.idle_after = 1e-9
            portal = system.portal()

            async def present(key: str) -> ActorRef[Any]:
                ref = kind.present(key, key)
                met.add(cell_of(ref))
                return ref

            async def note_lost(feed: Feed[DeadLetter]) -> None:
                async for letter in feed:
                    if isinstance(letter.message, Note):
                        note = letter.message
                        gone.add((note.sender, note.number))

            def use(sender: int, own: Random) -> None:
                for number in range(60):
                    # One key for each sender, so that its order can be judged.
                    safe = portal.call(present, "ab"[sender % 2]).threadsafe()
                    with suppress(ActorDead, MailboxFull):
                        if own.random() < 0.6:
                            safe.tell(Note(sender, number), timeout=1)
                            told.append((sender, number))
                        else:
                            futures.append(safe.ask(Go(own.random() < 0.7)))

            with system.dead_letters.follow() as feed, ThreadPoolExecutor(3) as pool:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(note_lost, feed)
                    runs = [pool.submit(use, one, Random(chance.random())) for one in range(3)]
                    while not all(run.done() for run in runs):
                        kind.sweep()
                        cell = kind.find(chance.choice("ab"))
                        if cell is not None and chance.random() < 0.1:
                            drained.add(cell)
                            nursery.start_soon(ActorRef[Any](cell).drain)
                        # A closed door would keep its senders waiting for room.
                        for key in "ab":
                            with suppress(ActorDead, MailboxFull):
                                kind.present(key, key).tell_nowait(Go(open=True))
                        await trio.sleep(0)
                    for run in runs:
                        run.result()
                    for key in "ab":
                        while not await _opened(kind.present(key, key)):
                            await trio.sleep(0)
                    await until(lambda: all(future.done() for future in futures))
                    for _ in range(9):  # what is in the feed is read
                        await trio.sleep(0)
                    nursery.cancel_scope.cancel()

    trio.run(main)
    wrong = [
        f"{cell.path} lost {cell.mailbox.dead_lettered} messages"
        for cell in met - drained
        if cell.mailbox.dead_lettered
    ]
    wrong += [f"{one} twice" for one, times in Counter(found).items() if times > 1]
    wrong += [f"{one} is nowhere" for one in told if one not in found and one not in gone]
    for sender in range(3):
        numbers = [number for one, number in found if one == sender]
        if numbers != sorted(numbers):
            wrong.append(f"sender {sender}: {numbers}")
    return wrong


async def _opened(ref: ActorRef[Any]) -> bool:
    """Whether the door is open, and all that was told it before is handled."""
    try:
        return bool(await ref.ask(Go(open=True))) and not ref.statistics().stashed
    except ActorDead:
        return False
