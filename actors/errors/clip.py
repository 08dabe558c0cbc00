"""Huge texts, cut so that what is done with them is bounded and no secret is cut in half. Pure.

A secret that a cut left in two would be known by neither half, so that texts are cut at a space
where there is one near.
"""

from __future__ import annotations

from typing import cast

from motet.actors.errors.redact import redact_text

HEAD = 65_536
"""Code points of an error from which its summary and its short texts are made."""
TEXT_LIMIT = 12_000_000
"""Code points of one text of a stored error; three quarters from its beginning."""
_NEAR = 1_024


def redacted_head(text: str, limit: int = HEAD) -> tuple[str, int]:
    """The beginning of a text without secrets, and how many code points were left out."""
    kept = text[: _end(text, limit)] if len(text) > limit else text
    return redact_text(kept), len(text) - len(kept)


def clipped(value: object, limit: int = TEXT_LIMIT) -> object:
    """A JSON value in which no text is much longer than ``limit``; the rest is counted."""
    match value:
        case str():
            return _clipped(value, limit)
        case list():
            return [clipped(item, limit) for item in cast("list[object]", value)]
        case dict():
            items = cast("dict[str, object]", value).items()
            return {_clipped(key, limit): clipped(item, limit) for key, item in items}
        case _:
            return value


def _clipped(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = _end(text, limit * 3 // 4)
    tail = _end(text, len(text) - limit // 4)
    return f"{text[:head]}\n[... {tail - head} characters left out ...]\n{text[tail:]}"


def _end(text: str, at: int) -> int:
    """Where to cut near ``at``: behind a space or the end of a line, if there is one."""
    near = max(text.rfind(space, at - _NEAR, at) for space in " \n")
    return at if near < 0 else near + 1
