"""Spans in the names of OpenTelemetry's conventions for generative AI; all of them stand here.

The conventions are still "in development": when a name changes, this is the file. What they have
no name for is called ``motet.``.
"""

from __future__ import annotations

from typing import TypeAlias

from motet.protocols.traces import Span, SpanKind, TraceInfo

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
    """What is known of a span; what is not known has no attribute."""
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
    """As the specification of errors names them."""
    return {"error_id": span.error_id, "tool_name": span.tool, "session_id": info.session}
