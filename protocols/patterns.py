"""Regular expressions of JSON Schemas, matched in time linear in the text. Pure.

A schema may come from a stranger, and Python's ``re`` backtracks: ``^(a+)+$`` takes years on forty
characters and holds the whole program meanwhile. So an expression becomes a nondeterministic
automaton, whose sets of states are followed through the text and cached. The dialect is ECMA-262
with the Unicode flag, as JSON Schema wants it; ``(?P<name>...)``, ``\\A`` and ``\\Z`` of Python are
read too. Look-ahead at the beginning is an automaton of
its own; other look-around and flags are left to ``re`` where the shape of the expression bounds its
backtracking; back references and unknown syntax are not matched at all.

Laws: :func:`compiled` never raises; a match costs at most ``spend`` allows; without an answer,
:meth:`Pattern.matches` gives None.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Callable
from typing import TypeAlias

import attrs

Spend: TypeAlias = Callable[[int], None]
"""Counts steps of work; it raises when there were too many."""
Kind: TypeAlias = str
"""Of the character beside a place: ``word``, ``line`` (an end of the text) or ``other``."""

MOST_LENGTH = 5_000
MOST_STATES = 3_000
MOST_CACHED = 20_000
MOST_BACKTRACKING = 4_000_000
"""Steps that ``re`` may take in the worst case."""
ENDLESS = 1_000
"""The degree of an expression whose worst case is exponential."""
_SURROGATES = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_REPEAT = re.compile(r"\{(\d{1,6})(,(\d{0,6}))?\}")
_GROUP = re.compile(r"\?(?::|P?<[A-Za-z_$][\w$]*>)")
_BEYOND = re.compile(r"\?(?:<?[=!]|[aimsux-]+:)")
_FLAGS = re.compile(r"\(\?[aimsux]+\)")
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_LINE_ENDS = "\n\r\u2028\u2029"
_SPACE = frozenset("\t\n\v\f\r \u00a0\ufeff\u2028\u2029")
_CATEGORIES = {
    "Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M", "Number": "N",
    "Decimal_Number": "Nd", "digit": "Nd", "Letter_Number": "Nl", "Other_Number": "No",
    "Punctuation": "P", "punct": "P", "Symbol": "S", "Separator": "Z", "Space_Separator": "Zs",
    "Other": "C", "Control": "Cc", "cntrl": "Cc",
}  # fmt: skip

Accepts: TypeAlias = Callable[[str], bool]


def _is_word(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char == "_")


def _is_digit(char: str) -> bool:
    return "0" <= char <= "9"


def _is_space(char: str) -> bool:
    return char in _SPACE or unicodedata.category(char) == "Zs"


_CLASSES: dict[str, Accepts] = {"d": _is_digit, "w": _is_word, "s": _is_space}


class _Unreadable(Exception):
    """The syntax is not known, or the automaton would be too large."""


@attrs.define(eq=False)
class _State:
    """``accepts``: the characters that lead to ``after``; without it, the way there is free.

    ``needs``: the place that a free way needs: ``^``, ``$``, ``b`` or ``B``.
    """

    accepts: Accepts | None = None
    needs: str = ""
    after: list[_State] = attrs.field(factory=list["_State"])


@attrs.frozen
class _Part:
    """A part of the automaton. ``degree``: the exponent of the worst case of backtracking."""

    first: _State
    last: _State
    degree: int = 0


class _Reader:
    """Reads an expression into an automaton."""

    def __init__(self, pattern: str) -> None:
        self._text = _SURROGATES.sub(_joined, pattern)
        self._at = 0
        self._states = 0
        self._depth = 0
        self.is_regular = self._matched(_FLAGS) is None
        """Whether it has neither look-around nor flags."""

    def whole(self) -> _Part:
        part = self._alternatives()
        if self._at < len(self._text):
            raise _Unreadable
        return part

    def end_of_group(self) -> int:
        """The place after the group that the expression begins with."""
        self._next()
        self._group()
        return self._at

    def whole_without_choice(self) -> None:
        """Raises where a choice on the top level would make a part of it mean something else."""
        self._sequence()
        if self._at < len(self._text):
            raise _Unreadable

    def _state(self, accepts: Accepts | None = None, needs: str = "") -> _State:
        self._states += 1
        if self._states > MOST_STATES:
            raise _Unreadable
        return _State(accepts, needs)

    def _taken(self, word: str) -> bool:
        found = self._text.startswith(word, self._at)
        self._at += len(word) if found else 0
        return found

    def _matched(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise _Unreadable
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> _Part:
        self._depth += 1
        if self._depth > 50:
            raise _Unreadable
        ways = [self._sequence()]
        while self._taken("|"):
            ways.append(self._sequence())
        self._depth -= 1
        if len(ways) == 1:
            return ways[0]
        first, last = self._state(), self._state()
        for way in ways:
            first.after.append(way.first)
            way.last.after.append(last)
        return _Part(first, last, max(1, *(way.degree for way in ways)))

    def _sequence(self) -> _Part:
        first = last = self._state()
        degree = 0
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            start = self._at
            part = self._repeated(self._atom(), start)
            last.after.append(part.first)
            last = part.last
            degree += part.degree
        return _Part(first, last, degree)

    def _repeated(self, part: _Part, start: int) -> _Part:
        found = self._matched(_REPEAT)
        if found:
            least, most = int(found[1]), None if found[2] == "," else int(found[3] or found[1])
        elif self._taken("*"):
            least, most = 0, None
        elif self._taken("+"):
            least, most = 1, None
        elif self._taken("?"):
            least, most = 0, 1
        else:
            return part
        self._taken("?")  # lazy: of no concern where only a match is looked for
        end, made = self._at, [part]
        for _ in range((most or max(least, 1)) - 1):
            self._at = start
            made.append(self._atom())
        self._at = end
        return self._chained(made, least, most)

    def _chained(self, made: list[_Part], least: int, most: int | None) -> _Part:
        """Copies of a part, one after the other; those after the ``least`` may be left out."""
        first, last = self._state(), self._state()
        before = first
        for number, copy in enumerate(made):
            if number >= least:
                before.after.append(last)
            if most != 0:
                before.after.append(copy.first)
            before = copy.last
        if most is None:
            before.after.append(made[-1].first)
        before.after.append(last)
        degree = made[0].degree
        if most is None:
            degree = ENDLESS if degree else 1
        else:
            degree = (degree + (least != most)) * max(most, 1)
        return _Part(first, last, min(degree, ENDLESS))

    def _one(self, accepts: Accepts) -> _Part:
        first, last = self._state(accepts), self._state()
        first.after.append(last)
        return _Part(first, last)

    def _place(self, needs: str) -> _Part:
        first, last = self._state(None, needs), self._state()
        first.after.append(last)
        return _Part(first, last)

    def _atom(self) -> _Part:
        char = self._next()
        match char:
            case "^" | "$":
                return self._place(char)
            case ".":
                return self._one(lambda one: one not in _LINE_ENDS)
            case "[":
                return self._one(self._class())
            case "(":
                return self._group()
            case "\\":
                return self._escape()
            case "*" | "+" | "?" | ")" | "]":
                raise _Unreadable
            case _:
                return self._one(char.__eq__)

    def _group(self) -> _Part:
        if self._matched(_BEYOND):
            self.is_regular = False
        elif self._taken("?"):
            self._at -= 1
            if not self._matched(_GROUP):
                raise _Unreadable
        part = self._alternatives()
        if not self._taken(")"):
            raise _Unreadable
        return part

    def _escape(self) -> _Part:
        found = self._text[self._at : self._at + 1]
        if found in ("b", "B", "A", "Z", "z"):
            self._at += 1
            return self._place({"A": "^", "Z": "$", "z": "$"}.get(found, found))
        return self._one(_accepting(self._escaped()))

    def _escaped(self) -> str | Accepts:
        """The character, or the class of characters, that an escape stands for."""
        found = self._matched(_HEX)
        if found:
            number = int(found[1] or found[2] or found[3], 16)
            if number > 0x10FFFF:
                raise _Unreadable
            return chr(number)
        char = self._next()
        if char in "pP":
            return _negated(self._property(), char == "P")
        if char.lower() in _CLASSES:
            return _negated(_CLASSES[char.lower()], char.isupper())
        if char == "c":
            letter = self._next()
            if not (letter.isascii() and letter.isalpha()):
                raise _Unreadable
            return chr(ord(letter) % 32)
        if char in _CONTROL and not (char == "0" and self._text[self._at : self._at + 1].isdigit()):
            return _CONTROL[char]
        if char.isalnum():
            raise _Unreadable  # a back reference, or an escape of another dialect
        return char

    def _property(self) -> Accepts:
        found = self._matched(re.compile(r"\{([^{}]*)\}"))
        name = (found[1] if found else "").rpartition("=")
        wanted = _CATEGORIES.get(name[2], name[2])
        known = name[0] in ("", "gc", "General_Category")
        if wanted == "Any" or not known or not re.fullmatch("[LMNPSZC][a-z]?", wanted):
            raise _Unreadable
        return lambda one: unicodedata.category(one).startswith(wanted)

    def _class(self) -> Accepts:
        negated = self._taken("^")
        ranges: list[tuple[str, str]] = []
        others: list[Accepts] = []
        while not self._taken("]"):
            low = self._member()
            if not isinstance(low, str):
                others.append(low)
                continue
            high: str | Accepts = low
            if self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 :][:1] != "]":
                self._at += 1
                high = self._member()
            if not isinstance(high, str):
                ranges.append(("-", "-"))
                others.append(high)
                high = low
            if high < low:
                raise _Unreadable
            ranges.append((low, high))

        def within(one: str) -> bool:
            found = any(low <= one <= high for low, high in ranges)
            return found or any(other(one) for other in others)

        return _negated(within, negated)

    def _member(self) -> str | Accepts:
        char = self._next()
        if char != "\\":
            return char
        if self._taken("b"):
            return "\b"
        return "-" if self._taken("-") else self._escaped()


def _joined(found: re.Match[str]) -> str:
    """One escape in place of those of two halves of a surrogate pair."""
    high, low = int(found[1], 16), int(found[2], 16)
    return f"\\u{{{0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF):x}}}"


def _accepting(found: str | Accepts) -> Accepts:
    return found.__eq__ if isinstance(found, str) else found


def _negated(accepts: Accepts, is_negated: bool) -> Accepts:
    return (lambda one: not accepts(one)) if is_negated else accepts


def _kind(char: str) -> Kind:
    if not char:
        return "line"
    return "word" if _is_word(char) else "other"


def _holds(needs: str, before: Kind, behind: Kind) -> bool:
    match needs:
        case "^":
            return before == "line"
        case "$":
            return behind == "line"
        case "b" | "B":
            return ((before == "word") != (behind == "word")) == (needs == "b")
        case _:
            return True


_Set: TypeAlias = frozenset[_State]


@attrs.define(eq=False)
class Pattern:
    """One expression, and the steps of its automaton that were taken so far."""

    text: str
    _whole: _Part | None = None
    _plain: re.Pattern[str] | None = None
    _degree: int = ENDLESS
    _ahead: tuple[tuple[Pattern, bool], ...] = ()
    _cache: dict[tuple[_Set, Kind, str], _Set | None] = attrs.field(
        factory=dict[tuple[_Set, Kind, str], "_Set | None"]
    )

    def matches(self, text: str, spend: Spend) -> bool | None:
        """Whether the text contains a match; None where that cannot be found out in time."""
        if self._whole is not None:
            for pattern, wanted in self._ahead:
                found = pattern.matches(text, spend)
                if found is not wanted:
                    return None if found is None else False
            return self._follow(self._whole, text, spend)
        if self._plain is None or self.may_backtrack(len(text)):
            return None
        return self._plain.search(text) is not None

    def may_backtrack(self, length: int) -> bool:
        """Whether ``re`` could take too long for a text of that length."""
        steps: int = (length + 1) ** self._degree
        return steps > MOST_BACKTRACKING

    def _follow(self, whole: _Part, text: str, spend: Spend) -> bool:
        states: _Set = frozenset()
        before: Kind = "line"
        for place in range(len(text) + 1):
            if place % 64 == 0:
                spend(1)
            char = text[place : place + 1]
            key = (states, before, char)
            known = self._cache
            if key in known:
                found = known[key]
            else:
                found = self._step(whole, key, spend)
                if len(self._cache) >= MOST_CACHED:
                    self._cache = {}
                self._cache[key] = found
            if found is None:
                return True
            states, before = found, _kind(char)
        return False

    def _step(self, whole: _Part, key: tuple[_Set, Kind, str], spend: Spend) -> _Set | None:
        """The states after one character, or None when the end was reached before it."""
        states, before, char = key
        behind = _kind(char)
        seen = set(states)
        seen.add(whole.first)  # a match may begin at every place
        open_states = list(seen)
        while open_states:
            state = open_states.pop()
            if state.accepts is None and _holds(state.needs, before, behind):
                fresh = [one for one in state.after if one not in seen]
                seen.update(fresh)
                open_states += fresh
        spend(1 + len(seen) // 8)
        if whole.last in seen:
            return None
        return frozenset(
            after
            for state in seen
            if char and state.accepts is not None and state.accepts(char)
            for after in state.after
        )


def compiled(text: str) -> Pattern:
    """The expression, ready to match. One that cannot be read has no answer for any text."""
    if len(text) > MOST_LENGTH:
        return Pattern(text)
    ahead: list[tuple[Pattern, bool]] = []
    rest = text
    while found := _split(rest):
        body, wanted, rest = found
        ahead.append((compiled(f"^(?:{body})"), wanted))
    reader = _Reader(rest if ahead else text)
    whole: _Part | None = None
    degree = ENDLESS
    anchored = text.startswith(("^", "\\A")) and "|" not in text
    try:
        whole = reader.whole()
        degree = whole.degree + (0 if anchored else 1)
    except (_Unreadable, RecursionError):
        # Such as bounds that make too many states. Without groups and alternatives, the degree is
        # the number of repetitions.
        if "(" not in text and "|" not in text:
            degree = len(re.findall(r"[*+?}]", text)) + (0 if anchored else 1)
    if whole is not None and reader.is_regular:
        return Pattern(text, whole, None, ENDLESS if ahead else degree, tuple(ahead))
    try:
        # A program that makes errors of warnings must not fail by somebody's schema: ``[[`` warns
        # that a later Python may read a nested set, where both dialects mean the character.
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            return Pattern(text, None, re.compile(text), max(degree, 1))
    except (re.error, RecursionError, OverflowError):
        return Pattern(text)


def _split(text: str) -> tuple[str, bool, str] | None:
    """A look-ahead at the beginning, whether it is wanted, and the expression without it."""
    if not text.startswith(("^(?=", "^(?!")):
        return None
    reader = _Reader(text[1:])
    try:
        end = reader.end_of_group()
        _Reader(text[1 + end :]).whole_without_choice()
    except (_Unreadable, RecursionError):
        return None
    return text[4:end], text[3] == "=", "^" + text[1 + end :]
