"""The file format of a recorded model: normalised requests and their answers. Pure.

A cassette is a file of JSON lines: a header, then one entry for each request, in the order of their
answers. A request is found by its fingerprint: a hash without the text that varies from run to run
(dates, times, ids of runs and calls, temporary paths). Secrets and personal data are redacted
before anything is written, so that a cassette can be committed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher, unified_diff
from typing import Final

import msgspec
from msgspec.structs import replace

from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.errors import ConfigError
from motet.protocols.models import (
    CallArguments,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    TextPart,
    ThinkingPart,
)
from motet.protocols.redaction.redact import redact_text

VERSION: Final = 1
DIGEST = 12
CONTEXT = 1
VARYING: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\b(?:run|err|res|esc|boot|job)_[0-9A-Za-z_]*\d[0-9A-Za-z_]*"), "<id>"),
    (
        re.compile(
            r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?)?"
            r"(?:Z|[+-]\d{2}:?\d{2}\b)?(?: \((?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\))?"
        ),
        "<date>",
    ),
    (re.compile(r"\b\d{2}:\d{2}:\d{2}(?:\.\d+)?\b"), "<time>"),
    (re.compile(r"(?<![\w/])/(?:tmp|var/folders|private/var|dev/shm)/[^\s'\"`,;:)]*"), "<path>"),
)
"""Text that varies from run to run, and its replacements."""


class Header(msgspec.Struct, frozen=True, tag="cassette", tag_field="line"):
    """The first line. ``model``: the full name of the recorded model; ``base_url``: its server, if
    that was not the provider's own."""

    model: str
    version: int = VERSION
    base_url: str | None = None


class NormalizedRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request without the text that varies. ``tools``: a digest of each, by name."""

    system: str = ""
    messages: tuple[ChatMessage, ...] = ()
    tools: dict[str, str] = {}
    output: str = ""

    @property
    def fingerprint(self) -> str:
        return _digest(msgspec.json.encode(self, order="deterministic"))

    def lines(self) -> list[str]:
        """The request as lines of text, to show how two differ."""
        lines = [f"system: {line}" for line in self.system.splitlines()]
        lines += [f"tool {name} {digest}" for name, digest in self.tools.items()]
        lines += [f"output {self.output}"] if self.output else []
        return lines + [line for row in self.messages for line in _row_lines(row)]


class Failed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A recorded failure: the fields of :class:`ModelFailure`."""

    message: str
    kind: str
    status: int | None = None
    retry_after: float | None = None


class Entry(msgspec.Struct, frozen=True, tag="entry", tag_field="line", omit_defaults=True):
    """One request and its answer: events, a failure, or events and the failure that cut them."""

    fingerprint: str
    asked: NormalizedRequest
    events: tuple[ModelEvent, ...] = ()
    failure: Failed | None = None


_encoder = msgspec.json.Encoder(order="sorted")
_line = msgspec.json.Decoder[Header | Entry](Header | Entry)


def normalized(request: ModelRequest, ignore: Sequence[re.Pattern[str]] = ()) -> NormalizedRequest:
    """The normalised request. ``ignore``: more text that varies."""
    normal = Normalizer(ignore)
    tools = {
        tool.name: _digest(normal.text(msgspec.json.encode(tool, order="sorted").decode()).encode())
        for tool in sorted(request.tools, key=lambda tool: tool.name)
    }
    output = request.output
    return NormalizedRequest(
        normal.text(request.system),
        tuple(normal.row(row) for row in request.messages),
        tools,
        _digest(msgspec.json.encode(output, order="sorted")) if output else "",
    )


class Normalizer:
    """Normalises one request: replaces text that varies, and numbers calls by their order."""

    def __init__(self, ignore: Sequence[re.Pattern[str]] = ()) -> None:
        self._rules = [*((pattern, "<ignored>") for pattern in ignore), *VARYING]
        self._ids: dict[str, str] = {}

    def text(self, text: str) -> str:
        text = redact_text(text, tagged=False)
        for pattern, mark in self._rules:
            text = pattern.sub(mark, text)
        return text

    def row(self, row: ChatMessage) -> ChatMessage:
        match row:
            case UserMessage():
                return replace(row, text=self.text(row.text))
            case AssistantMessage():
                calls = tuple(
                    Call(self._id(call.id), call.name, self.text(call.arguments))
                    for call in row.calls
                )
                return replace(row, text=self.text(row.text), calls=calls)
            case ToolMessage():
                return replace(row, call_id=self._id(row.call_id), text=self.text(row.text))

    def _id(self, id: str) -> str:
        return self._ids.setdefault(id, f"call_{len(self._ids) + 1}")


def merged(events: Iterable[ModelEvent]) -> Iterator[ModelEvent]:
    """The events with adjacent parts of a text joined, then redacted.

    Joined first, since a secret may be split over several parts, none of which would match.
    """
    last: ModelEvent | None = None
    for event in events:
        joined = None if last is None else _joined(last, event)
        if joined is None and last is not None:
            yield _redacted(last)
        last = joined or event
    if last is not None:
        yield _redacted(last)


def _joined(one: ModelEvent, other: ModelEvent) -> ModelEvent | None:
    match one, other:
        case TextPart(), TextPart():
            return TextPart(one.text + other.text)
        case ThinkingPart(), ThinkingPart():
            return ThinkingPart(one.text + other.text)
        case CallArguments(), CallArguments() if one.index == other.index:
            return CallArguments(one.index, one.text + other.text)
        case _:
            return None


def _redacted(event: ModelEvent) -> ModelEvent:
    if isinstance(event, TextPart | ThinkingPart | CallArguments):
        return replace(event, text=redact_text(event.text, tagged=False))
    return event


def entry_of(
    asked: NormalizedRequest, events: Iterable[ModelEvent], failure: ModelFailure | None = None
) -> Entry:
    failed = None
    if failure is not None:
        message = redact_text(str(failure), tagged=False)
        failed = Failed(message, failure.kind, failure.status, failure.retry_after)
    return Entry(asked.fingerprint, asked, tuple(merged(events)), failed)


def encoded(line: Header | Entry) -> bytes:
    return _encoder.encode(line) + b"\n"


def decoded(data: bytes, file: str) -> tuple[Header, list[Entry]]:
    """Read a cassette. Raises ``ConfigError`` for another format or version."""
    if not data:
        raise ConfigError(f"{file} is empty: record it anew")
    lines: list[Header | Entry] = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            lines.append(_line.decode(line))
        except msgspec.DecodeError as error:
            raise ConfigError(f"{file}, line {number}, is no line of a cassette: {error}") from None
    header, *entries = lines
    if not isinstance(header, Header) or not all(isinstance(entry, Entry) for entry in entries):
        raise ConfigError(f"{file} is no cassette: its first line alone is a header")
    if header.version != VERSION:
        raise ConfigError(
            f"{file} is a cassette of version {header.version}, this motet reads {VERSION}: "
            "record it anew"
        )
    return header, [entry for entry in entries if isinstance(entry, Entry)]


def nearest(asked: NormalizedRequest, entries: Iterable[Entry]) -> Entry | None:
    """The entry with the most similar request."""
    lines = asked.lines()

    def similarity(entry: Entry) -> float:
        return SequenceMatcher(None, lines, entry.asked.lines(), autojunk=False).ratio()

    return max(entries, key=similarity, default=None)


def difference(recorded: NormalizedRequest, asked: NormalizedRequest) -> str:
    """A unified diff of a recorded request and this one."""
    lines = unified_diff(
        recorded.lines(), asked.lines(), "recorded", "asked", n=CONTEXT, lineterm=""
    )
    return "\n".join(lines)


def _row_lines(row: ChatMessage) -> list[str]:
    match row:
        case UserMessage(text):
            return [f"user: {line}" for line in text.splitlines() or [""]]
        case AssistantMessage(text, calls):
            said = [f"assistant: {line}" for line in text.splitlines()]
            return said + [f"call {call.name} {call.arguments}" for call in calls]
        case ToolMessage():
            return [f"result {row.name} {line}" for line in row.text.splitlines() or [""]]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGEST]
