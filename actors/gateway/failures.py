"""Exceptions as the wire's error objects.

Invariant: a client learns what it can act on. Of anything else it learns an id; the log has the
rest under that id (no message, path or trace of an unexpected exception leaves the host).
"""

from __future__ import annotations

import logging
import time
from typing import Final

from msgspec import UNSET

from motet.protocols.approvals import ApprovalAnswered
from motet.protocols.errors import ConfigError, InputValidation, MotetError, NotFound, UnknownName
from motet.protocols.escalations import EscalationAnswered
from motet.protocols.gateway import RETRYABLE, ErrorBody, ErrorCode, FrameError
from motet.protocols.sessions import KeyConflict, QueueFull, SessionBusy, ShuttingDown
from motet.runtime import ActorDead, AskTimeout, MailboxFull
from motet.runtime.outside import fresh_hex, wall_time

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
