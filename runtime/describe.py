"""Errors described: in one line, and by an id. Pure; nothing raises.

Source: seed 000, contradictions 1 to 10 and 15.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import blake2b
from math import floor
from secrets import token_bytes
from typing import ClassVar, Generic, TypeVar, cast

import attrs
import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.texts import first_line, shorten, well_formed
from motet.runtime.exceptions import Stacks, message_of, safe_text, to_json_types

V = TypeVar("V")


@attrs.frozen(eq=False)
class Known(Generic[V]):
    """What was made of errors that came lately, found again by the likeness of an equal error.

    Invariant: of an error itself only a keyed digest is kept, so that no text of it, which may be a
    secret, stays in memory after it. When there are :data:`LIMIT` values no more are kept: their
    owner begins anew, which is simple enough for two threads at once.

    Attributes:
        state: of the rules by which it was made.
        stacks: as they were formatted; the code of them, whose places are in likenesses, is alive.
        heads: beginnings of tracebacks, which have the stack only, as they were redacted.
    """

    state: object = None
    stacks: Stacks = attrs.field(factory=Stacks)
    heads: dict[str, str] = attrs.field(factory=dict[str, str])
    values: dict[bytes | None, V] = attrs.field(factory=dict[bytes | None, V])
    _key: bytes = attrs.field(factory=partial(token_bytes, 16), init=False)

    LIMIT: ClassVar = 128
    LARGEST: ClassVar = 16_384
    """Bytes of an error, at most: so all values take some megabytes."""

    @property
    def is_full(self) -> bool:
        return max(len(self.stacks), len(self.values)) >= self.LIMIT

    def key(self, likeness: Hashable) -> bytes | None:
        """The key of a value, from :func:`~motet.runtime.exceptions.likeness`; None: like nothing.

        That has bytes first, and then texts, numbers and tuples, which JSON tells apart; what has
        none, their ``repr``.
        """
        if not isinstance(likeness, tuple):
            return None
        first, *more = cast("tuple[object, ...]", likeness)
        assert isinstance(first, bytes), likeness
        try:
            rest = msgspec.json.encode(more)  # in a third of the time
        except Exception:
            rest = repr(more).encode("utf-8", "backslashreplace")
        said = b"%d,%b%b" % (len(first), first, rest)
        return blake2b(said, key=self._key, digest_size=16).digest()


# Ids of stored errors: ``err_YYYYMMDD_HHMMSS_<6 hex>`` in UTC, 26 characters. They sort by time, to
# the second.

ID_SHAPE = r"err_[0-9]{8}_[0-9]{6}_[0-9a-f]{6}"
ERROR_ID = re.compile(ID_SHAPE)
_IN_TEXT = re.compile(rf"(?<![0-9A-Za-z_]){ID_SHAPE}(?![0-9A-Za-z_])")
ID_LENGTH = 26
EXAMPLE_ID = "err_20240229_120000_00abff"


def new_id(now: float, hex_source: Callable[[int], str]) -> str:
    """An id for ``now`` (Unix seconds). ``hex_source(3)`` gives its six hex digits."""
    made = f"err_{_second(floor(round(now, 6)))}_{hex_source(3)}"
    assert is_id(made), made
    return made


@lru_cache(maxsize=4)
def _second(now: int) -> str:
    """Cached, since errors come in bursts, and formatting is the slowest part of an id."""
    when = datetime.fromtimestamp(now, UTC)
    return f"{when.year:04}{when:%m%d_%H%M%S}"


def is_id(text: str) -> bool:
    return ERROR_ID.fullmatch(text) is not None


def find_id(text: str) -> str | None:
    """The first id in a text. Models quote it with its label, quotes or Markdown escapes."""
    found = _IN_TEXT.search(text.replace("\\_", "_"))
    return found.group() if found else None


# Summaries. Invariants: one line of at most :data:`SUMMARY_LIMIT` code points, no NUL, valid UTF-8;
# the summary of a summary is itself.

SUMMARY_LIMIT = 100


def summarize(error: object, code: str = "") -> str:
    """The first non-blank line of the error, trimmed, with ``Code X: `` in front if it has a code.

    ``code`` overrides the error's own code.
    """
    return shorten(_line(error, code), SUMMARY_LIMIT)


def _line(error: object, code: str) -> str:
    line, own = first_line(error_text(error)), first_line(code or error_code(error))
    return f"Code {own}: {line}".strip() if own else line


def error_text(error: object) -> str:
    """The whole text of an error."""
    if isinstance(error, BaseException):
        return message_of(error)
    if isinstance(error, str):
        return well_formed(error)
    inner = error_object(error)
    for key in ("message", "error", "detail"):
        if isinstance(text := inner.get(key), str) and text.strip():
            return well_formed(text)
    return msgspec.json.encode(to_json_types(inner or error)).decode() if error else ""


def error_code(error: object) -> str:
    """The code of an error object as text; empty without one."""
    code = error_object(error).get("code")
    return safe_text(code) if isinstance(code, str | int) and not isinstance(code, bool) else ""


def error_object(error: object) -> JsonObject:
    """The object with the message: results and providers nest it under ``error``."""
    if not isinstance(error, dict):
        return {}
    outer = cast("JsonObject", error)  # looked up by text, whatever keys it has
    inner = outer.get("error")
    if "message" in outer or not isinstance(inner, dict):
        return outer
    return cast("JsonObject", inner)
