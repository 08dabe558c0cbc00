"""The kernel rows on asyncio: a task, a Queue, a Future for the answer."""

from __future__ import annotations

import asyncio

from bench.clock import Watch, resident

_Question = tuple[int, asyncio.Future[int]]


def tell(count: int) -> float:
    return asyncio.run(_tell(count))


async def _tell(count: int) -> float:
    queue: asyncio.Queue[int] = asyncio.Queue()
    seen = 0

    async def sink() -> None:
        nonlocal seen
        while number := await queue.get():
            seen += number

    task = asyncio.create_task(sink())
    watch = Watch()
    for number in range(count):
        queue.put_nowait(1)
        if number % 64 == 63:
            await asyncio.sleep(0)
    queue.put_nowait(0)
    await task
    return watch.rate(count)


def ask(count: int) -> float:
    return asyncio.run(_ask(count, 1, None))


def ask_with_deadline(count: int) -> float:
    return asyncio.run(_ask(count, 1, 60.0))


def ask_100(count: int) -> float:
    return asyncio.run(_ask(count, 100, None))


async def _ask(count: int, askers: int, seconds: float | None) -> float:
    queue: asyncio.Queue[_Question] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def echo() -> None:
        while True:
            number, answer = await queue.get()
            answer.set_result(number)

    async def asker() -> None:
        for _ in range(count // askers):
            answer: asyncio.Future[int] = loop.create_future()
            queue.put_nowait((1, answer))
            if seconds is None:
                await answer
            else:
                async with asyncio.timeout(seconds):
                    await answer

    task = asyncio.create_task(echo())
    watch = Watch()
    async with asyncio.TaskGroup() as group:
        for _ in range(askers):
            group.create_task(asker())
    rate = watch.rate(count // askers * askers)
    task.cancel()
    return rate


def ring(count: int) -> float:
    return asyncio.run(_ring(count))


async def _ring(count: int) -> float:
    queues: list[asyncio.Queue[int]] = [asyncio.Queue() for _ in range(100)]
    done = asyncio.Event()

    async def link(place: int) -> None:
        while True:
            hops = await queues[place].get()
            if hops:
                queues[(place + 1) % 100].put_nowait(hops - 1)
            else:
                done.set()

    tasks = [asyncio.create_task(link(place)) for place in range(100)]
    await asyncio.sleep(0)
    watch = Watch()
    queues[0].put_nowait(count)
    await done.wait()
    rate = watch.rate(count)
    for task in tasks:
        task.cancel()
    return rate


async def _actor(queue: asyncio.Queue[int]) -> None:
    while await queue.get():
        pass


def start_stop(count: int) -> float:
    return asyncio.run(_start_stop(count))


async def _start_stop(count: int) -> float:
    watch = Watch()
    for _ in range(count):
        task = asyncio.create_task(_actor(asyncio.Queue()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    return watch.seconds() / count * 1e6


def idle(count: int) -> float:
    return asyncio.run(_idle(count))


async def _idle(count: int) -> float:
    before = resident()
    tasks = [asyncio.create_task(_actor(asyncio.Queue())) for _ in range(count)]
    await asyncio.sleep(0)
    kilobytes = (resident() - before) / count / 1000
    for task in tasks:
        task.cancel()
    return kilobytes


def stop_running(count: int) -> float:
    return asyncio.run(_stop_running(count))


async def _stop_running(count: int) -> float:
    tasks = [asyncio.create_task(asyncio.sleep(3600)) for _ in range(count)]
    await asyncio.sleep(0)
    watch = Watch()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return watch.seconds() * 1000


def pool(count: int) -> float:
    return asyncio.run(_pool(count))


async def _pool(count: int) -> float:
    """Eight tasks read one queue."""
    queue: asyncio.Queue[int] = asyncio.Queue(1024)
    seen = 0

    async def worker() -> None:
        nonlocal seen
        while number := await queue.get():
            seen += number

    tasks = [asyncio.create_task(worker()) for _ in range(8)]
    watch = Watch()
    for number in range(count):
        await queue.put(1)
        if number % 64 == 63:
            await asyncio.sleep(0)
    for _ in tasks:
        await queue.put(0)
    await asyncio.wait(tasks)
    assert seen == count
    return watch.rate(count)


def topic(count: int) -> float:
    return asyncio.run(_topic(count))


async def _topic(count: int) -> float:
    """A list of queues."""
    queues: list[asyncio.Queue[int]] = [asyncio.Queue() for _ in range(100)]
    seen = 0

    async def member(queue: asyncio.Queue[int]) -> None:
        nonlocal seen
        while number := await queue.get():
            seen += number

    tasks = [asyncio.create_task(member(queue)) for queue in queues]
    await asyncio.sleep(0)
    times = max(1, count // 100)
    watch = Watch()
    for _ in range(times):
        for queue in queues:
            queue.put_nowait(1)
        await asyncio.sleep(0)
    for queue in queues:
        queue.put_nowait(0)
    await asyncio.wait(tasks)
    assert seen == times * 100
    return watch.rate(times * 100)


def machine(count: int) -> float:
    return asyncio.run(_machine(count))


async def _machine(count: int) -> float:
    """A task with a queue, and an object per state."""
    queue: asyncio.Queue[str] = asyncio.Queue(1024)
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
        while True:
            match await queue.get():
                case "turn":
                    turned += 1
                    state = await state.turn()
                case _:
                    return

    task = asyncio.create_task(turnstile())
    watch = Watch()
    for number in range(count):
        await queue.put("turn")
        if number % 64 == 63:
            await asyncio.sleep(0)
    await queue.put("end")
    await task
    assert turned == count
    return watch.rate(count)


def thread_tell(count: int) -> float:
    return asyncio.run(_thread_tell(count))


async def _thread_tell(count: int) -> float:
    """A call in the loop for each message, which nothing bounds."""
    queue: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    seen = 0

    async def sink() -> None:
        nonlocal seen
        while number := await queue.get():
            seen += number

    def tell_all() -> None:
        for _ in range(count):
            loop.call_soon_threadsafe(queue.put_nowait, 1)
        loop.call_soon_threadsafe(queue.put_nowait, 0)

    task = asyncio.create_task(sink())
    watch = Watch()
    await asyncio.to_thread(tell_all)
    await task
    assert seen == count
    return watch.rate(count)


def thread_ask(count: int) -> float:
    return asyncio.run(_thread_ask(count))


async def _thread_ask(count: int) -> float:
    queue: asyncio.Queue[_Question] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def echo() -> None:
        while True:
            number, answer = await queue.get()
            answer.set_result(number)

    async def ask() -> int:
        answer: asyncio.Future[int] = loop.create_future()
        queue.put_nowait((1, answer))
        return await answer

    def ask_all() -> None:
        for _ in range(count):
            asyncio.run_coroutine_threadsafe(ask(), loop).result()

    task = asyncio.create_task(echo())
    watch = Watch()
    await asyncio.to_thread(ask_all)
    rate = watch.rate(count)
    task.cancel()
    return rate


def crowd(count: int) -> tuple[float, float, float]:
    return asyncio.run(_crowd(count))


async def _crowd(count: int) -> tuple[float, float, float]:
    loop = asyncio.get_running_loop()

    async def echo(queue: asyncio.Queue[_Question]) -> None:
        while True:
            number, answer = await queue.get()
            answer.set_result(number)

    watch = Watch()
    queues: list[asyncio.Queue[_Question]] = []
    tasks: list[asyncio.Task[None]] = []
    for _ in range(count):
        queue: asyncio.Queue[_Question] = asyncio.Queue()
        queues.append(queue)
        tasks.append(asyncio.create_task(echo(queue)))
        await asyncio.sleep(0)
    start = watch.seconds()
    watch = Watch()
    for _ in range(3):
        for queue in queues:
            answer: asyncio.Future[int] = loop.create_future()
            queue.put_nowait((1, answer))
            await answer
    ask = watch.seconds() / 3
    watch = Watch()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return ask / count * 1e6, start / count * 1e6, watch.seconds() / count * 1e6
