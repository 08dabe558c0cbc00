"""The kernel rows on pykka: a thread per actor."""

# The package is there only where peers are measured, so the checkers do not know its types.
# mypy: disable-error-code="misc,import-not-found,import-untyped,no-untyped-call,no-any-return"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import threading
from typing import Any

import pykka

from bench.clock import Watch, resident


class Sink(pykka.ThreadingActor):
    """Counts what it is told, and answers with the count."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def on_receive(self, message: Any) -> int:
        self.seen += message
        return self.seen


def tell(count: int) -> float:
    sink = Sink.start()
    watch = Watch()
    for _ in range(count):
        sink.tell(1)
    assert sink.ask(0) == count
    rate = watch.rate(count)
    sink.stop()
    return rate


def ask(count: int) -> float:
    return _ask(count, None)


def ask_with_deadline(count: int) -> float:
    return _ask(count, 60.0)


def _ask(count: int, seconds: float | None) -> float:
    sink = Sink.start()
    watch = Watch()
    for _ in range(count):
        sink.ask(1, timeout=seconds)
    rate = watch.rate(count)
    sink.stop()
    return rate


def ask_100(count: int) -> float:
    sink = Sink.start()
    watch = Watch()
    for _ in range(count // 100):
        for answer in [sink.ask(1, block=False) for _ in range(100)]:
            answer.get()
    rate = watch.rate(count // 100 * 100)
    sink.stop()
    return rate


class Link(pykka.ThreadingActor):
    """One of a ring."""

    def __init__(self, ring: list[Any], place: int, done: threading.Event) -> None:
        super().__init__()
        self.ring = ring
        self.place = place
        self.done = done

    def on_receive(self, message: Any) -> None:
        if message:
            self.ring[(self.place + 1) % len(self.ring)].tell(message - 1)
        else:
            self.done.set()


def ring(count: int) -> float:
    done = threading.Event()
    links: list[Any] = []
    for place in range(100):
        links.append(Link.start(links, place, done))
    watch = Watch()
    links[0].tell(count)
    done.wait()
    rate = watch.rate(count)
    pykka.ActorRegistry.stop_all()
    return rate


def start_stop(count: int) -> float:
    watch = Watch()
    for _ in range(count):
        Sink.start().stop()
    return watch.seconds() / count * 1e6


def idle(count: int) -> float:
    before = resident()
    sinks = [Sink.start() for _ in range(count)]
    kilobytes = (resident() - before) / len(sinks) / 1000
    pykka.ActorRegistry.stop_all()
    return kilobytes


def topic(count: int) -> float:
    """The registry tells all actors."""
    sinks = [Sink.start() for _ in range(100)]
    times = max(1, count // 100)
    watch = Watch()
    for _ in range(times):
        pykka.ActorRegistry.broadcast(1, Sink)
    assert sum(sink.ask(0) for sink in sinks) == times * 100
    rate = watch.rate(times * 100)
    pykka.ActorRegistry.stop_all()
    return rate


def thread_tell(count: int) -> float:
    return tell(count)  # each actor has a thread, so that every tell is one from another


def thread_ask(count: int) -> float:
    return ask(count)
