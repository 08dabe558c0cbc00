"""The arguments of a call as a person reads them before it is approved. Pure.

Invariants: every character of every argument is in the text, in its order, blanks too; no character
of an argument can control a terminal, reorder the text around it, or be invisible: those are shown
as ``<U+001B>``. Texts of several lines keep their lines; an edit is shown as a diff.
"""

from __future__ import annotations

import difflib
import json
import unicodedata
from functools import lru_cache
from hashlib import sha256
from itertools import groupby
from typing import Final

from motet.protocols.approvals import ApprovalInfo
from motet.protocols.chat import JsonObject
from motet.protocols.escalations import EscalationInfo, history_lines
from motet.protocols.events import ApprovalRequested
from motet.protocols.stable_json import stable_json

MARGIN: Final = "  | "
"""In front of each line of a text of several lines."""
PADDED: Final = 40
"""Blanks in a row that are counted for the reader: they may push text out of sight."""
COMPARED: Final = 5_000
"""Lines of longer texts are not compared: the time for that grows with their product."""
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
# Letters that are blank, and marks that only change how the character before them looks.
_BLANK: Final = frozenset({0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0})
_SELECTORS: Final = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0), range(0x180B, 0x180F))


def reveal(text: str) -> str:
    """The text, with a visible name in place of each character that could not be seen as it is.

    A blank, a tab and a line feed stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_revealed, text))


@lru_cache(maxsize=4096)
def _revealed(char: str) -> str:
    if char in " \t\n":
        return char
    code = ord(char)
    unseen = code in _BLANK or any(code in one for one in _SELECTORS)
    if unseen or unicodedata.category(char) in _HIDDEN:
        return f"<U+{code:04X}>"
    return char


def review(tool: str, args: JsonObject, proposed: JsonObject | None = None) -> list[str]:
    """The call in lines; ``proposed``: the arguments before a hook changed them."""
    lines = [f"{_name(tool)}("]
    edit = args if tool == "edit_file" else {}
    old, new = edit.get("old"), edit.get("new")
    is_edit = isinstance(old, str) and isinstance(new, str)
    for name, value in args.items():
        if is_edit and name in ("old", "new"):
            continue
        lines += _argument(name, value)
    if isinstance(old, str) and isinstance(new, str):
        lines.append("  old -> new:")
        lines += diff(old, new)
    lines.append(")")
    if proposed is not None:
        lines.append("changed by a hook; the model gave:")
        lines += diff(_json(proposed), _json(args))
    return lines


def question(info: ApprovalInfo) -> list[str]:
    """An approval in lines: its id, why a person is asked, and the call."""
    people = f", asked by {', '.join(map(_name, info.people))}" if info.people else ""
    asked = f"{info.id}: {_name(info.agent)} for {_name(info.user)}{people}: {_name(info.reason)}"
    return [asked, *review(info.tool, info.args, info.proposed)]


def decision(info: EscalationInfo) -> list[str]:
    """An escalation in lines: its id and reason, then each failed call."""
    lines = [f"{info.id}: {info.reason}", *history_lines(info.error_history)]
    shown = [reveal(line).replace("\n", " ") for line in lines]
    return [shown[0], *(f"  {line}" for line in shown[1:])]


def is_whole(event: ApprovalRequested) -> bool:
    """Whether an event has all of the arguments: it has cut ones if they are long."""
    whole = stable_json(event.args).encode("utf-8", "surrogatepass")
    return sha256(whole).hexdigest() == event.args_hash


def diff(old: str, new: str) -> list[str]:
    """All lines of both texts: ``-`` only in the old one, ``+`` only in the new one."""
    before, after = old.split("\n"), new.split("\n")
    if len(before) + len(after) > COMPARED:
        return [*(f"  - {reveal(one)}" for one in before), *(f"  + {reveal(one)}" for one in after)]
    compared = difflib.SequenceMatcher(None, before, after)
    lines: list[str] = []
    for kind, a, b, c, d in compared.get_opcodes():
        if kind == "equal":
            lines += [f"    {reveal(line)}" for line in before[a:b]]
        else:
            lines += [f"  - {reveal(line)}" for line in before[a:b]]
            lines += [f"  + {reveal(line)}" for line in after[c:d]]
    return lines


def _argument(name: str, value: object) -> list[str]:
    text = value if isinstance(value, str) else _json(value)
    shown = reveal(text).split("\n")
    note = _note(text)
    if len(shown) == 1:
        quoted = f'"{shown[0]}"' if isinstance(value, str) else shown[0]
        return [f"  {_name(name)} = {quoted}", *note]
    head = f"  {_name(name)} = {len(shown)} lines:"
    return [head, *(f"{MARGIN}{line}" for line in shown), *note]


def _note(text: str) -> list[str]:
    longest = max((len(list(run)) for char, run in groupby(text) if char == " "), default=0)
    if longest < PADDED:
        return []
    return [f"  (there are {longest} blanks in a row: read on behind them)"]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def _name(name: str) -> str:
    return reveal(name).replace("\n", "<U+000A>").replace("\t", "<U+0009>")
