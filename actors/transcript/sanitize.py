"""Takes what no step may look into out of a text, and puts it back. Pure.

Code and reasoning become marks: NUL, a letter for their kind, a number, NUL. A NUL of the text
itself becomes one too, so that every mark in a masked text is one of ours.
Law: ``unmasked(*masked(text)) == text``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from motet.actors.transcript.stream_filter import FINAL_TAG, Kind, runs

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


# The eight steps that take a model's artefacts out of an answer, on a masked text. Pure.
#
# Code and reasoning are marks here (``masks``): no step sees into them. Every step takes linear
# time. Source: agent loop specification, section 3.


Step: TypeAlias = Callable[[str], str]

_INDICATORS = (
    "invfunction_calls", "functioninvoke", "<parameter name=", "</parameter", "<function_call",
    "<tool_call", "<tool_use", "<minimax:tool_call",
)  # fmt: skip
_TOOL_TAG = re.compile(
    r"</?(?:function_call|functioninvoke|invoke|invfunction_calls|tool_call|tool_use|parameter"
    r"|minimax:tool_call)"
)
_TAG_END = re.compile(f"[>{NUL}]")
_OBJECTS = re.compile(r"(?:\[\s*)?\{.*\}(?:\s*\])?", re.DOTALL)
_DOWNGRADED = ("[Tool Call:", "[Tool Result", "[Historical context:")
_PAYLOAD = ("Arguments:", "{", "}")
_FINAL = re.compile(FINAL_TAG, re.IGNORECASE | re.ASCII)
_ECHO = "[System Message]"
_MEDIA = re.compile(r"MEDIA:\S")
_VOICE = "[[audio_as_voice]]"
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)+")


def garbled_tool_xml(text: str) -> str:
    """Without tags of tool calls that came as text; empty when there is nothing but calls."""
    lowered = text.lower()
    if not any(indicator in lowered for indicator in _INDICATORS):
        return text
    at, opened, calls_only = 0, "", True
    kept: list[str] = []
    for start, end in [*_tool_tags(text), (len(text), len(text))]:
        between = text[at:start]
        calls_only = calls_only and _is_payload(between.strip(), opened)
        kept.append(between)
        at, opened = end, text[start:end]
    return "" if calls_only else "".join(kept).strip()


def _tool_tags(text: str) -> Iterator[tuple[int, int]]:
    """Where the tags are: from the name of a tool's tag up to the next ``>``, but not over code."""
    stop = 0
    for found in _TOOL_TAG.finditer(text):
        if found.start() < stop and text[stop - 1] == ">":
            continue
        if stop < found.end():
            end = _TAG_END.search(text, found.end())
            if end is None:
                return
            stop = end.end()
        if text[stop - 1] == ">":
            yield found.start(), stop


def _is_payload(text: str, tag: str) -> bool:
    """Whether the text behind a tag is a part of a call: objects, a parameter's value, nothing."""
    if not text or FENCE in text:
        return not text
    return tag.startswith("<parameter") or _OBJECTS.fullmatch(text) is not None


def downgraded_tool_text(text: str) -> str:
    """Without calls and results that were written as text, and the JSON that follows them."""
    kept: list[str] = []
    skipping = False
    for line in text.split("\n"):
        bare = line.strip()
        starts = bare.startswith(_DOWNGRADED)
        skipping = starts or (skipping and (not bare or bare.startswith(_PAYLOAD)))
        if not skipping:
            kept.append(line)
    return "\n".join(kept)


def thinking_tags(text: str) -> str:
    """Without reasoning; what is one, and where it ends, the pieces know."""
    return THOUGHT.sub("", text).strip()


def final_tags(text: str) -> str:
    """Without the tags around a final answer; the answer stays."""
    return _FINAL.sub("", text).strip()


def echoed_system_messages(text: str) -> str:
    """Without blocks that begin as a system message, each to its blank line or to the end."""
    kept: list[str] = []
    skipping = False
    for line in text.split("\n"):
        bare = line.strip()
        starts = bare.startswith(_ECHO)
        if not (starts or skipping) or FENCE in line:
            kept.append(line)
        skipping = starts or (skipping and bool(bare))
    return "\n".join(kept).strip()


def duplicate_blocks(text: str) -> str:
    """Without paragraphs that repeat the one before them, and without empty ones."""
    kept: list[str] = []
    last = ""
    for block in text.split("\n\n"):
        bare = block.strip()
        if bare not in ("", last):
            kept.append(block)
            last = bare
    return "\n\n".join(kept)


def media_paths(text: str) -> str:
    """Without the lines that were meant for a channel: the path of a file, how to send it."""
    if "MEDIA:" not in text:
        return text
    lines = text.split("\n")
    kept = [x for x in lines if not _MEDIA.search(x) and not x.strip().startswith(_VOICE)]
    return "\n".join(kept).strip()


def leading_blank_lines(text: str) -> str:
    """Without lines of white space at the beginning; the first real line keeps its indent."""
    blank = _BLANK_LINES.match(text)
    return text[blank.end() :] if blank else text


STEPS: Final[Mapping[str, Step]] = {
    "garbled tool XML": garbled_tool_xml,
    "downgraded tool text": downgraded_tool_text,
    "thinking tags": thinking_tags,
    "final tags": final_tags,
    "echoed system messages": echoed_system_messages,
    "duplicate blocks": duplicate_blocks,
    "media paths": media_paths,
    "leading blank lines": leading_blank_lines,
}
"""By name, in their order."""


# What a model wrote, made fit for the person who reads it: eight steps and a trim. Pure.
#
# Laws: sanitizing twice changes nothing more; the time is linear; code that stands outside of the
# model's reasoning is left as it is; a text without artefacts is only trimmed.
# Source: agent loop specification, section 3.


_SUSPECT: Final = re.compile(r"[<\[]|\n\s*\n|MEDIA:|invfunction_calls|functioninvoke")
_ROUNDS: Final = 10


def sanitize(text: str) -> str:
    """The answer as it is stored and shown.

    What a step takes out may bring something together that an earlier step looks for, so the
    steps are repeated until they find nothing more. A text that goes on giving them work was made
    to do so: only its code blocks are left.
    """
    if not _SUSPECT.search(text):
        return text.strip()
    for _ in range(_ROUNDS):
        clean = _sanitized_once(text)
        if clean == text:
            return clean
        text = clean
    return _fences(text)


def _sanitized_once(text: str) -> str:
    bare, hidden = masked(text)
    for step in STEPS.values():
        bare = step(bare)
    return unmasked(bare, hidden).strip()


def _fences(text: str) -> str:
    return "\n".join(run.text for run in runs(text) if run.kind == "fence")
