"""Sanitizing of a model's answers for their readers: eight steps and a trim. Pure.

The steps run on a masked text, in which code and reasoning are marks, so that no step changes
them. Laws: sanitizing twice changes nothing more; every step takes linear time; code outside of
reasoning is unchanged; a text without artefacts is only trimmed. Source: agent loop specification,
section 3.
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
    """The text with marks, and the text behind each mark. Law: ``unmasked(*masked(text)) == text``.

    A mark is NUL, a letter for the kind, a number, NUL. A NUL of the text becomes a mark, too, so
    that every mark in a masked text is ours. Equal spans have equal marks, so that equal paragraphs
    stay equal; every fence has a mark of its own.
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


# The steps, on a masked text

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
    """Without tags of tool calls that came as text; empty when there are only calls."""
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
    """The places of the tags, each up to the next ``>``, but not across code."""
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
    """Whether the text behind a tag belongs to a call: objects, a parameter's value, nothing."""
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
    """Without reasoning, which the segmenter has found."""
    return THOUGHT.sub("", text).strip()


def final_tags(text: str) -> str:
    """Without the tags around a final answer; the answer stays."""
    return _FINAL.sub("", text).strip()


def echoed_system_messages(text: str) -> str:
    """Without blocks that begin as a system message, up to a blank line or the end."""
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
    """Without lines for a channel: paths of media files, and how to send them."""
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


_SUSPECT: Final = re.compile(r"[<\[]|\n\s*\n|MEDIA:|invfunction_calls|functioninvoke")
_ROUNDS: Final = 10


def sanitize(text: str) -> str:
    """The answer as it is stored and shown.

    A removal can join text that an earlier step looks for, so the steps are repeated until they
    change nothing. A text that changes in every round was made to do so: only its code blocks stay.
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
