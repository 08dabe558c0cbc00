"""A run as its caller sees it: its events while it goes on, its result when it has ended."""

from __future__ import annotations

import re
from typing import Literal

import trio

from motet.actors.hosting.answers import Answering
from motet.actors.hosting.config_schema import view_of
from motet.actors.runs.run import Run
from motet.actors.sessions.intake import body_hash
from motet.actors.transcript import input_guard as guard
from motet.actors.transcript.history import author_prefix, with_author
from motet.protocols.errors import InputValidation, NotFound, UnknownName
from motet.protocols.events import EventRecord, MessageAdded
from motet.protocols.host import Expected
from motet.protocols.host_records import ConfigView, LogLine
from motet.protocols.queueing import MODES, QueueMode, SetQueueMode
from motet.protocols.session_keys import is_chat, is_group
from motet.protocols.sessions import (
    FINAL,
    LOCAL,
    Ack,
    GetRun,
    InjectRows,
    Principal,
    Role,
    RunInfo,
    SetSessionModel,
    exchange,
)
from motet.protocols.storage import storable
from motet.protocols.tokens import NewToken, TokenInfo
from motet.runtime.outside import fresh_hex

# The part of a host that takes inputs of people and programs, and says what becomes of them.


_NAME = re.compile(r"[^\[\]\x00-\x1f\x7f]{1,64}")


class Receiving(Answering):
    """See :class:`motet.Host`."""

    async def submit(
        self,
        text: str,
        *,
        session: str,
        agent: str | None = None,
        mode: QueueMode | None = None,
        sender: str = "",
        debounce: float | None = None,
        principal: Principal = LOCAL,
        key: str | None = None,
        expected: Expected | None = None,
    ) -> Ack:
        """Make an input durable and have it answered; the answer comes as events.

        Args:
            mode: what becomes of it if the session is at work; see :data:`QueueMode`. None: as
                :meth:`set_queue` says, else as chats of channels have it, else ``followup``.
            sender: who said it, in a group whose session the principal keeps: the model reads it
                in front of the text, and one sender's inputs keep their order. It gives no rights.
            debounce: seconds for which the input is held, on disk, to be joined with what its
                sender says next; None: in chats of channels as the host is configured, else 0.
            expected: what :meth:`expect` has noted of it.

        Cancelling does not take an input back that is on its way to disk. Raises ``UnknownName``,
        ``InputValidation``, ``NotFound``, ``QueueFull``, ``SessionBusy`` (mode ``reject``) and
        ``KeyConflict``.
        """
        known = mode and _known(mode)
        arrival = self._intake.expect(session, principal, expected, sender)
        try:
            if agent is None:
                info = await self._owned_session(session, principal)
                agent = info.agent if info else self._tree.registry.first().name
            said = _said(text, session, sender)
        except BaseException:
            self._intake.refuse(arrival)
            raise
        run = await self._intake.new_run(
            agent, said, session, None, None, principal, key, arrival=arrival
        )
        run.sender = sender
        run.mode = known or self._mode(session) or "followup"
        run.pause = self._pause(session) if debounce is None else max(0.0, debounce)
        return await self._intake.deliver(run)

    def expect(self, session: str, *, sender: str = "", principal: Principal = LOCAL) -> Expected:
        """Note an input that is to be submitted, from when a stop covers it (G2).

        For who reads several at once, or looks something up first. It counts as long as it is held.
        """
        return self._intake.expect(session, principal, None, sender)

    async def send(
        self,
        text: str,
        *,
        run_id: str | None = None,
        session: str | None = None,
        mode: QueueMode = "steer",
        principal: Principal = LOCAL,
        key: str | None = None,
    ) -> Ack:
        """Give a text to the run ``run_id``, or to the one that goes on in ``session``.

        ``steer``: it enters the run before its next model request; if the model has just given
        its last answer, it is asked once more. ``followup``: it is answered after the run. On disk
        when this returns. ``Ack.status`` tells a text that is to steer (``steered``) from one that
        becomes a run of its own, as happens when no run goes on any more, or when it ends before
        it has taken the text. One that is stopped drops what was to enter it.

        Raises ``UnknownName`` for another mode, ``NotFound`` for a run or session that is not
        there or not the principal's, and what :meth:`submit` raises.
        """
        mode = _known(mode)
        if (run_id is None) == (session is None):
            raise TypeError("send() needs either run_id=... or session=...")
        arrival = self._intake.expect(session, principal)
        target = self._target(run_id, session, principal)
        if target is not None:
            run = await self._intake.steering(target, text, mode, key, arrival)
            return await self._intake.deliver(run)
        if run_id is None:
            return await self.submit(
                text,
                session=str(session),
                mode=mode,
                debounce=0.0,
                principal=principal,
                key=key,
                expected=arrival,
            )
        try:
            ended = await self._owned_run(run_id, principal)
        except BaseException:
            self._intake.refuse(arrival)
            raise
        return await self.submit(
            text,
            session=ended.session,
            agent=ended.agent,
            mode="followup" if mode == "steer" else mode,
            debounce=0.0,
            principal=Principal(ended.user),
            key=key,
        )

    def queue_mode(self, session: str) -> QueueMode:
        """The mode of what people say in a session, if a message names none."""
        rules = self._tree.table.rules
        return self._mode(session) or (rules.group if is_group(session) else rules.direct)

    async def set_queue(
        self, session: str, mode: QueueMode | None, *, principal: Principal = LOCAL
    ) -> None:
        """Set what becomes of inputs that come while a session is at work; None: the default.

        It is stored, and holds from the next input on. Raises ``UnknownName``, ``NotFound``.
        """
        known = mode and _known(mode)
        await self.session(session, principal=principal)
        await self._tree.store.ask(SetQueueMode(session, known))
        if known is None:
            self._tree.table.modes.pop(session, None)
        else:
            self._tree.table.modes[session] = known

    def models(self) -> tuple[str, ...]:
        """The models that a session may have: those of the agents, and ``models.offered``."""
        return self._tree.registry.models()

    def session_model(self, session: str) -> str | None:
        """The model that was set for a session, if the host still has it; None: its agent's."""
        chosen = self._tree.table.models.get(session)
        return chosen if chosen in self.models() else None

    async def set_model(
        self, session: str, model: str | None, *, principal: Principal = LOCAL
    ) -> None:
        """Set the model of a session; None: its agent's own again.

        It is stored, and holds from the next run on. Raises ``UnknownName`` for one that is not
        among :meth:`models`, and ``NotFound``.
        """
        if model is not None and model not in self.models():
            raise UnknownName("model", model, self.models())
        await self.session(session, principal=principal)
        await self._tree.store.ask(SetSessionModel(session, model))
        if model is None:
            self._tree.table.models.pop(session, None)
        else:
            self._tree.table.models[session] = model

    # Inside

    def _target(self, run_id: str | None, session: str | None, principal: Principal) -> Run | None:
        table = self._tree.table
        if run_id is None:
            found = table.active(str(session), principal.user)
        else:
            found = table.runs.get(run_id)
        return found if found is not None and table.may(principal, found) else None

    async def _owned_run(self, run_id: str, principal: Principal) -> RunInfo:
        info = await self._tree.store.ask(GetRun(run_id))
        if info is None or (principal.role != "admin" and info.user != principal.user):
            raise NotFound(f"no run {run_id!r}")
        return info

    def _mode(self, session: str) -> QueueMode | None:
        """What is set, or goes without saying where a channel brings the inputs."""
        table = self._tree.table
        usual = table.rules.group if is_group(session) else table.rules.direct
        return table.modes.get(session) or (usual if is_chat(session) else None)

    def _pause(self, session: str) -> float:
        return self._tree.table.rules.debounce if is_chat(session) else 0.0


def _known(mode: QueueMode) -> QueueMode:
    if mode not in MODES:
        raise UnknownName("mode", mode, MODES)
    return mode


def _said(text: str, session: str, sender: str) -> str:
    """The text with its sender's name in front, where several may have said it."""
    if sender and _NAME.fullmatch(sender) is None:
        raise InputValidation(
            f"{sender[:80]!r} is no name of a sender: give 1 to 64 characters in one line, "
            "without square brackets"
        )
    return with_author(sender, text) if sender and text.strip() and is_group(session) else text


def is_from(text: str, sender: str) -> bool:
    """Whether a text, as it is stored, was said by this one in a group."""
    return text.startswith(author_prefix(sender))


# What a host does for those who reach it over a gateway: runs that are waited for, rows that are
# put into transcripts, tokens, and a look at its configuration and its log.
#
# Invariant: what is another's is not found (G16).


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
        finding = guard.check(text, self._tree.services.toolkits.current.guard, "injected")
        if finding is not None and finding.blocked:
            raise InputValidation(finding.refusal)
        text, row_id = storable(text), f"inj_{fresh_hex(6)}"
        hashed = body_hash(session, role, text)
        rows = exchange(text, role)
        request = InjectRows(row_id, session, principal.user, rows, key, hashed)
        accepted = await self._tree.store.ask(request)
        if accepted.duplicate:
            return Ack(accepted.run_id, "duplicate")
        author = principal.user if role == "user" else info.agent
        await self._tree.services.events.emit_to(session, MessageAdded(role, author, text), row_id)
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
