"""Traces as OTLP/JSON, the body of a request to a collector's ``/v1/traces``. Pure.

The mapping of protobuf to JSON with OTLP's own rules: ids are hex, enumerations are numbers,
64-bit numbers are text. Source: the OTLP specification, "JSON Protobuf Encoding".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import urlsplit

import msgspec

from motet.actors.tracing.genai import Value, attributes, span_name
from motet.protocols.chat import JsonObject
from motet.protocols.traces import Span, Trace, TraceInfo
from motet.protocols.version import __version__

PATH = "/v1/traces"
SPANS_AT_ONCE = 512
"""Spans in one request."""
TEXT_AT_ONCE = 2_000_000
"""Code points of inputs and outputs in one request, about."""
_INTERNAL, _CLIENT = 1, 3
_UNSET, _OK, _ERROR = 0, 1, 2
_SPAN_CODES = {"ok": _OK, "error": _ERROR, "cancelled": _UNSET, "running": _UNSET}


def endpoint(url: str) -> str:
    """Where traces go: a base URL gets the standard path."""
    return url.rstrip("/") + PATH if urlsplit(url).path in ("", "/") else url


def portions(traces: Iterable[Trace]) -> Iterator[list[Trace]]:
    """The same spans in portions that a collector takes: a long trace goes in several."""
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
    """One export request with all the spans of the traces that have ended."""
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
    """How many spans a collector did not take, and why; an answer that says nothing took all."""
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
    """A cancellation is no error; a run that was interrupted or reached a limit has not done."""
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
