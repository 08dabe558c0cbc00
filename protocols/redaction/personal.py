"""Personal data of unambiguous shapes: addresses, phones, cards, social security numbers. Pure.

A login at a machine is no address of a person, a Unix time or a row id no phone and no card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from motet.protocols.redaction.named import Found
from motet.protocols.redaction.rules import Rules

EMAIL, PHONE, SSN, CARD = "email", "phone", "ssn", "card"
"""The kinds, which have masks of their own."""

DIGITS = bytes(48 if chr(c).isdigit() else 45 if chr(c) in " .)-" else 32 for c in range(256))
NUMBERISH = re.compile(
    rb"000(?:-00-0000|-000-0000|--000-0000|0-0000-0000-0000|0-000000-0000|0{10})"
)

_DOMAIN = re.compile(
    r"(?:[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?\.){1,8}"
    r"(?!(?:png|jpe?g|gif|svg|webp|js|py|internal|local|localdomain|lan|svc|cluster|service|home|corp|intra)\b)[A-Za-z]{2,24}(?![\w\[-])"
)
_LOCAL = re.compile(r"[\w.%+-]{1,64}(?![\w.%+\]/:-])")
"""The part in front of the sign, read backwards."""
_MACHINE = re.compile(
    r"(?:[a-z]+-?\d+|db|web|app|node|server|prod|staging|bastion|jump|host)\.[^.]+\."
)
_SHELL = re.compile(r"(?:ssh|scp|sftp|rsync|mosh|sshfs|ssh-copy-id)[ \t][^\n]{0,200}\Z")


def emails(rules: Rules, text: str, low: str) -> Iterator[Found]:
    """Addresses of people: not logins at a host, such as ``root@db1.example.com``."""
    at = -1
    while (at := text.find("@", at + 1)) >= 0:
        domain = _DOMAIN.match(text, at + 1)
        if domain is None:
            continue
        local = _LOCAL.match(text[max(0, at - 65) : at][::-1])
        if local is None or local.group()[::-1].lower() in rules.logins:
            continue
        start = at - local.end()
        after = text[domain.end() : domain.end() + 2]
        if (after[:1] == ":" and after[1:] in ("/", "~", ".")) or after == "'s":
            continue
        if _MACHINE.match(domain.group().lower()):
            continue
        if _SHELL.search(low, max(0, start - 120), start):
            continue
        yield start, domain.end(), start, EMAIL


# The same for digits, which also must not be part of a decimal, a date or a version. It stands
# after the first character: a pattern that begins with a character class is searched faster.
_FIRST, _LAST = r"(?<![\w.\]-].)", r"(?![\w\[-])(?!\.\d)"
_CARD = re.compile(
    r"[2-6]" + _FIRST + r"(?:\d{3}(?P<a>[ -]?)\d{4}(?P=a)\d{4}(?P=a)\d{4}"
    r"|(?<=3)\d{3}(?P<b>[ -]?)\d{6}(?P=b)\d{4,5})" + _LAST
)
_CARD_BRAND = re.compile(
    r"(?:4\d{15}|5[1-5]\d{14}|2(?:2[2-9]|[3-6]\d|7[01])\d{13}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"
    r"|6(?:011|4[4-9]\d|5\d\d)\d{12}|35(?:2[89]|[3-8]\d)\d{12}|62\d{14})\Z"
)
_SSN = re.compile(r"\d" + _FIRST + r"(?<!9)\d\d(?<!000)(?<!666)-(?!00)\d{2}-(?!0000)\d{4}" + _LAST)
_PHONE = re.compile(
    r"[+(1-9](?<![\w.+\]-].)(?:"
    r"(?:(?:(?<=\+)1|(?<=1))[ .-]\(?[2-9]|(?<=\()[2-9]|(?<=[2-9]))\d{2}"
    r"(?:\) ?|(?P<s>[.-]))\d{3}(?(s)(?P=s)|[ .-])\d{4}"
    r"|(?<=\+)[1-9](?:[ .()-]{0,2}\d){9,14}"
    r")" + _LAST
)


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of a card number."""
    doubled = (sum(divmod(2 * int(d), 10)) for d in digits[-2::-2])
    return (sum(int(d) for d in digits[::-2]) + sum(doubled)) % 10 == 0


def numbers(text: str, digits: bytes) -> Iterator[Found]:
    for hint in NUMBERISH.finditer(digits):
        start, end = max(0, hint.start() - 4), hint.end() + 8
        for found in _CARD.finditer(text, start, end):
            bare = found.group().replace(" ", "").replace("-", "")
            if _CARD_BRAND.match(bare) and luhn(bare):
                yield found.start(), found.end(), found.start(), CARD
        for found in _SSN.finditer(text, start, end):
            yield found.start(), found.end(), found.start(), SSN
        for found in _PHONE.finditer(text, start, end):
            yield found.start(), found.end(), found.start(), PHONE
    at = -1
    while (at := text.find("+", at + 1)) >= 0:
        if text[at + 1 : at + 2].isdigit() and (phone := _PHONE.match(text, at)) is not None:
            yield at, phone.end(), at, PHONE
