"""A plain and slow engine: each rule alone over all of a text, at each place. Only for tests.

It shares the rules and the decisions on a value with the fast one, and none of its shortcuts: no
passes over letters, no tables of beginnings, no windows around signs, no quick expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from motet.protocols.redaction import forms, named, personal, tokens, values
from motet.protocols.redaction.rules import NEEDLES, Rules, files
from motet.protocols.redaction.shapes import JOINERS, LETTERS, RUN, Shape
from motet.protocols.redaction.values import Found

PLAIN_NAME = (
    r"(?:<<cores>>)<<endings>><<close>>(?:[ \t]{0,64}(?:[=:>|?-]|%3|\()|%3|[ \t]{0,2},"
    r"|[ \t]{1,64}(?P<apart>(?=[\"'`]|[^\s]{0,80}\d|\\\\?\r?\n|(?:is|was|provided)\b))"
    r"|(?P<prose>[ \t\n]))"
)
"""A name and its sign, without the group that lets the fast engine stop early."""


def places(text: str, literal: str) -> Iterator[int]:
    """All places of a literal text."""
    return (at for at in range(len(text)) if text.startswith(literal, at))


def all_needles(low: str) -> list[int]:
    """The places of the names of secrets."""
    return sorted(at for needle in NEEDLES for at in places(low, needle))


@cache
def all_shapes() -> tuple[Shape, ...]:
    file, _ = files()
    return tuple(
        Shape(rule.kind, text, rule.check, file.alphabets, rule.anchor)
        for rule in file.tokens
        for text in rule.shapes
    )


def numbers(rules: Rules, text: str) -> set[tuple[int, int, str]]:
    """The cards, numbers of social security and phones of a text."""
    found: set[tuple[int, int, str]] = set()
    for one in rules.expression("card").finditer(text):
        bare = re.sub("[ -]", "", one.group())
        if rules.expression("card-brand").match(bare) and personal.luhn(bare):
            found.add((*one.span(), personal.CARD))
    found |= {(*one.span(), personal.SSN) for one in rules.expression("ssn").finditer(text)}
    found |= {(*one.span(), personal.PHONE) for one in rules.expression("phone").finditer(text)}
    return found


def whole_words(text: str) -> set[tuple[int, int, str]]:
    """The tokens that stand alone, with other signs than those of tokens on both sides."""
    found: set[tuple[int, int, str]] = set()
    signs = re.escape(LETTERS + JOINERS + "\\%=")
    for word in re.finditer(f"(?<![{signs}])[{signs}]+(?![{signs}\"'\\n ])", text):
        for shape in all_shapes():
            one = shape.pattern.match(text, word.start())
            if one is None or not re.search(rf"[{re.escape(LETTERS)}]{{{RUN}}}", one.group()):
                continue
            # A token without a beginning of its own is all of its run, but for dashes behind it.
            if len(shape.head) < 2 and re.compile("[-_]*[0-9A-Za-z]").match(text, one.end()):
                continue
            if tokens._is_random(shape, one.group()):  # pyright: ignore[reportPrivateUsage]
                found.add((*one.span(), shape.kind))
    return found


def by_names(rules: Rules, text: str, low: str) -> list[Found]:
    """The values behind names: rules are those of :func:`plain`."""
    return list(named.named(rules, text, low, all_needles(low), {}, set()))


def by_forms(rules: Rules, text: str, low: str) -> set[tuple[int, int, str]]:
    """What each form finds, tried from each place of its own line."""
    found: set[tuple[int, int, str]] = set()
    for form in rules.all_forms:
        source = text if form.rule.raw else low
        for one in form.pattern.finditer(source):
            start, end = one.span() if form.rule.whole else one.span("value")
            value = text[start:end]
            check = form.rule.check
            if not values.is_placeholder(rules, value) and (
                not check or forms.CHECKS[check](value)
            ):
                found.add((start, end, form.rule.kind))
    return found
