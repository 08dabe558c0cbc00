"""Values: whether a text behind a name is a secret, or only stands for one. Pure.

A value is looked at as it is written, without its name: a placeholder, a digest, a time, an
identifier or a word of prose is none.
"""

from __future__ import annotations

import base64
import re

from motet.protocols.redaction.rules import Rules

Found = tuple[int, int, int, str]
"""Start and end of a secret, where its context starts, and its kind."""

MASK = re.compile(
    r"\[secret:[a-z0-9-]{1,40}(?::[0-9a-f]{4})?\]|\[(?:[A-Z]{3,5}_)?REDACTED\]|\[hidden\]"
)

DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"[\d.:-]{1,4096}+\Z")
_PROSE = re.compile(r"[a-z][a-z'-]*[.,:;!?]?\Z")
TRAILING = ".,:;!?"

SURE = re.compile(r"(?=[A-Za-z]{0,399}[0-9])(?=[0-9]{0,399}[A-Za-z])[0-9A-Za-z]{12,400}\Z")
"""Letters and digits that no rule takes for a placeholder, a digest or a time."""


def is_placeholder(rules: Rules, value: str) -> bool:
    """Whether a value only stands for a secret."""
    if SURE.match(value) is not None:
        return False
    bare = value.strip().strip("\"'`").strip()
    if not bare or MASK.search(value):
        return True
    lowered = bare.lower()
    if lowered.rstrip(TRAILING) in rules.placeholders:
        return True
    return rules.passes_by.match(bare) is not None or rules.passes_by.match(lowered) is not None


def looks_random(value: str) -> bool:
    """At least eight characters with a digit, not only digits; or long and of both cases."""
    if len(value) < 8 or " " in value:
        return False
    if DIGIT.search(value) is not None:
        return _NUMBER.match(value) is None
    if len(value) >= 16 and value.lower() != value and value.upper() != value:
        return _CAMEL.fullmatch(value) is None
    return len(value) >= 20 and value.isalpha() and value.islower()


_CAMEL = re.compile(r"(?:[A-Za-z]?[a-z]{2,}+[_.-]?)++")
IDENTIFIER = re.compile(r"[a-z][a-z]+(?:[_./:-][a-z]{2,}){1,8}[0-9]{0,2}\Z")
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)
_BASE64 = re.compile(r"[0-9A-Za-z+/_-]{8,}={0,2}\Z")
_DIGEST = re.compile(r"(?:sha\d{1,3}|md5)[:-][0-9A-Za-z+/=]+\Z", re.IGNORECASE)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")


def is_strong(value: str) -> bool:
    """Letters, digits and signs together, as only passwords have them."""
    return (
        len(value) >= 8
        and DIGIT.search(value) is not None
        and any(letter.isalpha() for letter in value)
        and any(letter in "!#$%^&*+=?~" for letter in value)
    )


def holds_user(value: str) -> bool:
    """Whether base64 hides ``user:password``."""
    if not _BASE64.match(value) or value.islower():
        return False
    try:
        plain = base64.b64decode(value + "=" * (-len(value) % 4))
    except ValueError:
        return False
    return b":" in plain and all(32 <= byte < 127 for byte in plain)


def is_secret(rules: Rules, kind: str, value: str, *, quoted: bool, strong: bool) -> bool:
    """Whether the value of a name is a secret. ``strong``: the sign before it is one of code."""
    if SURE.match(value) is not None:
        return True
    if is_placeholder(rules, value) or _DIGEST.match(value) or _TIME.match(value):
        return False
    if kind == "password":
        if quoted or strong:
            return True
        return (
            _PROSE.match(value.lower()) is None
            or (len(value) >= 10 and value.isalpha())
            or DIGIT.search(value) is not None
        )
    if holds_user(value):
        return True
    if quoted and len(value) >= 40 and " " in value and kind == "secret":
        return any(len(word) >= 12 and looks_random(word) for word in value.split(" "))  # a salt
    if IDENTIFIER.match(value) or not looks_random(value):
        return False
    return kind == "secret" or (len(value) >= 12 and not UUID.match(value))


_NAME_LIKE = re.compile(r"[A-Za-z]+[_.-]?[A-Za-z]*[0-9]{0,3}\Z")


def name_like(value: str) -> bool:
    """Whether a value reads as a word with a number."""
    return _NAME_LIKE.match(value) is not None
