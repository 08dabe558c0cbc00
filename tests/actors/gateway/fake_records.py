"""The records of the host in memory: it has none, for whoever asks."""

from __future__ import annotations

from typing import Literal

from motet.protocols.errors import ConfigError, NotFound, StoredError
from motet.protocols.events import SessionCompacted
from motet.protocols.host_records import ConfigView, LiveActor, LogLine
from motet.protocols.reload import Reloaded
from motet.protocols.sessions import LOCAL, Ack, Principal, Role, RunInfo, RunStatus
from motet.protocols.tokens import NewToken, TokenInfo
from motet.protocols.traces import Trace, TraceInfo


class FakeRecords:
    """A :class:`motet.protocols.host_records.HostRecords` of nothing.

    What these methods do is shown with a real host: see ``test_records.py``.
    """

    async def compact(
        self, session: str, *, principal: Principal = LOCAL
    ) -> SessionCompacted | None:
        raise NotFound(f"no session {session!r}")

    async def delete(self, session: str, *, principal: Principal = LOCAL) -> int:
        raise NotFound(f"no session {session!r}")

    async def inject(
        self,
        text: str,
        *,
        session: str,
        role: Literal["user", "assistant"],
        key: str,
        principal: Principal = LOCAL,
    ) -> Ack:
        raise NotFound(f"no session {session!r}")

    async def find_run(self, run_id: str, *, principal: Principal = LOCAL) -> RunInfo:
        raise NotFound(f"no run {run_id!r}")

    async def wait_run(
        self, run_id: str, *, timeout: float = 30.0, principal: Principal = LOCAL
    ) -> RunInfo:
        raise NotFound(f"no run {run_id!r}")

    async def errors(
        self,
        *,
        session: str | None = None,
        tool: str | None = None,
        since: float | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[StoredError, ...]:
        return ()

    async def error(self, error_id: str, *, principal: Principal = LOCAL) -> StoredError:
        raise NotFound(f"no stored error {error_id!r}")

    async def traces(
        self,
        *,
        session: str | None = None,
        agent: str | None = None,
        status: RunStatus | None = None,
        since: float | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[TraceInfo, ...]:
        return ()

    async def trace(self, run_id: str, *, principal: Principal = LOCAL) -> Trace:
        raise NotFound(f"no trace of a run {run_id!r}")

    def configuration(self) -> ConfigView:
        return ConfigView("", {})

    async def reload(self, *, expect_hash: str | None = None) -> Reloaded:
        raise ConfigError("this host has no file")

    def plan_reload(self) -> Reloaded:
        raise ConfigError("this host has no file")

    def actors(self) -> tuple[LiveActor, ...]:
        return ()

    def log_tail(self, limit: int = 100) -> tuple[LogLine, ...]:
        return ()

    async def new_token(
        self,
        user: str,
        role: Role = "operator",
        *,
        label: str = "",
        expires: float | None = None,
        impersonate: bool = False,
    ) -> NewToken:
        raise AssertionError("no test asks this host for a token")

    async def tokens(self) -> tuple[TokenInfo, ...]:
        return ()

    async def revoke_token(self, token_id: str) -> TokenInfo:
        raise NotFound(f"no token {token_id!r}")
