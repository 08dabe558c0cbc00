"""Masks: the text in place of a secret, ``[secret:KIND:TAG]``, and of personal data. Pure.

A tag is four digits of a hash with a key. Laws: equal secrets have equal tags under the same key; a
mask tells nothing else of its secret; the mask of a secret that comes in pieces is that of the
whole. A secret that ends a line leaves the end of its line behind its mask, so that the next line
stays one.

The key is an argument of each function, and None for masks without tags. The functions for one
secret and for thousands give the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeAlias

from motet.protocols.redaction import personal
from motet.protocols.redaction.values import Found

Key: TypeAlias = bytes | None
"""Of the tags; None: masks have none."""
Mask: TypeAlias = Callable[[str, str], str]
"""The mask of a kind and a secret."""

PRIVATE_KEY = "private-key"
"""The kind of secrets that go over lines, and are one text however these are written."""

_PERSONAL = {
    personal.EMAIL: "[EMAIL_REDACTED]",
    personal.PHONE: "[PHONE_REDACTED]",
    personal.SSN: "[SSN_REDACTED]",
    personal.CARD: "[CARD_REDACTED]",
}
_LETTERS = re.compile("[^0-9A-Za-z+/]+")


class Tagger:
    """The mask of one secret that comes in pieces."""

    def __init__(self, kind: str, key: Key) -> None:
        self.kind = kind
        self._ends_line = False
        self._hash = None if key is None else hashlib.blake2b(key=key, digest_size=2)

    def add(self, text: str) -> None:
        """Take the next piece."""
        if self._hash is not None:
            # A private key is the same in lines, in JSON and indented.
            plain = _LETTERS.sub("", text) if self.kind == PRIVATE_KEY else text
            self._hash.update(plain.encode("utf-8", "surrogatepass"))
        if text:
            self._ends_line = text.endswith("\n")

    def mask(self) -> str:
        """The mask of all pieces."""
        tag = "" if self._hash is None else f":{self._hash.hexdigest()}"
        return f"[secret:{self.kind}{tag}]" + ("\n" if self._ends_line else "")


@lru_cache(1)
def _hash_of(key: bytes) -> hashlib.blake2b:
    """The hash of nothing: a copy is made in half of the time."""
    return hashlib.blake2b(key=key, digest_size=2)


def mask(kind: str, text: str, key: Key) -> str:
    """The mask of a secret."""
    if (personal := _PERSONAL.get(kind)) is not None:
        return personal
    if key is not None and kind != PRIVATE_KEY and text[-1:] != "\n":
        code = _hash_of(key).copy()
        code.update(text.encode() if text.isascii() else text.encode("utf-8", "surrogatepass"))
        return f"[secret:{kind}:{code.hexdigest()}]"
    tagger = Tagger(kind, key)
    tagger.add(text)
    return tagger.mask()


def masker(key: Key) -> Mask:
    """As :func:`mask`, for thousands of secrets of ASCII that are in one line each."""
    copy = None if key is None else _hash_of(key).copy

    def masked(kind: str, text: str) -> str:
        if copy is None or kind in _PERSONAL:
            return mask(kind, text, None)
        code = copy()
        code.update(text.encode())
        return f"[secret:{kind}:{code.hexdigest()}]"

    return masked


def masked(text: str, found: Iterable[Found], key: Key) -> str:
    """The text with masks in place of the secrets that were found in it, in order."""
    parts: list[str] = []
    at = 0
    for start, end, _, kind in found:
        parts += text[at:start], mask(kind, text[start:end], key)
        at = end
    parts.append(text[at:])
    return "".join(parts)
