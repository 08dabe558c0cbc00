"""What a trace keeps of texts: their beginning, without secrets. Pure.

A text is cut twice: first, generously, so that what is done with it is bounded, and after its
secrets are out, to the limit. The second cut can leave no half of a secret, and the first one is
made between words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from motet.actors.errors.clip import redacted_head
from motet.actors.errors.hidden import hidden_values
from motet.actors.errors.redact import redact_text
from motet.actors.errors.text import well_formed
from motet.protocols.models import ModelRequest
from motet.protocols.traces import Span

PREVIEW = 500
"""Code points of an output that are kept."""
INPUT_LIMIT = 50_000
"""Code points of an input that are kept in verbose traces."""
NAME_LIMIT = 200
_RAW_NAME = 2 * NAME_LIMIT
MARGIN = 2_048


def raw(value: str | ModelRequest, limit: int) -> str:
    """Enough of a text, or of a request as JSON, to find its secrets in."""
    text = value if isinstance(value, str) else _as_json(value)
    return text if len(text) <= limit + MARGIN else text[: limit + MARGIN + 1]


def _as_json(request: ModelRequest) -> str:
    try:
        return msgspec.json.encode(request).decode()
    except UnicodeEncodeError:  # half a surrogate pair, which no JSON in UTF-8 can hold
        return well_formed(repr(request))


def shown(text: str, limit: int) -> str:
    """At most ``limit`` code points of a text, without its secrets."""
    if not text:
        return text
    head, _ = redacted_head(well_formed(text), limit + MARGIN)
    return head[:limit]


@lru_cache(maxsize=1_024)
def _shown_name(name: str, _hidden: re.Pattern[str] | None) -> str:
    """A name as a column can hold it: one that a model made up may be anything.

    Hosts have few names, and say them often; what is hidden in them may change.
    """
    return redact_text(well_formed(name).replace("\0", "\ufffd"))[:NAME_LIMIT]


def redacted(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The spans of one run as they are stored and exported."""
    outputs = {text: shown(text, PREVIEW) for text in {span.output for span in spans}}
    hidden = hidden_values()
    return tuple([_redacted(span, outputs[span.output], hidden) for span in spans])


def _redacted(span: Span, output: str, hidden: re.Pattern[str] | None) -> Span:
    """A copy by keywords would take three times as long, and each turn has some."""
    return Span(
        span.id,
        span.kind,
        _shown_name(span.name[:_RAW_NAME], hidden),
        span.started,
        span.parent,
        span.ended,
        span.status,
        _shown_name(span.provider[:_RAW_NAME], hidden),
        span.iteration,
        span.stop_reason,
        span.purpose,
        span.usage,
        span.first_token,
        span.attempts,
        _shown_name(span.call_id[:_RAW_NAME], hidden),
        span.outcome,
        _shown_name(span.tool[:_RAW_NAME], hidden),
        _shown_name(span.error[:_RAW_NAME], hidden),
        span.error_id and _shown_name(span.error_id[:_RAW_NAME], hidden),
        output,
        shown(span.input, INPUT_LIMIT) if span.input else "",
        span.agent,
    )
