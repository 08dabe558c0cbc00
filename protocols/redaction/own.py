"""Rules of one's own for the redactor: the section ``[redaction]`` of a configuration.

A pattern is searched in every text that is stored, sent or logged. So one that could take more
than linear time is refused when it is given, and so is one without a literal text by which the
lines that could match are found fast. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from typing import Any, TypeAlias

import attrs

from motet.protocols.errors import ConfigError

LITERAL = 3
"""Characters in a row that each match of a pattern must hold."""
LONGEST = 4_096
"""Repetitions that a pattern may ask for."""

KIND = re.compile(r"[a-z][a-z0-9-]{0,39}")
Parsed: TypeAlias = Any
"""A parsed pattern of the standard library, which has no public type."""


def checked(pattern: str) -> str:
    """The longest literal text of a pattern. Raises ``ConfigError`` if it cannot be used."""
    try:
        re.compile(pattern)
        parsed = _parser().parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{pattern!r} is no regular expression: {error}") from None
    if parsed.state.flags & (re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE):
        raise ConfigError(f"{pattern!r} may not set flags: write [Aa] for both cases")
    _check_repeats(pattern, parsed, inside=False)
    literal = _literal(parsed)
    if len(literal) < LITERAL:
        raise ConfigError(
            f"{pattern!r} has no {LITERAL} literal characters in a row that every match holds: "
            "it would be tried everywhere"
        )
    return literal


def _parser() -> Any:
    """The only parser of this syntax, which has no types."""
    return import_module("re._parser")


def _check_repeats(pattern: str, parsed: Parsed, *, inside: bool) -> None:
    """Refuse what may take more than linear time."""
    open_before = False
    for operation, argument in parsed:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            _, most, body = argument
            if inside:
                raise ConfigError(f"{pattern!r} is slow: a repetition inside of a repetition")
            if int(most) > LONGEST:
                raise ConfigError(
                    f"{pattern!r} is slow: a repetition without an end; "
                    f"give one of at most {LONGEST}, as in {{8,{LONGEST}}}"
                )
            if open_before and int(most) > 64:
                raise ConfigError(f"{pattern!r} is slow: two long repetitions side by side")
            open_before = int(most) > 64
            _check_repeats(pattern, body, inside=int(most) > 1)
            continue
        if name in ("GROUPREF", "GROUPREF_EXISTS"):
            raise ConfigError(f"{pattern!r} refers back to a group, which is slow")
        for part in _parts(argument):
            _check_repeats(pattern, part, inside=inside)
        if name in ("LITERAL", "NOT_LITERAL", "IN", "ANY"):
            open_before = False


def _parts(argument: Any) -> Iterator[Parsed]:
    """The patterns inside of a group, a choice or a look-around."""
    if hasattr(argument, "state"):
        yield argument
    elif isinstance(argument, tuple | list):
        for one in argument:  # pyright: ignore[reportUnknownVariableType]
            yield from _parts(one)


def _literal(parsed: Parsed) -> str:
    """The longest run of literal characters outside of choices and repetitions."""
    best, run = "", ""
    for operation, argument in parsed:
        name = str(operation)
        if name == "LITERAL":
            run += chr(argument)
        elif name == "SUBPATTERN" and argument[1] == argument[2] == 0:
            inner = _literal(argument[3])
            best, run = max(best, run, inner, key=len), ""
        elif name in ("AT", "ASSERT", "ASSERT_NOT"):
            continue
        else:
            best, run = max(best, run, key=len), ""
    return max(best, run, key=len)


@attrs.frozen
class DenyRule:
    """A pattern of texts that are secrets. A match is within one line.

    Args:
        pattern: a regular expression of Python. It has three literal characters in a row, bounded
            repetitions none of which is inside of another, no flags and no references to groups.
            If it has a group, the secret is what the first one matches.
        kind: stands in the mask: lower-case letters, digits and ``-``.

    Raises ``ConfigError`` for a pattern that is none, or that could be slow.
    """

    pattern: str
    kind: str = "own"

    def __attrs_post_init__(self) -> None:
        if KIND.fullmatch(self.kind) is None:
            raise ConfigError(f"{self.kind!r} is no kind: lower-case letters, digits and '-'")
        checked(self.pattern)

    @cached_property
    def literal(self) -> str:
        """The text by which the lines that could match are found."""
        return checked(self.pattern)

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def found(self, text: str) -> Iterator[tuple[int, int, int, str]]:
        at = 0
        while (hit := text.find(self.literal, at)) >= 0:
            start = text.rfind("\n", 0, hit) + 1
            stop = text.find("\n", hit)
            stop = len(text) if stop < 0 else stop
            line = text[start:stop]
            for one in self.compiled.finditer(line):
                group = 1 if self.compiled.groups and one.start(1) >= 0 else 0
                if one.start(group) < one.end(group):
                    first, last = start + one.start(group), start + one.end(group)
                    yield first, last, start + one.start(), self.kind
            at = stop


@attrs.frozen
class OwnRules:
    """Rules beside those of motet.

    Args:
        deny: more that is masked.
        allow: patterns of texts that are no secrets though they look like one. A pattern has to
            match the whole secret.
    """

    deny: tuple[DenyRule, ...] = ()
    allow: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        for place, pattern in enumerate(self.allow):
            try:
                re.compile(pattern)
                _check_repeats(pattern, _parser().parse(pattern), inside=False)
            except (re.error, RecursionError, OverflowError) as error:
                raise ConfigError(
                    f"allow[{place}]: {pattern!r} is no regular expression: {error}"
                ) from None
            except ConfigError as error:
                raise ConfigError(f"allow[{place}]: {error}") from None

    @cached_property
    def _allowed(self) -> re.Pattern[str]:
        return re.compile("|".join(f"(?:{one})" for one in self.allow) or r"(?!)")

    def allows(self, secret: str) -> bool:
        return bool(self.allow) and self._allowed.fullmatch(secret) is not None

    def denied(self, text: str) -> Iterator[tuple[int, int, int, str]]:
        for rule in self.deny:
            yield from rule.found(text)


_REFUSED = re.compile(r"\bredaction(?:\.|: )(deny|allow)\[(\d+)\][.a-z]*:")


def with_lines(message: str, text: str) -> str:
    """The message about a file with the line of each pattern of ``[redaction]`` in it."""

    def placed(found: re.Match[str]) -> str:
        line = _line_of(text, found[1], int(found[2]))
        return f"{found[0]} line {line}:" if line else found[0]

    return _REFUSED.sub(placed, message)


_TOML = re.compile(
    r"(?P<comment>#[^\n]*)|(?P<text>\"{3}.*?\"{3}|'{3}.*?'{3}|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*')"
    r"|^[ \t]*(?P<table>\[{1,2}[^\]\n]*\]{1,2})"
    r"|(?P<name>[0-9A-Za-z_.-]+)[ \t]*=|(?P<sign>[\[\]{}])",
    re.DOTALL | re.MULTILINE,
)


def _line_of(text: str, wanted: str, place: int) -> int:
    """The line of the pattern at a place in ``redaction.deny`` or ``redaction.allow``; 0: none."""
    tables, names = "", [""]  # the table, and the name of each value that is open around
    seen = -1
    name = ""
    for one in _TOML.finditer(text):
        if one["table"] and len(names) == 1:
            tables, name = one["table"].strip("[] \t"), ""
        elif one["name"]:
            name = one["name"]
        elif (one["sign"] or one["table"] or "")[:1] in ("[", "{"):
            names.append(name)  # the items of an array have its name
        elif one["sign"] and len(names) > 1:
            name = names.pop()
        elif one["text"]:
            path = ".".join(part for part in (tables, *names[1:], name) if part)
            path = ".".join(dict.fromkeys(path.split(".")))  # an array and its items have one name
            if path == f"redaction.{wanted}" + (".pattern" if wanted == "deny" else ""):
                seen += 1
                if seen == place:
                    return text.count("\n", 0, one.start()) + 1
    return 0
