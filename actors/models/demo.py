"""The demo model: a few fixed rules, to try motet without a key, a network or a language model.

An answer is a pure function of the transcript and the offered tools. A request is a line of plain
words. ``and then`` joins its steps, ``and`` the parts of one step, which run in parallel. The
progress is read from the transcript: each row with calls since the request is one finished step.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Self, TypeAlias, TypeGuard

import msgspec
import trio

from motet.protocols.chat import (
    ANSWERS,
    AssistantMessage,
    Call,
    ChatMessage,
    ToolMessage,
    UserMessage,
    json_object,
)
from motet.protocols.escalations import without_history
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)
from motet.protocols.schema_values import filled
from motet.protocols.tools import ToolSpec

INTRODUCTION = """\
I am motet's demo model: no language model, but a few fixed rules that need no key and no \
network. I turn simple requests into real tool calls. Try:

- list files
- read README.md and LICENSE
- write notes.txt: buy milk
- run date
- fetch https://example.org
- fail, then: explain the error
- wait 5

Parts joined by "and" run in parallel, by "and then" one after the other."""

ERROR_ID = re.compile(r"\berr_\d{8}_\d{6}_[0-9a-f]{6}\b")
STEP = re.compile(r"\s*\band then\b\s*", re.I)
FINAL = "final_answer"
"""The prefix of the tool that takes a structured answer."""
VERBS = "list|read|write|run|fetch|fail|wait|detail|explain"
PART = re.compile(rf"\s+and\s+(?=(?:{VERBS})\b)", re.I)
ADDRESS = re.compile(r"^(?:\s*@\S+[\s,:]+)+")
SPEAKER = re.compile(r"^\[[^\]\n]+\] ", re.M)
NOTICE = re.compile(r"\s*\[.*\]\s*", re.S)
GREETING = re.compile(r"\b(hi|hello|hey|help|who|what are you)\b", re.I)
PATTERNS = {
    "list": re.compile(r"list(?: (?:the )?files)?(?: in (?P<path>\S*[^\s.!]|\.\.?))?[.!]?", re.I),
    "read": re.compile(r"read (?P<names>.+)", re.I | re.S),
    "write": re.compile(r"write (?P<path>[^\s:]+):\s*(?P<text>.*)", re.I | re.S),
    "run": re.compile(r"run (?P<command>.+)", re.I | re.S),
    "fetch": re.compile(r"fetch (?P<url>\S+)", re.I),
    "fail": re.compile(r"fail[.!]?", re.I),
    "detail": re.compile(r"(?:error )?details?[.?!]?|explain (?:the |that )?error[.?!]?", re.I),
    "wait": re.compile(r"wait (?P<seconds>\d{1,5}(?:\.\d{1,3})?)(?: ?s(?:econds?)?)?[.!]?", re.I),
}
ARGUMENT_NAMES = {
    "path": ("path", "file", "filename", "directory"),
    "text": ("content", "text", "contents"),
    "command": ("command", "cmd"),
    "url": ("url",),
    "id": ("error_id", "id"),
}
"""The names that tools use for an argument, the likeliest first."""

FOREIGN_FILE = f"/no-such-folder/{'a-name-so-long-that-the-error-has-to-be-shortened-' * 3}.txt"
EXCERPT_LINES = 12
EXCERPT_CHARS = 600


class Use(msgspec.Struct, frozen=True):
    """A tool to call; the arguments have the names of ``ARGUMENT_NAMES``."""

    tool: str
    arguments: dict[str, str]


class Remark(msgspec.Struct, frozen=True):
    """A text in place of a call."""

    text: str


class Pause(msgspec.Struct, frozen=True):
    """Seconds to wait without a tool."""

    seconds: float


Action: TypeAlias = Use | Remark | Pause


class Plan(msgspec.Struct, frozen=True):
    """One answer: a text, then a wait, then calls."""

    text: str = ""
    wait: float = 0.0
    calls: tuple[Call, ...] = ()


def plan(messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> Plan:
    """The answer to a transcript. It calls only tools of ``tools``."""
    asked = [(at, row) for at, row in enumerate(messages) if is_request(row)]
    if not asked:
        return Plan(INTRODUCTION)
    at, request = asked[-1]
    since = messages[at + 1 :]
    offered = {tool.name: tool for tool in tools}
    form = next((tool for tool in tools if tool.name.startswith(FINAL)), None)
    steps = [step_of(text, offered, messages) for text in STEP.split(spoken(request.text))]
    taken = sum(1 for row in since if isinstance(row, AssistantMessage) and row.calls)
    numbered = sum(len(row.calls) for row in messages if isinstance(row, AssistantMessage))
    said = answer(steps, taken, reports(since), numbered, offered)
    if form is None or said.calls:
        return said
    arguments = msgspec.json.encode(filled(form.parameters, spoken(request.text))).decode()
    return Plan("", said.wait, (Call(f"call_{numbered + 1}", form.name, arguments),))


def answer(
    steps: Sequence[Sequence[Action]],
    taken: int,
    results: Sequence[str],
    numbered: int,
    offered: dict[str, ToolSpec],
) -> Plan:
    """The next step with calls, or else the report of all steps."""
    waiting = [step for step in steps if uses(step)][taken:]
    if waiting:
        calls = [call_of(use, offered, numbered + i) for i, use in enumerate(uses(waiting[0]), 1)]
        return Plan(f"I call {spoken_list([call.name for call in calls])}.", 0.0, tuple(calls))
    remarks = [a.text for step in steps for a in step if isinstance(a, Remark)]
    wait = sum(a.seconds for step in steps for a in step if isinstance(a, Pause))
    waited = [f"I waited {wait:g} s."] if wait else []
    return Plan("\n\n".join([*results, *waited, *dict.fromkeys(remarks)]), wait)


def uses(step: Sequence[Action]) -> list[Use]:
    return [action for action in step if isinstance(action, Use)]


def is_request(row: ChatMessage) -> TypeGuard[UserMessage]:
    """True for a person's message; the host's own notices are in square brackets."""
    return isinstance(row, UserMessage) and not NOTICE.fullmatch(row.text)


def spoken(text: str) -> str:
    """The last message of a room, without its sender and its addressees; the answer to an
    escalation without its history.
    """
    return ADDRESS.sub("", SPEAKER.split(without_history(text))[-1]).strip()


def step_of(
    text: str, offered: dict[str, ToolSpec], messages: Sequence[ChatMessage]
) -> list[Action]:
    return [
        action
        for part in PART.split(text)
        for wanted in actions_of(part.strip(), messages)
        for action in available(wanted, offered)
    ]


def actions_of(text: str, messages: Sequence[ChatMessage]) -> list[Action]:
    """The actions of one part of a request, regardless of the offered tools."""
    for verb, pattern in PATTERNS.items():
        if found := pattern.fullmatch(text):
            return meant(verb, found.groupdict(), messages)
    if not text or GREETING.search(text):
        return [Remark(INTRODUCTION)]
    return [Remark(f"I have no rule for {excerpt(text)!r}.\n\n{INTRODUCTION}")]


def meant(verb: str, said: dict[str, str | None], messages: Sequence[ChatMessage]) -> list[Action]:
    match verb:
        case "list":
            return [Use("list_files", {"path": said["path"] or "."})]
        case "read":
            names = re.split(r"[\s,]+(?:and\s+)?", (said["names"] or "").strip())
            return [Use("read_file", {"path": name}) for name in names if name]
        case "write":
            return [Use("write_file", {"path": said["path"] or "", "text": said["text"] or ""})]
        case "run":
            return [Use("shell", {"command": said["command"] or ""})]
        case "fetch":
            return [Use("http_fetch", {"url": said["url"] or ""})]
        case "fail":
            return [Use("read_file", {"path": FOREIGN_FILE})]
        case "wait":
            return [Use("shell", {"command": f"sleep {said['seconds']}"})]
        case _:
            return detail(messages)


def detail(messages: Sequence[ChatMessage]) -> list[Action]:
    """Look up the last error that the transcript names."""
    texts = [row.text for row in messages if isinstance(row, ToolMessage)]
    ids = [id for text in texts for id in ERROR_ID.findall(text)]
    if not ids:
        return [Remark("There is no error id in this conversation yet: say fail first.")]
    return [Use("get_error_detail", {"id": ids[-1]})]


def available(action: Action, offered: dict[str, ToolSpec]) -> list[Action]:
    """The action if its tool is offered, else the best substitute."""
    if not isinstance(action, Use) or action.tool in offered:
        return [action]
    command = action.arguments.get("command", "")
    if command.startswith("sleep "):
        return [Pause(float(command.removeprefix("sleep ")))]
    if action.arguments.get("path") == FOREIGN_FILE and "shell" in offered:
        return [Use("shell", {"command": f"cat {FOREIGN_FILE}"})]
    there = spoken_list(sorted(offered)) if offered else "none"
    return [Remark(f"That needs the tool {action.tool}, which I am not offered here: {there}.")]


def call_of(use: Use, offered: dict[str, ToolSpec], number: int) -> Call:
    spec = offered[use.tool]
    arguments = {argument_name(spec, name): value for name, value in use.arguments.items()}
    return Call(f"call_{number}", use.tool, msgspec.json.encode(arguments).decode())


def argument_name(spec: ToolSpec, name: str) -> str:
    """The tool's own name of an argument, by its schema."""
    known = json_object(spec.parameters.get("properties"))
    candidates = ARGUMENT_NAMES[name]
    return next((candidate for candidate in candidates if candidate in known), candidates[0])


def reports(rows: Sequence[ChatMessage]) -> list[str]:
    return [report(row) for row in rows if isinstance(row, ToolMessage)]


def report(result: ToolMessage) -> str:
    outcome = "" if result.outcome in ANSWERS else f" ({result.outcome.replace('_', ' ')})"
    return f"{result.name}{outcome}:\n{excerpt(result.text) or '(nothing)'}"


def excerpt(text: str) -> str:
    """The beginning of a text, and the number of omitted characters."""
    lines = text.strip().splitlines()
    shown = "\n".join(lines[:EXCERPT_LINES])[:EXCERPT_CHARS].rstrip()
    left_out = len(text.strip()) - len(shown)
    return shown if left_out <= 0 else f"{shown}\n… and {left_out} more characters"


def spoken_list(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; repeated items are counted."""
    counts = {item: items.count(item) for item in items}
    named = [item if n == 1 else f"{item} ({n} times)" for item, n in counts.items()]
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


CHARS_PER_TOKEN = 4
PAUSE_BETWEEN_DOTS = 1.0


class DemoModel:
    """Answers by rules and calls real tools.

    Deterministic: equal requests give equal events. ``pace``: seconds between two words, which are
    also the points where a cancellation takes effect.
    """

    def __init__(self, *, pace: float = 0.01):
        self._pace = pace

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @property
    def name(self) -> str:
        return "demo"

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """Stream one answer; see :class:`motet.protocols.models.Model`."""
        yield _Paced(timed_events(request, self._pace))


class _Paced:
    """A stream of events, each after its pause."""

    def __init__(self, timed: Iterator[tuple[float, ModelEvent]]):
        self._timed = timed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        for pause, event in self._timed:
            await trio.sleep(pause)
            return event
        raise StopAsyncIteration


def timed_events(request: ModelRequest, pace: float) -> Iterator[tuple[float, ModelEvent]]:
    """The events of the answer, each with the seconds to wait before it."""
    planned = plan(request.messages, request.tools)
    yield from dots(planned.wait)
    for word in re.findall(r"\S+\s*|\s+", planned.text):
        yield pace, TextPart(word)
    for index, call in enumerate(planned.calls):
        yield pace, CallStart(index, call.id, call.name)
        yield pace, CallArguments(index, call.arguments)
    yield 0.0, UsageReport(usage_of(request, planned))
    yield 0.0, Finished("tool_calls" if planned.calls else "stop")


def dots(seconds: float) -> Iterator[tuple[float, ModelEvent]]:
    """One dot per second of the wait."""
    whole, rest = divmod(seconds, PAUSE_BETWEEN_DOTS)
    for _ in range(int(whole)):
        yield PAUSE_BETWEEN_DOTS, TextPart(".")
    if seconds:
        yield rest, TextPart(" ")


def usage_of(request: ModelRequest, planned: Plan) -> Usage:
    """Tokens by the rule of thumb of four characters each."""
    said = len(planned.text) + sum(len(call.arguments) for call in planned.calls)
    heard = len(msgspec.json.encode((request.system, request.messages, request.tools)))
    return Usage(heard // CHARS_PER_TOKEN, -(-said // CHARS_PER_TOKEN), cost=0.0)
