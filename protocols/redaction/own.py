"""Rules of one's own for the redactor: the section ``[redaction]`` of a configuration.

A rule of one's own has the power of a rule of motet: it is a pattern, the shape of a token, the
name of a secret, a parameter of URLs, or a flag of programs; and any rule of motet can be taken off
by its id or its group.

A pattern is searched in every text that is stored, sent or logged. So one that could take more than
linear time is refused when it is given, and so is one without a literal text by which the lines
that could match are found fast. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any, TypeAlias

import attrs
import msgspec

from motet.protocols.errors import ConfigError
from motet.protocols.redaction.rules import (
    CommandRule,
    Rules,
    TokenRule,
    build,
    files,
    identities,
    rules,
)

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


@attrs.frozen(slots=False)
class DenyRule:
    """A rule for more that is a secret. One of ``pattern``, ``shape``, ``name``, ``parameter`` and
    ``programs`` is given.

    Args:
        pattern: a regular expression of Python, for a text within one line. It has three literal
            characters in a row, bounded repetitions none of which is inside of another, no flags
            and no references to groups. If it has a group, the secret is what the first one
            matches.
        kind: stands in the mask: lower-case letters, digits and ``-``.
        shape: a token, with its random parts as ``{alphabet:least,most}``: ``acme_{alnum:32}``.
            It begins with at least three letters. The alphabets are those of ``rules.json``.
        name: the name of a secret, such as ``acme key``. It ends as names of secrets do.
        parameter: the parameter of a URL.
        programs, flags, value: flags of programs; ``value`` is ``separate`` (behind a space or
            ``=``), ``attached``, ``either``, or behind a user: ``pair`` (``:``), ``percent``,
            ``comma``.

    Raises ``ConfigError`` for a rule that is none, or that could be slow.
    """

    pattern: str = ""
    kind: str = "own"
    shape: str = ""
    name: str = ""
    parameter: str = ""
    programs: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    value: str = "separate"

    def __attrs_post_init__(self) -> None:
        if KIND.fullmatch(self.kind) is None:
            raise ConfigError(f"{self.kind!r} is no kind: lower-case letters, digits and '-'")
        given = [self.pattern, self.shape, self.name, self.parameter, self.programs]
        if sum(bool(one) for one in given) != 1:
            raise ConfigError(
                "a rule has one of 'pattern', 'shape', 'name', 'parameter' and 'programs'"
            )
        if self.pattern:
            checked(self.pattern)
        if self.shape:
            _check_shape(self.shape)
        if self.name and NAME.fullmatch(self.name) is None:
            raise ConfigError(f"{self.name!r} {_NO_NAME}")
        if self.parameter and re.fullmatch(r"[a-z0-9_.-]{2,60}", self.parameter) is None:
            raise ConfigError(f"{self.parameter!r} is no parameter, in lower case")
        forms = ("separate", "attached", "either", "pair", "percent", "comma")
        if self.programs and (not self.flags or self.value not in forms):
            raise ConfigError(f"'programs' need 'flags', and a 'value' of {', '.join(forms)}")

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


@attrs.frozen(slots=False)
class OwnRules:
    """Rules beside those of motet.

    Args:
        deny: more that is masked.
        allow: patterns of texts that are no secrets though they look like one. A pattern has to
            match the whole secret.
        allow_values: such texts as they are written, without a pattern.
        allow_names: names whose values are no secrets, such as ``acme demo token``, in any
            spelling (``ACME_DEMO_TOKEN``, ``acmeDemoToken``) and behind any other words. What is a
            secret without its name, such as the token of a vendor, stays one.
        off: ids or groups of rules of motet that are not used: ``personal.phone``, ``personal``.
    """

    deny: tuple[DenyRule, ...] = ()
    allow: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    allow_values: tuple[str, ...] = ()
    allow_names: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        for name in self.allow_names:
            if NAME.fullmatch(name) is None:
                raise ConfigError(f"allow_names: {name!r} {_NO_NAME}")
        known = known_rules() if self.off else frozenset[str]()
        for name in self.off:
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"off: {name!r} is no rule, and no group of rules{hint}")
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
        return secret in self.allow_values or (
            bool(self.allow) and self._allowed.fullmatch(secret) is not None
        )

    def denied(self, text: str) -> Iterator[tuple[int, int, int, str]]:
        for rule in self.deny:
            if rule.pattern:
                yield from rule.found(text)

    @property
    def is_empty(self) -> bool:
        return self == OwnRules()

    @property
    def spares(self) -> bool:
        """Whether it has texts that are no secrets."""
        return bool(self.allow or self.allow_values)


NAME = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,60}(?:pass|password|pw|pwd|psk|secret|token|key|auth|cred"
    r"|credential|bearer|cookie)"
)
"""The name of a secret: the engine looks for its end."""
_NO_NAME = (
    "is no name of a secret: it ends with 'key', 'token', 'secret', 'password', 'auth' or another "
    "of their kind"
)


def known_rules() -> frozenset[str]:
    """The ids of all rules, and their groups."""
    names = frozenset(identities(*files()))
    return names | {name.partition(".")[0] for name in names}


def _check_shape(shape: str) -> None:
    alphabets = files()[0].alphabets
    parts = re.findall(r"\{([^{}]*)\}", shape)
    for part in parts:
        found = re.fullmatch(r"([a-z0-9]+):(\d{1,4})(,(\d{0,4}))?", part)
        if found is None or found[1] not in alphabets:
            raise ConfigError(
                f"{shape!r}: {{{part}}} is no part of a shape; write {{alnum:32}} or "
                f"{{alnum:20,64}}, with one of {', '.join(alphabets)}"
            )
    head = re.match(r"[^{}]*", shape)
    if head is None or len(head.group()) < LITERAL or len(re.sub(r"\{.*?\}", "", shape)) > 60:
        raise ConfigError(f"{shape!r} has no {LITERAL} letters at its beginning")


@lru_cache(8)
def table(owns: tuple[OwnRules, ...]) -> Rules:
    """The rules of motet together with these. What one host has off, or a name that it allows, is
    off in its process only if all hosts have it so: a secret of one host must not show in
    another's either."""
    if not owns:
        return rules()
    file, forms = files()
    deny = [rule for own in owns for rule in own.deny]
    merged = msgspec.structs.replace(
        file,
        tokens=(*file.tokens, *(TokenRule(r.kind, (r.shape,)) for r in deny if r.shape)),
        secrets=(*file.secrets, *(r.name for r in deny if r.name)),
        harmless=(
            *file.harmless,
            *(n for n in owns[0].allow_names if all(n in own.allow_names for own in owns)),
        ),
        query=(*file.query, *(r.parameter for r in deny if r.parameter)),
        commands=(
            *file.commands,
            *(CommandRule("flag.own", r.programs, r.flags, r.value) for r in deny if r.programs),
        ),
    )
    off = frozenset(name for name in owns[0].off if all(name in own.off for own in owns))
    return build(merged, forms, off)


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
