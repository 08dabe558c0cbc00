"""Traces, telemetry, and the feed of dead letters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import pytest
import trio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.errors import MissingExtra
from motet.protocols.messages import Message, Request, StreamRequest
from motet.runtime import Actor, ActorRef, Replies, System, TraceEvent, handles, open_system
from motet.runtime.feed import Feed
from motet.runtime.otel import OpenTelemetry
from motet.runtime.telemetry import SpanKind
from tests.stray import Panic


class Add(Message, frozen=True, tag="add"):
    amount: int


class Total(Request[int], frozen=True, tag="total"):
    pass


class Count(StreamRequest[int, str], frozen=True, tag="count"):
    pass


class Counter(Actor[Add | Total | Count]):
    def __init__(self) -> None:
        self.total = 0

    @handles(Add)
    async def add(self, message: Add) -> None:
        if message.amount < 0:
            raise ValueError("negative")
        self.total += message.amount

    @handles(Total)
    async def report(self, request: Total) -> int:
        await trio.sleep(1)
        return self.total

    @handles(Count)
    async def count(self, request: Count, replies: Replies[int]) -> str:
        await replies.send(1)
        return "done"


class Relay(Actor[Add | Total]):
    def __init__(self, counter: ActorRef[Add | Total | Count]) -> None:
        self.counter = counter

    @handles(Add)
    async def add(self, message: Add) -> None:
        await self.counter.tell(message)

    @handles(Total)
    async def report(self, request: Total) -> int:
        return await self.counter.ask(request)


def _read(events: Feed[TraceEvent]) -> list[str]:
    found: list[str] = []
    while True:
        try:
            event = events.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel):
            return found
        name = type(event.message).__name__ if event.message is not None else ""
        found.append(f"{event.kind} {name} {event.peer or ''} {event.detail}".strip())


@asynccontextmanager
async def _two(system: System) -> AsyncGenerator[ActorRef[Add | Total]]:
    counter = await system.start(Counter, name="counter")
    yield await system.start(lambda: Relay(counter), name="relay")


async def test_a_trace_shows_messages_asks_failures_and_restarts(
    autojump_clock: MockClock,
) -> None:
    async with open_system("s") as system, _two(system) as relay:
        await relay.tell(Add(1))
        await wait_all_tasks_blocked()
        with system.trace("/s/relay") as outer, system.trace("/s/counter") as inner:
            assert await relay.ask(Total()) == 1
            await relay.tell(Add(-1))
            await wait_all_tasks_blocked()
            assert _read(outer) == [
                "received Total",
                "asked Total /s/counter",
                "settled Total /s/counter",
                "handled Total",
                "received Add",
                "handled Add",
            ]
            assert _read(inner) == [
                "received Total",
                "handled Total",
                "received Add",
                "failed Add  ValueError('negative')",
                "restarted",
            ]
        await relay.tell(Add(1))
        assert not system.observing
        assert _read(inner) == []


async def test_an_unread_trace_blocks_no_actor_and_counts_missed_events() -> None:
    async with open_system("s") as system:
        counter = await system.start(Counter, name="counter")
        with system.trace("/s/counter", buffer=3) as events:
            for _ in range(5):
                await counter.tell(Add(1))
            await wait_all_tasks_blocked()
            assert len(_read(events)) == 3
            assert events.missed == 7
        assert counter.statistics().handled == 5


async def test_a_trace_may_begin_before_its_actor_and_ends_with_its_block() -> None:
    async with open_system("s") as system:
        with system.trace("/s/counter") as events:
            counter = await system.start(Counter, name="counter")
            await counter.tell(Add(1))
            await wait_all_tasks_blocked()
        assert [event.kind async for event in events] == ["received", "handled"]


async def test_a_trace_shows_that_a_handler_was_cancelled(autojump_clock: MockClock) -> None:
    async with open_system("s") as system:
        counter = await system.start(Counter, name="counter")
        with system.trace("/s/counter") as events:
            with trio.move_on_after(0.5):
                await counter.ask(Total())
            assert _read(events) == ["received Total", "failed Total  cancelled"]


async def test_dead_letters_can_be_followed() -> None:
    async with open_system("s") as system:
        counter = await system.start(Counter, name="counter")
        with system.dead_letters.follow(buffer=1) as letters:
            await counter.tell(Add(-1))
            await counter.tell(Add(-2))
            await wait_all_tasks_blocked()
            assert letters.receive_nowait().message == Add(-1)
            assert letters.missed == 1


async def test_a_feed_that_is_used_before_its_block_says_what_to_write() -> None:
    async with open_system("s") as system:
        block: Any
        for block in (
            system.dead_letters.follow(),
            system.restarts.follow(),
            system.trace("/s/counter"),
        ):
            with pytest.raises(TypeError, match=r"use `with \.\.\. as feed:`, and `async for item"):
                async for _ in block:
                    pass
            with pytest.raises(TypeError, match=r"use `with \.\.\. as feed:`"):
                await block
            with pytest.raises(TypeError, match=r"opened by a plain `with`"):
                async with block:
                    pass
            with pytest.raises(AttributeError, match=r"has no 'missed' before its block"):
                _ = block.missed
            with block as feed:  # it is still good
                assert feed.missed == 0


# ---------------------------------------------------------------------- telemetry

_current: ContextVar[str | None] = ContextVar("current", default=None)


class Meters:
    """A meter without spans."""

    def __init__(self) -> None:
        self.counts: list[str] = []
        self.records: list[str] = []

    def count(self, name: str, path: str) -> None:
        self.counts.append(f"{name} {path}")

    def record(self, name: str, path: str, value: float) -> None:
        self.records.append(f"{name} {path} {value:g}")


class Recorder(Meters):
    """Telemetry without a library: contexts are the numbers of spans."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[str] = []

    @contextmanager
    def span(
        self, kind: SpanKind, path: str, message: type[Message], parent: str | None
    ) -> Generator[str | None]:
        own = str(len(self.spans))
        self.spans.append(f"{own}: {kind} {message.__name__} {path} < {parent or _current.get()}")
        token = _current.set(own)
        try:
            yield own
        finally:
            _current.reset(token)

    def context(self) -> str | None:
        return _current.get()


async def test_contexts_travel_with_asks_and_tells(autojump_clock: MockClock) -> None:
    seen = Recorder()
    async with open_system("s", telemetry=seen) as system, _two(system) as relay:
        await relay.tell(Add(1))
        await wait_all_tasks_blocked()
        await relay.ask(Total())
        assert seen.spans == [
            "0: handle Add /s/relay < None",
            "1: handle Add /s/counter < 0",
            "2: ask Total /s/relay < None",
            "3: handle Total /s/relay < 2",
            "4: ask Total /s/counter < 3",
            "5: handle Total /s/counter < 4",
        ]
        assert "motet.handle.seconds /s/counter 1" in seen.records
        assert "motet.ask.seconds /s/relay 1" in seen.records


async def test_failures_dead_letters_and_restarts_are_counted() -> None:
    seen = Recorder()
    async with open_system("s", telemetry=seen) as system:
        counter = await system.start(Counter, name="counter")
        await counter.tell(Add(1))
        await counter.tell(Add(-1))
        await wait_all_tasks_blocked()
        assert seen.counts == [
            "motet.handled /s/counter",
            "motet.failed /s/counter",
            "motet.dead_letters /s/counter",
            "motet.restarts /s/counter",
        ]


@pytest.mark.parametrize("kind", [Meters, Recorder])
async def test_a_meter_gets_the_same_figures_with_spans_and_without(
    kind: type[Meters], autojump_clock: MockClock
) -> None:
    seen = kind()
    async with open_system("s", telemetry=seen) as system, _two(system) as relay:
        await relay.tell(Add(1))
        await wait_all_tasks_blocked()
        await relay.ask(Total())
        await relay.tell(Add(-1))
        await wait_all_tasks_blocked()
    both = ["motet.handled /s/counter", "motet.handled /s/relay"]
    assert sorted(seen.counts) == [
        "motet.dead_letters /s/counter",
        "motet.failed /s/counter",
        *[both[0]] * 2,
        *[both[1]] * 3,
        "motet.restarts /s/counter",
    ]
    times = [line.rpartition(" ")[2] for line in seen.records]
    assert times.count("1") == 4  # the two asks and their handlers
    assert len(times) == 8


class Broken(Recorder):
    """Raises in the call of that number, whichever method it is, in and at the end of spans too."""

    def __init__(self, number: int, error: BaseException) -> None:
        super().__init__()
        self.calls = 0
        self.number = number
        self.error = error
        self.open = 0
        self.after: list[str] = []

    def _call(self, what: str) -> None:
        if self.calls > self.number:
            self.after.append(what)
        self.calls += 1
        if self.calls == self.number + 1:
            raise self.error

    def count(self, name: str, path: str) -> None:
        self._call("count")

    def record(self, name: str, path: str, value: float) -> None:
        self._call("record")

    @contextmanager
    def span(
        self, kind: SpanKind, path: str, message: type[Message], parent: str | None
    ) -> Generator[str | None]:
        self._call("span")
        self.open += 1
        try:
            with super().span(kind, path, message, parent) as own:
                yield own
        finally:
            self.open -= 1
            self._call("leave")

    def context(self) -> str | None:
        self._call("context")
        return super().context()


@pytest.mark.parametrize("error", [ValueError("of a meter"), Panic("of a meter"), SystemExit(3)])
async def test_a_meter_that_raises_is_logged_once_and_used_no_more(
    error: BaseException, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: whichever of its calls raises, all else happens as without it, every span is left, and
    nothing else of it is called again."""
    number, calls = 0, 1
    while number < calls:
        seen = Broken(number, error)
        caplog.clear()
        async with open_system("s", telemetry=seen) as system, _two(system) as relay:
            await relay.tell(Add(1))
            await wait_all_tasks_blocked()
            assert await relay.ask(Total()) == 1
            await relay.tell(Add(-1))
            await wait_all_tasks_blocked()
            counter = system.find("/s/counter")
            assert counter is not None
            statistics = counter.statistics()
            assert (statistics.restarts, statistics.dead_lettered) == (1, 1)
            assert await relay.ask(Total()) == 0
        reports = [record for record in caplog.records if "telemetry" in record.message]
        assert len(reports) == 1, number
        assert "Broken" in reports[0].message
        assert seen.open == 0
        assert set(seen.after) <= {"leave"}, number
        if number == 0:  # the calls of a program whose meter never raises
            whole = Broken(1_000, error)
            async with open_system("s", telemetry=whole) as system, _two(system) as relay:
                await relay.tell(Add(1))
                await wait_all_tasks_blocked()
                await relay.ask(Total())
                await relay.tell(Add(-1))
                await wait_all_tasks_blocked()
                await relay.ask(Total())
            calls = whole.calls
            assert calls > 30
        number += 1


async def test_a_trace_is_joined_and_left_while_a_meter_counts() -> None:
    seen = Meters()
    async with open_system("s", telemetry=seen) as system:
        counter = await system.start(Counter, name="counter")
        await counter.tell(Add(1))
        await wait_all_tasks_blocked()
        with system.trace(counter.path) as events:
            await counter.tell(Add(1))
            await wait_all_tasks_blocked()
        await counter.tell(Add(1))
        await wait_all_tasks_blocked()
        assert [event.kind async for event in events] == ["received", "handled"]
    assert seen.counts == ["motet.handled /s/counter"] * 3


async def test_streams_have_spans_too() -> None:
    seen = Recorder()
    async with open_system("s", telemetry=seen) as system:
        counter = await system.start(Counter, name="counter")
        async with counter.stream(Count()) as items:
            assert [item async for item in items] == [1]
            assert items.result == "done"
        assert seen.spans == [
            "0: ask Count /s/counter < None",
            "1: handle Count /s/counter < 0",
        ]


async def test_open_telemetry_gets_one_trace_of_nested_asks(autojump_clock: MockClock) -> None:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    telemetry = OpenTelemetry(tracer_provider=tracers, meter_provider=meters)
    async with open_system("s", telemetry=telemetry) as system, _two(system) as relay:
        await relay.ask(Total())
        await relay.tell(Add(-1))
        await wait_all_tasks_blocked()
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == [
        "handle Total",
        "ask Total",
        "handle Total",
        "ask Total",
        "handle Add",
        "handle Add",
    ]
    asked, told = spans[:4], spans[4:]
    assert len({_trace_of(span) for span in asked}) == 1
    for inner, outer in pairwise(asked):
        assert inner.parent is not None
        assert outer.context is not None
        assert inner.parent.span_id == outer.context.span_id
    assert len({_trace_of(span) for span in told}) == 1
    assert [span.status.is_ok for span in told] == [True, False]
    metrics = reader.get_metrics_data()
    assert metrics is not None
    names = {m.name for r in metrics.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert names == {
        "motet.handled",
        "motet.failed",
        "motet.dead_letters",
        "motet.restarts",
        "motet.ask.seconds",
        "motet.handle.seconds",
    }


def _trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry", None)
    with pytest.raises(MissingExtra, match=r"motet\[otel\]"):
        OpenTelemetry()
