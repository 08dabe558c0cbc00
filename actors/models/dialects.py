"""Wire formats of providers: lawful transcripts, and readers of answers. Pure.

A provider refuses a whole request for one row that breaks its rules, and so every later turn of a
session. :func:`lawful` makes any transcript fit, at the edge: the stored one keeps the names, ids
and texts as they were said. Law: whatever the rows, roles alternate, the first and the last message
are the user's or results, each call has one result at once, no text is blank, names and ids fit the
provider's pattern and are unique, at every depth of a tool's schema too, nothing is more or longer
than it takes, and a call of the answer comes back under the tool's and its properties' own names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import TypeVar, cast

import attrs
import msgspec
from msgspec.structs import replace

from motet.actors.transcript.grammar import MISSING_RESULTS
from motet.actors.transcript.history import sendable, user_text
from motet.protocols.chat import (
    AssistantMessage,
    Call,
    ChatMessage,
    JsonObject,
    ToolMessage,
    UserMessage,
)
from motet.protocols.models import (
    Finished,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    StopReason,
    Usage,
    UsageReport,
)
from motet.protocols.texts import well_formed
from motet.protocols.tool_schemas import NO_NAMES, Names, fits, fitted, fitting_names, with_keys
from motet.protocols.tools import ToolSpec

EMPTY = "(empty)"
BEGINNING = "[The beginning of the conversation is not shown]"
GO_ON = "[System: go on.]"
WITHDRAWN = "Not offered any more: do not call it."
DEPTH = 50
"""Objects and lists in the arguments of a call; some servers refuse 100 of them."""


@attrs.frozen
class Rules:
    """The rules of a provider for transcripts, where providers differ.

    Attributes:
        name: the pattern of a tool's name.
        id: the pattern of a call's id.
        property: the pattern of the name of a property, at every depth of a tool's schema.
        declared: calls in a transcript need tools in the request.
        tools: the most tools of a request; the first ones are sent.
        description: the most characters of a tool's description; the rest is in the system prompt.
        calls: the most calls of a message; those of an answer become several messages.
    """

    name: str = "[A-Za-z0-9_-]{1,64}"
    id: str = "[A-Za-z0-9_-]{1,64}"
    property: str = "[A-Za-z0-9_.-]{1,64}"
    declared: bool = False
    tools: int | None = None
    description: int | None = None
    calls: int | None = None


@attrs.frozen
class Lawful:
    """A request that fits the rules of a provider.

    Attributes:
        names: the tools' own names, by the names in the request, where these differ.
        properties: the own names of properties in the same way, by the name of a tool in the
            request; ``answer``: those of the form of the answer.
        withdrawn: no tool may be called; those in the request only explain the transcript.
    """

    request: ModelRequest
    names: Mapping[str, str]
    withdrawn: bool = False
    properties: Mapping[str, Names] = MappingProxyType({})
    answer: Names = NO_NAMES


def lawful(request: ModelRequest, rules: Rules) -> Lawful:
    """The request with a lawful transcript. A lawful one stays as it is."""
    rows = sendable([row for row in map(_clean, request.messages) if row is not None])
    if not rows or isinstance(rows[0], AssistantMessage):
        rows = (UserMessage(BEGINNING), *rows)
    if isinstance(rows[-1], AssistantMessage):
        rows = (*rows, UserMessage(GO_ON))
    rows = tuple(_in_parts(rows, rules.calls))
    offered = request.tools[: rules.tools]
    called = [call.name for row in rows if isinstance(row, AssistantMessage) for call in row.calls]
    names = fitting_names([*(tool.name for tool in offered), *called], rules.name)
    fitting = {tool.name: fitted(tool.parameters, rules.property) for tool in offered}
    more: list[str] = []
    tools = tuple(
        ToolSpec(names[tool.name], _described(tool, rules.description, more), fitting[tool.name][0])
        for tool in offered
    )
    withdrawn = rules.declared and bool(called) and not tools
    if withdrawn:
        unique = dict.fromkeys(called)
        tools = tuple(ToolSpec(names[name], WITHDRAWN, {"type": "object"}) for name in unique)
    output, in_answer = request.output, NO_NAMES
    if output is not None:
        form, in_answer = fitted(output.schema, rules.property)
        output = replace(output, name=next(fits(output.name, "answer", rules.name)), schema=form)
    made = replace(
        request,
        messages=tuple(_renamed(rows, names, fitting, rules.id)),
        system="\n\n".join(filter(None, (_plain(request.system), *more))),
        tools=tools,
        output=output,
    )
    own = {wire: name for name, wire in names.items() if wire != name}
    properties = {
        names[tool]: _own_names(others) for tool, (_, others) in fitting.items() if others
    }
    return Lawful(made, own, withdrawn, properties, _own_names(in_answer))


def _own_names(others: Names) -> Names:
    return {wire: name for name, wire in others.items()}


def _described(tool: ToolSpec, most: int | None, more: list[str]) -> str:
    """The description of a tool; what is too long of it is added to ``more``."""
    said = _plain(tool.description) or _plain(tool.name) or "unnamed"
    if most is None or len(said) <= most:
        return said
    more.append(f"More about the tool {_plain(tool.name)}: …{said[most - 1 :]}")
    return f"{said[: most - 1]}…"


def _in_parts(rows: Iterable[ChatMessage], most: int | None) -> Iterator[ChatMessage]:
    """The rows with at most so many calls in one. The results of each part follow it."""
    waiting: list[Call] = []
    due = 0
    for row in rows:
        if isinstance(row, AssistantMessage) and most is not None and len(row.calls) > most:
            waiting, due = list(row.calls[most:]), most
            yield replace(row, calls=row.calls[:most])
            continue
        if due == 0 and waiting and isinstance(row, ToolMessage):
            assert most is not None
            part, waiting = waiting[:most], waiting[most:]
            due = len(part)
            yield AssistantMessage("", tuple(part))
        due = max(0, due - 1)
        yield row


def _plain(text: str) -> str:
    """The text without what servers cannot store; ``""`` for a blank one."""
    return well_formed(text).replace("\0", "\ufffd") if text.strip() else ""


def _clean(row: ChatMessage) -> ChatMessage | None:
    """The row with text that can be sent, ``""`` for a blank one; None for a row without content.

    A row of the assistant that says and calls nothing is left out, as if it had not been.
    """
    text = _plain(row.text)
    match row:
        case UserMessage(author=author):
            author = _plain(author) if author and text else None
            return UserMessage(text, author, row.note)
        case AssistantMessage(calls=calls):
            return replace(row, text=text) if text or calls else None
        case ToolMessage():
            return replace(row, text=text or MISSING_RESULTS["done"])


def _renamed(
    rows: Iterable[ChatMessage],
    names: Mapping[str, str],
    fitting: Mapping[str, tuple[JsonObject, Names]],
    id: str,
) -> Iterator[ChatMessage]:
    """The rows with fitting names and ids; a result has those of its call."""
    used: set[str] = set()
    due: deque[Call] = deque()
    for row in rows:
        match row:
            case UserMessage():
                yield UserMessage(user_text(row) or EMPTY, note=row.note)
            case AssistantMessage(calls=calls):
                for call in calls:
                    fit = next(one for one in fits(call.id, "call", id) if one not in used)
                    used.add(fit)
                    _, others = fitting.get(call.name, ({}, NO_NAMES))
                    arguments = with_keys(call.arguments, others)
                    due.append(Call(fit, names[call.name], arguments))
                yield replace(row, calls=tuple(due)) if calls else row
            case ToolMessage():
                call = due.popleft()
                yield replace(row, call_id=call.id, name=call.name)


T = TypeVar("T")
Role = TypeVar("Role")


def by_role(parts: Iterable[tuple[Role, T]]) -> list[tuple[Role, list[T]]]:
    """Adjacent parts of one role together, for the APIs whose messages are lists of parts."""
    grouped = groupby(parts, key=lambda part: part[0])
    return [(role, [part for _, part in group]) for role, group in grouped]


class Reader(ABC):
    """Turns one stream's chunks into events; knows nothing of connections.

    Attributes:
        reason: for the end of the answer, once the provider has sent it.
        detail: the provider's own word for it, where an answer was refused.
        usage: so far.
    """

    reason: StopReason | None = None
    detail: str = ""
    usage: Usage | None = None

    @property
    def complete(self) -> bool:
        """The provider has sent the reason for the end of the answer."""
        return self.reason is not None

    @abstractmethod
    def feed(self, chunk: object) -> Iterable[ModelEvent]:
        """The events in one chunk. Raises ``msgspec.ValidationError`` for an unreadable one."""

    def close(self) -> Iterable[ModelEvent]:
        """The last events, known only at the end of the stream; ``Finished`` is the last.

        Raises :class:`ModelFailure` ``cut`` when the stream ended too early.
        """
        if self.reason is None:
            raise ModelFailure("the stream ended in the middle of the answer", kind="cut")
        end = Finished(self.reason, self.detail)
        return (end,) if self.usage is None else (UsageReport(self.usage), end)


def arguments_object(text: str) -> JsonObject:
    """The arguments of a call as an object, even if the model wrote something else.

    The transcript keeps the model's own text, but a server would refuse every later request for
    one call whose arguments are not an object.
    """
    found = _object_in(text)
    return {"invalid_arguments": well_formed(text)} if found is None else found


def arguments_text(text: str) -> str:
    """:func:`arguments_object` as JSON: the model's own text where that is an object."""
    own = _object_in(text) is not None
    return text if own else msgspec.json.encode(arguments_object(text)).decode()


def _object_in(text: str) -> JsonObject | None:
    try:
        found = msgspec.json.decode(text, type=JsonObject)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return None if _is_deeper(found, DEPTH) else found


def _is_deeper(value: object, depth: int) -> bool:
    # The casts hold since a JSON decoder made the value.
    if isinstance(value, dict):
        value = list(cast("JsonObject", value).values())
    items = cast("list[object]", value) if isinstance(value, list) else []
    return depth < 0 or any(_is_deeper(one, depth - 1) for one in items)


def wire_model(requested: str, own: str, provider: str) -> str:
    """The name a provider knows its model by; the request's wins over the adapter's own."""
    return requested.removeprefix(f"{provider}:") or own
