"""Records what runs do as spans, in memory and by plain calls. Pure: no Trio, no I/O.

Invariants: a span ends once, with its block or, at the latest, with its run; a parent is named
when a span begins, never guessed from the task that begins it; what waits to be taken is bounded,
and what was too much is counted. Ids are made from the run's, so that after a crash the root of a
run is known by the run alone, and a replayed run has the ids it had.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from types import TracebackType
from typing import Self

import attrs

from motet.actors.errors.redact import redacted_prefix, registered_secrets_pattern
from motet.actors.telemetry.spans import PREVIEW, OpenSpan, as_span, raw
from motet.protocols.chat import Call
from motet.protocols.models import ModelRequest, Usage
from motet.protocols.sessions import RunStatus
from motet.protocols.traces import (
    INPUT_LIMIT,
    SpanKind,
    SpanStatus,
    TraceBatch,
    TraceInfo,
    root_span_id,
    trace_identity,
)
from motet.runtime.outside import fresh_hex, monotonic, wall_time

SPAN_LIMIT = 5_000
"""Spans of one run; more are counted, and their tokens are."""
WAITING_LIMIT = 1_000
"""Ended traces that may wait to be taken."""

ROOT_STATUS: dict[RunStatus, SpanStatus] = {
    "completed": "ok",
    "failed": "error",
    "cancelled": "cancelled",
    "limited": "limited",
    "escalated": "escalated",
    "interrupted": "interrupted",
    "waiting": "waiting",
}


_NOTHING = Usage()


class RunTrace:
    """The trace of one run. Spans are context managers; without ``parent`` they are the root's.

    So is the trace, for work that has no other end than its block.
    """

    def __init__(
        self,
        tracer: Tracer,
        run_id: str,
        *,
        session: str,
        agent: str,
        user: str,
        within: tuple[str, str] | None = None,
        quiet: bool = False,
        operation: str = "",
    ) -> None:
        self.run_id = run_id
        self.session = session
        self.agent = agent
        self.user = user
        self.status: RunStatus = "running"
        self.usage = _NOTHING
        self.errors = 0
        self.left_out = 0
        self._tracer = tracer
        started = tracer.wall()
        self._offset = started - tracer.clock()
        self._count = 0
        self._calls: dict[str, OpenSpan] = {}
        self._news: list[OpenSpan] = []
        self._told_open: dict[str, OpenSpan] = {}
        self._quiet = quiet
        self._listed = False
        own, self._prefix = trace_identity(run_id)
        self.trace_id, parent = within or (own, None)
        kind: SpanKind = "store" if operation else "agent"
        self.root = self._begin(kind, operation or agent, parent, started)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish("completed")
        elif isinstance(error, Exception):
            self.finish("failed", error=type(error).__name__)
        else:
            self.finish("cancelled")

    @property
    def verbose(self) -> bool:
        """Whether spans are given their whole input."""
        return self._tracer.verbose

    def now(self) -> float:
        """Unix seconds that no change of the wall clock sets back."""
        return self._offset + self._tracer.clock()

    @property
    def count(self) -> int:
        """How many spans have begun."""
        return self._count

    def go_on(self, spans: int, started: float, errors: int, usage: Usage) -> None:
        """It was left while its run waited, after so many spans. For one that has just begun."""
        self._count = max(self._count, spans)
        self.root.started, self.errors, self.usage = started, errors, usage

    # Beginning spans

    def model(
        self,
        name: str,
        request: ModelRequest | None = None,
        *,
        iteration: int = 0,
        purpose: str = "",
        parent: OpenSpan | None = None,
    ) -> OpenSpan:
        """A model call; ``name`` is the full one, provider first."""
        provider, colon, model = name.partition(":")
        span = self._begin("model", model if colon else name, (parent or self.root).id, self.now())
        span.provider, span.iteration, span.purpose = provider, iteration, purpose
        if request is not None:
            if self._tracer.verbose:
                span.input = request
            if self._tracer.overhear is not None:
                self._tracer.overhear(self, request)
        return span

    def tool(self, call: Call, *, parent: OpenSpan | None = None) -> OpenSpan:
        """A tool call; until it ends, what its id is given for is a part of it."""
        span = self._begin("tool", call.name, (parent or self.root).id, self.now())
        span.call_id = call.id
        self._calls[call.id] = span
        if self._tracer.verbose:
            span.input = call.arguments
        return span

    def store(
        self, operation: str, *, tool: str = "", error_id: str | None = None, call_id: str = ""
    ) -> OpenSpan:
        """``store``, ``get`` or ``list`` of the error store, as a part of the call if one is."""
        span = self._begin("store", _of_store(operation), self.span_of(call_id).id, self.now())
        span.tool, span.error_id = tool, error_id
        return span

    def span_of(self, call_id: str) -> OpenSpan:
        """The span of a tool call that goes on; the root for any other."""
        return self._calls.get(call_id, self.root)

    def _begin(self, kind: SpanKind, name: str, parent: str | None, started: float) -> OpenSpan:
        self._count += 1
        span = OpenSpan(self, f"{self._prefix}{self._count:04x}", kind, name, started, parent)
        if self.status == "running" and self._count <= SPAN_LIMIT:
            self._tell(span)
        else:
            span.left_out = True
            self.left_out += 1
        return span

    # Ending them

    def ended(self, span: OpenSpan) -> None:
        """What a span says when it has ended; for :class:`OpenSpan` only."""
        span.ended = self.now()
        if span.call_id and self._calls.get(span.call_id) is span:
            del self._calls[span.call_id]
        if span.usage is not None:
            self.usage += span.usage
        if span.status == "error" and span.kind in ("model", "tool"):
            self.errors += 1
        if span.id in self._told_open:
            del self._told_open[span.id]
            self._tell(span)

    def finish(
        self, status: RunStatus, output: str = "", *, error: str = "", error_id: str | None = None
    ) -> None:
        """End the root, and before it whatever is still open. Doing it again changes nothing."""
        if self.status != "running":
            return
        root = self.root
        root.output, root.error, root.error_id = output, error, error_id or root.error_id
        for span in reversed([*self._told_open.values(), *self._news]):
            if span.ended is None and span is not root:
                span.cut()
        root.end(ROOT_STATUS.get(status, "error"))
        self.status = status
        self._tracer.finished(self, told=self._listed)

    # Handing over

    def take(self) -> TraceBatch:
        """What is new since the last time."""
        news, self._news, self._listed = self._news, [], False
        self._told_open.update({span.id: span for span in news if span.ended is None})
        ending = ROOT_STATUS.get(self.status)
        outputs = {text: redacted_prefix(text, PREVIEW) for text in {span.output for span in news}}
        hidden = registered_secrets_pattern()
        spans = tuple([as_span(span, ending, outputs[span.output], hidden) for span in news])
        inputs = {span.id: raw(span.input, INPUT_LIMIT) for span in news if span.input}
        return TraceBatch(self._info(), spans, inputs)

    def _info(self) -> TraceInfo:
        root = self.root
        return TraceInfo(
            self.run_id,
            self.trace_id,
            self.session,
            self.agent,
            self.user,
            self.status,
            root.started,
            root.ended,
            root.parent,
            self.usage,
            self.errors,
            min(self._count, SPAN_LIMIT),
            self.left_out,
        )

    def _tell(self, span: OpenSpan) -> None:
        """A span is news until it is taken; the root of a quiet trace alone is kept back."""
        self._news.append(span)
        if not self._listed and (self._count > 1 or not self._quiet):
            self._listed = True
            self._tracer.changed(self)


def _of_store(operation: str) -> str:
    return f"error_store.{operation}"


def _nobody() -> None:
    """Nobody waits for news."""


@attrs.define(eq=False)
class Tracer:
    """The traces of one host's live runs, and those that have ended and wait to be taken.

    Attributes:
        verbose: spans keep their whole input.
        clock: seconds that never go back.
        wall: Unix seconds, read when a run begins.
        overhear: called with every request to a model, for tests; must not block or raise.
        lost: traces that were dropped because nobody took them, or that cannot be shown.
    """

    verbose: bool = False
    clock: Callable[[], float] = monotonic
    wall: Callable[[], float] = wall_time
    overhear: Callable[[RunTrace, ModelRequest], None] | None = None
    lost: int = attrs.field(default=0, init=False)
    _notify: Callable[[], None] = attrs.field(default=_nobody, init=False)
    live: dict[str, RunTrace] = attrs.field(factory=dict[str, RunTrace], init=False)
    _changed: dict[RunTrace, None] = attrs.field(factory=dict["RunTrace", None], init=False)
    _ended: int = attrs.field(default=0, init=False)

    def on_news(self, notify: Callable[[], None]) -> None:
        """Have ``notify`` called when there is news after there was none; the last one counts.

        It must not block or raise.
        """
        self._notify = notify

    def begin(
        self,
        run_id: str,
        *,
        session: str,
        agent: str,
        user: str,
        text: str = "",
        caller: tuple[str, str] | None = None,
        quiet: bool = False,
    ) -> RunTrace:
        """The trace of a run that starts now, with ``text`` as its input.

        ``caller``: the run that it is a part of, and that run's call; an empty one for its root.
        ``quiet``: it is recorded only if it comes to have a part.
        """
        within = self._place(*caller) if caller else None
        trace = RunTrace(
            self, run_id, session=session, agent=agent, user=user, within=within, quiet=quiet
        )
        if self.verbose:
            trace.root.input = text
        self.live[run_id] = trace
        return trace

    def beside(self, run_id: str, purpose: str, *, session: str, agent: str, user: str) -> RunTrace:
        """A trace of what is done because of a run but not in it, as a part of that run's trace.

        Such as a summary after it; the run may have ended long since. Nothing is recorded when
        there was nothing to do.
        """
        own = f"{run_id}.{purpose}"
        above = (run_id, "")
        return self.begin(own, session=session, agent=agent, user=user, caller=above, quiet=True)

    def operation(
        self, operation: str, *, session: str = "", tool: str = "", error_id: str | None = None
    ) -> RunTrace:
        """The trace of an operation of the error store outside of all runs: this one span.

        It has no agent, by which it is told from runs.
        """
        name, run_id = _of_store(operation), f"host_{fresh_hex(8)}"
        trace = RunTrace(self, run_id, session=session, agent="", user="", operation=name)
        trace.root.tool, trace.root.error_id = tool, error_id
        self.live[run_id] = trace
        return trace

    def _place(self, run_id: str, call_id: str) -> tuple[str, str]:
        """The trace and the span of a call, or of the run where the call is not known."""
        above = self.live.get(run_id)
        if above is None:
            return trace_identity(run_id)[0], root_span_id(run_id)
        return above.trace_id, above.span_of(call_id).id

    def of(self, run_id: str) -> RunTrace:
        """The trace of a live run; for any other, one that records nothing."""
        return self.live.get(run_id) or self._nowhere

    @cached_property
    def _nowhere(self) -> RunTrace:
        trace = Tracer().begin("", session="", agent="", user="")
        trace.finish("completed")
        return trace

    def changed(self, trace: RunTrace) -> None:
        """There is news of a trace; for :class:`RunTrace` only."""
        self._changed[trace] = None
        if len(self._changed) == 1:
            self._notify()

    def finished(self, trace: RunTrace, *, told: bool) -> None:
        """A trace has ended; for :class:`RunTrace` only. ``told``: it waits to be taken."""
        self.live.pop(trace.run_id, None)
        self._ended += told
        if self._ended > WAITING_LIMIT:
            oldest = next(t for t in self._changed if t.status != "running")
            del self._changed[oldest]
            self._ended -= 1
            self.lost += 1

    def take(self, limit: int) -> list[TraceBatch]:
        """What is new of at most ``limit`` traces, those first that have waited longest.

        What raises there costs its own trace its news, and no other's.
        """
        batches: list[TraceBatch] = []
        while self._changed and len(batches) < limit:
            del self._changed[trace := next(iter(self._changed))]
            self._ended -= trace.status != "running"
            try:
                batches.append(trace.take())
            except Exception:  # what an adapter took for a name, say, may be no text
                self.lost += 1
        return batches
