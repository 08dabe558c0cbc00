"""Traces as OTLP/JSON, the body of a request to a collector's ``/v1/traces``. Pure.

The mapping of protobuf to JSON with OTLP's own rules: ids are hex, enumerations are numbers,
64-bit numbers are text. Source: the OTLP specification, "JSON Protobuf Encoding".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, TypeAlias
from urllib.parse import urlsplit

import attrs
import msgspec
import trio

from motet.actors.errors.describe import summarize
from motet.actors.errors.log import logger
from motet.actors.telemetry.http import HttpFailed, Response, is_address, post
from motet.protocols.chat import JsonObject
from motet.protocols.errors import ConfigError, MotetError
from motet.protocols.messages import Request
from motet.protocols.traces import Span, SpanKind, Trace, TraceInfo
from motet.protocols.version import __version__
from motet.runtime import Actor, handles
from motet.runtime.backoff import Backoff

# Names of OpenTelemetry's conventions for generative AI. They are still "in development": a change
# of a name is a change of this section only. Attributes outside of them begin with ``motet.``.


Value: TypeAlias = str | int | float | list[str]

OPERATIONS: dict[SpanKind, str] = {
    "agent": "invoke_agent",
    "model": "chat",
    "tool": "execute_tool",
}


def span_name(span: Span) -> str:
    """``chat gpt-5.2``, ``execute_tool read_log``, ``invoke_agent helper``, ``error_store.get``."""
    operation = OPERATIONS.get(span.kind)
    return f"{operation} {span.name}" if operation else span.name


def attributes(info: TraceInfo, span: Span) -> dict[str, Value]:
    """The attributes of a span; an unknown value has no attribute."""
    found: dict[str, Value | None] = {
        "gen_ai.operation.name": OPERATIONS.get(span.kind),
        "gen_ai.conversation.id": info.session,
        "gen_ai.agent.name": span.name if span.kind == "agent" else span.agent or info.agent,
        "error.type": span.error if span.status == "error" else None,
        "motet.run_id": info.run_id,
        "motet.status": span.status,
        "motet.error_id": span.error_id,
        "motet.input": span.input,
        "motet.output": span.output,
    }
    match span.kind:
        case "agent":
            found |= {"user.id": info.user, "motet.left_out": info.left_out}
        case "model":
            found |= _model(span)
        case "tool":
            found |= {
                "gen_ai.tool.name": span.name,
                "gen_ai.tool.call.id": span.call_id,
                "motet.outcome": span.outcome,
            }
        case "store":
            found |= _store(info, span)
    return {name: value for name, value in found.items() if value is not None and value != ""}


def _model(span: Span) -> dict[str, Value | None]:
    found: dict[str, Value | None] = {
        "gen_ai.provider.name": span.provider or span.name,
        "gen_ai.request.model": span.name,
        "gen_ai.response.finish_reasons": [span.stop_reason] if span.stop_reason else None,
        "gen_ai.response.time_to_first_chunk": span.first_token,
        "motet.iteration": span.iteration or None,
        "motet.purpose": span.purpose,
        "motet.attempts": span.attempts,
    }
    if span.usage is not None:
        found |= {
            "gen_ai.usage.input_tokens": span.usage.input_tokens,
            "gen_ai.usage.output_tokens": span.usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": span.usage.cached_tokens or None,
            "gen_ai.usage.cache_creation.input_tokens": span.usage.cache_write_tokens or None,
            "motet.cost_usd": span.usage.cost,
        }
    return found


def _store(info: TraceInfo, span: Span) -> dict[str, Value | None]:
    """The attributes of an error, named by the errors specification."""
    return {"error_id": span.error_id, "tool_name": span.tool, "session_id": info.session}


PATH = "/v1/traces"
SPANS_AT_ONCE = 512
"""Spans in one request."""
TEXT_AT_ONCE = 2_000_000
"""Approximate code points of inputs and outputs in one request."""
_INTERNAL, _CLIENT = 1, 3
_UNSET, _OK, _ERROR = 0, 1, 2
_SPAN_CODES = {"ok": _OK, "error": _ERROR, "cancelled": _UNSET, "running": _UNSET}


def endpoint(url: str) -> str:
    """The endpoint: a base URL gets the standard path."""
    return url.rstrip("/") + PATH if urlsplit(url).path in ("", "/") else url


def portions(traces: Iterable[Trace]) -> Iterator[list[Trace]]:
    """The same spans in requests of bounded size: a long trace takes several."""
    portion: list[Trace] = []
    spans = size = 0
    for trace in traces:
        part: list[Span] = []
        for span in trace.spans:
            part.append(span)
            spans, size = spans + 1, size + len(span.input) + len(span.output)
            if spans >= SPANS_AT_ONCE or size >= TEXT_AT_ONCE:
                yield [*portion, Trace(trace.info, tuple(part))]
                portion, part, spans, size = [], [], 0, 0
        if part:
            portion.append(Trace(trace.info, tuple(part)))
    if portion:
        yield portion


def body(traces: Sequence[Trace], service: str = "motet") -> bytes:
    """One export request with all spans of the ended traces."""
    spans = [_span(t.info, span) for t in traces for span in t.spans if span.ended is not None]
    resource = {"service.name": service, "service.version": __version__}
    request = {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [
                    {"scope": {"name": "motet", "version": __version__}, "spans": spans}
                ],
            }
        ]
    }
    return msgspec.json.encode(request)


class _PartialSuccess(msgspec.Struct, rename="camel"):
    rejected_spans: int = 0
    error_message: str = ""


class _Answer(msgspec.Struct, rename="camel"):
    partial_success: _PartialSuccess | None = None


def rejected(answer: bytes) -> tuple[int, str]:
    """The number of rejected spans and the reason; an empty answer rejects none."""
    try:
        found = msgspec.json.decode(answer, type=_Answer, strict=False).partial_success
    except msgspec.MsgspecError:
        return 0, ""
    return (found.rejected_spans, found.error_message) if found else (0, "")


def _span(info: TraceInfo, span: Span) -> JsonObject:
    assert span.ended is not None
    made: JsonObject = {
        "traceId": info.trace_id,
        "spanId": span.id,
        "name": span_name(span),
        "kind": _CLIENT if span.kind == "model" else _INTERNAL,
        "startTimeUnixNano": _nanoseconds(span.started),
        "endTimeUnixNano": _nanoseconds(span.ended),
        "attributes": _attributes(attributes(info, span)),
        "status": _status(span),
    }
    if span.parent is not None:
        made["parentSpanId"] = span.parent
    return made


def _status(span: Span) -> JsonObject:
    """The OTLP status. A cancellation is no error; an interruption or a limit is one."""
    code = _SPAN_CODES.get(span.status, _ERROR)
    return (
        {"code": code, "message": span.error or span.status} if code == _ERROR else {"code": code}
    )


def _attributes(values: dict[str, Value] | dict[str, str]) -> list[JsonObject]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Value) -> JsonObject:
    match value:
        case str():
            return {"stringValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(item) for item in value]}}


def _nanoseconds(seconds: float) -> str:
    return str(round(seconds * 1_000_000) * 1_000)


# The exporter: traces to an OpenTelemetry collector over HTTP, as OTLP/JSON.
#
# The exporter of the SDK was rejected: it wants spans of its own making, a thread and another HTTP
# library, and drops spans that do not fit in its queue. Invariant: no run notices a failure of the
# collector; undelivered spans are counted, and are still in the database.


ATTEMPTS = 4
TIMEOUT = 10.0
"""Seconds for one attempt."""
INTERVAL = 2.0
"""Seconds that traces wait for others to share a request."""
ROOM = 10_000
"""Most spans in the outbox; beyond it, the oldest traces are dropped."""
FAREWELL = 3.0
"""Seconds for the outbox when the host stops."""
_AGAIN = frozenset({429, 502, 503, 504})
_BACKOFF = Backoff(1.0, most=math.inf)  # the few attempts are the limit
_LONGEST_WAIT = 30.0

log = logger(__name__)


class ExportFailed(MotetError):
    """A collector rejected spans; the message says why."""


def _is_address(_: object, __: object, url: str) -> None:
    """Once, and not with every attempt: what is wrong with an address does not pass."""
    if not is_address(url):
        raise ConfigError(f"{url!r} is no http:// or https:// address")


@attrs.frozen
class Collector:
    """A collector. A ``url`` without a path gets OTLP's ``/v1/traces``.

    Raises ``ConfigError`` for an address that is none.
    """

    url: str = attrs.field(validator=_is_address)
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)

    async def send(self, traces: Sequence[Trace]) -> int:
        """Send traces; the number of accepted spans. Raises ``ExportFailed`` when one is rejected.

        A collector that is busy or away is asked again, after as long as it says, for about ten
        seconds in all; a request that it refuses is not repeated.
        """
        return sum([await self.portion(portion) for portion in portions(traces)])

    async def portion(self, traces: Sequence[Trace]) -> int:
        """Send traces that fit in one request."""
        content = body(traces)
        headers = {"Content-Type": "application/json", **self.headers}
        problem = ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = await post(endpoint(self.url), content, headers, timeout=TIMEOUT)
            except HttpFailed as error:
                problem, wait = str(error), 0.0
            else:
                if 200 <= answer.status < 300:
                    return _taken(traces, answer)
                problem, wait = f"the collector answered {answer.status}", _retry_after(answer)
                if answer.status not in _AGAIN:
                    raise ExportFailed(f"{problem}: {answer.body[:200].decode(errors='replace')}")
            if attempt < ATTEMPTS:
                await trio.sleep(max(wait, _BACKOFF.longest(attempt)))
        raise ExportFailed(f"{problem}, {ATTEMPTS} times")


def _taken(traces: Sequence[Trace], answer: Response) -> int:
    refused, why = rejected(answer.body)
    if refused:
        raise ExportFailed(f"the collector refused {refused} spans: {why}")
    return _count(traces)


def _count(traces: Sequence[Trace]) -> int:
    return sum(span.ended is not None for trace in traces for span in trace.spans)


def _retry_after(answer: Response) -> float:
    """The collector's ``Retry-After`` in seconds; a date, which is rare, counts as none."""
    try:
        seconds = float(answer.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), _LONGEST_WAIT) if math.isfinite(seconds) else 0.0


@attrs.define(eq=False)
class Outbox:
    """Traces that wait for the exporter. ``dropped`` counts spans that found no room."""

    waiting: deque[Trace] = attrs.field(factory=deque[Trace])
    spans: int = 0
    dropped: int = 0
    filled: trio.Event = attrs.field(factory=trio.Event)

    def put(self, traces: Sequence[Trace]) -> None:
        """Add a trace. Never waits, never fails."""
        for trace in traces:
            self.waiting.append(trace)
            self.spans += len(trace.spans)
        while self.spans > ROOM and len(self.waiting) > 1:
            lost = len(self.waiting.popleft().spans)
            self.spans -= lost
            self.dropped += lost
        if self.waiting:
            self.filled.set()

    def take(self) -> list[Trace]:
        taken = list(self.waiting)
        self.waiting.clear()
        self.spans = 0
        self.filled = trio.Event()
        return taken


class SendTraces(Request[int], frozen=True, tag="traces.send"):
    """Send the outbox now; the number of spans. Raises ``ExportFailed``, and drops the failed."""


@attrs.frozen
class ExportStatistics:
    """Counts of exported and of lost spans."""

    sent: int
    lost: int


class Exporter(Actor[SendTraces]):
    """Sends its outbox every few seconds. Failures are logged and counted."""

    cleanup_budget: ClassVar[float] = FAREWELL + 1

    def __init__(self, collector: Collector, outbox: Outbox) -> None:
        self._collector = collector
        self._outbox = outbox
        self._sent = 0
        self._lost = 0

    async def on_start(self) -> None:
        self.start_soon(self._run, name="sender")

    async def on_stop(self) -> None:
        with trio.move_on_after(FAREWELL):
            await self._send_quietly()

    def statistics(self) -> ExportStatistics:
        return ExportStatistics(self._sent, self._lost + self._outbox.dropped)

    @handles(SendTraces)
    async def send(self, _request: SendTraces) -> int:
        portions_left = deque(portions(self._outbox.take()))
        taken, problem = 0, None
        try:
            while portions_left:
                try:
                    taken += await self._collector.portion(portions_left[0])
                except ExportFailed as error:
                    problem = error
                    self._lost += _count(portions_left[0])
                portions_left.popleft()
        finally:
            self._sent += taken
            # Cancelled in the middle: for the next time, or the farewell.
            self._outbox.put([trace for portion in portions_left for trace in portion])
        if problem is not None:
            raise problem
        return taken

    async def _run(self) -> None:
        while True:
            await self._outbox.filled.wait()
            await trio.sleep(INTERVAL)
            await self._send_quietly()

    async def _send_quietly(self) -> None:
        """Catch every failure: a crash of this actor would restart its siblings and end runs."""
        try:
            await self.send(SendTraces())
        except Exception as error:
            url = self._collector.url
            log.warning("traces_not_exported", url=url, reason=summarize(error), lost=self._lost)
