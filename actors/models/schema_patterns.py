"""A text in which a regular expression is found, for the simple ones that schemas hold. Pure.

Known are letters, escapes, classes, groups, alternatives, repetitions and anchors. Law: what is
returned does match; for an expression beyond these words it is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

Pick: TypeAlias = Callable[[int], int]
"""A choice among so many, 0 the simplest: the choices of a value are its only input."""

MORE = 4
"""How often an open repetition goes beyond its least, at most."""
_CLASSES = {"d": "0123456789", "w": "abcABC019_", "s": " \t", "D": "ab-", "W": " -.", "S": "ab0-"}
_PLAIN = {"n": "\n", "t": "\t", "r": "\r"}
_ANY = "abcxyz019-"
_PRINTABLE = "".join(map(chr, range(32, 127)))
_REPEAT = re.compile(r"\{(\d+)(,(\d*))?\}")


class _Beyond(Exception):
    """The expression has something that is not known here."""


def matching(pattern: str, pick: Pick) -> str | None:
    """A text that ``pattern`` finds itself in, drawn by ``pick``."""
    try:
        text = _Reader(pattern, pick).whole()
        return text if re.search(pattern, text) else None
    except (_Beyond, re.error):
        return None


class _Reader:
    """Reads an expression once, from left to right, and writes a text meanwhile."""

    def __init__(self, pattern: str, pick: Pick) -> None:
        self._rest = pattern
        self._pick = pick

    def whole(self) -> str:
        text = self._alternatives()
        if self._rest:
            raise _Beyond
        return text

    def _alternatives(self) -> str:
        ways = [self._sequence()]
        while self._taken("|"):
            ways.append(self._sequence())
        return ways[self._pick(len(ways))] if len(ways) > 1 else ways[0]

    def _sequence(self) -> str:
        parts: list[str] = []
        while self._rest and self._rest[0] not in "|)":
            start = self._rest
            part = self._atom()
            least, most = self._repetition()
            times = least + (self._pick(most - least + 1) if most > least else 0)
            after = self._rest
            for _ in range(times - 1):  # read again, so that each time may be another
                self._rest = start
                part += self._atom()
            self._rest = after
            parts.append(part if times else "")
        return "".join(parts)

    def _atom(self) -> str:
        char = self._next()
        match char:
            case "^" | "$":
                return ""
            case ".":
                return self._one(_ANY)
            case "[":
                return self._one(self._class())
            case "(":
                return self._group()
            case "\\":
                return self._escape()
            case "*" | "+" | "?" | "{":
                raise _Beyond
            case _:
                return char

    def _group(self) -> str:
        if self._taken("?") and not self._taken(":"):
            raise _Beyond
        text = self._alternatives()
        if not self._taken(")"):
            raise _Beyond
        return text

    def _escape(self) -> str:
        char = self._next()
        if char in "bBAZ":
            return ""
        return self._one(self._escaped(char))

    def _escaped(self, char: str) -> str:
        """The characters that an escape stands for."""
        known = _CLASSES.get(char) or _PLAIN.get(char) or char
        if known == char and char.isalnum():
            raise _Beyond
        return known

    def _class(self) -> str:
        """The characters of a class whose bracket was just read."""
        negated = self._taken("^")
        chars = ""
        while not (chars and self._rest.startswith("]")):
            char = self._next()
            found = self._escaped(self._next()) if char == "\\" else char
            if len(found) == 1 and self._rest[:1] == "-" and self._rest[1:2] not in ("]", "\\", ""):
                self._next()
                found = "".join(map(chr, range(ord(found), ord(self._next()) + 1)))
            chars += found
        self._next()
        return "".join(char for char in _PRINTABLE if char not in chars) if negated else chars

    def _repetition(self) -> tuple[int, int]:
        """How often what was just read stands there, from and to."""
        least, most = 1, 1
        if self._taken("*"):
            least, most = 0, MORE
        elif self._taken("+"):
            least, most = 1, 1 + MORE
        elif self._taken("?"):
            least, most = 0, 1
        elif found := _REPEAT.match(self._rest):
            self._rest = self._rest[found.end() :]
            least = int(found[1])
            most = least if found[2] is None else int(found[3] or least + MORE)
        else:
            return least, most
        self._taken("?")  # how greedy it is does not matter here
        return least, most

    def _one(self, chars: str) -> str:
        if not chars:
            raise _Beyond
        return chars[self._pick(len(chars))]

    def _next(self) -> str:
        if not self._rest:
            raise _Beyond
        char, self._rest = self._rest[0], self._rest[1:]
        return char

    def _taken(self, char: str) -> bool:
        """Whether it comes next; then it is read."""
        if not self._rest.startswith(char):
            return False
        self._rest = self._rest[1:]
        return True
