"""Timers of an actor: they fire on Trio's clock, and end with their incarnation."""

from __future__ import annotations

from math import nan

import pytest
import trio
from trio.testing import MockClock

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    MailboxSpec,
    MotetRuntimeError,
    NotInProtocol,
    ScheduledMessage,
    handles,
    open_system,
)


class Tick(Message, frozen=True, tag="tick"):
    name: str


class Crash(Message, frozen=True, tag="crash"):
    pass


class Pending(Request[int], frozen=True, tag="pending"):
    pass


class Foreign(Message, frozen=True, tag="foreign"):
    pass


class Clockwork(Actor[Tick | Crash | Pending]):
    mailbox = MailboxSpec(capacity=2)

    def __init__(self, log: list[str], busy: float = 0) -> None:
        self.log = log
        self.busy = busy
        self.beat: ScheduledMessage | None = None

    async def on_start(self) -> None:
        self.timers.once(5, Tick("once"))
        self.beat = self.timers.every(2, Tick("beat"))

    @handles(Tick)
    async def tick(self, message: Tick) -> None:
        self.log.append(f"{message.name} {trio.current_time():g}")
        if self.log.count(f"{message.name} 6"):
            assert self.beat is not None
            self.beat.cancel()
        await trio.sleep(self.busy)

    @handles(Crash)
    async def crash(self, message: Crash) -> None:
        raise RuntimeError("broken")

    @handles(Pending)
    async def pending(self, request: Pending) -> int:
        return len(self.timers)


async def test_once_fires_once_and_every_fires_until_it_is_cancelled(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    log: list[str] = []
    began = trio.current_time()
    assert began == 0
    async with open_system() as system:
        ref = await system.start(lambda: Clockwork(log), name="clockwork")
        assert await ref.ask(Pending()) == 2
        await trio.sleep(20)
        assert log == ["beat 2", "beat 4", "once 5", "beat 6"]
        assert await ref.ask(Pending()) == 0
        assert len(system.timers) == 0


async def test_timers_end_with_their_incarnation(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    log: list[str] = []
    async with open_system() as system:
        ref = await system.start(lambda: Clockwork(log), name="clockwork")
        await trio.sleep(1)
        await ref.tell(Crash())
        await trio.sleep(3.5)
        assert log == ["beat 3"]  # of the second incarnation only: not 2, not 4
        await ref.stop()
        await trio.sleep(20)
        assert log == ["beat 3"]
        assert len(system.dead_letters) == 1


async def test_a_timer_message_that_finds_the_mailbox_full_becomes_a_dead_letter(
    mock_clock: MockClock,
) -> None:
    mock_clock.autojump_threshold = 0
    async with open_system() as system:
        ref = await system.start(lambda: Clockwork([], busy=100), name="clockwork")
        await trio.sleep(9)  # beats at 2 (handled), 4, once 5 (queued), 6, 8
        seen = ref.statistics()
        assert (seen.accepted, seen.queued, seen.running, seen.dead_lettered) == (5, 2, 1, 2)
        assert "timer" in system.dead_letters.last[0].reason
        await ref.stop(grace=0)


async def test_periods_that_a_blocked_program_missed_are_left_out(mock_clock: MockClock) -> None:
    log: list[str] = []
    async with open_system() as system:
        await system.start(lambda: Clockwork(log), name="clockwork")
        mock_clock.jump(9)
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["beat 9", "once 9"]
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["beat 9", "once 9", "beat 10"]


async def test_an_impossible_timer_is_refused_at_once() -> None:
    class Careless(Actor[Tick]):
        def __init__(self) -> None:
            with pytest.raises(MotetRuntimeError, match="not in a system"):
                self.timers.once(1, Tick("x"))

        async def on_start(self) -> None:
            with pytest.raises(NotInProtocol):
                self.timers.once(1, Foreign())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            with pytest.raises(ValueError, match="delay"):
                self.timers.once(-1, Tick("x"))
            with pytest.raises(ValueError, match="period"):
                self.timers.every(0, Tick("x"))
            with pytest.raises(ValueError, match="period"):
                self.timers.every(nan, Tick("x"))

        async def on_stop(self) -> None:
            with pytest.raises(MotetRuntimeError, match="ending"):
                self.timers.once(1, Tick("x"))

        @handles(Tick)
        async def tick(self, message: Tick) -> None: ...

    async with open_system() as system:
        await system.start(Careless, name="careless")
        report = await system.stop()
        assert report.complete
