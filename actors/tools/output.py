"""What a tool returned as the text a model is given.

Invariants: any value has a text; the text is valid Unicode without NUL; what is cut says so.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec

_UNSAFE = re.compile("[\x00\ud800-\udfff]")


def render(value: object, limit: int) -> str:
    """A text as it is, data as JSON, cut to ``limit`` code points with a note."""
    return cut(safe(value if isinstance(value, str) else _json(value)), limit)


def safe(text: str) -> str:
    """NUL and lone surrogates become U+FFFD: stores and wires refuse them."""
    return _UNSAFE.sub("\ufffd", text)


def cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[truncated: {limit} of {len(text)} characters]"


def _json(value: object) -> str:
    try:
        try:
            return msgspec.json.encode(value, enc_hook=_encode).decode()
        except UnicodeEncodeError:  # a lone surrogate somewhere inside
            plain: object = msgspec.to_builtins(value, enc_hook=_encode, str_keys=True)
            return json.dumps(plain, ensure_ascii=False)
    except Exception:  # reading a foreign object may raise anything
        return f"[unserializable result of type {type(value).__name__}]"


def _encode(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")
