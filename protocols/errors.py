"""Errors that can end a run (:class:`AgentError`), and the stored record of a failed call.

Sources: seed 001 (five variants, no tool, memory, policy or event variant), seed 000
(the error channel), seed 004 (compact errors).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.messages import Request


class MotetError(Exception):
    """Root of everything motet raises on purpose."""


class AgentError(MotetError):
    """A run ended without an answer. Exactly five variants exist (seed 001)."""


class InputValidation(AgentError):
    """Before the run: the input is not acceptable."""


class Llm(AgentError):
    """During the run: the model failed, after sensible retries.

    ``kind`` is the class of failure (``auth``, ``rate_limit``, ``timeout``, ``connection``,
    ``context_exhausted``, ``bad_request``, ``unavailable``), ``status`` the HTTP status if any.
    """

    def __init__(self, message: str, *, kind: str = "unavailable", status: int | None = None):
        super().__init__(message)
        self.kind = kind
        self.status = status


class Aborted(AgentError):
    """During the run: a gate ended it. ``cause`` is ``decision`` or ``error``."""

    def __init__(self, hook: str, reason: str, *, cause: Literal["decision", "error"] = "decision"):
        super().__init__(f"hook {hook!r} aborted the run: {reason}")
        self.hook = hook
        self.reason = reason
        self.cause = cause


class OutputSerialization(AgentError):
    """After the run: the answer is not of the declared type, even after repairs."""


class Internal(AgentError):
    """A bug in motet or in code that it calls; never swallowed, and chained to its cause."""


class LimitReached(MotetError):
    """The run used up a limit; ``limit`` names it. Raised by ``run(check=True)`` only."""

    def __init__(self, limit: str, message: str):
        super().__init__(message)
        self.limit = limit


class AnswerRefused(MotetError):
    """The model or its provider refused to answer. Raised by ``run(check=True)`` only.

    ``reason``: the provider's words, if it gave any.
    """

    def __init__(self, reason: str):
        super().__init__(f"the model refused to answer: {reason}")
        self.reason = reason


class Escalated(MotetError):
    """The run failed too often and was handed to a person. Raised by ``run(check=True)`` only.

    ``escalation`` is the id that ``Host.resolve`` takes.
    """

    def __init__(self, escalation: str, reason: str):
        super().__init__(f"{reason}; a person has to decide about {escalation}")
        self.escalation = escalation
        self.reason = reason


class RunCancelled(MotetError):
    """Another than the caller has stopped the run. Raised by ``run(check=True)`` only."""


class ConfigError(MotetError):
    """A name, key or value of the configuration is wrong; the message names a correct one."""


class SchemaError(MotetError, ValueError):
    """A schema that no value can be checked against; the message says why."""


class UnknownName(ConfigError):
    """An unknown name; the message suggests the nearest known one."""

    def __init__(self, kind: str, name: str, known: Sequence[str]):
        self.kind = kind
        self.name = name
        self.nearest = nearest(name, known)
        hint = f"did you mean {self.nearest!r}?" if self.nearest else f"known: {listing(known)}"
        super().__init__(f"unknown {kind} {name!r}; {hint}")


class MissingExtra(ConfigError):
    """An optional dependency is missing; the message has the command that installs it.

    ``package``: what to install if no extra of motet has it.
    """

    def __init__(self, extra: str, what: str, package: str = ""):
        install = package or f"motet[{extra}]"
        super().__init__(f"{what} needs an optional package: pip install '{install}'")
        self.extra = extra


class NotFound(MotetError):
    """The object does not exist, or belongs to another user: callers cannot tell which (G16)."""


class Forbidden(NotFound):
    """The caller may know of the object, and may not do this to it."""


class TooMany(MotetError):
    """The caller has as many of these as they may have; the message says what to do."""


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name most similar to ``name``; None without a similar one."""
    from difflib import get_close_matches  # needed only after a mistake, not at each start

    lowered = {item.lower(): item for item in known}
    found = get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    return lowered[found[0]] if found else None


def listing(known: Sequence[str], limit: int = 12) -> str:
    """The known names in one line, cut to ``limit`` of them."""
    if not known:
        return "none"
    rest = "" if len(known) <= limit else f" and {len(known) - limit} more"
    return ", ".join(sorted(known)[:limit]) + rest


ErrorType: TypeAlias = Literal[
    "timeout", "auth", "validation", "not_found", "rate_limit", "unknown"
]


class CompactError(msgspec.Struct, frozen=True):
    """The short form of a failed call that a model can act on (seed 004).

    Attributes:
        timestamp: Unix seconds; 0: unknown.
        arguments: of the call, as JSON text.
        error_id: of the whole error, if it was stored.
        resolved: a later call of the same tool has succeeded.
    """

    tool_name: str
    error_type: ErrorType
    message: str
    suggestion: str = ""
    timestamp: float = 0.0
    arguments: str = ""
    error_id: str | None = None
    resolved: bool = False


class StoredError(msgspec.Struct, frozen=True):
    """One row of the error channel (seed 000).

    Attributes:
        id: ``err_YYYYMMDD_HHMMSS_<6 hex>``, UTC.
        timestamp: Unix seconds, with microseconds.
        raw_error: the whole error: an object unchanged, else ``{"message": ...}``. In a list, one
            of more than 64 KiB is ``{"message": <summary>, "omitted_bytes": <its size>}``.
        short_summary: at most 100 code points, one line.
        kind: the class of the failure, for counts and filters.
        arguments: of the call, redacted and bounded; None: not of a call, or unknown.
        run_id: empty for an error outside of runs; so are ``call_id``, ``agent`` and ``user``.
        fingerprint: equal for errors that differ only in their data; empty before it is stored.
        resolved: when the tool succeeded again in the session, Unix seconds; None: not yet.
        count: equal errors of the same agent and owner that are stored, where a page or
            ``GetError(grouped=True)`` asked for it; so are ``first_seen`` and ``last_seen``.
        malformed: why the row cannot be read; empty for a good one.
    """

    id: str
    timestamp: float
    session_id: str
    tool_name: str
    raw_error: JsonObject
    short_summary: str
    kind: ErrorType = "unknown"
    arguments: JsonObject | None = None
    run_id: str = ""
    call_id: str = ""
    agent: str = ""
    user: str = ""
    fingerprint: str = ""
    resolved: float | None = None
    count: int = 1
    first_seen: float | None = None
    last_seen: float | None = None
    malformed: str = ""


class ErrorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reported error that is ready to be stored: redacted, with its final id and time.

    Attributes:
        raw_error: the whole error, as the JSON text of an object.
        arguments: of the call, redacted, as JSON text.
        fingerprint: equal for errors that count as the same one.
    """

    id: str
    timestamp: float
    session_id: str
    tool_name: str
    raw_error: str
    short_summary: str
    kind: ErrorType = "unknown"
    run_id: str = ""
    call_id: str = ""
    agent: str = ""
    user: str = ""
    arguments: str = ""
    fingerprint: str = ""


class StoreError(Request[StoredError], frozen=True, tag="errors.store"):
    """Store a failed call; answered after COMMIT. The store assigns id, time and fingerprint.

    ``arguments``: of the call, as the model wrote them; the store redacts and bounds them.
    """

    session_id: str
    tool_name: str
    raw_error: JsonObject
    short_summary: str
    kind: ErrorType = "unknown"
    arguments: str = ""
    run_id: str = ""
    call_id: str = ""
    agent: str = ""
    user: str = ""


class GetError(Request[StoredError | None], frozen=True, tag="errors.get"):
    """One stored error of that session; None for an unknown id, also one of another session."""

    id: str
    session_id: str | None = None
    """None: any session, for operators."""
    grouped: bool = False
    """Also ``count``, ``first_seen`` and ``last_seen``."""
    brief: bool = False
    """Without a raw error of more than 64 KiB, as in a list."""


class ListErrors(Request[tuple[StoredError, ...]], frozen=True, tag="errors.list"):
    """Stored errors, newest first; absent filters match all, ``limit=0`` means no limit."""

    session_id: str | None = None
    tool_name: str | None = None
    start: float | None = None
    end: float | None = None
    limit: int = 0
    kind: ErrorType | None = None
    owner: str | None = None
    """Of sessions of this user only; None: of all."""
    agent: str | None = None
    run_id: str | None = None
    fingerprint: str | None = None
    resolved: bool | None = None


PAGE_LIMIT = 1_000
"""Errors in one page, at most."""
TEXT_PAGE = 131_072
"""Characters of a raw error in one page, at most."""


class ErrorPage(msgspec.Struct, frozen=True):
    """Errors, newest first. ``cursor`` begins the next page; None: this was the last."""

    errors: tuple[StoredError, ...]
    cursor: str | None = None


class PageErrors(Request[ErrorPage], frozen=True, tag="errors.page"):
    """A page of stored errors with the figures of their groups.

    ``cursor``: of the page before. Errors that are stored meanwhile move nothing: no error comes
    twice, and none that was there is left out. Raises ``InputValidation`` for a wrong cursor.
    """

    filter: ListErrors
    cursor: str | None = None


class ErrorGroup(msgspec.Struct, frozen=True):
    """Equal errors of one agent and owner.

    Attributes:
        count: of these that are stored; ``open`` of them are not resolved.
        first_seen: Unix seconds; retention does not change it.
        newest: the id of the newest of them; so are ``summary``, ``session_id`` and ``run_id``.
        malformed: as of a stored error.
    """

    fingerprint: str
    owner: str
    agent: str
    tool_name: str
    kind: ErrorType
    count: int
    open: int
    first_seen: float
    last_seen: float
    newest: str
    summary: str
    session_id: str
    run_id: str
    malformed: str = ""


class GroupPage(msgspec.Struct, frozen=True):
    """Groups, the last seen first. ``cursor`` as of :class:`ErrorPage`."""

    groups: tuple[ErrorGroup, ...]
    cursor: str | None = None


class GroupErrors(Request[GroupPage], frozen=True, tag="errors.groups"):
    """A page of groups. A group with a new error moves to the front, maybe of a page before.

    ``start``: last seen since then. ``resolved``: whether all of its errors are.
    """

    owner: str | None = None
    agent: str | None = None
    tool_name: str | None = None
    kind: ErrorType | None = None
    resolved: bool | None = None
    start: float | None = None
    limit: int = PAGE_LIMIT
    cursor: str | None = None


class ErrorText(msgspec.Struct, frozen=True):
    """A part of a raw error's JSON, from ``offset`` of ``size`` characters."""

    text: str
    offset: int
    size: int


class ReadError(Request[ErrorText | None], frozen=True, tag="errors.read"):
    """A page of a raw error as JSON text; None for an unknown id."""

    id: str
    offset: int = 0
    limit: int = TEXT_PAGE


class ResolveErrors(Request[int], frozen=True, tag="errors.resolve"):
    """The tool has succeeded in the session: its open errors are resolved; how many were.

    ``later``: ids of its errors that came after the success.
    """

    session_id: str
    tool_name: str
    later: tuple[str, ...] = ()


Resolved: TypeAlias = Mapping[str, tuple[str, ...]]
"""The tools that have succeeded in a session; of each, the ids of its errors after that."""


class ForgetErrors(Request[None], frozen=True, tag="errors.forget"):
    """The session was deleted, and its errors with it."""

    session_id: str


ErrorProtocol: TypeAlias = (
    StoreError
    | GetError
    | ListErrors
    | PageErrors
    | GroupErrors
    | ReadError
    | ResolveErrors
    | ForgetErrors
)


class Errors(Protocol):
    """A store of errors that a host can be given: ``open_host(errors=...)``.

    Every method may raise anything, and is cancelled after some seconds: the host then goes on as
    with a full disk. Calls run concurrently. :class:`motet.testing.errors.ErrorsConformance` tests
    a store.
    """

    async def store(self, records: Sequence[ErrorRecord]) -> Collection[str]:
        """Store all or none of them; the ids that other errors have, which are not stored.

        An error that is stored already comes again where the answer was late. It is no other: an
        answer with its id would have it stored twice.
        """
        ...

    async def get(self, error_id: str, *, brief: bool = False) -> StoredError | None:
        """One error with the figures of its group; ``brief``: as in a list."""
        ...

    async def read(self, error_id: str, offset: int, limit: int) -> ErrorText | None:
        """A part of the raw error's JSON."""
        ...

    async def page(self, which: ListErrors, cursor: str | None) -> ErrorPage:
        """Newest first, as :class:`PageErrors`, and of equal times the last stored first.

        ``which.limit`` 0: all of them.
        """
        ...

    async def groups(self, which: GroupErrors) -> GroupPage: ...

    async def resolve(
        self, session_id: str, tool_name: str, now: float, later: Collection[str] = ()
    ) -> int:
        """The tool has succeeded: resolve its open errors but ``later`` ones; how many were."""
        ...

    async def forget(self, session_id: str) -> None: ...
