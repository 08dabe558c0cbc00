"""Takes what no step may look into out of a text, and puts it back. Pure.

Code and reasoning become marks: NUL, a letter for their kind, a number, NUL. A NUL of the text
itself becomes one too, so that every mark in a masked text is one of ours.
Law: ``unmasked(*masked(text)) == text``.
"""

from __future__ import annotations

import re
from typing import Final

from motet.actors.agent.sanitize.pieces import Kind, runs

NUL: Final = "\0"
FENCE: Final = "\0f"
THOUGHT: Final = re.compile("\0t[0-9]+\0")

_LETTERS: dict[Kind, str] = {"span": "s", "fence": "f", "thinking": "t"}
_MARK = re.compile("\0[fnst]([0-9]+)\0")
_HIDES = re.compile("[`<\0]|~~~")


def masked(text: str) -> tuple[str, list[str]]:
    """The text with marks, and what each stands for.

    Equal spans have the same mark, so that equal paragraphs stay equal. Every fence has its own.
    """
    if not _HIDES.search(text):
        return text, []
    hidden: list[str] = []
    marks: dict[str, str] = {}

    def mark(letter: str, content: str) -> str:
        if content not in marks or letter == "f":
            marks[content] = f"\0{letter}{len(hidden)}\0"
            hidden.append(content)
        return marks[content]

    parts: list[str] = []
    for kind, content in runs(text):
        if letter := _LETTERS.get(kind):
            parts.append(mark(letter, content))
        else:
            parts.append(content.replace(NUL, mark("n", NUL)) if NUL in content else content)
    return "".join(parts), hidden


def unmasked(text: str, hidden: list[str]) -> str:
    return _MARK.sub(lambda found: hidden[int(found[1])], text) if hidden else text
