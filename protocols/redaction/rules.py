"""The rules of the redactor: read from JSON files and made into tables and expressions.

A rule is data, and has an id and a group (``token.github`` is in ``token``). ``rules.json`` has the
tokens of vendors, names, parameters and flags; ``forms.json`` has expressions: the grammar of names
and values, and forms of commands, files and code. Both hold examples, which a test runs.

An expression is compiled when it is first needed. Pure but for the reading of the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path

import attrs
import msgspec

from motet.protocols.redaction.anchors import Anchors, anchors
from motet.protocols.redaction.shapes import Shape, Shapes, shapes

_GROUP = re.compile(r"\(\?P<[a-z]+>")
_GRAMMAR = re.compile(r"<<([a-z-]+)>>")


class TokenRule(msgspec.Struct, frozen=True):
    """The tokens of one vendor. ``check``: ``mixed`` wants digits and letters of both cases.

    ``anchor``: for shapes that begin with a random part, the literal text by which they are found.
    """

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

    id: str
    programs: tuple[str, ...]
    flags: tuple[str, ...]
    value: str


class FormRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A form that has no name of a secret. See ``motet.protocols.redaction.forms``.

    ``pattern``: its group ``value`` is the secret, or all of it if ``whole``. ``raw``: it reads the
    text as it is, not in lower case. ``back``: characters on the line before ``near`` in which a
    match may begin; ``ahead``: those behind it in which it ends; ``word``: it begins behind the
    last space. ``also``, ``unless``: one of these texts, and
    none of those, is on that line. ``anywhere``: the expression is searched in all of a text that
    has ``near``. ``leaks``, ``stays``: examples in the notation of the corpus.
    """

    id: str
    group: str
    kind: str
    near: tuple[str, ...]
    pattern: str
    leaks: tuple[str, ...]
    stays: tuple[str, ...]
    check: str = ""
    raw: bool = False
    back: int = 0
    ahead: int = 450
    word: bool = False
    also: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    anywhere: bool = False
    whole: bool = False


class FinderRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule that code applies, with expressions of the grammar. ``off``: only on request."""

    id: str
    group: str
    leaks: tuple[str, ...]
    stays: tuple[str, ...]
    off: bool = False


class FormFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``forms.json``. ``<<name>>`` in a pattern stands for a part of the grammar."""

    grammar: dict[str, str]
    forms: tuple[FormRule, ...]
    finders: tuple[FinderRule, ...]


class RuleFile(msgspec.Struct, frozen=True):
    """The content of ``rules.json``."""

    alphabets: dict[str, str]
    tokens: tuple[TokenRule, ...]
    webhooks: tuple[WebhookRule, ...]
    passwords: tuple[str, ...]
    secrets: tuple[str, ...]
    weak: tuple[str, ...]
    harmless: tuple[str, ...]
    identifiers: tuple[str, ...]
    things: tuple[str, ...]
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


NEEDLES = (
    "pass",
    "pw",
    "psk",
    "secret",
    "token",
    "key",
    "auth",
    "cred",
    "bearer",
    "cookie",
    "_pat",
)
"""Each name of a secret holds one of these. ``str.find`` finds them ten times as fast as ``re``."""

FIELDS = ("value", "<string", "plaintext", "default")
"""Texts of which each field of a value that has a name beside it holds one."""
FREQUENT = ("value", "default")
"""Of these, and of the texts of forms, those that source code is full of."""
MARKS = ("private", "://", "eyj", *FIELDS)
"""Texts of which a private key, an address, a JSON web token and a field hold one each."""


@attrs.frozen
class Form:
    """A form and its expression."""

    rule: FormRule
    pattern: re.Pattern[str]

    def search(self, source: str, at: int) -> re.Match[str] | None:
        """The first match on the line that begins before a place, or at it, and holds it."""
        rule = self.rule
        place = max(0, at - rule.back)
        place = max(place, source.rfind("\n", place, at) + 1)
        if rule.word:
            place = max(place, source.rfind(" ", place, at) + 1)
        for one in rule.unless:
            if source.find(one, place, at) >= 0:
                return None
        for one in rule.also:
            if source.find(one, place, at + AHEAD) >= 0:
                break
        else:
            if rule.also:
                return None
        while (found := self.pattern.search(source, place, at + rule.ahead)) is not None:
            if found.start() > at:
                return None
            if found.end() > at:
                return found
            place = found.end()
        return None


AHEAD = 24
"""Characters behind a place in which ``also`` is looked for."""


@attrs.frozen(slots=False)
class Rules:
    """All rules, in the tables that the finders use."""

    file: RuleFile
    forms: FormFile
    off: frozenset[str]
    shapes: Shapes
    passwords: frozenset[str]
    secrets: frozenset[str]
    weak: frozenset[str]
    harmless: tuple[str, ...]
    identifiers: frozenset[str]
    things: frozenset[str]
    placeholders: frozenset[str]
    schemes: frozenset[str]
    parameters: frozenset[str]
    attributes: frozenset[str]
    pair_flags: frozenset[str]
    databases: frozenset[str]
    logins: frozenset[str]

    def is_on(self, name: str) -> bool:
        """Whether the rule with this id is in use."""
        return not self.off or (name not in self.off and name.partition(".")[0] not in self.off)

    def expression(self, name: str) -> re.Pattern[str]:
        """An expression of the grammar."""
        made = self._expressions.get(name)
        if made is None:
            made = self._expressions[name] = re.compile(self.source(self.forms.grammar[name]))
        return made

    def source(self, pattern: str) -> str:
        """A pattern in which the parts of the grammar are filled in."""
        while "<<" in pattern and _GRAMMAR.search(pattern):
            pattern = _GRAMMAR.sub(lambda part: self.forms.grammar[part[1]], pattern)
        return pattern

    @cached_property
    def _expressions(self) -> dict[str, re.Pattern[str]]:
        return {}

    @cached_property
    def categories(self) -> dict[tuple[str, str], str]:
        """The categories of names that were looked up lately."""
        return {}

    @cached_property
    def all_forms(self) -> tuple[Form, ...]:
        return tuple(
            Form(rule, re.compile(self.source(rule.pattern)))
            for rule in self.forms.forms
            if self.is_on(rule.id)
        )

    @cached_property
    def forms_by_name(self) -> dict[str, tuple[re.Pattern[str], tuple[Form, ...]]]:
        """The forms near names of secrets, by the first two letters of the name.

        Beside them is one expression for all of them, so that most names are looked at only once.
        """
        made: dict[str, tuple[Form, ...]] = {}
        for form in self.all_forms:
            for near in form.rule.near:
                if near in NEEDLES:
                    made[near[:2]] = (*made.get(near[:2], ()), form)
        return {
            letters: (
                re.compile("|".join(_GROUP.sub("(?:", f.pattern.pattern) for f in forms)),
                forms,
            )
            for letters, forms in made.items()
        }

    @cached_property
    def forms_by_text(self) -> dict[str, tuple[Form, ...]]:
        """The other forms, by the text near them."""
        made: dict[str, tuple[Form, ...]] = {}
        for form in self.all_forms:
            for near in form.rule.near:
                if near not in NEEDLES:
                    made[near] = (*made.get(near, ()), form)
        return made

    @cached_property
    def anchors(self) -> Anchors:
        """The names of secrets, and the words of which a form needs one."""
        return anchors(NEEDLES, [*self.forms_by_text, *MARKS], FREQUENT)

    @cached_property
    def passes_by(self) -> re.Pattern[str]:
        """Values that stand for a secret, or say where it is, but are none."""
        return re.compile("(?:" + "|".join(self.file.passes_by) + r")\Z", re.ASCII)

    @cached_property
    def queries(self) -> dict[str, re.Pattern[str]]:
        """The parameters of URLs in lower case whose values are secrets, by the sign before them.

        An expression finds its sign by itself: a letter that is not ASCII has become such a sign.
        """
        names = "|".join(re.escape(name) for name in sorted(self.file.query, key=len, reverse=True))
        value = self.forms.grammar["query-value"]
        shape = rf"(?P<whole>(?:amp;)?(?P<name>{names}){value})"
        signs = ("?", "&", ";", "%26", "%3f", "\\u0026")
        return {sign: re.compile(re.escape(sign) + shape) for sign in signs}

    def query_in(self, low: str) -> Iterator[re.Match[str]]:
        """All parameters in a text in lower case whose values may be secrets."""
        for sign, expression in self.queries.items():
            if sign[0] in low and sign in low:
                yield from expression.finditer(low)

    @cached_property
    def webhook_domains(self) -> frozenset[str]:
        """The domains of addresses that are secrets, without the names in front of them."""
        heads = [rule.head.partition("/")[0] for rule in self.file.webhooks]
        return frozenset(".".join(head.split(".")[-2:]) for head in heads if head)

    @cached_property
    def webhooks(self) -> re.Pattern[str]:
        found = "|".join(
            f"(?P<k{at}>{re.escape(rule.head)}{rule.path})"
            for at, rule in enumerate(self.file.webhooks)
        )
        return re.compile(found or "(?!)")

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
    """The rules of the data files. Raises only if motet is not installed whole."""
    return build(*files())


@cache
def files() -> tuple[RuleFile, FormFile]:
    """The content of the data files."""
    here = Path(__file__)
    return (
        msgspec.json.decode(here.with_name("rules.json").read_bytes(), type=RuleFile),
        msgspec.json.decode(here.with_name("forms.json").read_bytes(), type=FormFile),
    )


def identities(file: RuleFile, forms: FormFile) -> Iterator[str]:
    """The ids of all rules. The rules of a vendor's tokens have one id."""
    yield from dict.fromkeys(f"token.{rule.kind}" for rule in file.tokens)
    yield from (f"webhook.{rule.kind}" for rule in file.webhooks)
    yield from (rule.id for rule in file.commands)
    yield from (rule.id for rule in forms.forms)
    yield from (rule.id for rule in forms.finders)


def build(file: RuleFile, forms: FormFile, off: frozenset[str] = frozenset()) -> Rules:
    """The tables of these rules without those whose ids or groups are ``off``."""

    def is_on(name: str) -> bool:
        return name not in off and name.partition(".")[0] not in off

    made = shapes(
        Shape(rule.kind, text, rule.check, file.alphabets, rule.anchor)
        for rule in file.tokens
        if is_on(f"token.{rule.kind}")
        for text in rule.shapes
    )
    file = msgspec.structs.replace(
        file,
        webhooks=tuple(rule for rule in file.webhooks if is_on(f"webhook.{rule.kind}")),
        commands=tuple(rule for rule in file.commands if is_on(rule.id)),
    )
    return Rules(
        file,
        forms,
        off,
        made,
        _words(file.passwords) if is_on("name.password") else frozenset(),
        _words(file.secrets) if is_on("name.secret") else frozenset(),
        _words(file.weak) if is_on("name.secret") else frozenset(),
        tuple(_words(file.harmless)),
        frozenset(file.identifiers),
        frozenset(file.things),
        frozenset(file.placeholders),
        frozenset(file.schemes),
        frozenset(file.parameters),
        frozenset(file.attributes),
        _words(file.pair_flags),
        frozenset(file.databases),
        frozenset(file.logins),
    )
