"""The interface of a host for its gateway, apart from the conversation itself.

Invariant: as in :mod:`motet.protocols.host`, what is another's is not found (G16).
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.errors import (
    ErrorPage,
    ErrorText,
    GroupErrors,
    GroupPage,
    ListErrors,
    StoredError,
)
from motet.protocols.events import SessionCompacted
from motet.protocols.reload import Reloaded
from motet.protocols.sessions import LOCAL, Ack, Principal, Role, RunInfo, RunStatus
from motet.protocols.tokens import NewToken, TokenInfo
from motet.protocols.traces import Trace, TraceInfo
from motet.protocols.users import UserDeleted


class ConfigView(msgspec.Struct, frozen=True):
    """The configuration that is in force, without its secrets; ``hash`` is of the whole."""

    hash: str
    config: JsonObject


class LiveActor(msgspec.Struct, frozen=True):
    """One actor as it is now: ``age_s`` in seconds; ``waiting_on``: what it has asked."""

    path: str
    state: str
    queued: int
    age_s: float
    waiting_on: str | None = None
    paused: bool = False


class LogLine(msgspec.Struct, frozen=True):
    """One record of the library's log, without secrets. ``number`` counts from the start."""

    number: int
    ts: float
    level: str
    logger: str
    message: str
    fields: JsonObject


class HostRecords(Protocol):
    """A part of :class:`motet.protocols.host.HostApi`. All calls may raise ``NotFound``."""

    async def compact(
        self, session: str, *, principal: Principal = LOCAL
    ) -> SessionCompacted | None:
        """Summarise a session now; None: it was too short."""
        ...

    async def delete(self, session: str, *, principal: Principal = LOCAL) -> int:
        """Delete a session with all that is stored of it; how many rows it had."""
        ...

    async def delete_room(self, room: str, *, principal: Principal = LOCAL) -> None:
        """Delete a room, the sessions of its members, and all that is stored of them."""
        ...

    async def delete_user(self, user: str, *, rooms: str | None = None) -> UserDeleted:
        """Delete a user with all that is theirs. ``rooms``: ``delete`` or ``transfer:OTHER``."""
        ...

    async def inject(
        self,
        text: str,
        *,
        session: str,
        role: Literal["user", "assistant"],
        key: str,
        principal: Principal = LOCAL,
    ) -> Ack:
        """Put a row into a transcript; no run comes of it. Raises ``KeyConflict``."""
        ...

    async def find_run(self, run_id: str, *, principal: Principal = LOCAL) -> RunInfo: ...

    async def wait_run(
        self, run_id: str, *, timeout: float = 30.0, principal: Principal = LOCAL
    ) -> RunInfo:
        """The run when it has ended, or as it is after ``timeout`` seconds."""
        ...

    async def errors(
        self,
        *,
        session: str | None = None,
        tool: str | None = None,
        since: float | None = None,
        limit: int = 50,
        room: str | None = None,
        principal: Principal = LOCAL,
    ) -> tuple[StoredError, ...]: ...

    async def error_page(
        self,
        which: ListErrors,
        *,
        cursor: str | None = None,
        room: str | None = None,
        principal: Principal = LOCAL,
    ) -> ErrorPage:
        """A page of the principal's stored errors, newest first."""
        ...

    async def error_groups(
        self, which: GroupErrors, *, room: str | None = None, principal: Principal = LOCAL
    ) -> GroupPage: ...

    async def error(self, error_id: str, *, principal: Principal = LOCAL) -> StoredError: ...

    async def error_text(
        self, error_id: str, offset: int = 0, *, principal: Principal = LOCAL
    ) -> tuple[StoredError, ErrorText]:
        """One stored error, and a part of its raw error as JSON text."""
        ...

    async def traces(
        self,
        *,
        session: str | None = None,
        agent: str | None = None,
        status: RunStatus | None = None,
        since: float | None = None,
        limit: int = 50,
        room: str | None = None,
        principal: Principal = LOCAL,
    ) -> tuple[TraceInfo, ...]: ...

    async def trace(self, run_id: str, *, principal: Principal = LOCAL) -> Trace: ...

    def configuration(self) -> ConfigView: ...

    async def reload(self, *, expect_hash: str | None = None) -> Reloaded:
        """Put the current content of the configuration file in force."""
        ...

    def plan_reload(self) -> Reloaded:
        """The changes that :meth:`reload` would make."""
        ...

    def actors(self) -> tuple[LiveActor, ...]:
        """Every actor that is there now, parents first."""
        ...

    def log_tail(self, limit: int = 100) -> tuple[LogLine, ...]:
        """The newest lines, oldest first."""
        ...

    async def new_token(
        self,
        user: str,
        role: Role = "operator",
        *,
        label: str = "",
        expires: float | None = None,
        impersonate: bool = False,
    ) -> NewToken: ...

    async def tokens(self) -> tuple[TokenInfo, ...]: ...

    async def revoke_token(self, token_id: str) -> TokenInfo: ...
