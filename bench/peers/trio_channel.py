"""The kernel rows on bare Trio: a task, a memory channel, an Event for the answer."""

from __future__ import annotations

import math

import trio

from bench.clock import Watch, resident


def tell(count: int) -> float:
    return trio.run(_tell, count)


async def _tell(count: int) -> float:
    send, receive = trio.open_memory_channel[int](1024)
    seen = 0

    async def sink() -> None:
        nonlocal seen
        async for number in receive:
            seen += number

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sink)
        watch = Watch()
        for number in range(count):
            send.send_nowait(1)
            if number % 64 == 63:
                await trio.lowlevel.checkpoint()
                while send.statistics().current_buffer_used > 900:
                    await trio.lowlevel.checkpoint()
        send.close()
    return watch.rate(count)


class _Question:
    """A request in the plainest Trio: an event and a place for the answer."""

    __slots__ = ("answer", "answered", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.answered = trio.Event()
        self.answer = 0


def ask(count: int) -> float:
    return trio.run(_ask, count, 1)


def ask_100(count: int) -> float:
    return trio.run(_ask, count, 100)


async def _ask(count: int, askers: int) -> float:
    send, receive = trio.open_memory_channel[_Question](1024)

    async def echo() -> None:
        async for question in receive:
            question.answer = question.number
            question.answered.set()

    async def asker() -> None:
        for _ in range(count // askers):
            question = _Question(1)
            send.send_nowait(question)
            await question.answered.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(echo)
        watch = Watch()
        async with trio.open_nursery() as asking:
            for _ in range(askers):
                asking.start_soon(asker)
        rate = watch.rate(count // askers * askers)
        send.close()
    return rate


def ring(count: int) -> float:
    return trio.run(_ring, count)


async def _ring(count: int) -> float:
    channels = [trio.open_memory_channel[int](1024) for _ in range(100)]
    done = trio.Event()

    async def link(place: int) -> None:
        send = channels[(place + 1) % 100][0]
        async for hops in channels[place][1]:
            if hops:
                send.send_nowait(hops - 1)
            else:
                done.set()

    async with trio.open_nursery() as nursery:
        for place in range(100):
            nursery.start_soon(link, place)
        watch = Watch()
        channels[0][0].send_nowait(count)
        await done.wait()
        rate = watch.rate(count)
        nursery.cancel_scope.cancel()
    return rate


async def _actor(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    """What an actor is made of: a task with a nursery, a scope and a channel."""
    _, receive = trio.open_memory_channel[int](1024)
    async with trio.open_nursery() as own:
        with trio.CancelScope():
            task_status.started(own.cancel_scope)
            await receive.receive()


def start_stop(count: int) -> float:
    return trio.run(_start_stop, count)


async def _start_stop(count: int) -> float:
    async with trio.open_nursery() as nursery:
        watch = Watch()
        for _ in range(count):
            scope = await nursery.start(_actor)
            scope.cancel()
            while nursery.child_tasks:
                await trio.lowlevel.checkpoint()
        return watch.seconds() / count * 1e6


def idle(count: int) -> float:
    return trio.run(_idle, count)


async def _idle(count: int) -> float:
    async with trio.open_nursery() as nursery:
        before = resident()
        for _ in range(count):
            await nursery.start(_actor)
        kilobytes = (resident() - before) / count / 1000
        nursery.cancel_scope.cancel()
    return kilobytes


def stop_running(count: int) -> float:
    return trio.run(_stop_running, count)


async def _stop_running(count: int) -> float:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(trio.sleep_forever)
        await trio.lowlevel.checkpoint()
        watch = Watch()
        nursery.cancel_scope.cancel()
    return watch.seconds() * 1000


def pool(count: int) -> float:
    return trio.run(_pool, count)


async def _pool(count: int) -> float:
    """Eight tasks read one channel."""
    send, receive = trio.open_memory_channel[int](1024)
    seen = 0

    async def worker() -> None:
        nonlocal seen
        async for number in receive:
            seen += number

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(worker)
        watch = Watch()
        for number in range(count):
            await send.send(1)
            if number % 64 == 63:
                await trio.lowlevel.checkpoint()
        send.close()
    assert seen == count
    return watch.rate(count)


def topic(count: int) -> float:
    return trio.run(_topic, count)


async def _topic(count: int) -> float:
    """A list of channels."""
    channels = [trio.open_memory_channel[int](1024) for _ in range(100)]
    seen = 0

    async def member(receive: trio.MemoryReceiveChannel[int]) -> None:
        nonlocal seen
        async for number in receive:
            seen += number

    times = max(1, count // 100)
    async with trio.open_nursery() as nursery:
        for _, receive in channels:
            nursery.start_soon(member, receive)
        await trio.lowlevel.checkpoint()
        watch = Watch()
        for _ in range(times):
            for send, _ in channels:
                send.send_nowait(1)
            await trio.lowlevel.checkpoint()
        for send, _ in channels:
            send.close()
    assert seen == times * 100
    return watch.rate(times * 100)


def machine(count: int) -> float:
    return trio.run(_machine, count)


async def _machine(count: int) -> float:
    """A task with a channel, and an object per state."""
    send, receive = trio.open_memory_channel[str](1024)
    turned = 0

    class Locked:
        async def turn(self) -> Locked | Unlocked:
            return Unlocked()

    class Unlocked:
        async def turn(self) -> Locked | Unlocked:
            return Locked()

    async def turnstile() -> None:
        nonlocal turned
        state: Locked | Unlocked = Locked()
        async for message in receive:
            match message:
                case "turn":
                    turned += 1
                    state = await state.turn()
                case _:
                    raise AssertionError(message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turnstile)
        watch = Watch()
        for number in range(count):
            await send.send("turn")
            if number % 64 == 63:
                await trio.lowlevel.checkpoint()
        send.close()
    assert turned == count
    return watch.rate(count)


def thread_tell(count: int) -> float:
    return trio.run(_thread_tell, count)


async def _thread_tell(count: int) -> float:
    """A call in the loop for each message, which nothing bounds."""
    send, receive = trio.open_memory_channel[int](math.inf)
    token = trio.lowlevel.current_trio_token()
    seen = 0

    async def sink() -> None:
        nonlocal seen
        async for number in receive:
            seen += number

    def tell_all() -> None:
        for _ in range(count):
            token.run_sync_soon(send.send_nowait, 1)
        token.run_sync_soon(send.close)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sink)
        watch = Watch()
        await trio.to_thread.run_sync(tell_all)
    assert seen == count
    return watch.rate(count)


def thread_ask(count: int) -> float:
    return trio.run(_thread_ask, count)


async def _thread_ask(count: int) -> float:
    send, receive = trio.open_memory_channel[_Question](1024)

    async def echo() -> None:
        async for question in receive:
            question.answer = question.number
            question.answered.set()

    async def ask() -> int:
        question = _Question(1)
        send.send_nowait(question)
        await question.answered.wait()
        return question.answer

    def ask_all() -> None:
        for _ in range(count):
            trio.from_thread.run(ask)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(echo)
        watch = Watch()
        await trio.to_thread.run_sync(ask_all)
        rate = watch.rate(count)
        send.close()
    return rate


async def _echo(
    receive: trio.MemoryReceiveChannel[_Question],
    task_status: trio.TaskStatus[trio.CancelScope],
) -> None:
    """As :func:`_actor`, with answers."""
    async with trio.open_nursery() as own:
        with trio.CancelScope():
            task_status.started(own.cancel_scope)
            async for question in receive:
                question.answer = question.number
                question.answered.set()


def crowd(count: int) -> tuple[float, float, float]:
    return trio.run(_crowd, count)


async def _crowd(count: int) -> tuple[float, float, float]:
    sends: list[trio.MemorySendChannel[_Question]] = []
    async with trio.open_nursery() as nursery:
        watch = Watch()
        for _ in range(count):
            send, receive = trio.open_memory_channel[_Question](1024)
            sends.append(send)
            await nursery.start(_echo, receive)
        start = watch.seconds()
        watch = Watch()
        for _ in range(3):
            for send in sends:
                question = _Question(1)
                send.send_nowait(question)
                await question.answered.wait()
        ask = watch.seconds() / 3
        watch = Watch()
        nursery.cancel_scope.cancel()
    return ask / count * 1e6, start / count * 1e6, watch.seconds() / count * 1e6
