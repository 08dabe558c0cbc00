"""Patterns over long texts, in windows, so that no single search keeps other threads waiting.

Python's ``re`` holds the interpreter for the whole of a search: in ten megabytes that is a tenth
of a second in which nothing else runs, in whatever thread the search is. Law: as ``re.sub``, for
patterns that match at most :data:`OVERLAP` characters or, cut short, also match what is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

Replacement: TypeAlias = str | Callable[[re.Match[str]], str]

NO_WORD_BEFORE = (
    r"(?:(?<![0-9A-Za-z_])|(?<=\\[abfnrtv0])|(?<=\\x[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4}))"
)
"""Where a word may begin: also behind an escape, as in the ``repr`` of a text with lines."""

WINDOW = 131_072
OVERLAP = 65_536


def substitute(pattern: re.Pattern[str], replacement: Replacement, text: str) -> str:
    """The text with every match replaced; a replacement of text may refer to groups."""
    if len(text) <= WINDOW + OVERLAP:
        return pattern.sub(replacement, text)
    parts: list[str] = []
    done = 0
    for found in _matches(pattern, text):
        new = found.expand(replacement) if isinstance(replacement, str) else replacement(found)
        parts += text[done : found.start()], new
        done = found.end()
    return "".join([*parts, text[done:]])


def contains(pattern: re.Pattern[str], text: str) -> bool:
    if len(text) <= WINDOW + OVERLAP:
        return pattern.search(text) is not None
    return next(_matches(pattern, text), None) is not None


def lowered_windows(text: str) -> list[str]:
    """The text in lower case, in pieces that overlap."""
    if len(text) <= WINDOW + OVERLAP:
        return [text.lower()]
    return [text[at : at + WINDOW + OVERLAP].lower() for at in range(0, len(text), WINDOW)]


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    at, size = 0, WINDOW + OVERLAP
    while at < len(text):
        end = min(at + size, len(text))
        found = pattern.search(text, at, end)
        if found is None:
            at, size = (end - OVERLAP if end < len(text) else end), WINDOW + OVERLAP
        elif found.end() == end < len(text):
            # It may go on behind the window: look again from its start, twice as far.
            at, size = found.start(), 2 * size
        else:
            yield found
            at, size = found.end(), WINDOW + OVERLAP
