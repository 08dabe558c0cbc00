"""A span under way: what it is told, and how it ends. Pure.

Invariant: a span ends once. Who leaves its block by an exception has failed; who leaves it by a
cancellation was cut, and a cut span takes the status of its run when that is known.
"""

from __future__ import annotations

import re
from functools import lru_cache
from types import TracebackType
from typing import Protocol, Self

import msgspec

from motet.actors.errors.redact import PREFIX_MARGIN, redact_text
from motet.actors.errors.text import type_name, well_formed
from motet.protocols.models import ModelEvent, ModelRequest, ModelResponse, Retrying, Usage
from motet.protocols.tools import CallResult
from motet.protocols.traces import Span, SpanKind, SpanStatus

# What a trace keeps of texts: their beginning, without secrets. Pure.
#
# A text is cut twice: first, generously, so that what is done with it is bounded, and after its
# secrets are out, to the limit. The second cut can leave no half of a secret, and the first one is
# made between words.


PREVIEW = 500
"""Code points of an output that are kept."""
NAME_LIMIT = 200
_RAW_NAME = 2 * NAME_LIMIT


def raw(value: str | ModelRequest, limit: int) -> str:
    """Enough of a text, or of a request as JSON, to find its secrets in."""
    text = value if isinstance(value, str) else _as_json(value)
    return text if len(text) <= limit + PREFIX_MARGIN else text[: limit + PREFIX_MARGIN + 1]


def _as_json(request: ModelRequest) -> str:
    try:
        return msgspec.json.encode(request).decode()
    except UnicodeEncodeError:  # half a surrogate pair, which no JSON in UTF-8 can hold
        return well_formed(repr(request))


def shown_name(name: str, hidden: re.Pattern[str] | None) -> str:
    """A name as a column can hold it: one that a model made up may be anything.

    ``hidden``: the process's own secrets (``hidden_values``).
    """
    return _shown_name(name if len(name) <= _RAW_NAME else name[:_RAW_NAME], hidden)


@lru_cache(maxsize=1_024)
def _shown_name(name: str, _hidden: re.Pattern[str] | None) -> str:
    """Hosts have few names, and say them often; what is hidden in them may change."""
    return redact_text(well_formed(name).replace("\0", "\ufffd"))[:NAME_LIMIT]


FAILED = ("failed", "unknown")
"""Outcomes of calls that are errors; a denied call is none."""
CUT = ("cancelled_before_start", "cancelled_while_running")


class SpanOwner(Protocol):
    """The trace that an open span belongs to."""

    def now(self) -> float: ...

    def ended(self, span: OpenSpan) -> None: ...


class OpenSpan(msgspec.Struct, eq=False):
    """A context manager, made by a trace, which is its ``trace`` until it has ended."""

    trace: SpanOwner | None
    id: str
    kind: SpanKind
    name: str
    started: float
    parent: str | None
    ended: float | None = None
    status: SpanStatus = "running"
    was_cut: bool = False
    left_out: bool = False
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
    input: str | ModelRequest = ""
    agent: str = ""

    def part(self, event: ModelEvent | Retrying) -> None:
        """Something of a model's answer has come, or it is asked again."""
        if isinstance(event, Retrying):
            self.attempts += 1
            self.first_token = None
        elif self.first_token is None and self.trace is not None:
            self.first_token = self.trace.now() - self.started

    def answered(self, response: ModelResponse) -> None:
        """The model's whole answer."""
        self.usage = response.usage
        self.stop_reason = response.stop_reason
        self.output = response.text or " ".join(
            f"{call.name}({call.arguments[:PREVIEW]})" for call in response.calls
        )

    def returned(self, result: CallResult) -> None:
        """The call's one result."""
        self.outcome, self.output = result.outcome, result.text
        self.error, self.error_id = result.kind, result.error_id
        if result.outcome in FAILED:
            self.status = "error"
        elif result.outcome in CUT:
            self.was_cut = True

    def failed(self, error: str) -> None:
        """It did not raise, but failed; ``error`` is the class of the failure."""
        self.status, self.error = "error", error

    def end(self, status: SpanStatus = "ok") -> None:
        """End it, as ``status`` unless it has failed. A span that has ended stays as it is."""
        trace, self.trace = self.trace, None
        if trace is not None:
            if self.status == "running":
                self.status = "cancelled" if self.was_cut else status
            trace.ended(self)

    def cut(self) -> None:
        """End it in the middle of what it was about."""
        self.was_cut = True
        self.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.end()
        elif isinstance(error, Exception):
            self.failed(self.error or type_name(error).rpartition(".")[2])
            self.end()
        else:
            self.cut()


def as_span(
    span: OpenSpan, ending: SpanStatus | None, output: str, hidden: re.Pattern[str] | None
) -> Span:
    """A span as it is stored and exported, without its input.

    ``ending``: how its run ended, if it has. ``output``: its own as it is shown.
    """
    status = span.status
    if ending == "cancelled" or (span.was_cut and ending in ("limited", "interrupted")):
        status = ending
    return Span(
        span.id,
        span.kind,
        shown_name(span.name, hidden),
        span.started,
        span.parent,
        span.ended,
        status,
        span.provider and shown_name(span.provider, hidden),
        span.iteration,
        span.stop_reason,
        span.purpose,
        span.usage,
        span.first_token,
        span.attempts,
        span.call_id and shown_name(span.call_id, hidden),
        span.outcome,
        span.tool and shown_name(span.tool, hidden),
        span.error and shown_name(span.error, hidden),
        span.error_id and shown_name(span.error_id, hidden),
        output,
        "",
        span.agent,
    )
