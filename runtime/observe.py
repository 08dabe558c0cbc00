"""Observation of actors: traces switched on at run time, and the system's telemetry.

An actor without observation has no :class:`Observer`, and pays one look at an attribute. Traces
belong to paths, so they outlive restarts and may begin before their actor does.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context

import trio

from motet.protocols.messages import Message
from motet.runtime.foreign import shown
from motet.runtime.handlers import Call
from motet.runtime.kernel import Kernel, Owner
from motet.runtime.telemetry import (
    ASK_SECONDS,
    RESTARTS,
    GuardedTelemetry,
    SpanKind,
    TraceEvent,
    TraceKind,
)
from motet.runtime.waits import current_work

__all__ = ["AskSpan", "CutOff", "Observer", "asking"]


class Observer:
    """The meter, spans and traces of one actor."""

    __slots__ = ("_kernel", "_path")

    def __init__(self, kernel: Kernel, path: str) -> None:
        self._kernel = kernel
        self._path = path

    @contextmanager
    def handling(self, message: Message, context: str | None) -> Generator[None]:
        """Around the handler of ``message``; ``context`` is the sender's trace context."""
        _emit(self._kernel, "received", self._path, message)
        began = trio.current_time()
        failed: BaseException | None = None
        try:
            with _span(self._kernel, "handle", self._path, message, context):
                yield
        except BaseException as error:
            failed = error
            raise
        finally:
            outcome: TraceKind = "handled" if failed is None else "failed"
            _emit(self._kernel, outcome, self._path, message, detail=_detail(failed))
            meter = self._kernel.meter
            if meter is not None:
                meter.handled(self._path, trio.current_time() - began, done=failed is None)

    def bare_calls(self, calls: Mapping[type, Call]) -> Mapping[type, Call]:
        """The subset of ``calls`` that a told message needs nothing around."""
        # Spans and traces need the message and a block around the handler: no bare calls. A meter
        # alone needs two readings of the clock, which fit around the bare call.
        meter = self._kernel.meter
        if meter is None or self._kernel.tracer is not None or self._path in self._kernel.traces:
            return {}
        return {kind: self._timed(call, meter) for kind, call in calls.items()}

    def _timed(self, call: Call, meter: GuardedTelemetry) -> Call:
        """As :meth:`handling` for a meter only, at a fifth of its cost."""
        path, handled = self._path, meter.handled
        now = trio.lowlevel.current_clock().current_time

        async def timed(actor: object, message: object) -> None:
            began = now()
            done = False
            try:
                await call(actor, message)
                done = True
            finally:
                handled(path, now() - began, done=done)

        return timed

    def restarted(self) -> None:
        """The actor was restarted."""
        _emit(self._kernel, "restarted", self._path)
        if self._kernel.meter is not None:
            self._kernel.meter.count(RESTARTS, self._path)


@contextmanager
def asking(kernel: Kernel, path: str, request: Message) -> Generator[str | None]:
    """Around an ask of the actor at ``path``; gives the context that travels with it."""
    work = current_work.get()
    asker = work.path if work is not None else None
    _emit(kernel, "asked", asker, request, peer=path)
    began = trio.current_time()
    failed: BaseException | None = None
    try:
        with _span(kernel, "ask", path, request, None) as context:
            yield context
    except BaseException as error:
        failed = error
        raise
    finally:
        _emit(kernel, "settled", asker, request, peer=path, detail=_detail(failed))
        if kernel.meter is not None:
            kernel.meter.record(ASK_SECONDS, path, trio.current_time() - began)


class AskSpan:
    """The span and the trace of one ask.

    In a copy of the context: spans of asks overlap, and a context variable can hold only one.
    """

    def __init__(self, owner: Owner, message: Message) -> None:
        self._around = asking(owner.kernel, owner.path, message)
        self._variables = copy_context()
        self.context = self._variables.run(self._around.__enter__)

    def end(self, error: BaseException | None) -> None:
        kind = None if error is None else type(error)
        self._variables.run(self._around.__exit__, kind, error, None)


class CutOff(BaseException):
    """Stands for ``trio.Cancelled`` in traces and spans, since only Trio can make one."""

    def __repr__(self) -> str:
        return "cancelled"


def _emit(
    kernel: Kernel,
    kind: TraceKind,
    path: str | None,
    message: Message | None = None,
    *,
    peer: str | None = None,
    detail: str = "",
) -> None:
    feeds = kernel.traces.get(path) if path is not None else None
    if path is None or not feeds:
        return
    event = TraceEvent(trio.current_time(), kind, path, message, peer, detail)
    for feed in feeds:
        feed.publish(event)


def _span(
    kernel: Kernel, kind: SpanKind, path: str, message: Message, parent: str | None
) -> AbstractContextManager[str | None]:
    if kernel.tracer is None:
        return nullcontext()
    return kernel.tracer.span(kind, path, type(message), parent)


def _detail(error: BaseException | None) -> str:
    if error is None:
        return ""
    return "cancelled" if isinstance(error, trio.Cancelled) else shown(error)
