"""What a trace keeps of texts: their beginning, without secrets. Pure.

A text is cut twice: first, generously, so that what is done with it is bounded, and after its
secrets are out, to the limit. The second cut can leave no half of a secret, and the first one is
made between words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from motet.actors.errors.clip import redacted_head
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
    room = limit + MARGIN
    head, _ = redacted_head(well_formed(text if len(text) <= room else text[: room + 1]), room)
    return head[:limit]


def shown_name(name: str, hidden: re.Pattern[str] | None) -> str:
    """A name as a column can hold it: one that a model made up may be anything.

    ``hidden``: the process's own secrets (``hidden_values``).
    """
    return _shown_name(name if len(name) <= _RAW_NAME else name[:_RAW_NAME], hidden)


@lru_cache(maxsize=1_024)
def _shown_name(name: str, _hidden: re.Pattern[str] | None) -> str:
    """Hosts have few names, and say them often; what is hidden in them may change."""
    return redact_text(well_formed(name).replace("\0", "\ufffd"))[:NAME_LIMIT]


def with_inputs(spans: Sequence[Span], inputs: Mapping[str, str]) -> tuple[Span, ...]:
    """The spans with their inputs, by their ids, as they are stored and exported."""
    return tuple(
        [
            replace(span, input=shown(inputs[span.id], INPUT_LIMIT)) if span.id in inputs else span
            for span in spans
        ]
    )
