"""The head of a SKILL.md: YAML between two lines of three hyphens. Pure.

YAML is a large language, and files in the wild use more of it than ``key: value``: quotes, folded
texts, nested tables. So PyYAML reads it, through msgspec, with its safe loader.
"""

from __future__ import annotations

import re

import msgspec
import msgspec.yaml

MAX_HEAD = 16_384
"""Bytes of a SKILL.md in which its head must end."""
MAX_DESCRIPTION = 1_024

_HEAD = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.S | re.M)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Front(msgspec.Struct, frozen=True):
    """What a skill says of itself. Other keys are its author's and not looked at."""

    name: str
    description: str


class BadSkill(ValueError):
    """A SKILL.md that is none; the message says what is wrong with it."""


def front_of(text: str) -> Front:
    """The head of a SKILL.md. Raises :class:`BadSkill`."""
    head = _HEAD.match(text)
    if head is None:
        raise BadSkill("it does not begin with a head between two lines of '---'")
    try:
        front = msgspec.yaml.decode(head[1].encode(), type=Front)
    except msgspec.ValidationError as error:
        raise BadSkill(f"in its head: {error}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadSkill(f"its head is not YAML: {' '.join(str(error).split())}") from None
    if not _NAME.fullmatch(front.name):
        raise BadSkill(f"name {front.name!r}: use 1 to 64 letters, digits, '_', '.' or '-'")
    description = " ".join(front.description.split())
    if not 0 < len(description) <= MAX_DESCRIPTION:
        raise BadSkill(f"description: use 1 to {MAX_DESCRIPTION} characters")
    return Front(front.name, description)
