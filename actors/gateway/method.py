"""Answers of ``motet.v1``: pages of lists, and errors on the wire.

Invariants: a client learns of an error what it can act on. Of any other exception it learns an
id; the log has the rest under that id, and no message, path or trace of it leaves the host.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET

from motet.protocols.approvals import ApprovalAnswered
from motet.protocols.errors import (
    ConfigError,
    Forbidden,
    InputValidation,
    MotetError,
    NotFound,
    TooMany,
    UnknownName,
)
from motet.protocols.escalations import EscalationAnswered
from motet.protocols.gateway import RETRYABLE, ErrorBody, ErrorCode, FrameError
from motet.protocols.room_people import SlowDown
from motet.protocols.sessions import KeyConflict, QueueFull, SessionBusy, ShuttingDown
from motet.protocols.storage import StorageUnavailable
from motet.runtime import ActorDead, AskTimeout, MailboxFull
from motet.runtime.outside import fresh_hex, wall_time

P = TypeVar("P")
T = TypeVar("T")
_PAGE_BYTES: Final = 524_288
logger = logging.getLogger(__name__)


def first_page(items: Sequence[T]) -> Sequence[T]:
    """The first items, at least one, that fit in a page."""
    size = 0
    for index, item in enumerate(items):
        size += len(msgspec.json.encode(item))
        if index and size > _PAGE_BYTES:
            return items[:index]
    return items


def last_page(items: Sequence[T]) -> tuple[T, ...]:
    """The last items, at least one, that fit in a page."""
    return tuple(reversed(first_page(tuple(reversed(items)))))


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
    (Forbidden, "forbidden"),
    (NotFound, "not_found"),
    (TooMany, "limit_reached"),
    (KeyConflict, "key_conflict"),
    (QueueFull, "queue_full"),
    (SessionBusy, "session_busy"),
    (ShuttingDown, "unavailable"),
    (EscalationAnswered, "already_answered"),
    (ApprovalAnswered, "already_answered"),
)
NOT_STORED: Final = "Nothing was done: the host cannot store anything now, since"
_BUSY: Final = (ActorDead, AskTimeout, MailboxFull)


def error_body(error: Exception) -> ErrorBody:
    """The error object for an exception; unexpected ones are logged with their id."""
    if isinstance(error, Refusal):
        return _body(error.code, str(error), error.retry_after)
    if isinstance(error, SlowDown):
        return _body("rate_limited", str(error), error.retry_after)
    if isinstance(error, UnknownName):
        return _body("unknown_agent" if error.kind == "agent" else "not_found", str(error))
    for kind, code in _CODES:
        if isinstance(error, kind):
            return _body(code, str(error))
    if isinstance(error, StorageUnavailable):
        logger.warning("a request could not be stored: %s", error)
        return _body("storage_unavailable", f"{NOT_STORED} {error.reason}. Try again.")
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
