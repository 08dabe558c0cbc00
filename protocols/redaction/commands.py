"""Secrets behind flags of commands. Pure.

A short flag takes a secret only in a program that ``rules.json`` lists; ``forms.json`` has the
expressions for the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from motet.protocols.redaction import values
from motet.protocols.redaction.rules import Rules
from motet.protocols.redaction.values import Found

_PORTS = re.compile(r"[\d.:]{1,40}(?:/(?:tcp|udp))?\Z")
_PROGRAM = re.compile(r"(?:\A|[\s/;|&(`$\"'\[,])([a-z0-9][a-z0-9_.-]{0,30})[\"']?(?=[\s,])")
_INDIRECT = re.compile(r"(?:env|file|fd|stdin)\b")


REACH = 160
"""Characters in front of a flag in which its program is looked for."""


def flags(rules: Rules, text: str, low: str) -> Iterator[Found]:
    """Flags with a user and a password, and short flags of programs that are known to have them."""
    has_long = rules.is_on("flag.long")
    program, begin, searched = "", 0, 0  # the last program, and how far it was looked for
    for flag in _FLAG.finditer(low):
        place = flag.start()
        if flag.end() > place + 1:
            if has_long and (found := rules.expression("flag-user").match(low, place)):
                start, end = found.span("password")
                shown = text[start:end]
                if found["flag"].replace("-", "") not in rules.pair_flags or _PORTS.match(shown):
                    continue
                if not values.is_placeholder(rules, shown):
                    yield start, end, found.start(), "password"
            continue
        line = max(low.rfind("\n", max(0, place - REACH), place) + 1, place - REACH, 0)
        for one in _PROGRAM.finditer(low, max(0, line - 1, searched), place):
            searched = one.end()
            if one[1] in rules.by_program:
                program, begin = one[1], one.start(1)
        searched = max(searched, place - 34)
        if program and begin >= line:
            yield from _flag_value(rules, text, place, text[place : place + 12], program)


_FLAG = re.compile(r"-(?:-(?=[a-z])|(?=[upawkxcsdtb])(?<=[ \"']-))")
"""A long flag, or a short one behind a space or a quote that takes a secret in some program."""


def _flag_value(rules: Rules, text: str, at: int, flag: str, program: str) -> Iterator[Found]:
    for name, form in rules.by_program[program]:
        if not flag.startswith(name):
            continue
        if form == "pair" and (key := rules.expression("flag-key").match(text, at + len(name))):
            start, end = key.span("value")  # a token in place of the user, as some vendors want it
            if values.looks_random(text[start:end]):
                yield start, end, at, "token"
                return
        value = rules.expression(f"flag-{form}").match(text, at + len(name))
        if value is None:
            continue
        start, end = value.span("value")
        shown = text[start:end]
        if shown.startswith("pass:"):
            start, shown = start + 5, shown[5:]
        elif _INDIRECT.match(shown):
            continue
        if values.is_placeholder(rules, shown) or _PORTS.match(shown) or start == end:
            continue
        if form == "either" and start == at + len(name) and not any(c.isdigit() for c in shown):
            continue
        yield start, end, at, "cookie" if form == "cookie" else "password"
        return
