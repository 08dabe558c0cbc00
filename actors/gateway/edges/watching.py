"""The events of one run, for one client that is told of them as they come.

Invariants: at most :data:`MOST` events are kept for a client that is slow, and text that is still
being made is left out first, since the whole message follows; a run never waits for a client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs
import msgspec
import trio
from msgspec import UNSET

from motet.actors.gateway.http import Response
from motet.actors.gateway.method import error_body
from motet.protocols import events as ev
from motet.protocols.approvals import ApprovalInfo
from motet.protocols.chat import JsonObject
from motet.protocols.events import AnyEvent, EventRecord, InputAccepted, is_durable
from motet.protocols.gateway import SESSION_STREAM
from motet.protocols.host import Journal
from motet.protocols.stable_json import shortened, stable_json

# How much of each message of a run a client was told, so that nothing is told twice or left out.
#
# Pure. Invariant: what :meth:`Texts.delta` and :meth:`Texts.whole` give for a message is, put
# together, a beginning of its text, and all of it after ``whole``.


class Withdrawn(Exception):
    """Text was told that does not count any more."""


@attrs.define(eq=False)
class Texts:
    """By the numbers of messages in their run."""

    _told: dict[int, str] = attrs.field(init=False, factory=dict[int, str])

    def delta(self, i: int, at: int, text: str) -> str:
        """What is new in more text of message ``i`` at offset ``at``."""
        told = self._told.get(i, "")
        if at > len(told):
            return ""  # something before it was left out: the whole message will have it
        new = text[len(told) - at :]
        self._told[i] = told + new
        return new

    def whole(self, i: int, text: str) -> str:
        """What is new in the whole of message ``i``. Raises :class:`Withdrawn`."""
        told = self._told.get(i, "")
        self._told[i] = text
        if text.startswith(told):
            return text[len(told) :]
        if told.strip() == text.strip():
            return ""
        raise Withdrawn

    def withdraw(self, i: int) -> bool:
        """Messages from number ``i`` on are told anew; true if anything of them was told."""
        gone = {number: text for number, text in self._told.items() if number >= i}
        for number in gone:
            del self._told[number]
        return any(gone.values())


MOST: Final = 1_024
_PAGE: Final = 200


class FellBehind(Exception):
    """The client took so little that events of its run were lost to it."""


@attrs.define(eq=False)
class Watch:
    """Begun before its input is submitted, so that it misses nothing. To be closed.

    ``wake`` makes :meth:`next` return None: there is something else to be done.
    """

    _journal: Journal
    _stream: str
    run_id: str
    _events: deque[EventRecord] = attrs.field(init=False, factory=deque[EventRecord])
    _woken: bool = attrs.field(init=False, default=False)
    _lost: bool = attrs.field(init=False, default=False)
    _news: trio.Event = attrs.field(init=False, factory=trio.Event)
    _leave: Callable[[], None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._leave = self._journal.attach(self._stream, self._arrived)

    def close(self) -> None:
        self._leave()

    def wake(self) -> None:
        self._woken = True
        self._news.set()

    async def next(self, timeout: float = float("inf")) -> AnyEvent | None:
        """The next event; None after ``timeout`` seconds, or when woken.

        Raises :class:`FellBehind`.
        """
        if not self._events and not self._lost and not self._woken:
            self._news = trio.Event()
            with trio.move_on_after(timeout):
                await self._news.wait()
        self._woken = False
        if self._events:
            return self._events.popleft().event
        if self._lost:
            raise FellBehind
        return None

    async def from_its_beginning(self, run_id: str) -> None:
        """Watch another run, which began before this; nothing may have been taken yet."""
        self.run_id = run_id
        self._events.clear()
        newest = before = (await self._journal.head(self._stream)).head
        past: deque[EventRecord] = deque()
        begun = False
        while before > 0 and not begun:
            after = max(0, before - _PAGE)
            page = await self._journal.read(self._stream, after, before - after)
            own = [record for record in page if record.run_id == run_id]
            past.extendleft(reversed(own))
            begun = not page or any(isinstance(one.event, InputAccepted) for one in own)
            before = after
        past.extend(one for one in self._events if one.seq is None or one.seq > newest)
        self._events = past

    def skip_through(self, is_last: Callable[[AnyEvent], bool]) -> None:
        """Leave out what a client was told of already: up to the last event that is such a one."""
        places = [place for place, one in enumerate(self._events) if is_last(one.event)]
        for _ in range(max(places, default=-1) + 1):
            self._events.popleft()

    def _arrived(self, record: EventRecord) -> None:
        if record.run_id != self.run_id:
            return
        durable = is_durable(record.event)
        if len(self._events) >= (MOST if durable else MOST // 2):
            self._lost = self._lost or durable
            return
        self._events.append(record)
        self._news.set()


def watch(journal: Journal, session: str, run_id: str) -> Watch:
    return Watch(journal, SESSION_STREAM + session, run_id)


# Errors of the edges: a status, and a body in the shape that clients of OpenAI read.
#
# Invariant: whether a client may send the same again is said (``x-should-retry``), so that none of
# them starts a run a second time by itself that has failed.


_STATUS: Final[Mapping[str, int]] = {
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "unknown_agent": 404,
    "key_conflict": 409,
    "already_answered": 409,
    "session_busy": 409,
    "queue_full": 429,
    "rate_limited": 429,
    "limit_reached": 429,
    "overloaded": 503,
    "unavailable": 503,
    "internal": 500,
}
_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class ErrorInfo(msgspec.Struct, frozen=True):
    message: str
    type: str
    code: str
    param: str | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    error: ErrorInfo


class Fault(Exception):
    """A request that is not carried out, or a run that has no answer. ``param``: what is wrong."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.retry, self.retry_after = retry, retry_after

    @property
    def answer(self) -> ErrorAnswer:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return ErrorAnswer(
            ErrorInfo(str(self), _TYPES.get(self.status, kind), self.code, self.param)
        )

    def response(self, *headers: tuple[str, str]) -> Response:
        said = [*headers, ("x-should-retry", "true" if self.retry else "false")]
        if self.retry_after is not None:
            said.append(("retry-after", str(max(1, round(self.retry_after)))))
        if self.status == 401:
            said.append(("www-authenticate", "Bearer"))
        body = msgspec.json.encode(self.answer).decode()
        return Response(self.status, body, "application/json", tuple(said))


def wrong(message: str, param: str | None = None, code: str = "invalid_params") -> Fault:
    """A request that its client has to change."""
    return Fault(400, code, message, param=param)


def fault_of(error: Exception) -> Fault:
    """What a client is told of an exception; what is unexpected goes to the log only."""
    if isinstance(error, Fault):
        return error
    body = error_body(error)
    message = body.message
    if body.error_id is not UNSET:
        message = f"{message} ({body.error_id})"
    return Fault(
        _STATUS.get(body.code, 400),
        body.code,
        message,
        retry=body.retryable is True,
        retry_after=None if body.retry_after_ms is UNSET else body.retry_after_ms / 1000,
    )


# A run that waits for a person, as a client of an edge learns of it. Pure.


QUIET: Final = 0.2
"""Seconds without an event after which a run that has asked is taken to wait for its answers."""
LISTED: Final = 200
_ARGUMENT: Final = 500


@attrs.define(eq=False)
class Asking:
    """Whether a run only waits for a person, by its events.

    ``asking``: calls of it may wait; ``working``: those that do not.
    """

    asking: bool = False
    working: set[str] = attrs.field(factory=set[str])
    _asked: set[str] = attrs.field(init=False, factory=set[str])

    @property
    def patience(self) -> float:
        """Seconds to wait for the next event."""
        waits = self.asking and not self.working - self._asked
        return QUIET if waits else float("inf")

    def note(self, event: ev.AnyEvent) -> None:
        match event:
            case ev.ApprovalRequested(call_id=call):
                self.asking = True
                self._asked.add(call)
            case ev.ToolCall(id=call):
                self.working.add(call)
                self._asked.discard(call)
            case ev.ToolResult(id=call):
                self.working.discard(call)
            case _:
                pass


def question(waiting: Sequence[ApprovalInfo]) -> str:
    """What a person in a chat is asked: the calls that wait, and how to answer them there."""
    lines = [_line(one) for one in waiting]
    which = "" if len(waiting) == 1 else "ID "
    how = f"`/approve {which}allow-once`, `allow-always` or `deny`, with a reason if you like"
    return "\n".join(["This waits for your approval:", *lines, f"Answer with {how}."])


def _line(one: ApprovalInfo) -> str:
    stable = msgspec.json.decode(stable_json(one.args), type=JsonObject)
    args = msgspec.json.encode(shortened(stable, _ARGUMENT)).decode()
    return f"- {one.id}: {one.tool} {args} ({one.reason})"
