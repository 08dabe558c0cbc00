"""What a method of ``motet.v1`` is: its name, its least role, its parameters and its handler.

Invariant: a handler gets parameters that were checked; it knows of the connection only what a
:class:`Caller` shows.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import sha256
from typing import Final, Protocol, TypeVar

import attrs
import msgspec
import trio
from msgspec import UNSET

from motet.actors.gateway.stores import Given, Whose
from motet.protocols import gateway as wire
from motet.protocols.approvals import ApprovalAnswered
from motet.protocols.chat import JsonObject
from motet.protocols.errors import ConfigError, InputValidation, MotetError, NotFound, UnknownName
from motet.protocols.escalations import EscalationAnswered
from motet.protocols.gateway import RETRYABLE, ErrorBody, ErrorCode, FrameError
from motet.protocols.host import Expected, HostApi
from motet.protocols.sessions import (
    KeyConflict,
    Principal,
    QueueFull,
    Role,
    SessionBusy,
    ShuttingDown,
)
from motet.runtime import ActorDead, AskTimeout, MailboxFull
from motet.runtime.outside import fresh_hex, wall_time

# Stops and commands that carry a key are carried out once: a resend gets the first answer.
#
# Invariants: nothing here waits for a disk; what was answered is :meth:`Once.unsaved` until it is
# stored, and a host that starts gets it back by :meth:`Once.put`.


T = TypeVar("T")
KEPT_FOR: Final = 86_400.0
MOST: Final = 4_096


@attrs.define(eq=False)
class _Done:
    """``answer`` is None while it goes on, and when it has failed: then it may be tried again."""

    body: str
    since: float
    over: trio.Event = attrs.field(factory=trio.Event)
    answer: str | None = None


@attrs.define(eq=False)
class Once:
    """The answers of one gateway. ``now``: Unix seconds; ``news``: there is something to store."""

    now: Callable[[], float]
    news: trio.Event = attrs.field(init=False, factory=trio.Event)
    _done: OrderedDict[Whose, _Done] = attrs.field(init=False, factory=OrderedDict[Whose, _Done])
    _given: deque[Given] = attrs.field(init=False, factory=lambda: deque[Given](maxlen=MOST))

    def __len__(self) -> int:
        return len(self._done)

    async def do(
        self, whose: Whose, body: object, kind: type[T], work: Callable[[], Awaitable[T]]
    ) -> tuple[T, bool]:
        """The answer, and whether it is an earlier one. ``whose``: user, method and key.

        Who sends the same while the first is being carried out waits for its answer, and takes its
        place if that fails or is cancelled. Raises ``KeyConflict`` when ``body`` is another, and
        what ``work`` raises.
        """
        digest = sha256(msgspec.json.encode(body)).hexdigest()
        while True:
            known = self._known(whose)
            if known is None:
                return await self._first(whose, digest, work), False
            if known.body != digest:
                raise KeyConflict(f"the key {whose[2]!r} was used for something else")
            await known.over.wait()
            if known.answer is not None:
                return msgspec.json.decode(known.answer, type=kind), True

    async def _first(self, whose: Whose, body: str, work: Callable[[], Awaitable[T]]) -> T:
        mine = self._done[whose] = _Done(body, self.now())
        try:
            answer = await work()
            mine.answer = msgspec.json.encode(answer).decode()
            self._given.append(Given(whose, body, mine.answer, mine.since))
            self.news.set()
            return answer
        finally:
            if mine.answer is None:
                del self._done[whose]
            mine.over.set()

    def put(self, given: Iterable[Given]) -> None:
        """Know what the last host has answered, oldest first."""
        for one in given:
            done = self._done[one.whose] = _Done(one.body, one.since, answer=one.answer)
            done.over.set()

    def unsaved(self) -> tuple[Given, ...]:
        """What was answered and is not known to be stored."""
        self.news = trio.Event()
        return tuple(self._given)

    def saved(self, given: tuple[Given, ...]) -> None:
        """These are on disk."""
        stored = set(given)
        self._given = deque((one for one in self._given if one not in stored), MOST)

    def _known(self, whose: Whose) -> _Done | None:
        self._forget()
        return self._done.get(whose)

    def _forget(self) -> None:
        """What is too old, or too much; never what goes on."""
        oldest = self.now() - KEPT_FOR
        for key, one in list(self._done.items()):
            if one.since >= oldest and len(self._done) < MOST:
                break
            if one.answer is not None:
                del self._done[key]


P = TypeVar("P")
T_of_method = TypeVar("T_of_method")
_PAGE_BYTES: Final = 524_288


@attrs.frozen
class Answer:
    """A result, and what happens as soon as it is queued."""

    result: object
    then: Callable[[], None] | None = None


class Caller(Protocol):
    """The connection a request came on."""

    @property
    def api(self) -> HostApi: ...

    @property
    def principal(self) -> Principal: ...

    @property
    def once(self) -> Once:
        """What was carried out under a key."""
        ...

    @property
    def expected(self) -> Expected | None:
        """The input of this request, as it was noted when the request was read."""
        ...

    def now(self) -> float:
        """Unix seconds."""
        ...

    def spend_message(self) -> None:
        """Raises :class:`Refusal` when the user sent too many."""
        ...

    async def subscribe(
        self, stream: str, after: int | None
    ) -> tuple[wire.StreamState, Callable[[], None]]: ...

    def unsubscribe(self, stream: str) -> bool: ...


@attrs.frozen
class Method:
    name: str
    role: Role
    call: Callable[[Caller, JsonObject], Awaitable[Answer]]


def method(
    name: str, role: Role, params: type[P], handler: Callable[[Caller, P], Awaitable[Answer]]
) -> Method:
    """A method for the table; parameters that do not fit raise :class:`FrameError`."""

    async def call(caller: Caller, given: JsonObject) -> Answer:
        return await handler(caller, wire.decode_params(given, params))

    return Method(name, role, call)


def fitting(items: Sequence[T_of_method]) -> Sequence[T_of_method]:
    """The first of them, at least one, that fit in a page."""
    size = 0
    for index, item in enumerate(items):
        size += len(msgspec.json.encode(item))
        if index and size > _PAGE_BYTES:
            return items[:index]
    return items


# Exceptions as the wire's error objects.
#
# Invariant: a client learns what it can act on. Of anything else it learns an id; the log has the
# rest under that id (no message, path or trace of an unexpected exception leaves the host).


logger = logging.getLogger(__name__)


class Refusal(MotetError):
    """The gateway refuses a request itself."""

    def __init__(self, code: ErrorCode, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.retry_after = retry_after


_CODES: Final[tuple[tuple[type[Exception], ErrorCode], ...]] = (
    (FrameError, "invalid_params"),
    (InputValidation, "invalid_params"),
    (ConfigError, "invalid_params"),
    (NotFound, "not_found"),
    (KeyConflict, "key_conflict"),
    (QueueFull, "queue_full"),
    (SessionBusy, "session_busy"),
    (ShuttingDown, "unavailable"),
    (EscalationAnswered, "already_answered"),
    (ApprovalAnswered, "already_answered"),
)
_BUSY: Final = (ActorDead, AskTimeout, MailboxFull)


def error_body(error: Exception) -> ErrorBody:
    """The error object for an exception; unexpected ones are logged with their id."""
    if isinstance(error, Refusal):
        return _body(error.code, str(error), error.retry_after)
    if isinstance(error, UnknownName):
        return _body("unknown_agent" if error.kind == "agent" else "not_found", str(error))
    for kind, code in _CODES:
        if isinstance(error, kind):
            return _body(code, str(error))
    error_id = f"err_{time.strftime('%Y%m%d_%H%M%S', time.gmtime(wall_time()))}_{fresh_hex(3)}"
    if isinstance(error, _BUSY):
        logger.warning("%s: a part of the host did not answer", error_id, exc_info=error)
        return _body("unavailable", "A part of the host did not answer.", error_id=error_id)
    logger.error("%s: a request failed unexpectedly", error_id, exc_info=error)
    return _body("internal", "Internal error; the log has it by its id.", error_id=error_id)


def _body(
    code: ErrorCode, message: str, retry_after: float | None = None, error_id: str | None = None
) -> ErrorBody:
    return ErrorBody(
        code=code,
        message=message,
        retryable=code in RETRYABLE,
        retry_after_ms=UNSET if retry_after is None else max(1, round(retry_after * 1000)),
        error_id=UNSET if error_id is None else error_id,
    )
