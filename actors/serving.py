"""What a host does for those who reach it over a gateway: runs that are waited for, rows that are
put into transcripts, tokens, and a look at its configuration and its log.

Invariant: what is another's is not found (G16).
"""

from __future__ import annotations

from typing import Literal

import trio

from motet.actors.agent import guard
from motet.actors.answering import Answering
from motet.actors.config_view import view_of
from motet.actors.sessions.digest import body_hash
from motet.protocols.errors import InputValidation, NotFound
from motet.protocols.events import EventRecord, MessageAdded
from motet.protocols.host_records import ConfigView, LogLine
from motet.protocols.injections import InjectRows, exchange
from motet.protocols.sessions import FINAL, LOCAL, Ack, GetRun, Principal, Role, RunInfo
from motet.protocols.storage import storable
from motet.protocols.tokens import NewToken, TokenInfo
from motet.runtime.outside import fresh_hex


class Serving(Answering):
    """See :class:`motet.Host`."""

    async def find_run(self, run_id: str, *, principal: Principal = LOCAL) -> RunInfo:
        """One run, live or not. Raises ``NotFound`` (also for a foreign one)."""
        info = await self._tree.store.ask(GetRun(run_id))
        if info is None or (principal.role != "admin" and info.user != principal.user):
            raise NotFound(f"no run {run_id!r}")
        return info

    async def wait_run(
        self, run_id: str, *, timeout: float = 30.0, principal: Principal = LOCAL
    ) -> RunInfo:
        """The run when it has ended, or as it is after ``timeout`` seconds.

        Raises ``NotFound``. Cancelling ends the waiting, never the run.
        """
        info = await self.find_run(run_id, principal=principal)
        news = trio.Event()

        def hear(record: EventRecord) -> None:
            if record.run_id == run_id and record.seq is not None:
                news.set()

        leave = self._tree.journal.attach(f"session:{info.session}", hear)
        try:
            with trio.move_on_after(timeout):
                while (info := await self.find_run(run_id)).status not in FINAL:
                    await news.wait()
                    news = trio.Event()
        finally:
            leave()
        return info

    async def inject(
        self,
        text: str,
        *,
        session: str,
        role: Literal["user", "assistant"] = "user",
        key: str,
        principal: Principal = LOCAL,
    ) -> Ack:
        """Put a row at the end of a session's transcript; no run comes of it.

        With it goes a row of the other side, which people are not shown, so that the transcript
        stays valid (G7). A model is shown both from the next run on. On disk when this returns,
        once per ``key``. Raises ``NotFound``, ``KeyConflict``, and ``InputValidation`` for an empty
        text or one that the guard blocks.
        """
        info = await self.session(session, principal=principal)
        if not text.strip():
            raise InputValidation("the text is empty")
        finding = guard.find(text, self._tree.services.guard, "injected")
        if finding is not None and finding.blocked:
            raise InputValidation(finding.told)
        text, row_id = storable(text), f"inj_{fresh_hex(6)}"
        hashed = body_hash(session, role, text)
        rows = exchange(text, role)
        request = InjectRows(row_id, session, principal.user, rows, key, hashed)
        accepted = await self._tree.store.ask(request)
        if accepted.duplicate:
            return Ack(accepted.run_id, "duplicate")
        author = principal.user if role == "user" else info.agent
        await self._tree.services.announce(session, MessageAdded(role, author, text), row_id)
        return Ack(row_id, "accepted")

    def configuration(self) -> ConfigView:
        """The configuration in force, its secrets left out."""
        return view_of(self._tree.config)

    def log_tail(self, limit: int = 100) -> tuple[LogLine, ...]:
        """The newest lines of the library's log since this host serves, oldest first."""
        return self._tree.log_tail.lines(limit)

    async def new_token(
        self,
        user: str,
        role: Role = "operator",
        *,
        label: str = "",
        expires: float | None = None,
        impersonate: bool = False,
    ) -> NewToken:
        """Make a token for one user, good at once; it is shown in the answer and never again.

        ``expires``: Unix seconds. ``impersonate``: for a bridge, which may act as other users.
        Raises ``InputValidation``.
        """
        return await self._tree.tokens.add(
            user, role, label=label, expires=expires, impersonate=impersonate
        )

    async def tokens(self) -> tuple[TokenInfo, ...]:
        """The stored tokens without themselves, the revoked included, oldest first."""
        return await self._tree.tokens.tokens()

    async def revoke_token(self, token_id: str) -> TokenInfo:
        """End a token: connections that came with it are closed at once. Raises ``NotFound``."""
        return await self._tree.tokens.revoke(token_id)
