"""``NO_REPLY``: how an agent says that it has nothing to say. Pure.

A reply is silent when the whole of it is the token, without case and with nothing around it but
decorations: white space, punctuation, quotes, brackets, markdown. An answer that only mentions
the token is an answer. Source: agent loop specification, section 3.
"""

from __future__ import annotations

import unicodedata
from typing import Final

import msgspec

NO_REPLY: Final = "NO_REPLY"

_SYMBOLS = frozenset("`~^<>|+=$")


def is_silent(text: str) -> bool:
    """Whether the reply is to be stored, marked, and shown to nobody."""
    if NO_REPLY not in text.upper():
        return False
    match = SilenceMatch()
    return match.goes_on(text) and match.whole


class SilenceMatch(msgspec.Struct, eq=False):
    """How much of a silent reply a text that comes in chunks has been so far."""

    _found: int = 0

    @property
    def whole(self) -> bool:
        """Whether it would be one if it ended here."""
        return self._found == len(NO_REPLY)

    def goes_on(self, text: str) -> bool:
        """Whether it may still become one with this behind it; once False, it never will."""
        for letter in text:
            if letter.upper() == NO_REPLY[self._found : self._found + 1]:
                self._found += 1
            elif self._found not in (0, len(NO_REPLY)) or not is_decoration(letter):
                return False
        return True


def is_decoration(letter: str) -> bool:
    """White space, what cannot be seen, punctuation, and the signs of markdown."""
    return unicodedata.category(letter)[0] in "CPZ" or letter in _SYMBOLS
