"""What the kernel costs, next to bare Trio doing the least that could be called the same.

Rounds are interleaved, so that a slow second hits every row; medians are printed. Compare the
ratios: absolute figures drift with the machine.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version

import msgspec
import trio

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, handles, open_system

__all__ = ["ROWS", "Report", "Result", "Row", "run"]


class Note(Message, frozen=True, tag="bench.note"):
    number: int


class Echo(Request[int], frozen=True, tag="bench.echo"):
    number: int


class Sink(Actor[Note | Echo]):
    """Takes notes and echoes."""

    def __init__(self) -> None:
        self.seen = 0

    @handles(Note)
    async def note(self, message: Note) -> None:
        self.seen += message.number

    @handles(Echo)
    async def echo(self, request: Echo) -> int:
        return request.number


class Row(msgspec.Struct, frozen=True):
    """One kind of work, done by motet and by its peer; each returns operations per second."""

    name: str
    peer_name: str
    motet: Callable[[int], Awaitable[float]]
    peer: Callable[[int], Awaitable[float]]
    count: int


class Result(msgspec.Struct, frozen=True):
    """Medians and quartile spread of one row, in operations per second."""

    name: str
    peer_name: str
    motet: float
    peer: float
    ratio: float
    spread: float  # (largest - smallest) / median of the ratios of single rounds


class Report(msgspec.Struct, frozen=True):
    """All rows of one run and the versions they were measured with."""

    versions: dict[str, str]
    results: list[Result]


async def tell_motet(count: int) -> float:
    async with open_system() as system:
        ref = await system.start(Sink, name="sink")
        note = Note(1)
        began = time.perf_counter()
        for _ in range(count):
            await ref.tell(note)
        await ref.ask(Echo(0))
        return count / (time.perf_counter() - began)


async def tell_trio(count: int) -> float:
    send, receive = trio.open_memory_channel[Note](1024)
    seen = 0

    async def sink() -> None:
        nonlocal seen
        async for note in receive:
            seen += note.number

    note = Note(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sink)
        began = time.perf_counter()
        for _ in range(count):
            await send.send(note)
        send.close()
    return count / (time.perf_counter() - began)


async def nowait_motet(count: int) -> float:
    async with open_system() as system:
        ref = await system.start(Sink, name="sink")
        note = Note(1)
        began = time.perf_counter()
        for number in range(count):
            ref.tell_nowait(note)
            if number % 512 == 511:
                while ref.statistics().queued:
                    await trio.lowlevel.checkpoint()
        await ref.ask(Echo(0))
        return count / (time.perf_counter() - began)


async def nowait_trio(count: int) -> float:
    send, receive = trio.open_memory_channel[Note](1024)
    seen = 0

    async def sink() -> None:
        nonlocal seen
        async for note in receive:
            seen += note.number

    note = Note(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sink)
        began = time.perf_counter()
        for number in range(count):
            send.send_nowait(note)
            if number % 512 == 511:
                while send.statistics().current_buffer_used:
                    await trio.lowlevel.checkpoint()
        send.close()
    return count / (time.perf_counter() - began)


async def _ask_motet(count: int, timeout: float | None) -> float:
    async with open_system() as system:
        ref = await system.start(Sink, name="sink")
        echo = Echo(1)
        began = time.perf_counter()
        for _ in range(count):
            await ref.ask(echo, timeout=timeout)
        return count / (time.perf_counter() - began)


async def ask_motet(count: int) -> float:
    return await _ask_motet(count, None)


async def ask_timeout_motet(count: int) -> float:
    return await _ask_motet(count, 10.0)


class _Question:
    """A request in the plainest Trio: an event and a place for the answer."""

    __slots__ = ("answer", "answered", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.answered = trio.Event()
        self.answer = 0


async def ask_trio(count: int) -> float:
    send, receive = trio.open_memory_channel[_Question](1024)

    async def echo() -> None:
        async for question in receive:
            question.answer = question.number
            question.answered.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(echo)
        began = time.perf_counter()
        for _ in range(count):
            question = _Question(1)
            send.send_nowait(question)
            await question.answered.wait()
        took = time.perf_counter() - began
        send.close()
    return count / took


async def many_motet(count: int) -> float:
    async with open_system() as system:
        ref = await system.start(Sink, name="sink")
        echo = Echo(1)

        async def asker() -> None:
            for _ in range(count // 100):
                await ref.ask(echo)

        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(asker)
        return count / (time.perf_counter() - began)


async def many_trio(count: int) -> float:
    send, receive = trio.open_memory_channel[_Question](1024)

    async def echo() -> None:
        async for question in receive:
            question.answer = question.number
            question.answered.set()

    async def asker() -> None:
        for _ in range(count // 100):
            question = _Question(1)
            send.send_nowait(question)
            await question.answered.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(echo)
        began = time.perf_counter()
        async with trio.open_nursery() as askers:
            for _ in range(100):
                askers.start_soon(asker)
        took = time.perf_counter() - began
        send.close()
    return count / took


async def start_motet(count: int) -> float:
    async with open_system() as system:
        began = time.perf_counter()
        for number in range(count):
            ref = await system.start(Sink, name=str(number))
            await ref.stop()
        return count / (time.perf_counter() - began)


async def start_trio(count: int) -> float:
    async def actor(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        async with trio.open_nursery() as own:
            task_status.started(own.cancel_scope)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        began = time.perf_counter()
        for _ in range(count):
            scope = await nursery.start(actor)
            scope.cancel()
            await trio.lowlevel.checkpoint()
        return count / (time.perf_counter() - began)


ROWS = (
    Row("tell", "channel send", tell_motet, tell_trio, 40_000),
    Row("tell_nowait", "channel send_nowait", nowait_motet, nowait_trio, 40_960),
    Row("ask", "channel + Event", ask_motet, ask_trio, 8_000),
    Row("ask with timeout", "channel + Event", ask_timeout_motet, ask_trio, 8_000),
    Row("ask, 100 at once", "channel + Event", many_motet, many_trio, 10_000),
    Row("start + stop", "task with nursery", start_motet, start_trio, 1_000),
)


def run(rows: tuple[Row, ...] = ROWS, rounds: int = 7) -> Report:
    """Measure ``rows`` in ``rounds`` interleaved rounds after one round of warming up."""
    figures: dict[str, list[tuple[float, float]]] = {row.name: [] for row in rows}
    for number in range(rounds + 1):
        for row in rows:
            pair = trio.run(row.motet, row.count), trio.run(row.peer, row.count)
            if number:
                figures[row.name].append(pair)
    return Report(_versions(), [_result(row, figures[row.name]) for row in rows])


def _result(row: Row, pairs: list[tuple[float, float]]) -> Result:
    ratios = [motet / peer for motet, peer in pairs]
    middle = statistics.median(ratios)
    return Result(
        row.name,
        row.peer_name,
        statistics.median(motet for motet, _ in pairs),
        statistics.median(peer for _, peer in pairs),
        middle,
        (max(ratios) - min(ratios)) / middle,
    )


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("trio", "msgspec")}
    return {"python": platform.python_version(), "platform": sys.platform, **packages}
