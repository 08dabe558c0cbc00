"""Exit codes, and an error as one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from motet.protocols.approvals import ApprovalPending
from motet.protocols.errors import (
    AnswerRefused,
    ConfigError,
    InputValidation,
    LimitReached,
    MotetError,
)
from motet.protocols.errors import RunCancelled as Cancelled
from motet.protocols.sessions import RunStatus
from motet.runtime import StartFailed

OK = 0
FAILED = 1
USAGE = 2
LIMITED = 3
CANCELLED = 4
WAITING = 5
REFUSED = 6

BY_STATUS: dict[RunStatus, int] = {
    "completed": OK,
    "limited": LIMITED,
    "cancelled": CANCELLED,
    "dropped": CANCELLED,
    "interrupted": CANCELLED,
    "waiting": WAITING,
    "refused": REFUSED,
}


def code_of_status(status: RunStatus) -> int:
    """The exit code of ``motet run`` for a run that ended so."""
    return BY_STATUS.get(status, FAILED)


def code_of_error(error: BaseException) -> int:
    """The exit code for an error that ended a command."""
    match next(leaves(error)):
        case ConfigError() | InputValidation():
            return USAGE
        case LimitReached():
            return LIMITED
        case AnswerRefused():
            return REFUSED
        case Cancelled():
            return CANCELLED
        case ApprovalPending():
            return WAITING
        case _:
            return FAILED


def explained(error: BaseException) -> str:
    """The message for a user: one line for each error of a group."""
    return "\n".join(dict.fromkeys(_sentence(leaf) for leaf in leaves(error)))


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors inside nested groups and failed starts, in order."""
    if isinstance(error, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[BaseException]", error).exceptions
        for member in members:
            yield from leaves(member)
    elif isinstance(error, StartFailed) and isinstance(error.__cause__, MotetError):
        yield error.__cause__
    else:
        yield error


def _sentence(error: BaseException) -> str:
    match error:
        case MotetError() | StartFailed():
            return str(error)
        case OSError() if error.strerror:
            return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        case _:
            return (
                f"a bug in motet or in a tool: {type(error).__name__}: {error}; "
                "set MOTET_DEBUG=1 to see where it happened"
            )
