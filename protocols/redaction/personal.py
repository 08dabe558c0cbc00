"""Personal data of unambiguous shapes: addresses, phones, cards, social security numbers. Pure.

A login at a machine is no address of a person, a Unix time or a row id no phone and no card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from motet.protocols.redaction.rules import Rules
from motet.protocols.redaction.values import Found

EMAIL, PHONE, SSN, CARD = "email", "phone", "ssn", "card"
"""The kinds, which have masks of their own."""

DIGITS = bytes(48 if chr(c).isdigit() else 45 if chr(c) in " .)-" else 32 for c in range(256))
_GROUPS = re.compile(rb"000(?:-00-0000|-000-0000|--000-0000|0-0000-0000-0000|0-000000-0000)")
_PLAIN = b"0" * 13
"""Digits of a card without groups."""


def emails(rules: Rules, text: str, low: str) -> Iterator[Found]:
    """Addresses of people: not logins at a host, such as ``root@db1.example.com``."""
    at = -1
    domains, locals_ = rules.expression("email-domain"), rules.expression("email-local")
    machine, shell = rules.expression("email-machine"), rules.expression("email-shell")
    while (at := text.find("@", at + 1)) >= 0:
        domain = domains.match(text, at + 1)
        if domain is None:
            continue
        local = locals_.match(text[max(0, at - 65) : at][::-1])
        if local is None or local.group()[::-1].lower() in rules.logins:
            continue
        start = at - local.end()
        after = text[domain.end() : domain.end() + 2]
        if (after[:1] == ":" and after[1:] in ("/", "~", ".")) or after == "'s":
            continue
        if machine.match(domain.group().lower()):
            continue
        if shell.search(low, max(0, start - 120), start):
            continue
        yield start, domain.end(), start, EMAIL


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of a card number."""
    doubled = (sum(divmod(2 * int(d), 10)) for d in digits[-2::-2])
    return (sum(int(d) for d in digits[::-2]) + sum(doubled)) % 10 == 0


def numbers(rules: Rules, text: str, digits: bytes) -> Iterator[Found]:
    """Cards, social security numbers and phones.

    A number is no part of a decimal, a date or a version: the character before it says so.
    """
    card, brand = rules.expression("card"), rules.expression("card-brand")
    ssn, phone = rules.expression("ssn"), rules.expression("phone")
    has_card, has_ssn = rules.is_on("personal.card"), rules.is_on("personal.ssn")
    has_phone = rules.is_on("personal.phone")
    for first, last, is_plain in _hints(digits):
        if is_plain and first and (text[first - 1] in "._-]" or text[first - 1].isalnum()):
            continue
        start, end = max(0, first - 4), last + 8
        for found in card.finditer(text, start, end) if has_card else ():
            bare = found.group().replace(" ", "").replace("-", "")
            if brand.match(bare) and luhn(bare):
                yield found.start(), found.end(), found.start(), CARD
        if is_plain:
            continue
        for found in ssn.finditer(text, start, end) if has_ssn else ():
            yield found.start(), found.end(), found.start(), SSN
        for found in phone.finditer(text, start, end) if has_phone else ():
            yield found.start(), found.end(), found.start(), PHONE
    for sign in _DIALLED.finditer(text) if has_phone else ():
        at = sign.start()
        if (dialled := phone.match(text, at)) is not None:
            yield at, dialled.end(), at, PHONE


def _hints(digits: bytes) -> Iterator[tuple[int, int, bool]]:
    """Where digits stand as in a number: whether without groups."""
    at = digits.find(_PLAIN)
    while at >= 0:
        end = at + 19
        yield at, end, True
        at = digits.find(_PLAIN, end)
    for found in _GROUPS.finditer(digits):
        yield found.start(), found.end(), False


_DIALLED = re.compile(r"\+(?=[0-9])(?<![0-9A-Za-z+/].)")
