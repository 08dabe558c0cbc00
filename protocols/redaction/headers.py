"""The credentials in headers: ``Authorization: Bearer …``, ``Cookie: sid=…``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from motet.protocols.redaction.rules import Rules
from motet.protocols.redaction.values import (
    MASK,
    TRAILING,
    Found,
    is_placeholder,
    looks_random,
)


def quick_credentials(rules: Rules, low: str, start: int) -> Found | None:
    """A credential of letters and digits behind a known scheme at the end of a header."""
    if not low.startswith("authorization", start):
        return None
    if (plain := rules.expression("quick-header").match(low, start)) is None:
        return None
    first, last = plain.span("value")
    if plain["scheme"] not in rules.schemes or not rules.is_on("header.authorization"):
        return None
    return first, last, plain.start(), "authorization"


_SCHEME = re.compile(r"[a-z0-9_-]{2,30}")
_BEHIND_SCHEME = re.compile(r"[ \t]{1,4}(?:\\?\r?\n[ \t]*)?|%20|\+")


_PARAMETERS = re.compile(r"[^\r\n`<>]{4,4096}")
_WORD_VALUE = re.compile(r"[^\s\"'`\\,;<>\]\)}]{3,4096}")
_QUOTED_VALUE = re.compile(r"[^\r\n\"'`\\]{4,4096}")


def credentials(rules: Rules, text: str, low: str, found: re.Match[str]) -> Iterator[Found]:
    """The credentials of an ``Authorization`` header, whatever its scheme."""
    if found["sign"] == "":
        return
    opened = rules.expression("opened").match(text, found.end("gap"))
    start = opened.end() if opened else found.end("gap")
    quoted = found["quoted"] is not None and found.start("quoted") == start
    scheme = _SCHEME.match(low, start)
    name = scheme.group() if scheme else ""
    known = name in rules.schemes and scheme is not None
    if known and scheme is not None:
        behind = _BEHIND_SCHEME.match(low, scheme.end())
        if behind is None:
            known = False
        else:
            start = behind.end()
    value = _WORD_VALUE.match(text, start)
    if value is None:
        return
    if known and name in rules.parameters and "=" in value.group():
        whole = _PARAMETERS.match(text, start)
        end = whole.end() if whole else value.end()
        if quoted and found["quote"]:
            end = min(end, found.end("quoted"))
        elif "'" in text[start:end] and '"' in text[start:end]:
            end = start + text[start:end].index("'")  # as an argument of a shell
        while end > start and text[end - 1] in " \t'\"\\]":
            end -= 1
        if not MASK.search(text[start:end]):
            yield start, end, found.start(), "authorization"
        return
    end = value.end()
    while end > start and text[end - 1] in TRAILING:
        end -= 1
    shown = text[start:end]
    if (
        _CALL.match(shown)
        or is_placeholder(rules, shown)
        or (shown == "realm=" and text[end : end + 1] == '"')
    ):
        return
    if (known and _is_credential(shown)) or looks_random(shown):
        yield start, end, found.start(), "authorization"


_CALL = re.compile(r"[a-z_0-9.]{2,40}\([a-z_:., ]*\Z")
"""Code or a description, such as ``base64(user:password)``."""


def _is_credential(value: str) -> bool:
    return len(value) >= 4 and (
        _CREDENTIAL.search(value) is not None or value.lower() != value or len(value) >= 16
    )


_CREDENTIAL = re.compile(r"[\d=+/]")
_LANGUAGE = re.compile(r"[a-z]{1,5}(?:-[A-Z]{2})?\Z|[0-9]{1,2}\Z")


def cookies(rules: Rules, text: str, low: str, found: re.Match[str]) -> Iterator[Found]:
    """The values in a header of cookies, one by one, without their attributes."""
    opened = rules.expression("opened").match(text, found.end("gap"))
    at = opened.end() if opened else found.end("gap")
    if found["sign"] == "" and not low[found.end("core")].isspace():
        return
    first = True
    while (pair := rules.expression("cookie").match(text, at)) is not None:
        start, end = pair.span("value")
        if pair["value"].startswith('"'):
            start += 1
        value = text[start:end]
        attribute = not first and pair["name"].lower() in rules.attributes
        if not attribute and not _LANGUAGE.match(value) and not is_placeholder(rules, value):
            yield start, end, found.start(), "cookie"
        first = False
        rest = re.compile(r"\"?;").match(text, end)
        if rest is None:
            return
        at = rest.end()
        while (flag := re.compile(r"[ \t]*[A-Za-z-]{1,20};").match(text, at)) is not None:
            at = flag.end()
