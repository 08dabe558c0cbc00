"""Copies of a room's messages in texts that carry them on, corrected when a message is another one.

A member's transcript, a call of a tool, a trace, an error or the input of a room below may quote
the line of a message. Invariants: only the line of that message changes, up to the next line that
begins with a square bracket; a correction that is done twice does no more than once. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Final, Protocol, TypeAlias, TypeVar, cast

import msgspec
from msgspec.structs import replace

from motet.protocols.approvals import DENIED_BY, SAYS
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import ModelRequest, ModelResponse
from motet.protocols.room_calls import NOBODY
from motet.protocols.room_messages import HEAD, QUOTED_HEAD, Amendment, line_of, without_head
from motet.protocols.rooms import RoomMessage
from motet.protocols.sessions import FinishRun, Principal
from motet.protocols.texts import ELLIPSIS, plain_name

MARK: Final = 512
"""Characters of the heads that a page names in front, at most."""


def corrected(text: str, label: str, line: str) -> str:
    """A text that a member has read, with ``line`` in place of that of the message ``label``.

    Also where it is quoted within another line, as by an error, but not within another message: a
    person may have written such a bracket, and what was said behind it stays.
    """
    if f"[#{label} " not in text:
        return text
    parts: list[str] = []
    at = until = 0
    for found in QUOTED_HEAD.finditer(text):
        if found.start() < until:
            continue
        end = text.find("\n[", found.end())
        end = len(text) if end < 0 else end
        if found[1] == label or HEAD.match(text, found.start()):
            until = end
        if found[1] == label:
            tail = text[:end][len(text[:end].rstrip("\n")) :] if end < len(text) else ""
            parts += [text[at : found.start()], line, tail]
            at = end
    return "".join([*parts, text[at:]])


def corrected_preview(text: str, label: str, line: str) -> str:
    """The same for a text whose lines may have been joined: such a one ends at the message."""
    after = corrected(text, label, line)
    if after == text and (at := text.find(f"[#{label} ")) >= 0:
        return text[:at] + line
    return after


def going_on(text: str, at: int, most: int = MARK) -> str:
    """The mark of a page that begins within a message: ``(goes on: [#1 person alice])``.

    ``at``: where the page of the text begins. Empty: not within a message. Without the mark, nobody
    could tell whose words are on the page.
    """
    if "[#" not in text or text.startswith("\n[", max(at - 1, 0)) or not at:
        return ""
    begin = text.rfind("\n[", 0, at) + 1
    is_line = HEAD.match(text, begin)
    heads = list[str]()  # else each of them may go on, as in JSON in one line
    for found in [is_line] if is_line else QUOTED_HEAD.finditer(text, begin):
        if found.start() >= at:
            break
        head = f"{found[0][: most // 2].rstrip(']')}]"  # a name may be long; the number counts
        heads = [one for one in heads if one != head] + [head]
    while sum(map(len, heads)) + len(heads) > most:
        del heads[0]
    return f"(goes on: {' '.join(heads)})" if heads else ""


def edits_of_copies(messages: Iterable[RoomMessage], message: RoomMessage) -> tuple[Amendment, ...]:
    """The edits of messages of a room below, to whose run a message was given, as it is now."""
    found: list[Amendment] = []
    for one in messages:
        text = corrected(one.text, message.label, line_of(message))
        if one.kind == "person" and text != one.text:
            new = () if message.deleted else message.principals
            who, people = Principal(one.author), tuple(dict.fromkeys((*one.principals, *new)))
            found.append(Amendment("edit", one.seq, who, text, asked_by=people))
    return tuple(found)


def copy_now(one: RoomMessage, message: RoomMessage) -> RoomMessage:
    """A message of a room below, which was given one, or whose words came up as an answer that is
    withdrawn, as it is now.
    """
    if one.kind == "agent":
        return replace(one, text="", deleted=True, edited=message.edited, reactions=())
    for wish in edits_of_copies((one,), message):
        one = replace(one, text=wish.text, asked_by=wish.asked_by, edited=message.edited)
    return one


def corrected_json(stored: str, label: str, line: str) -> str:
    """The same for a stored text, or for all texts in JSON, such as the arguments of a call."""
    found = f"[#{label} " in stored
    return _each_text(stored, lambda text: corrected(text, label, line)) if found else stored


def previews_json(stored: str, label: str, line: str) -> str:
    """The same for previews."""
    is_in = f"[#{label} " in stored
    return _each_text(stored, lambda one: corrected_preview(one, label, line)) if is_in else stored


def reader_of(message: RoomMessage, before: str) -> Fix:
    """Makes of a row of a transcript what its model reads from now on: the message as it is now.

    ``before``: the old text of the message.
    """
    line = line_of(message)

    def fix(row: ChatMessage) -> ChatMessage:
        match row:
            case UserMessage(text=text) | ToolMessage(text=text):
                if isinstance(row, UserMessage) and row.note == "summary":
                    text = without_items(text, items_of(text, before, message.text))
                text = without_called(text, before, message.text)
                return replace(row, text=corrected_json(text, message.label, line))
            case AssistantMessage(text=text):
                own = message.kind == "agent" and bool(before)
                own = own and without_head(text, message.author) == before
                calls = tuple(
                    replace(call, arguments=corrected_json(call.arguments, message.label, line))
                    for call in row.calls
                )
                if _CALLS.match(text):  # as a trace has calls, cut and without line breaks
                    text = corrected_preview(text, message.label, line)
                else:  # the row of an escalation quotes a call; on disk it is changed, too
                    text = corrected_json(text, message.label, line)
                return replace(row, text=WITHDRAWN if own else text, calls=calls)
            case _:
                return row

    return fix


_CALLS: Final = re.compile(r"[\w.-]+\(\{")
Fix: TypeAlias = Callable[[ChatMessage], ChatMessage]


def fixed_call(fix: Fix, call: Call) -> Call:
    """A call as it is after a fix; its arguments may quote a message."""
    row = fix(AssistantMessage("", (call,)))
    assert isinstance(row, AssistantMessage)
    return row.calls[0]


def fixed_answer(fixes: Iterable[Fix], answer: ModelResponse) -> ModelResponse:
    """An answer to a request from before the fixes: its calls may quote what the request had."""
    for fix in fixes:
        answer = replace(answer, calls=tuple(fixed_call(fix, call) for call in answer.calls))
    return answer


def fix_of(agent: str, fix: Fix) -> Fix:
    """The fix for a trace of that agent: what a model has made for the room itself, such as a
    summary for newcomers, goes with the text of each message.
    """
    if not agent.startswith(CHOOSER):
        return fix
    return lambda row: replace(row, text="") if isinstance(row, AssistantMessage) else fix(row)


CHOOSER: Final = "room.selector"
"""Agents that choose the speakers of a room, or summarise it for newcomers."""
GONE: Final = "(deleted)"
"""The name of users who were deleted."""


_WORDS: Final = (
    *("event", "type", "role", "kind", "decision", "outcome", "failure", "status", "speak"),
    *("note", "source"),
)
"""The fields of JSON whose values are words of motet's, as a user may be called, too."""


@lru_cache(16)
def _naming(user: str, *, anywhere: bool) -> re.Pattern[str]:
    if anywhere:
        return re.compile(rf"(?<!\w){re.escape(user)}(?!\w)")
    inner = msgspec.json.encode(user).decode()[1:-1]
    head = re.escape(msgspec.json.encode(plain_name(user)).decode()[1:-1])
    fields = (rf"(?<!\b{field}\":\")(?<!\b{field}\\\":\\\")" for field in _WORDS)
    of_tool = rf"(?!(?<=\bname\":\"){re.escape(inner)}\",\"(?:arguments|args|text)\":)"
    return re.compile(
        rf"(?<=\"){''.join(fields)}{of_tool}{re.escape(inner)}(?=\\*\"(?!:))"
        rf"|(?<=person ){head}(?=\]| reacts to | takes back )"
        rf"|(?<=@){re.escape(inner)}(?![\w-])"
    )


@lru_cache(16)
def _denial(user: str) -> re.Pattern[str]:
    """The result of a call that a user has denied, with their words."""
    head = rf"\A((?:Permission denied: )?{DENIED_BY})"
    return re.compile(rf"{head}{re.escape(user)}(?:{SAYS}.*)?\Z", re.DOTALL)


def without_user(stored: str, user: str, own: str) -> str:
    """A stored text or JSON that names a deleted user no more.

    The name goes where it is a text of its own, the author of a line, or called with an ``@``, and
    in sentences of the host; with it go the words with which they have denied a call. What others
    have said about a person stays.

    ``own``: the fields of JSON that are sentences of the host, with spaces; the whole of a text.
    """
    if user not in stored:
        return stored
    if own:
        naming = _naming(user, anywhere=True)
        stored = _each_text(stored, lambda text: naming.sub(GONE, text), own.split())
    if f"{DENIED_BY}{user}" in stored:
        denial = _denial(user)
        stored = _each_text(stored, lambda text: denial.sub(rf"\1{GONE}", text))
    return _naming(user, anywhere=False).sub(GONE, stored)


S = TypeVar("S", bound=msgspec.Struct)


def fixed_struct(fixes: Iterable[Fix], value: S) -> S:
    """The same for all texts of a struct, such as a reason that quotes an argument."""
    before = text = msgspec.json.encode(value).decode()
    for fix in fixes:
        text = fixed_text(fix, text)
    return value if text == before else msgspec.json.decode(text, type=type(value))


def fixed_end(fixes: Sequence[Fix], end: FinishRun) -> FinishRun:
    """The end of a run whose rows and reasons were taken before the fixes."""
    if not fixes:
        return end
    detail, escalation, event = end.detail, end.escalation, end.event
    for fix in fixes:
        detail = fixed_text(fix, detail)
    return replace(
        end,
        rows=fixed_rows(fixes, end.rows),
        detail=detail,
        escalation=escalation and fixed_struct(fixes, escalation),
        event=event and fixed_struct(fixes, event),
    )


def fixed_text(fix: Fix, text: str) -> str:
    """The same for the text of an input."""
    return fix(UserMessage(text)).text


def fixed_rows(fixes: Iterable[Fix], rows: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    """The same for rows, after several changes."""
    for fix in fixes:
        rows = tuple(map(fix, rows))
    return rows


class Recorded(Protocol):
    """What a trace has of a request and its answer."""

    output: str
    input: str | ModelRequest


def fix_recorded(fixes: Sequence[Fix], found: Iterable[Recorded]) -> None:
    """Change what is recorded, in place."""
    for one in found if fixes else ():
        for fix in fixes:
            one.output = fixed_text(fix, fix(AssistantMessage(one.output)).text)
            one.input = fixed_input(fix, one.input)


def fixed_input(fix: Fix, given: str | ModelRequest) -> str | ModelRequest:
    """The same for the input of a run or of a model."""
    if isinstance(given, str):
        return fixed_text(fix, given)
    return fixed_request([fix], given)


def fixed_request(fixes: Iterable[Fix], request: ModelRequest) -> ModelRequest:
    """The same for a request to a model. Its system prompt may quote what was recalled."""
    fixes = tuple(fixes)
    system = fixed_lines(fixes, request.system)
    return replace(request, messages=fixed_rows(fixes, request.messages), system=system)


def fixed_lines(fixes: Iterable[Fix], text: str) -> str:
    """The same for a text each of whose lines may quote others, with their line breaks joined."""
    for fix in fixes if "[#" in text else ():
        text = "\n".join(fixed_text(fix, line) for line in text.split("\n"))
    return text


def without_said(stored: str, said: str) -> str:
    """Stored JSON or a text of the run in which an agent has said something, without that.

    Short texts are found only where they are all that was written.
    """

    def fix(text: str) -> str:
        bare = text.strip()
        is_all = bare == said or bare.endswith(f"] {said}")
        is_cut = len(bare) >= _PREVIEW and said.startswith(bare.rstrip(".…"))
        if is_all or is_cut:
            return WITHDRAWN
        return text.replace(said, WITHDRAWN) if len(said) >= TELLING else text

    return _each_text(stored, fix)


TASKS_TITLE: Final = "Open tasks:"
NAMES_TITLE: Final = "Named:"
_LISTS: Final = {TASKS_TITLE: "\n", NAMES_TITLE: ", "}
"""The sections of a summary that the host copies word for word, and what is between their items."""


def items_of(summary: str, before: str, now: str) -> str:
    """The tasks and names that the host has copied into a summary out of a text, as a JSON list.

    ``now``: the text as it is now, whose own ones are left out; ``before`` empty: there are none.
    """
    old, new = (" ".join(text.split()) for text in (before, now))
    found = (
        _bare(item)
        for section in (summary.split("\n\n") if old else ())
        for title, _, items in [section.partition("\n")]
        if title in _LISTS
        for item in items.split(_LISTS[title])
    )
    quoted = (one for one in found if one and one in old and one not in new)
    return msgspec.json.encode(tuple(dict.fromkeys(quoted))).decode()


def without_items(summary: str, items: str) -> str:
    """A summary without some of the tasks and names of :func:`items_of`."""
    gone = frozenset(msgspec.json.decode(items, type=tuple[str, ...]))
    kept: list[str] = []
    for section in summary.split("\n\n") if gone else ():
        title, _, text = section.partition("\n")
        if title not in _LISTS:
            kept.append(section)
        elif left := [one for one in text.split(_LISTS[title]) if _bare(one) not in gone]:
            kept.append(f"{title}\n{_LISTS[title].join(left)}")
    return "\n\n".join(kept) if gone else summary


def _bare(item: str) -> str:
    """A task as a text has it: it may have been cut for the list."""
    return item.removeprefix("- ").removesuffix(ELLIPSIS)


def without_called(stored: str, before: str, now: str) -> str:
    """Stored JSON or a text, whose notices of names that nobody has quote an old text no more."""

    def fix(found: re.Match[str]) -> str:
        names = found[1].split(", ")
        left = [one for one in names if one not in before or one in now]
        return f"{NOBODY} {', '.join(left or [WITHDRAWN])}:"

    return _each_text(stored, lambda text: _CALLED.sub(fix, text)) if NOBODY in stored else stored


_CALLED: Final = re.compile(rf"{NOBODY} (@[^:\s]+(?:, @[^:\s]+)*):")
WITHDRAWN: Final = "[withdrawn]"
_PREVIEW: Final = 100
TELLING: Final = 12


def _each_text(stored: str, fix: Callable[[str], str], fields: Collection[str] = ()) -> str:
    """A text, or all texts in JSON, as ``fix`` makes them; ``fields``: only those so named."""

    def fixed(value: object, field: str = "") -> object:
        match value:
            case str():
                return value if fields and field not in fields else _each_text(value, fix)
            case dict():
                pairs = cast("dict[str, object]", value).items()
                return {key: fixed(each, key) for key, each in pairs}
            case list():
                return [fixed(each) for each in cast("list[object]", value)]
            case _:
                return value

    if stored[:1] in ("{", "["):  # a line begins with such a bracket, too
        try:
            decoded: object = msgspec.json.decode(stored)
        except (msgspec.DecodeError, RecursionError):
            pass
        else:
            after = fixed(decoded)
            return stored if after == decoded else msgspec.json.encode(after).decode()
    return fix(stored)
