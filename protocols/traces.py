"""Traces: what a run did and how long each part of it took.

Invariants: one trace per run, whose root is the agent's span; only model spans carry usage, so
that a sum counts nothing twice; every text has been redacted and cut before it is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec

from motet.protocols.messages import Request
from motet.protocols.models import Usage
from motet.protocols.redaction.redact import redacted_prefix
from motet.protocols.sessions import RunInfo, RunStatus

SpanKind: TypeAlias = Literal["agent", "model", "tool", "store"]
"""``store``: an operation of the error store."""
SpanStatus: TypeAlias = Literal[
    "running",
    "ok",
    "error",
    "cancelled",
    "limited",
    "escalated",
    "refused",
    "interrupted",
    "waiting",
]
"""All spans of a cancelled run are ``cancelled``; ``interrupted``: the host ended meanwhile."""


ROOT_STATUS: dict[RunStatus, SpanStatus] = {
    "completed": "ok",
    "failed": "error",
    "cancelled": "cancelled",
    "limited": "limited",
    "escalated": "escalated",
    "refused": "refused",
    "interrupted": "interrupted",
    "waiting": "waiting",
}
FAILED = ("failed", "unknown")
"""Outcomes of calls that are errors; a denied call is none."""
CUT = ("cancelled_before_start", "cancelled_while_running")


class Span(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of a run. Times are Unix seconds; ``ended`` is None while it is open.

    Attributes:
        id: 16 hex digits.
        name: of the agent, the model, the tool or the operation.
        parent: the enclosing span; None only for the root of a run without a caller.
        provider, iteration, stop_reason: of a model span; ``iteration`` 0: outside the turn.
        purpose: of a model call outside the turn: ``summary``, ``flush``.
        usage: tokens and cost of this one model call.
        first_token: seconds from its start to the first part of the answer.
        attempts: requests to the model, retries included.
        call_id, outcome: of a tool span.
        tool: of a store span: the tool whose error it was.
        error: class of the failure, such as ``timeout`` or ``Llm``.
        error_id: the stored error.
        output: the beginning of its output.
        input: its whole input, as JSON; only in verbose traces.
        agent: of a model span: the asking agent, after a handoff.
    """

    id: str
    kind: SpanKind
    name: str
    started: float
    parent: str | None = None
    ended: float | None = None
    status: SpanStatus = "running"
    provider: str = ""
    iteration: int = 0
    stop_reason: str = ""
    purpose: str = ""
    usage: Usage | None = None
    first_token: float | None = None
    attempts: int = 1
    call_id: str = ""
    outcome: str = ""
    tool: str = ""
    error: str = ""
    error_id: str | None = None
    output: str = ""
    input: str = ""
    agent: str = ""


class TraceInfo(msgspec.Struct, frozen=True):
    """A trace without its spans.

    Attributes:
        trace_id: 32 hex digits; a called run shares the trace id of its caller.
        agent: empty for an operation of the error store outside of runs, whose trace is one span.
        parent: the span of the calling run.
        status: of the run.
        usage: sum of the model spans.
        errors: spans that failed.
        spans: recorded ones; ``left_out``: those beyond the limit.
    """

    run_id: str
    trace_id: str
    session: str
    agent: str
    user: str
    status: RunStatus
    started: float
    ended: float | None = None
    parent: str | None = None
    usage: Usage = Usage()
    errors: int = 0
    spans: int = 0
    left_out: int = 0


class Trace(msgspec.Struct, frozen=True):
    """The spans of a run and of the runs that it called, by start."""

    info: TraceInfo
    spans: tuple[Span, ...]


INPUT_LIMIT = 50_000
"""Code points of an input that are kept in verbose traces."""


class TraceBatch(msgspec.Struct, frozen=True):
    """The news of one trace: its state, and the spans that began or ended since the last batch.

    ``inputs``: the whole inputs of these spans by span id, not yet cut and redacted, since that
    takes too long for the event loop; the store does it in a thread.
    """

    info: TraceInfo
    spans: tuple[Span, ...]
    inputs: dict[str, str] = {}


def with_inputs(spans: Iterable[Span], inputs: Mapping[str, str]) -> tuple[Span, ...]:
    """The spans with their inputs, redacted, as they are stored and exported."""
    return tuple(
        [
            msgspec.structs.replace(span, input=redacted_prefix(inputs[span.id], INPUT_LIMIT))
            if span.id in inputs
            else span
            for span in spans
        ]
    )


def trace_identity(run_id: str) -> tuple[str, str]:
    """The trace id of a run, and the prefix of its span ids."""
    digest = blake2b(run_id.encode("utf-8", "replace"), digest_size=22).hexdigest()
    return digest[:32], digest[32:]


def root_span_id(run_id: str) -> str:
    return f"{trace_identity(run_id)[1]}0001"


class ListTraces(Request[tuple[TraceInfo, ...]], frozen=True, tag="traces.list"):
    """Newest first; absent filters match all runs. ``since``, ``until``: Unix seconds of starts.

    ``agent=""``: operations of the error store outside of runs.
    """

    user: str | None = None
    session: str | None = None
    agent: str | None = None
    status: RunStatus | None = None
    since: float | None = None
    until: float | None = None
    limit: int = 50


class GetTrace(Request[Trace | None], frozen=True, tag="traces.get"):
    """One trace by the id of its run; None without one. Raises ``StorageError``."""

    run_id: str


class CloseTraces(Request[int], frozen=True, tag="traces.close"):
    """Once at start: the open traces of the last host become ``interrupted``; answers their number.

    ``runs``: the unfinished runs of that host, some of which may have no trace yet.
    """

    runs: tuple[RunInfo, ...]


class FlushTraces(Request[None], frozen=True, tag="traces.flush"):
    """Write everything recorded so far, unless the disk fails. Raises nothing."""


TraceProtocol: TypeAlias = ListTraces | GetTrace | CloseTraces | FlushTraces
