"""Forms of secrets that have no name of their own: commands, SQL, files, mail, code. Pure.

A form is data (``forms.json``). ``near`` is literal text that each match holds: an expression is
tried only where one is found, from ``back`` characters before it or from its beginning. Expressions
have no repetition without an end, so that each place is read for a bounded number of characters.
``check`` names a function of this module that looks at the value once more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from motet.protocols.redaction import values
from motet.protocols.redaction.rules import Form, FormRule, Rules
from motet.protocols.redaction.values import Found


def _has_digit(value: str) -> bool:
    return any(letter.isdigit() for letter in value)


def _is_mixed(value: str) -> bool:
    return _has_digit(value) and value.lower() != value and value.upper() != value


def _is_base64(value: str) -> bool:
    """Whether it is base64 of some text, in whichever case the words around it are."""
    return len(value) >= 8 and (_is_mixed(value) or value.endswith("="))


_HEX_KEY = re.compile(r"[0-9a-fA-F]{32,400}\Z")


def _is_key(value: str) -> bool:
    return _HEX_KEY.match(value) is not None or (_is_mixed(value) and values.looks_random(value))


CHECKS: dict[str, Callable[[str], bool]] = {
    "digit": _has_digit,
    "mixed": _is_mixed,
    "random": values.looks_random,
    "strong": values.is_strong,
    "password": lambda value: values.is_strong(value) or (len(value) >= 8 and _is_mixed(value)),
    "base64": _is_base64,
    "key": _is_key,
}


def found_by_forms(
    rules: Rules, text: str, low: str, starts: list[int], present: set[str]
) -> Iterator[Found]:
    """``starts``: the places of names, where the forms are tried that begin with one; ``present``:
    the longer texts that other forms need, as far as they occur."""
    by_name = rules.forms_by_name
    after = -1
    for start in starts:
        if start < after or (group := by_name.get(low[start : start + 2])) is None:
            continue
        any_of_them, forms = group
        if any_of_them.match(low, start) is None:
            continue
        for form in forms:
            one = _matched(rules, form, text, form.pattern.match(low, start))
            if one is not None:
                yield one
                after = one[1]
    for near, forms in rules.forms_by_text.items() if present else ():
        if near in present:
            yield from _near(rules, text, low, low.find(near), near, forms)


def _near(
    rules: Rules, text: str, low: str, at: int, near: str, forms: tuple[Form, ...]
) -> Iterator[Found]:
    for form in forms:
        source = text if form.rule.raw else low
        match form.rule:
            case FormRule(anywhere=True):
                for found in form.pattern.finditer(source):
                    if one := _matched(rules, form, text, found):
                        yield one
            case FormRule(back=0):
                for place in _places(low, near, at):
                    if one := _matched(rules, form, text, form.pattern.match(source, place)):
                        yield one
            case _:
                after = -1
                for place in _places(low, near, at):
                    if place < after:
                        continue
                    if one := _matched(rules, form, text, form.search(source, place)):
                        yield one
                        after = one[1]


def _places(low: str, near: str, at: int) -> Iterator[int]:
    while at >= 0:
        yield at
        at = low.find(near, at + 1)


def _matched(rules: Rules, form: Form, text: str, found: re.Match[str] | None) -> Found | None:
    if found is None:
        return None
    start, end = found.span() if form.rule.whole else found.span("value")
    value = text[start:end]
    if values.is_placeholder(rules, value):
        return None
    if form.rule.check and not CHECKS[form.rule.check](value):
        return None
    return start, end, found.start(), form.rule.kind


# Secrets of Kubernetes: base64 under the names of a block

REACH = 2_000
"""Characters of a manifest that belong together."""
_BLOCK = "data:\n"


def found_in_manifests(rules: Rules, text: str, low: str) -> Iterator[Found]:
    """The values under ``data:`` of a manifest whose kind is ``Secret``, before it or behind it."""
    at = low.find(_BLOCK)
    while at >= 0:
        start = at + len(_BLOCK)
        block = rules.expression("manifest-data").match(text, start, start + REACH)
        at = low.find(_BLOCK, start)
        if block is None or block.end() == start:
            continue
        near = low[max(0, start - REACH // 2) : min(len(low), block.end() + 40)]
        if "kind: secret" not in near:
            continue
        for found in rules.expression("manifest-value").finditer(text, start, block.end()):
            value = found["value"]
            if len(value) >= 4 and not values.is_placeholder(rules, value):
                yield found.start("value"), found.end("value"), start, "secret"


def is_in_manifest(low: str) -> bool:
    """Whether a block of a manifest could go on behind this text, its last :data:`REACH`."""
    return _BLOCK in low or "kind: secret" in low
