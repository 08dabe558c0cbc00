"""What sees an actor at work: traces switched on at run time, and the system's telemetry.

An actor that nobody observes has no :class:`Observer`, and pays one look at an attribute. Traces
belong to paths, so they outlive restarts and may begin before their actor does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
import trio

from motet.protocols.messages import Asked, Message, StreamRequest
from motet.runtime.ask import ask
from motet.runtime.feed import Feed, joined
from motet.runtime.handlers import Call
from motet.runtime.stream import ReplyStream, open_stream
from motet.runtime.telemetry import (
    ASK_SECONDS,
    FAILED,
    HANDLE_SECONDS,
    HANDLED,
    RESTARTS,
    Meter,
    SpanKind,
)
from motet.runtime.waits import current_work

if TYPE_CHECKING:
    from motet.runtime.cell import Cell
    from motet.runtime.system import System

__all__ = [
    "Observer",
    "TraceEvent",
    "TraceKind",
    "asking",
    "observed_ask",
    "observed_stream",
    "tracing",
]

R = TypeVar("R")
T = TypeVar("T")

TraceKind = Literal["received", "handled", "failed", "asked", "settled", "restarted"]


class TraceEvent(msgspec.Struct, frozen=True):
    """One step of a traced actor, at ``at`` on Trio's clock.

    ``received``: its handler begins; then ``handled`` or ``failed``. ``asked`` and ``settled``: the
    actor asks the one at ``peer``, and has the outcome. ``detail``: the error, if there is one.
    """

    at: float
    kind: TraceKind
    path: str
    message: Message | None = None
    peer: str | None = None
    detail: str = ""


class Observer:
    """The observers of one actor."""

    __slots__ = ("_path", "_system")

    def __init__(self, system: System, path: str) -> None:
        self._system = system
        self._path = path

    @contextmanager
    def handling(self, message: Message, context: str | None) -> Generator[None]:
        """Around the handler of ``message``, whose sender was in ``context``."""
        _emit(self._system, "received", self._path, message)
        began = trio.current_time()
        failed: BaseException | None = None
        try:
            with _span(self._system, "handle", self._path, message, context):
                yield
        except BaseException as error:
            failed = error
            raise
        finally:
            outcome: TraceKind = "handled" if failed is None else "failed"
            _emit(self._system, outcome, self._path, message, detail=_detail(failed))
            meter = self._system.meter
            if meter is not None:
                meter.count(HANDLED if failed is None else FAILED, self._path)
                meter.record(HANDLE_SECONDS, self._path, trio.current_time() - began)

    def choose(self, calls: Mapping[type, Call]) -> Mapping[type, Call]:
        """Those of ``calls`` that can be called with a told message and nothing around it."""
        meter = self._system.meter
        if meter is None or self._system.tracer is not None or self._path in self._system.traces:
            return {}
        return {kind: self._timed(call, meter) for kind, call in calls.items()}

    def _timed(self, call: Call, meter: Meter) -> Call:
        """As :meth:`handling` if all that is wanted are times, at a fifth of its cost."""
        path = self._path

        async def timed(actor: object, message: object) -> None:
            began = trio.current_time()
            done = False
            try:
                await call(actor, message)
                done = True
            finally:
                meter.count(HANDLED if done else FAILED, path)
                meter.record(HANDLE_SECONDS, path, trio.current_time() - began)

        return timed

    def restarted(self) -> None:
        """Another incarnation begins."""
        _emit(self._system, "restarted", self._path)
        if self._system.meter is not None:
            self._system.meter.count(RESTARTS, self._path)


@contextmanager
def asking(cell: Cell, request: Message) -> Generator[str | None]:
    """Around an ask of ``cell``; gives the context that travels with it."""
    system, work = cell.system, current_work.get()
    asker = work.path if work is not None else None
    _emit(system, "asked", asker, request, peer=cell.path)
    began = trio.current_time()
    failed: BaseException | None = None
    try:
        with _span(system, "ask", cell.path, request, None) as context:
            yield context
    except BaseException as error:
        failed = error
        raise
    finally:
        _emit(system, "settled", asker, request, peer=cell.path, detail=_detail(failed))
        if system.meter is not None:
            system.meter.record(ASK_SECONDS, cell.path, trio.current_time() - began)


async def observed_ask(
    cell: Cell,
    request: Asked[Any, R],
    seconds: float | None,
    take: Callable[[Any], object] | None = None,
) -> R:
    """As :func:`ask`, with a span and a trace around it."""
    with asking(cell, request) as context:  # type: ignore[arg-type]  # only a request is `Asked`
        return await ask(cell, request, seconds, context, take)


@asynccontextmanager
async def observed_stream(
    cell: Cell, request: StreamRequest[T, R]
) -> AsyncGenerator[ReplyStream[T, R]]:
    """As :func:`open_stream`, with a span and a trace around it."""
    with asking(cell, request) as context:
        target = cell.work_for(type(request))
        async with open_stream(cell.mailbox, request, target, context) as items:
            yield items


@contextmanager
def tracing(system: System, path: str, buffer: int) -> Generator[Feed[TraceEvent]]:
    """Trace what happens at ``path`` while the block lasts."""
    feeds = system.traces.setdefault(path, [])
    try:
        with joined(feeds, buffer) as feed:
            system.observe(path)
            yield feed
    finally:
        if not feeds and system.traces.get(path) is feeds:
            del system.traces[path]
        system.observe(path)


def _emit(
    system: System,
    kind: TraceKind,
    path: str | None,
    message: Message | None = None,
    *,
    peer: str | None = None,
    detail: str = "",
) -> None:
    feeds = system.traces.get(path) if path is not None else None
    if path is None or not feeds:
        return
    event = TraceEvent(trio.current_time(), kind, path, message, peer, detail)
    for feed in feeds:
        feed.publish(event)


def _span(
    system: System, kind: SpanKind, path: str, message: Message, parent: str | None
) -> AbstractContextManager[str | None]:
    if system.tracer is None:
        return nullcontext()
    return system.tracer.span(kind, path, type(message), parent)


def _detail(error: BaseException | None) -> str:
    if error is None:
        return ""
    return "cancelled" if isinstance(error, trio.Cancelled) else repr(error)
