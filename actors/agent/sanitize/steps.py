"""The eight steps that take a model's artefacts out of an answer, on a masked text. Pure.

Code and reasoning are marks here (``masks``): no step sees into them. Every step takes linear
time. Source: agent loop specification, section 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from motet.actors.agent.sanitize.masks import FENCE, NUL, THOUGHT
from motet.actors.agent.sanitize.pieces import FINAL_TAG

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
