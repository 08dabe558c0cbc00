"""Parameters and results of the gateway's methods about stored records.

Reset, compaction and deletion of sessions, injected rows, single runs, errors, traces; and for
admins the configuration, the actors, the log and the tokens.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from motet.protocols.errors import ErrorGroup, ErrorType, StoredError
from motet.protocols.gateway import Count
from motet.protocols.host_records import LiveActor, LogLine
from motet.protocols.sessions import Role, RunInfo, RunStatus
from motet.protocols.tokens import TokenInfo
from motet.protocols.traces import TraceInfo

_Id = Annotated[str, Meta(min_length=1, max_length=200)]
_Page = Annotated[int, Meta(ge=1, le=200)]
_Time = Annotated[float, Meta(ge=0)]


class SessionParams(msgspec.Struct, frozen=True):
    """Of ``sessions.reset``, ``sessions.compact`` and ``sessions.delete``."""

    session: _Id


class SessionWasReset(msgspec.Struct, frozen=True):
    """The model starts from an empty history; what is stored stays."""

    session: str


class SessionWasCompacted(msgspec.Struct, frozen=True):
    """The rows from ``start`` to ``end`` were summarised; None: the session was too short."""

    session: str
    start: int | None
    end: int | None


class SessionWasDeleted(msgspec.Struct, frozen=True):
    session: str
    rows: int


class ChatInjectParams(msgspec.Struct, frozen=True):
    session: _Id
    text: Annotated[str, Meta(min_length=1)]
    key: _Id
    role: Literal["user", "assistant"] = "user"


class Injected(msgspec.Struct, frozen=True):
    """The row is on disk. ``row_id`` takes the place of a run's id."""

    row_id: str
    status: Literal["accepted", "duplicate"]


class RunsGetParams(msgspec.Struct, frozen=True):
    run_id: _Id


class RunsResendParams(msgspec.Struct, frozen=True):
    """``run_id``: of an interrupted or dropped run. Its input is sent again, once."""

    run_id: _Id


class RunsWaitParams(msgspec.Struct, frozen=True):
    run_id: _Id
    timeout_ms: Annotated[int, Meta(ge=0, le=30_000)] = 30_000


class RunWaited(msgspec.Struct, frozen=True):
    """``ended``: false after a timeout."""

    ended: bool
    run: RunInfo


class ErrorsListParams(msgspec.Struct, frozen=True):
    """``since``, ``until``: Unix seconds. ``cursor``: of the page before. ``user``: for admins.

    ``grouped``: list groups of equal errors, last seen ``since``, instead.
    """

    session: _Id | None = None
    tool: _Id | None = None
    since: _Time | None = None
    limit: _Page = 50
    kind: ErrorType | None = None
    agent: _Id | None = None
    run_id: _Id | None = None
    fingerprint: _Id | None = None
    resolved: bool | None = None
    until: _Time | None = None
    user: _Id | None = None
    cursor: _Id | None = None
    grouped: bool = False
    room: _Id | None = None

    def __post_init__(self) -> None:
        if self.grouped and (self.session or self.run_id or self.fingerprint or self.until):
            raise ValueError("groups have no `session`, `run_id`, `fingerprint` and `until`")


class ErrorInfo(msgspec.Struct, frozen=True):
    """Summary of a stored error; the fields after ``summary`` as of ``StoredError``."""

    id: str
    timestamp: float
    session: str
    tool: str
    kind: ErrorType
    summary: str
    agent: str = ""
    user: str = ""
    run_id: str = ""
    call_id: str = ""
    fingerprint: str = ""
    resolved: float | None = None
    count: int = 1
    first_seen: float | None = None
    last_seen: float | None = None
    malformed: str = ""

    @classmethod
    def of(cls, error: StoredError) -> ErrorInfo:
        return cls(
            *(error.id, error.timestamp, error.session_id, error.tool_name),
            error.kind,
            *(error.short_summary, error.agent, error.user, error.run_id),
            *(error.call_id, error.fingerprint, error.resolved, error.count),
            *(error.first_seen, error.last_seen, error.malformed),
        )


class ErrorsList(msgspec.Struct, frozen=True):
    """Newest first; either errors or groups. ``cursor``: for the next page; None: it was the last.

    A group is resolved when ``open`` is 0.
    """

    errors: tuple[ErrorInfo, ...]
    cursor: str | None = None
    groups: tuple[ErrorGroup, ...] = ()


class ErrorsGetParams(msgspec.Struct, frozen=True):
    """``offset``: in characters of the raw error's JSON, for the pages of a large one."""

    id: _Id
    offset: Count | None = None


class ErrorWhole(StoredError, frozen=True):
    """A stored error. ``next_offset``: its raw error is large, and more of it follows.

    Attributes:
        page: the part of the raw error's JSON from the offset; empty: ``raw_error`` is all of it.
        size: characters of that JSON.
    """

    page: str = ""
    next_offset: int | None = None
    size: int = 0


class TracesListParams(msgspec.Struct, frozen=True):
    session: _Id | None = None
    agent: _Id | None = None
    status: RunStatus | None = None
    since: _Time | None = None
    limit: _Page = 50
    room: _Id | None = None


class TracesList(msgspec.Struct, frozen=True):
    """Newest first."""

    traces: tuple[TraceInfo, ...]


class TracesGetParams(msgspec.Struct, frozen=True):
    run_id: _Id


class ConfigReloadParams(msgspec.Struct, frozen=True):
    """``expect_hash``: refuse unless the configuration in force has this hash.

    ``dry_run``: only report the changes.
    """

    expect_hash: str | None = None
    dry_run: bool = False


class ActorsList(msgspec.Struct, frozen=True):
    """Parents first."""

    actors: tuple[LiveActor, ...]


class LogsTailParams(msgspec.Struct, frozen=True):
    """``after``: only lines with a higher number."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Count = 0


class LogsTail(msgspec.Struct, frozen=True):
    """Oldest first."""

    lines: tuple[LogLine, ...]


class TokensNewParams(msgspec.Struct, frozen=True):
    """``expires``: Unix seconds."""

    user: _Id
    role: Role = "operator"
    label: Annotated[str, Meta(max_length=200)] = ""
    expires: _Time | None = None
    impersonate: bool = False


class TokensList(msgspec.Struct, frozen=True):
    """Oldest first, the revoked included."""

    tokens: tuple[TokenInfo, ...]


class TokensRevokeParams(msgspec.Struct, frozen=True):
    id: _Id


class UsersDeleteParams(msgspec.Struct, frozen=True):
    """``rooms``: ``delete`` or ``transfer:OTHER``, for the rooms that they own."""

    user: _Id
    rooms: _Id | None = None
