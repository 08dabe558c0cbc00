"""Traces as OTLP/JSON, the body of a request to a collector's ``/v1/traces``.

The mapping of protobuf to JSON with OTLP's own rules: ids are hex, enumerations are numbers,
64-bit numbers are text. Source: the OTLP specification, "JSON Protobuf Encoding".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.traces import Span, SpanKind, Trace, TraceInfo
from motet.protocols.version import __version__

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
