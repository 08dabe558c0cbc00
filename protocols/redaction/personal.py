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


def _sign(code: int) -> str:
    letter = chr(code)
    return "0" if letter.isdigit() else "x" if letter.isalnum() or letter in "_].-" else "o"


DIGITS = "".join(map(_sign, range(128))).ljust(256, "o").encode()
"""Digits become ``0``; what may be before a digit that begins no number, ``x``; all else ``o``."""
PLAIN = b"0" * 13
"""Digits of a card without groups."""
CARDS = (b"o" + PLAIN, b"0000o0000o0000o0000", b"0000o000000o0000")
_WITH_DASHES = re.compile(
    r"-(?:[0-9]{2}-[0-9]{4}(?<=[0-9]{3}-[0-9]{2}-[0-9]{4})"
    r"|[0-9]{3}-[0-9]{4}(?<=[0-9]{3}-[0-9]{3}-[0-9]{4})"
    r"|[0-9]{4}-[0-9]{4}-[0-9]{4}(?<=[0-9]{4}-[0-9]{4}-[0-9]{4}-[0-9]{4})"
    r"|[0-9]{6}-[0-9]{4}(?<=[0-9]{4}-[0-9]{6}-[0-9]{4}))"
)
_WITH_POINTS = re.compile(r"\.[0-9]{3}\.[0-9]{4}(?<=[0-9]{3}\.[0-9]{3}\.[0-9]{4})")
_WITH_BRACKETS = re.compile(r"\)(?= ?[0-9]{3}[ .-][0-9]{4})(?<=[0-9]{3}\))")
_PHONES = ((".", _WITH_POINTS), (")", _WITH_BRACKETS))
_DIALLED = re.compile(r"\+(?=[0-9])(?<![0-9A-Za-z+/].)")
NEAR, FAR = 8, 24
"""Characters of a number in front of its first sign, and from there on."""


def emails(rules: Rules, text: str, low: str) -> Iterator[Found]:
    """Addresses of people: not logins at a host, such as ``root@db1.example.com``."""
    at = -1
    domains, locals_ = rules.expression("email-domain"), rules.expression("email-local")
    machine, shell = rules.expression("email-machine"), rules.expression("email-shell")
    while (at := text.find("@", at + 1)) >= 0:
        local = locals_.match(text[max(0, at - 65) : at][::-1])
        if local is None or local.group()[::-1].lower() in rules.logins:
            continue
        domain = domains.match(text, at + 1)
        if domain is None:
            continue
        start = at - local.end()
        if text[start - 1 : start] == "$":
            continue  # a variable in front of a host
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


def numbers(rules: Rules, text: str, raw: bytes) -> Iterator[Found]:
    """Cards, social security numbers and phones. ``raw``: the text as ASCII.

    A number is no part of a decimal, a date or a version: the character before it says so.
    """
    digits = raw.translate(DIGITS)
    if b"0" not in digits:
        return
    has_card, has_phone = rules.is_on("personal.card"), rules.is_on("personal.phone")
    if has_card:
        if digits.startswith(PLAIN):
            yield from _cards(rules, text, 0)
        for signs in CARDS:
            at = digits.find(signs)
            while at >= 0:
                yield from _cards(rules, text, at)
                at = digits.find(signs, at + len(signs))
    for one in _WITH_DASHES.finditer(text) if "-" in text else ():
        at = one.start()
        if has_card:
            yield from _cards(rules, text, at)
        if rules.is_on("personal.ssn"):
            for found in rules.expression("ssn").finditer(text, max(0, at - NEAR), at + FAR):
                yield found.start(), found.end(), found.start(), SSN
        if has_phone:
            yield from _phones(rules, text, at)
    for sign, pattern in _PHONES if has_phone else ():
        for one in pattern.finditer(text) if sign in text else ():
            yield from _phones(rules, text, one.start())
    for one in _DIALLED.finditer(text) if has_phone and "+" in text else ():
        at = one.start()
        if (dialled := rules.expression("phone").match(text, at)) is not None:
            yield at, dialled.end(), at, PHONE


def _cards(rules: Rules, text: str, at: int) -> Iterator[Found]:
    for found in rules.expression("card").finditer(text, max(0, at - NEAR), at + FAR):
        bare = found.group().replace(" ", "").replace("-", "")
        if rules.expression("card-brand").match(bare) and luhn(bare):
            yield found.start(), found.end(), found.start(), CARD


def _phones(rules: Rules, text: str, at: int) -> Iterator[Found]:
    for found in rules.expression("phone").finditer(text, max(0, at - NEAR), at + FAR):
        yield found.start(), found.end(), found.start(), PHONE
