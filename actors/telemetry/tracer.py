"""Traces of runs as spans, recorded in memory and by plain calls. Pure: no Trio, no I/O.

Invariants: a span ends once, with its block or, at the latest, with its run; a parent is named
when a span begins, never guessed from the task that begins it; the queue of finished traces is
bounded, and dropped ones are counted. A span that is left by an exception has failed; one that is
left by a cancellation was cut, and takes the status of its run when that is known.

Ids derive from the run's id, so that after a crash the root of a run is known by the run alone,
and a replayed run has the ids it had.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Self, TypeVar

import attrs
import msgspec

from motet.actors.errors.tracker import is_error
from motet.protocols.chat import Call
from motet.protocols.models import ModelRequest, ModelResponse, Queued, Retrying, Streamed, Usage
from motet.protocols.redaction.redact import (
    PREFIX_MARGIN,
    redact_text,
    redacted_prefix,
    registered_secrets_pattern,
)
from motet.protocols.room_copies import Fix, fix_of, fix_recorded
from motet.protocols.sessions import RunStatus
from motet.protocols.texts import well_formed
from motet.protocols.tools import CallResult
from motet.protocols.traces import (
    CUT,
    FAILED,
    INPUT_LIMIT,
    ROOT_STATUS,
    Span,
    SpanKind,
    SpanStatus,
    TraceBatch,
    TraceInfo,
    root_span_id,
    trace_identity,
)
from motet.runtime.exceptions import type_name
from motet.runtime.outside import fresh_hex, monotonic, wall_time

SPAN_LIMIT = 5_000
"""Spans recorded for one run; further ones are counted, and so are their tokens."""
WAITING_LIMIT = 1_000
"""Ended traces that may wait for the store."""
SPANS_AT_ONCE = 500
"""Spans handed over in one step, approximately: each takes some 15 us of the event loop."""

PREVIEW = 500
"""Code points of an output that are kept."""
NAME_LIMIT = 200
_RAW_NAME = 2 * NAME_LIMIT

_NOTHING = Usage()

S = TypeVar("S", bound="OpenSpan")


class OpenSpan(msgspec.Struct, eq=False):
    """A context manager, made by its ``trace``, which it forgets when it has ended."""

    trace: RunTrace | None
    id: str
    kind: SpanKind
    name: str
    started: float
    parent: str | None
    ended: float | None = None
    status: SpanStatus = "running"
    was_cut: bool = False
    left_out: bool = False
    error: str = ""
    error_id: str | None = None
    output: str = ""
    input: str | ModelRequest = ""

    def failed(self, error: str) -> None:
        """Fail without an exception; ``error`` is the class of the failure."""
        self.status, self.error = "error", error

    def end(self, status: SpanStatus = "ok") -> None:
        """End it, as ``status`` unless it has failed. A second end changes nothing."""
        trace, self.trace = self.trace, None
        if trace is not None:
            if self.status == "running":
                self.status = "cancelled" if self.was_cut else status
            trace.ended(self)

    def cut(self) -> None:
        """End it before its work was done."""
        self.was_cut = True
        self.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.end()
        elif isinstance(error, Exception):
            self.failed(self.error or type_name(error).rpartition(".")[2])
            self.end()
        else:
            self.cut()


class ModelSpan(OpenSpan, eq=False):
    """A model call. ``agent``: the agent that asks, where it is not the run's first one."""

    provider: str = ""
    iteration: int = 0
    purpose: str = ""
    agent: str = ""
    stop_reason: str = ""
    usage: Usage | None = None
    first_token: float | None = None
    attempts: int = 1

    def part(self, event: Streamed) -> None:
        """Take a part of the answer, or note that the model is asked again."""
        if isinstance(event, Retrying):
            self.attempts += 1
            self.first_token = None
        elif self.first_token is None and self.trace is not None and type(event) is not Queued:
            self.first_token = self.trace.now() - self.started

    def answered(self, response: ModelResponse) -> None:
        """Take the whole answer."""
        self.usage = response.usage
        self.stop_reason = response.stop_reason
        if response.stop_reason == "content_filter":
            self.status = "refused"
        self.output = response.text or " ".join(
            [f"{call.name}({call.arguments[:PREVIEW]})" for call in response.calls]
        )


class ToolSpan(OpenSpan, eq=False):
    """A tool call."""

    call_id: str = ""
    outcome: str = ""

    def returned(self, result: CallResult) -> None:
        """Take the call's one result."""
        self.outcome, self.output = result.outcome, result.text
        if result.outcome == "failed" and not is_error(result.outcome, result.failure):
            self.outcome = result.failure  # an answer: the tool has worked
            return
        self.error, self.error_id = result.kind, result.error_id
        if result.outcome in FAILED:
            self.status = "error"
        elif result.outcome in CUT:
            self.was_cut = True


class StoreSpan(OpenSpan, eq=False):
    """An operation of the error store. ``tool``: the tool whose error it is about."""

    tool: str = ""


class RunTrace:
    """The trace of one run. Its spans are context managers; ``parent`` defaults to the root.

    The trace itself is a context manager too, for work that ends with its block.
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
        self._calls: dict[str, ToolSpan] = {}
        self._news: list[OpenSpan] = []
        self.fixes: list[Fix] = []
        self._stored_open: dict[str, OpenSpan] = {}
        self._quiet = quiet
        self._is_queued = False
        own, self._prefix = trace_identity(run_id)
        self.trace_id, parent = within or (own, None)
        kind: SpanKind = "store" if operation else "agent"
        root = StoreSpan if operation else OpenSpan
        self.root: OpenSpan = self._begin(root, kind, operation or agent, parent, started)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.finish("completed")
        elif isinstance(error, Exception):
            self.finish("failed", error=type(error).__name__)
        else:
            self.finish("cancelled")

    @property
    def verbose(self) -> bool:
        """Whether spans record their whole input."""
        return self._tracer.verbose

    def now(self) -> float:
        """Unix seconds that never go back, whatever happens to the wall clock."""
        return self._offset + self._tracer.clock()

    @property
    def count(self) -> int:
        """The number of spans that have begun."""
        return self._count

    def go_on(self, spans: int, started: float, errors: int, usage: Usage) -> None:
        """Continue the counts of a run that was suspended. Only for a trace that has just begun."""
        self._count = max(self._count, spans)
        self.root.started, self.errors, self.usage = started, errors, usage

    def about(self, session: str, tool: str) -> None:
        """Name the stored error that an operation of the error store found."""
        assert isinstance(self.root, StoreSpan)
        self.session, self.root.tool = session, tool

    # Beginning spans

    def model(
        self,
        name: str,
        request: ModelRequest | None = None,
        *,
        iteration: int = 0,
        purpose: str = "",
        parent: OpenSpan | None = None,
    ) -> ModelSpan:
        """A model call; ``name`` is the full one, provider first."""
        provider, colon, model = name.partition(":")
        span = self._begin(
            ModelSpan, "model", model if colon else name, (parent or self.root).id, self.now()
        )
        span.provider, span.iteration, span.purpose = provider, iteration, purpose
        if request is not None:
            if self._tracer.verbose:
                span.input = request
            if self._tracer.overhear is not None:
                self._tracer.overhear(self, request)
        return span

    def tool(self, call: Call, *, parent: OpenSpan | None = None) -> ToolSpan:
        """A tool call; until it ends, spans that name its id are its children."""
        now, above = self._offset + self._tracer.clock(), parent or self.root
        span = self._begin(ToolSpan, "tool", call.name, above.id, now)
        span.call_id = call.id
        self._calls[call.id] = span
        if self._tracer.verbose:
            span.input = call.arguments
        return span

    def store(
        self, operation: str, *, tool: str = "", error_id: str | None = None, call_id: str = ""
    ) -> StoreSpan:
        """``store``, ``get`` or ``list`` of the error store: a child of its call or the root."""
        parent = self.span_of(call_id).id
        span = self._begin(StoreSpan, "store", _of_store(operation), parent, self.now())
        span.tool, span.error_id = tool, error_id
        return span

    def span_of(self, call_id: str) -> OpenSpan:
        """The span of a running tool call; the root for any other id."""
        return self._calls.get(call_id, self.root)

    def _begin(
        self, of: type[S], kind: SpanKind, name: str, parent: str | None, started: float
    ) -> S:
        self._count += 1
        span = of(self, f"{self._prefix}{self._count:04x}", kind, name, started, parent)
        if self.status == "running" and self._count <= SPAN_LIMIT:
            self._news.append(span)
            if not self._is_queued:
                self._queue()
        else:
            span.left_out = True
            self.left_out += 1
        return span

    # Ending them

    def ended(self, span: OpenSpan) -> None:
        """Count a span that has just ended; only :class:`OpenSpan` calls it."""
        span.ended = self._offset + self._tracer.clock()
        if isinstance(span, ToolSpan) and self._calls.get(span.call_id) is span:
            del self._calls[span.call_id]
        elif isinstance(span, ModelSpan) and span.usage is not None:
            self.usage += span.usage
        if span.status == "error" and span.kind in ("model", "tool"):
            self.errors += 1
        if span.id in self._stored_open:
            self._news.append(self._stored_open.pop(span.id))
            self._queue()

    def finish(
        self, status: RunStatus, output: str = "", *, error: str = "", error_id: str | None = None
    ) -> None:
        """End all open spans, the root last. A second call changes nothing."""
        if self.status != "running":
            return
        root = self.root
        root.output, root.error, root.error_id = output, error, error_id or root.error_id
        for span in reversed([*self._stored_open.values(), *self._news]):
            if span.ended is None and span is not root:
                span.cut()
        root.end(ROOT_STATUS.get(status, "error"))
        self.status = status
        self._tracer.finished(self, queued=self._is_queued)

    # Handing over

    def to_store(self) -> tuple[OpenSpan, ...]:
        return (self.root, *self._stored_open.values(), *self._news)

    def take(self) -> TraceBatch:
        """The spans that began or ended since the last call."""
        news, self._news, self._is_queued = self._news, [], False
        self._stored_open.update({span.id: span for span in news if span.ended is None})
        fix_recorded(self.fixes, news)
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

    def _queue(self) -> None:
        """Have the store take the news. A quiet trace is held back while it has only its root."""
        if not self._is_queued and (self._count > 1 or not self._quiet):
            self._is_queued = True
            self._tracer.changed(self)


def _of_store(operation: str) -> str:
    return f"error_store.{operation}"


@attrs.define(eq=False)
class Tracer:
    """The traces of one host's live runs, and ended ones that wait for the store.

    Attributes:
        verbose: spans record their whole input.
        clock: seconds that never go back.
        wall: Unix seconds, read when a run begins.
        overhear: called with every request to a model, for tests; must not block or raise.
        lost: traces that were dropped because the queue was full or they could not be read.
    """

    verbose: bool = False
    clock: Callable[[], float] = monotonic
    wall: Callable[[], float] = wall_time
    overhear: Callable[[RunTrace, ModelRequest], None] | None = None
    lost: int = attrs.field(default=0, init=False)
    _notify: Callable[[], None] = attrs.field(default=lambda: None, init=False)
    live: dict[str, RunTrace] = attrs.field(factory=dict[str, RunTrace], init=False)
    _changed: dict[RunTrace, None] = attrs.field(factory=dict["RunTrace", None], init=False)
    _ended: int = attrs.field(default=0, init=False)
    # A `cached_property` would make every look at an attribute slow, as attrs implements it.
    _nowhere: RunTrace | None = attrs.field(default=None, init=False)

    def on_news(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` whenever the queue stops being empty; replaces an earlier one.

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

        ``caller``: the parent run and its call; an empty call stands for the parent's root.
        ``quiet``: it is recorded only if it gets a second span.
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
        """The trace of background work for a run, such as a summary after it.

        It is a child in the run's trace, also when the run has ended long since. It is quiet:
        work that turns out to be unnecessary is not recorded.
        """
        own = f"{run_id}.{purpose}"
        above = (run_id, "")
        return self.begin(own, session=session, agent=agent, user=user, caller=above, quiet=True)

    def operation(
        self, operation: str, *, session: str = "", tool: str = "", error_id: str | None = None
    ) -> RunTrace:
        """The trace of an operation of the error store outside of all runs: one span.

        Its empty agent distinguishes it from a run.
        """
        name, run_id = _of_store(operation), f"host_{fresh_hex(8)}"
        trace = RunTrace(self, run_id, session=session, agent="", user="", operation=name)
        assert isinstance(trace.root, StoreSpan)
        trace.root.tool, trace.root.error_id = tool, error_id
        self.live[run_id] = trace
        return trace

    def _place(self, run_id: str, call_id: str) -> tuple[str, str]:
        """The ids of the trace and of the parent span: the call's, else the run's root."""
        above = self.live.get(run_id)
        if above is None:
            return trace_identity(run_id)[0], root_span_id(run_id)
        return above.trace_id, above.span_of(call_id).id

    def of(self, run_id: str) -> RunTrace:
        """The trace of a live run; for any other, one that records nothing."""
        return self.live.get(run_id) or self._nothing()

    def _nothing(self) -> RunTrace:
        if self._nowhere is None:
            self._nowhere = Tracer().begin("", session="", agent="", user="")
            self._nowhere.finish("completed")
        return self._nowhere

    def changed(self, trace: RunTrace) -> None:
        """Queue a trace for the store; only :class:`RunTrace` calls it."""
        self._changed[trace] = None
        if len(self._changed) == 1:
            self._notify()

    def correct(self, user: str, fix: Fix) -> None:
        """Change texts of a user's runs that are to be stored; see ``room_messages``."""
        for trace in (one for one in (*self.live.values(), *self._changed) if one.user == user):
            trace.fixes.append(fix_of(trace.agent, fix))

    def finished(self, trace: RunTrace, *, queued: bool) -> None:
        """Count a trace that has ended; only :class:`RunTrace` calls it. ``queued``: it waits."""
        self.live.pop(trace.run_id, None)
        self._ended += queued
        if self._ended > WAITING_LIMIT:
            oldest = next(t for t in self._changed if t.status != "running")
            del self._changed[oldest]
            self._ended -= 1
            self.lost += 1

    def take(self, limit: int) -> list[TraceBatch]:
        """The news of at most ``limit`` traces, or few of many spans, the longest waiting first."""
        batches, spans = list[TraceBatch](), 0
        while self._changed and len(batches) < limit and spans < SPANS_AT_ONCE:
            del self._changed[trace := next(iter(self._changed))]
            self._ended -= trace.status != "running"
            try:
                batches.append(batch := trace.take())
                spans += len(batch.spans)
            except Exception:  # as a name that is no text: it loses its news, and no other does
                self.lost += 1
        return batches


def raw(value: str | ModelRequest, limit: int) -> str:
    """The start of a text, or of a request as JSON: long enough to find its secrets in.

    A text is cut twice: here, so that redaction has bounded work, and to the limit once its
    secrets are out. So the second cut can leave no half of a secret.
    """
    text = value if isinstance(value, str) else _as_json(value)
    return text if len(text) <= limit + PREFIX_MARGIN else text[: limit + PREFIX_MARGIN + 1]


def _as_json(request: ModelRequest) -> str:
    try:
        return msgspec.json.encode(request).decode()
    except UnicodeEncodeError:  # half a surrogate pair, which no JSON in UTF-8 can hold
        return well_formed(repr(request))


@lru_cache(maxsize=1_024)
def shown_name(name: str, _hidden: re.Pattern[str] | None) -> str:
    """A name of ``_RAW_NAME`` characters at most, as a column holds it; a model may invent one.

    Cached, since a host has few names and repeats them. ``_hidden``: the pattern of registered
    secrets, a part of the key.
    """
    return redact_text(well_formed(name).replace("\0", "\ufffd"))[:NAME_LIMIT]


def as_span(
    span: OpenSpan, ending: SpanStatus | None, output: str, hidden: re.Pattern[str] | None
) -> Span:
    """The stored and exported form of a span, without its input.

    ``ending``: the status of its run, if that has ended. ``output``: its output, redacted.
    """
    status = span.status
    if ending == "cancelled" or (span.was_cut and ending in ("limited", "interrupted")):
        status = ending
    model = span if type(span) is ModelSpan else _NO_MODEL  # `isinstance` of a struct is slow
    call = span if type(span) is ToolSpan else _NO_CALL
    tool = span.tool if type(span) is StoreSpan else ""
    return Span(
        span.id,
        span.kind,
        shown_name(span.name[:_RAW_NAME], hidden),
        span.started,
        span.parent,
        span.ended,
        status,
        model.provider and shown_name(model.provider[:_RAW_NAME], hidden),
        model.iteration,
        model.stop_reason,
        model.purpose,
        model.usage,
        model.first_token,
        model.attempts,
        call.call_id and shown_name(call.call_id[:_RAW_NAME], hidden),
        call.outcome,
        tool and shown_name(tool[:_RAW_NAME], hidden),
        span.error and shown_name(span.error[:_RAW_NAME], hidden),
        span.error_id and shown_name(span.error_id[:_RAW_NAME], hidden),
        output,
        "",
        model.agent,
    )


_NO_MODEL = ModelSpan(None, "", "model", "", 0.0, None)
_NO_CALL = ToolSpan(None, "", "tool", "", 0.0, None)
