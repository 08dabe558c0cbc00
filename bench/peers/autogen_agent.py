"""The kernel rows on autogen-core's SingleThreadedAgentRuntime: publish for tell, send for ask."""

# The package is there only where peers are measured, so the checkers do not know its types.
# mypy: disable-error-code="misc,import-not-found,import-untyped,no-untyped-call,no-any-return"
# mypy: disable-error-code="untyped-decorator,type-var,unused-ignore"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from autogen_core import (
    AgentId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    TopicId,
    TypeSubscription,
    message_handler,
)

from bench.clock import Watch, resident


@dataclass
class Number:
    """The one message."""

    value: int


class Sink(RoutedAgent):
    """Counts what it sees, and gives it back."""

    seen = 0

    def __init__(self) -> None:
        super().__init__("sink")

    @message_handler
    async def on_number(self, message: Number, ctx: MessageContext) -> Number:  # noqa: ARG002
        Sink.seen += 1
        return message


async def _runtime() -> SingleThreadedAgentRuntime:
    runtime = SingleThreadedAgentRuntime()
    await Sink.register(runtime, "sink", Sink)
    await runtime.add_subscription(TypeSubscription("notes", "sink"))
    runtime.start()
    return runtime


def tell(count: int) -> float:
    return asyncio.run(_tell(count))


async def _tell(count: int) -> float:
    runtime = await _runtime()
    Sink.seen = 0
    watch = Watch()
    for number in range(count):
        await runtime.publish_message(Number(1), TopicId("notes", "one"))
        if number % 64 == 63:
            await asyncio.sleep(0)
    while Sink.seen < count:
        await asyncio.sleep(0.0005)
    rate = watch.rate(count)
    await runtime.stop_when_idle()
    return rate


def ask(count: int) -> float:
    return asyncio.run(_ask(count, 1))


def ask_100(count: int) -> float:
    return asyncio.run(_ask(count, 100))


async def _ask(count: int, askers: int) -> float:
    runtime = await _runtime()

    async def asker() -> None:
        for _ in range(count // askers):
            await runtime.send_message(Number(1), AgentId("sink", "one"))

    watch = Watch()
    await asyncio.gather(*[asker() for _ in range(askers)])
    rate = watch.rate(count // askers * askers)
    await runtime.stop_when_idle()
    return rate


class Link(RoutedAgent):
    """Passes the token on by publishing it to its neighbour's topic."""

    done: asyncio.Event

    def __init__(self) -> None:
        super().__init__("link")

    @message_handler
    async def on_number(self, message: Number, ctx: MessageContext) -> None:  # noqa: ARG002
        if message.value:
            following = TopicId("ring", str((int(self.id.key) + 1) % 100))
            await self.publish_message(Number(message.value - 1), following)
        else:
            Link.done.set()


def ring(count: int) -> float:
    return asyncio.run(_ring(count))


async def _ring(count: int) -> float:
    Link.done = asyncio.Event()
    runtime = SingleThreadedAgentRuntime()
    await Link.register(runtime, "link", Link)
    await runtime.add_subscription(TypeSubscription("ring", "link"))
    runtime.start()
    watch = Watch()
    await runtime.publish_message(Number(count), TopicId("ring", "0"))
    await Link.done.wait()
    rate = watch.rate(count)
    await runtime.stop_when_idle()
    return rate


def idle(count: int) -> float:
    return asyncio.run(_idle(count))


async def _idle(count: int) -> float:
    runtime = await _runtime()
    before = resident()
    for number in range(count):
        await runtime.send_message(Number(1), AgentId("sink", str(number)))
    kilobytes = (resident() - before) / count / 1000
    await runtime.stop_when_idle()
    return kilobytes


def topic(count: int) -> float:
    return asyncio.run(_topic(count))


async def _topic(count: int) -> float:
    """A hundred kinds of agents subscribe to a topic: one kind has one agent for each source."""
    runtime = SingleThreadedAgentRuntime()
    for number in range(100):
        await Sink.register(runtime, f"sink{number}", Sink)
        await runtime.add_subscription(TypeSubscription("notes", f"sink{number}"))
    runtime.start()
    Sink.seen = 0
    times = max(1, count // 100)
    watch = Watch()
    for _ in range(times):
        await runtime.publish_message(Number(1), TopicId("notes", "one"))
        await asyncio.sleep(0)
    while Sink.seen < times * 100:
        await asyncio.sleep(0.0005)
    rate = watch.rate(times * 100)
    await runtime.stop_when_idle()
    return rate


def crowd(count: int) -> tuple[float, float, float]:
    return asyncio.run(_crowd(count))


async def _crowd(count: int) -> tuple[float, float, float]:
    """An agent is made by its first message, has no task, and ends with its runtime."""
    runtime = await _runtime()
    watch = Watch()
    for number in range(count):
        await runtime.send_message(Number(1), AgentId("sink", str(number)))
    start = watch.seconds()
    watch = Watch()
    for _ in range(3):
        for number in range(count):
            await runtime.send_message(Number(1), AgentId("sink", str(number)))
    ask = watch.seconds() / 3
    watch = Watch()
    await runtime.stop_when_idle()
    await runtime.close()
    return ask / count * 1e6, start / count * 1e6, watch.seconds() / count * 1e6
