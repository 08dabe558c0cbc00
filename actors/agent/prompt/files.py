"""Context files in a prompt: how much of each, and how they are fenced in.

Invariants: a file takes at most :data:`FILE_CHARS`, all of them :data:`ALL_CHARS`; what is left
out is said where it was; no text can close the block that it stands in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from motet.actors.agent.prompt.given import ContextFile

FILE_CHARS = 20_000
ALL_CHARS = 24_000
LEAST = 64
"""Characters: with less room than this a file is left out."""


def fitted(files: Iterable[ContextFile]) -> tuple[ContextFile, ...]:
    """The files that have something to say, each cut to its share; what comes first has its own."""
    kept: list[ContextFile] = []
    room = ALL_CHARS
    for file in files:
        text = inert(file.text.strip(), "context_file")
        if not text:
            continue
        if room < min(LEAST, len(text)):
            break
        text = cut(text, min(room, FILE_CHARS)).strip()
        room -= len(text)
        kept.append(ContextFile(file.name, text, file.path))
    return tuple(kept)


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters (at least 64): 70 % from the head, 20 % from the tail."""
    if len(text) <= limit:
        return text
    assert limit >= LEAST, limit
    tail = limit * 2 // 10
    head = min(limit * 7 // 10, limit - tail - len(_notice(len(text))))
    return text[:head] + _notice(len(text) - head - tail) + text[len(text) - tail :]


def _notice(count: int) -> str:
    return f"\n[... {count:,} characters left out ...]\n"


def block(file: ContextFile) -> str:
    """A file between its tags, named by the path with which a tool can open it."""
    name = (file.path or file.name).replace('"', "'")
    return f'<context_file name="{name}">\n{file.text}\n</context_file>'


def inert(text: str, tag: str) -> str:
    """The same text, in which nothing closes ``tag``."""
    return _closing(tag).sub("&lt;", text)


@cache
def _closing(tag: str) -> re.Pattern[str]:
    return re.compile(rf"<(?=\s*/\s*{tag})", re.IGNORECASE)
