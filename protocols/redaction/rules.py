"""The rules of the redactor: read from ``rules.json`` and made into tables and expressions.

A rule is data. A *shape* writes a published format down: literal text, and ``{alphabet:length}`` or
``{alphabet:least,most}`` for its random parts, as in ``ghp_{alnum:36,255}``. A shape is looked up
by its first characters, by the sign in front of its last part (``anchor``), or by its length, so
that a word is compared with the few shapes that it could have; an expression is compiled when it
is first needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from itertools import product
from pathlib import Path

import attrs
import msgspec

WORD = "0-9A-Za-z"
SEPARATOR = "[_. -]?"
_PART = re.compile(r"\{([a-z0-9]+):(\d+)(?:(,)(\d*))?\}")


class TokenRule(msgspec.Struct, frozen=True):
    """The tokens of one vendor. ``check``: ``mixed`` wants digits and letters of both cases."""

    kind: str
    shapes: tuple[str, ...]
    check: str = ""
    anchor: str = ""
    note: str = ""


class WebhookRule(msgspec.Struct, frozen=True):
    """Addresses that are secrets. ``path``: an expression for the part behind ``head``."""

    kind: str
    head: str
    path: str


class CommandRule(msgspec.Struct, frozen=True):
    """Short flags that take a secret. ``value``: where it is, and whether a user is before it."""

    programs: tuple[str, ...]
    flags: tuple[str, ...]
    value: str


class RuleFile(msgspec.Struct, frozen=True):
    """The content of ``rules.json``."""

    alphabets: dict[str, str]
    tokens: tuple[TokenRule, ...]
    webhooks: tuple[WebhookRule, ...]
    passwords: tuple[str, ...]
    secrets: tuple[str, ...]
    weak: tuple[str, ...]
    harmless: tuple[str, ...]
    endings: tuple[str, ...]
    placeholders: tuple[str, ...]
    passes_by: tuple[str, ...]
    schemes: tuple[str, ...]
    parameters: tuple[str, ...]
    attributes: tuple[str, ...]
    query: tuple[str, ...]
    pair_flags: tuple[str, ...]
    commands: tuple[CommandRule, ...]
    databases: tuple[str, ...]
    logins: tuple[str, ...]


@attrs.frozen
class Shape:
    """One published format. The tail is open if its last part has no greatest length."""

    kind: str
    text: str
    check: str
    alphabets: dict[str, str] = attrs.field(repr=False, eq=False)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The format, up to where its word ends."""
        made, at = "", 0
        for part in _PART.finditer(self.text):
            made += re.escape(self.text[at : part.start()])
            least, comma, most = part[2], part[3] or "", part[4] or ""
            made += f"[{self.alphabets[part[1]]}]{{{least}{comma}{most}}}"
            at = part.end()
        return re.compile(made + re.escape(self.text[at:]) + f"(?![{WORD}])")

    @cached_property
    def head(self) -> str:
        """The literal text that it begins with."""
        found = _PART.search(self.text)
        return self.text[: found.start()] if found else self.text

    def lengths(self) -> Iterator[int]:
        """All lengths that it can have; for shapes without open parts."""
        literal = len(_PART.sub("", self.text))
        ranges = (range(int(p[2]), int(p[4] or p[2]) + 1) for p in _PART.finditer(self.text))
        return (literal + sum(chosen) for chosen in product(*ranges))


HEADS = (4, 3, 2, 1)
"""The lengths of beginnings by which shapes are looked up."""


@attrs.frozen
class Rules:
    """All rules, in the tables that the finders use."""

    file: RuleFile
    by_head: dict[str, tuple[Shape, ...]]
    by_anchor: dict[str, tuple[Shape, ...]]
    by_length: dict[int, tuple[Shape, ...]]
    passwords: frozenset[str]
    secrets: frozenset[str]
    weak: frozenset[str]
    harmless: tuple[str, ...]
    placeholders: frozenset[str]
    schemes: frozenset[str]
    parameters: frozenset[str]
    attributes: frozenset[str]
    pair_flags: frozenset[str]
    databases: frozenset[str]
    logins: frozenset[str]

    def shapes_at(self, text: str, at: int) -> tuple[Shape, ...]:
        """The shapes whose beginning stands here."""
        heads = self.by_head
        found = heads.get(text[at : at + 4], ()) + heads.get(text[at : at + 3], ())
        return found + heads.get(text[at : at + 2], ()) + heads.get(text[at : at + 1], ())

    @cached_property
    def passes_by(self) -> re.Pattern[str]:
        """Values that stand for a secret, or say where it is, but are none."""
        return re.compile("(?:" + "|".join(self.file.passes_by) + r")\Z", re.ASCII)

    @cached_property
    def query(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """A parameter of a URL, in lower case, whose value is a secret; and an escaped one.

        The first begins with a set of characters, and is searched six times as fast.
        """
        names = "|".join(re.escape(name) for name in sorted(self.file.query, key=len, reverse=True))
        rest = (
            rf"(?P<name>{names})(?:=|%3d)"
            r"(?P<value>[^\s&\"'`<>#;,)\]}\\]{6,4096})"
        )
        return re.compile("[?&;]" + rest), re.compile(r"(?:\\u0026|%26|%3f)" + rest)

    def query_in(self, low: str) -> Iterator[re.Match[str]]:
        """All parameters in a text in lower case whose values may be secrets."""
        plain, escaped = self.query
        yield from plain.finditer(low)
        if ("%" in low and ("%26" in low or "%3f" in low)) or "\\u0026" in low:
            yield from escaped.finditer(low)

    @cached_property
    def webhooks(self) -> re.Pattern[str]:
        found = "|".join(
            f"(?P<k{at}>{re.escape(rule.head)}{rule.path})"
            for at, rule in enumerate(self.file.webhooks)
        )
        return re.compile(found)

    @cached_property
    def firsts(self) -> frozenset[str]:
        """The two letters with which a token may begin."""
        letters = [chr(code) for code in range(33, 127)]
        return frozenset(
            pair
            for head in self.by_head
            for pair in ([head[:2]] if len(head) > 1 else [head + letter for letter in letters])
        )

    @cached_property
    def by_program(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """The flags of each program that take a secret, and their forms; the longest flag first."""
        made: dict[str, tuple[tuple[str, str], ...]] = {}
        for rule in self.file.commands:
            flags = tuple((flag, rule.value) for flag in rule.flags)
            for program in rule.programs:
                both = (*made.get(program, ()), *flags)
                made[program] = tuple(sorted(both, key=lambda one: -len(one[0])))
        return made


def _words(names: Iterable[str]) -> frozenset[str]:
    """Names without their separators, as they are looked up."""
    return frozenset(re.sub("[_. -]", "", name.lower()) for name in names)


@cache
def rules() -> Rules:
    """The rules of the data file. Raises only if motet is not installed whole."""
    raw = Path(__file__).with_name("rules.json").read_bytes()
    return build(msgspec.json.decode(raw, type=RuleFile))


def build(file: RuleFile) -> Rules:
    by_head: dict[str, tuple[Shape, ...]] = {}
    by_anchor: dict[str, tuple[Shape, ...]] = {}
    by_length: dict[int, tuple[Shape, ...]] = {}
    for rule in file.tokens:
        for text in rule.shapes:
            shape = Shape(rule.kind, text, rule.check, file.alphabets)
            if size := next((n for n in HEADS if len(shape.head) >= n), 0):
                head = shape.head[:size]
                by_head[head] = (*by_head.get(head, ()), shape)
            elif rule.anchor:
                by_anchor[rule.anchor] = (*by_anchor.get(rule.anchor, ()), shape)
            else:
                for length in shape.lengths():
                    by_length[length] = (*by_length.get(length, ()), shape)
    return Rules(
        file,
        by_head,
        by_anchor,
        by_length,
        _words(file.passwords),
        _words(file.secrets),
        _words(file.weak),
        tuple(_words(file.harmless)),
        frozenset(file.placeholders),
        frozenset(file.schemes),
        frozenset(file.parameters),
        frozenset(file.attributes),
        _words(file.pair_flags),
        frozenset(file.databases),
        frozenset(file.logins),
    )
