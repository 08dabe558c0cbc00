"""A client of a gateway: calls and streams that outlive their connections.

The Trio shell around :mod:`.machine`, which has the protocol. One task connects; each connection
has one that reads and one that writes. A slow reader of a stream makes none of them wait.
"""

from __future__ import annotations

import random
import secrets
import ssl
from collections.abc import AsyncGenerator, Callable
from typing import Final, Self, TypeAlias, TypeVar

import attrs
import msgspec
import trio
from msgspec import UNSET
from msgspec.structs import asdict

from motet.client.link import Address, Dial, Ended, dialer, hold
from motet.client.machine import CAPACITY, Following, Machine
from motet.client.requests import ClientClosed, ClientError, Unreachable
from motet.protocols import gateway as wire
from motet.protocols.approvals import ApprovalDecision, ApprovalInfo, ApprovalState
from motet.protocols.chat import JsonObject
from motet.protocols.errors import StoredError
from motet.protocols.escalations import Answer as Decision
from motet.protocols.escalations import EscalationInfo, EscalationState
from motet.protocols.events import EventRecord
from motet.protocols.gateway_approvals import ApprovalsList
from motet.protocols.gateway_records import ErrorsList, ErrorWhole, TracesList
from motet.protocols.gateway_rooms import (
    Posted,
    RoomInvites,
    RoomsHistory,
    RoomsList,
    RoomsPresent,
    RoomSummary,
)
from motet.protocols.host import AgentInfo, HostStatus
from motet.protocols.host_rooms import NewInvite, RoomExport, RoomInfo, RoomPeople
from motet.protocols.queueing import QueueMode
from motet.protocols.room_acts import Given, RoomAct, method_of
from motet.protocols.room_invites import (
    RoomInvite,
)
from motet.protocols.rooms import RoomChange, RoomMessage, RoomPlan
from motet.protocols.sessions import RunInfo, RunStatus, StopReport
from motet.protocols.traces import Trace, TraceInfo
from motet.protocols.version import __version__
from motet.runtime.backoff import Backoff
from motet.runtime.loops import refuse_in_asyncio
from motet.runtime.scopes import only_in_a_block, open_hidden_nursery

BACKOFF: Final = Backoff(0.5, most=30.0)
HEALTHY: Final = 30.0  # seconds a connection holds before its end is the first failure of a new row


@attrs.define(eq=False)
class ReconnectDelay:
    """Seconds before the next connection. ``chance`` returns numbers in [0, 1)."""

    chance: Callable[[], float] = random.random
    _failures: int = attrs.field(init=False, default=0)

    def next(self, held: float) -> float:
        """The wait after a connection that held for ``held`` seconds; 0: it was never made."""
        self._failures = 1 if held >= HEALTHY else self._failures + 1
        return BACKOFF.full_jitter(self._failures, self.chance())


R = TypeVar("R")


class _MaybeCommand(msgspec.Struct, frozen=True):
    command: str | None = None


@attrs.frozen
class Online:
    """There is a connection. ``restarted``: the host was restarted since the last one, so that
    parts of unfinished messages are void.
    """

    server: wire.ServerInfo
    principal: wire.PrincipalInfo
    restarted: bool = False


@attrs.frozen
class Offline:
    """There is no connection. ``retry_in``: seconds until the next attempt; None: never."""

    reason: str
    retry_in: float | None


Change: TypeAlias = Online | Offline


class Events:
    """Iterate the events of one stream; one task at a time. Made by :meth:`Client.stream`.

    Each numbered event comes once and in order, also over several connections. A ``Gap`` says that
    the host no longer has the events ``start`` to ``end``: read :meth:`Client.history`. A cancelled
    ``anext`` loses nothing. After the last event, the error that ended the stream is raised.
    """

    def __init__(self, machine: Machine, stream: str, after: int | None, capacity: int) -> None:
        self._machine = machine
        self._changed = trio.Event()
        self._last = after
        self._following = machine.follow(stream, after, self._wake, capacity)

    @property
    def last(self) -> int | None:
        """Number of the last numbered event: the ``after`` of a later :meth:`Client.stream`."""
        return self._last

    @property
    def following(self) -> Following:
        return self._following

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventRecord:
        await trio.lowlevel.checkpoint()
        while True:
            record = self._machine.take(self._following)
            if record is not None:
                self._last = self._last if record.seq is None else record.seq
                return record
            await self._more()

    async def begin(self) -> None:
        """Wait until the host has reported the stream's state."""
        while not self._following.begun:
            await self._more()
        if self._last is None:
            self._last = self._following.last

    async def _more(self) -> None:
        if self._following.error is not None:
            raise self._following.error
        self._changed = trio.Event()
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()


class Client:
    """A client that reconnects. Made by :func:`connect`.

    While there is no connection calls wait for the next one; bound them with trio's timeouts. A
    cancelled call may have been carried out, unless it was not sent yet. Unanswered requests are
    sent again if a key or their nature makes that harmless; other calls raise
    :class:`ConnectionLost`. All raise :class:`RequestFailed` for an answer that is an error, and
    :class:`TurnedAway` when the gateway refuses this client for good.
    """

    def __init__(
        self,
        info: wire.ClientInfo,
        token: str | None,
        as_user: str | None,
        dial: Dial,
        on_change: Callable[[Change], None],
    ) -> None:
        self._sending = trio.Event()
        self._machine = Machine(info, token, self._wake_writer, as_user)
        self._dial = dial
        self._on_change = on_change

    def __repr__(self) -> str:
        server = self._machine.server
        return f"<Client {'offline' if server is None else server.server.instance}>"

    @property
    def server(self) -> wire.Connected | None:
        """The host's answer to ``connect``; None while there is no connection."""
        return self._machine.server

    # -- calls -----------------------------------------------------------------------------------

    async def call(self, method: str, /, **params: object) -> object:
        """Call any method of the protocol; its result as plain data. Parameters that are None are
        omitted.
        """
        given = {name: value for name, value in params.items() if value is not None}
        return await self._call(method, given)

    async def _call(self, method: str, given: JsonObject) -> object:
        settled = trio.Event()
        pending = self._machine.request(method, given, settled.set)
        try:
            await settled.wait()
        finally:
            self._machine.forget(pending)
        if pending.error is not None:
            raise pending.error
        return pending.result

    async def send(
        self,
        session: str,
        text: str,
        *,
        agent: str | None = None,
        mode: QueueMode | None = None,
        sender: str = "",
        key: str | None = None,
    ) -> wire.Sent | wire.CommandAnswer:
        """Send a text to a session. When it returns, the input is on disk, once.

        ``key``: idempotency key, a fresh one by default; a text with a key that was used before is
        not accepted again. ``mode``: queue mode while the session is at work; None: the session's.
        ``sender``: the author, in a group that a bridge speaks for.
        """
        key = key or secrets.token_hex(16)
        given = {"session": session, "text": text, "agent": agent, "mode": mode, "sender": sender}
        result = await self.call("chat.send", **given, key=key)
        is_command = _of(result, _MaybeCommand).command is not None
        return _of(result, wire.CommandAnswer) if is_command else _of(result, wire.Sent)

    async def post(
        self, room: str, text: str, *, key: str | None = None, reply_to: int | None = None
    ) -> Posted | wire.CommandAnswer:
        """Send a text to a room, as :meth:`send` does to a session.

        ``reply_to``: number of the message that it answers.
        """
        key = key or secrets.token_hex(16)
        result = await self.call("rooms.post", room=room, text=text, key=key, reply_to=reply_to)
        is_command = _of(result, _MaybeCommand).command is not None
        return _of(result, wire.CommandAnswer) if is_command else _of(result, Posted)

    async def rooms(self, *, query: str = "", archived: bool = False) -> tuple[RoomInfo, ...]:
        """The rooms that the user may see, by name, in use or archived, read in pages.

        ``query``: a part of the name or the title.
        """
        found: list[RoomInfo] = []
        after: str | None = ""
        while after is not None:
            given = {"after": after, "query": query, "archived": archived}
            page = _of(await self.call("rooms.list", **given, limit=200), RoomsList)
            found += page.rooms
            after = page.next
        return tuple(found)

    async def manage_room(self, act: RoomAct) -> RoomPeople:
        """Carry out an act of administration: ``MutePerson(room="dev", user="bob")``."""
        given = {name: value for name, value in asdict(act).items() if value is not UNSET}
        return _of(await self._call(method_of(act), given), RoomPeople)

    async def room_people(self, room: str) -> RoomPeople:
        """The people of a room, with their roles."""
        return _of(await self.call("rooms.people", room=room), RoomPeople)

    async def room_summary(self, room: str) -> RoomSummary:
        """What was said before the user came, if newcomers of the room read a summary."""
        return _of(await self.call("rooms.summary", room=room), RoomSummary)

    async def invite(
        self,
        room: str,
        role: Given = "member",
        *,
        expires: float | None = None,
        uses: int | None = None,
    ) -> NewInvite:
        """Make an invite; its token is in the answer only. ``expires``: Unix seconds."""
        given = {"room": room, "role": role, "expires": expires, "uses": uses}
        return _of(await self.call("rooms.invite", **given), NewInvite)

    async def invites(self, room: str) -> tuple[RoomInvite, ...]:
        return _of(await self.call("rooms.invites", room=room), RoomInvites).invites

    async def revoke_invite(self, room: str, invite: str) -> None:
        await self.call("rooms.revoke", room=room, invite=invite)

    async def join(self, token: str) -> RoomInfo:
        """Come into a room by an invite."""
        return _of(await self.call("rooms.join", token=token), RoomInfo)

    async def export_room(self, room: str, *, after: int = 0) -> RoomExport:
        """A part of all that was said in a room, behind message number ``after``."""
        return _of(await self.call("rooms.export", room=room, after=after), RoomExport)

    async def delete_room(self, room: str) -> None:
        """Delete a room with all that is stored of it."""
        await self.call("rooms.delete", room=room)

    async def create_room(
        self, name: str, plan: RoomPlan, *, people: tuple[str, ...] = ()
    ) -> RoomInfo:
        """Make a room of the user, open to ``people``; its name is ``name`` and a suffix."""
        made = await self.call("rooms.create", name=name, people=people, **asdict(plan))
        return _of(made, RoomInfo)

    async def change_room(self, room: str, change: RoomChange) -> RoomInfo:
        """Change a room of the user: its people at once, all else from its next round on."""
        changes = {name: value for name, value in asdict(change).items() if value is not UNSET}
        return _of(await self._call("rooms.set", {"room": room, **changes}), RoomInfo)

    async def edit(self, room: str, number: int, text: str) -> RoomMessage:
        """Give a message of the user another text; no copy of the old one is left at the host."""
        found = await self.call("messages.edit", room=room, number=number, text=text)
        return _of(found, RoomMessage)

    async def delete(self, room: str, number: int) -> RoomMessage:
        """Withdraw a message: one's own, or any in a room that the user moderates."""
        return _of(await self.call("messages.delete", room=room, number=number), RoomMessage)

    async def react(self, room: str, number: int, reaction: str, *, on: bool = True) -> RoomMessage:
        """React to a message with a word or a sign, or (``on`` false) no more."""
        given = {"room": room, "number": number, "reaction": reaction, "on": on}
        return _of(await self.call("messages.react", **given), RoomMessage)

    async def mark_read(self, room: str, number: int) -> None:
        """The user has read the room up to a message; ``rooms`` counts what is behind it."""
        await self.call("rooms.read", room=room, number=number)

    async def typing(self, room: str, *, on: bool = True) -> None:
        """The user writes a message. Told to others at most every two seconds, and never stored."""
        await self.call("rooms.typing", room=room, on=on)

    async def present(self, room: str) -> tuple[str, ...]:
        """The users who have the room open now, by name."""
        return _of(await self.call("rooms.present", room=room), RoomsPresent).users

    async def room_history(
        self, room: str, *, before: int | None = None, limit: int = 50, query: str = ""
    ) -> RoomsHistory:
        """A page of a room's messages, as :meth:`history` is of a session; with a ``query`` those
        that have these words.
        """
        which = {"before": before, "limit": limit, "query": query}
        result = await self.call("rooms.history", room=room, **which)
        return _of(result, RoomsHistory)

    async def stop(
        self,
        *,
        run_id: str | None = None,
        session: str | None = None,
        room: str | None = None,
        all: bool = False,
        grace: float = 5.0,
    ) -> StopReport:
        """Stop one run, the runs of a session or a room, or all. Returns when they have ended, or
        after ``grace`` seconds with the names of those that still clean up.
        """
        result = await self.call(
            "runs.stop",
            run_id=run_id,
            session=session,
            room=room,
            all=all,
            grace_ms=round(grace * 1000),
            key=secrets.token_hex(16),
        )
        return _of(result, StopReport)

    async def approve(
        self, approval: str, decision: ApprovalDecision, *, note: str = ""
    ) -> ApprovalInfo:
        """Answer an approval."""
        result = await self.call(
            "approvals.resolve",
            id=approval,
            decision=decision,
            note=note,
            key=secrets.token_hex(16),
        )
        return _of(result, ApprovalInfo)

    async def approvals(
        self,
        *,
        session: str | None = None,
        room: str | None = None,
        state: ApprovalState | None = None,
        limit: int = 50,
    ) -> tuple[ApprovalInfo, ...]:
        """Approvals, pending and answered, newest first; ``room``: one of the user's own."""
        which = {"session": session, "room": room, "state": state}
        result = await self.call("approvals.list", **which, limit=limit)
        return _of(result, ApprovalsList).approvals

    async def resolve(
        self, escalation: str, decision: Decision, *, note: str = ""
    ) -> EscalationInfo:
        """Answer an escalation; the same answer again changes nothing."""
        given = {"escalation": escalation, "decision": decision, "note": note}
        return _of(await self.call("escalations.resolve", **given), EscalationInfo)

    async def escalations(
        self,
        *,
        session: str | None = None,
        room: str | None = None,
        state: EscalationState | None = None,
        limit: int = 50,
    ) -> tuple[EscalationInfo, ...]:
        """Escalations, open and answered, newest first; ``room``: one of the user's own."""
        which = {"session": session, "room": room, "state": state}
        result = await self.call("escalations.list", **which, limit=limit)
        return _of(result, wire.EscalationsList).escalations

    async def errors(
        self, *, room: str | None = None, limit: int = 50, **which: object
    ) -> ErrorsList:
        """Errors, or with ``grouped=True`` groups of equal ones, newest first.

        ``room``: one of the user's own. ``which``: further fields of ``errors.list``: ``session``,
        ``tool``, ``kind``, ``agent``, ``run_id``, ``since``, ``until``, ``resolved``, ``cursor``.
        """
        return _of(await self.call("errors.list", room=room, limit=limit, **which), ErrorsList)

    async def traces(
        self, *, room: str | None = None, limit: int = 50, **which: object
    ) -> tuple[TraceInfo, ...]:
        """Summaries of runs, newest first. ``which``: fields of ``traces.list``: ``session``,
        ``agent``, ``status``, ``since``.
        """
        result = await self.call("traces.list", room=room, limit=limit, **which)
        return _of(result, TracesList).traces

    async def trace(self, run_id: str) -> Trace:
        """The spans of one run, also of a live one."""
        return _of(await self.call("traces.get", run_id=run_id), Trace)

    async def error(self, error_id: str) -> StoredError:
        """A stored error, whole: a large one comes in pages, between which other calls go on."""
        found = first = _of(await self.call("errors.get", id=error_id), ErrorWhole)
        pages = [first.page]
        while (offset := found.next_offset) is not None:
            found = _of(await self.call("errors.get", id=error_id, offset=offset), ErrorWhole)
            pages.append(found.page)
        fields = {name: getattr(first, name) for name in StoredError.__struct_fields__}
        if first.page:
            text = "".join(pages)
            fields["raw_error"] = await trio.to_thread.run_sync(msgspec.json.decode, text)
        return StoredError(**fields)

    async def agents(self) -> tuple[AgentInfo, ...]:
        """The agents of the host."""
        return _of(await self.call("agents.list"), wire.AgentsList).agents

    async def status(self) -> HostStatus:
        """The state of the host; its counts are of the user's own runs, for admins of all."""
        return _of(await self.call("status"), HostStatus)

    async def sessions(self, *, limit: int = 50, cursor: float | None = None) -> wire.SessionsList:
        """A page of sessions, newest first."""
        return _of(await self.call("sessions.list", limit=limit, cursor=cursor), wire.SessionsList)

    async def history(
        self, session: str, *, before: int | None = None, limit: int = 50
    ) -> wire.SessionsHistory:
        """A page of rows in order: the newest before position ``before``."""
        result = await self.call("sessions.history", session=session, before=before, limit=limit)
        return _of(result, wire.SessionsHistory)

    async def runs(
        self, *, session: str | None = None, status: RunStatus | None = None, limit: int = 50
    ) -> tuple[RunInfo, ...]:
        """Newest first."""
        result = await self.call("runs.list", session=session, status=status, limit=limit)
        return _of(result, wire.RunsList).runs

    # -- streams ---------------------------------------------------------------------------------

    @only_in_a_block
    async def stream(
        self, stream: str, after: int | None = None, *, capacity: int = CAPACITY
    ) -> AsyncGenerator[Events]:
        """Read a stream such as ``session:alice:1``: ``async with … as events: async for …``.

        ``after``: start after the event of this number, 0: from the first; None: from now on. A
        stream has one reader in a client. At most ``capacity`` events wait for it; after that,
        numbered ones are fetched later, and others are dropped.
        """
        events = Events(self._machine, stream, after, capacity)
        try:
            await events.begin()
            yield events
        finally:
            self._machine.unfollow(events.following)

    # -- the connections -------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Connect, again and again. The first time has to succeed."""
        delay = ReconnectDelay()
        first = True
        restarts = 0

        def accepted(connected: wire.Connected) -> None:
            nonlocal first, restarts
            restarted, restarts = self._machine.restarts > restarts, self._machine.restarts
            self._on_change(Online(connected.server, connected.principal, restarted))
            if first:
                first = False
                task_status.started()

        while True:
            ended = await hold(self._dial, self._machine, self._outgoing, accepted)
            if first:
                later = ended.retry_after or None
                raise ended.error or Unreachable(ended.reason, retry_after=later)
            if ended.error is not None:
                self._machine.fail(ended.error)
                self._on_change(Offline(ended.reason, None))
                return
            await self._wait(ended, delay)

    async def _wait(self, ended: Ended, delay: ReconnectDelay) -> None:
        seconds = max(delay.next(ended.held), ended.retry_after)
        self._on_change(Offline(ended.reason, seconds))
        await trio.sleep(seconds)

    def close(self) -> None:
        """End the connection; pending calls raise ``ClientClosed``. Runs at the host go on."""
        self._machine.fail(ClientClosed("this client is closed"))

    async def _outgoing(self) -> str:
        """The next frame to send."""
        while not self._machine.outgoing:
            self._sending = trio.Event()
            await self._sending.wait()
        return self._machine.outgoing.popleft()

    def _wake_writer(self) -> None:
        self._sending.set()


@only_in_a_block
async def connect(
    url: str,
    *,
    token: str | None = None,
    as_user: str | None = None,
    name: str = "motet.client",
    on_change: Callable[[Change], None] | None = None,
    tls: ssl.SSLContext | None = None,
    dial: Dial | None = None,
) -> AsyncGenerator[Client]:
    """A client of the gateway at ``ws://HOST:PORT`` or ``wss://``, for the length of a block.

    The first connection has to succeed: raises :class:`Unreachable`, :class:`TurnedAway`, and
    ``ConfigError`` for a malformed address. When a later one ends the client reconnects by itself,
    after up to 0.5 s at first and 30 s at most; ``on_change`` is called, and must not block.
    Leaving the block closes the connection; runs at the host go on. ``as_user``: the user to act
    for, if the token is a bridge's; ``tls``: the trusted certificates; ``dial`` makes connections
    in another way. Without a ``token``, that of a ``motet serve`` is used which this user runs at
    that address of this machine, if there is one.
    """
    refuse_in_asyncio("connect()", "use any WebSocket client there, or a thread with trio.run()")
    info = wire.ClientInfo(name, __version__, ("deltas", "gap"))
    if dial is None:
        address = Address.of(url)
        if token is None and (own := _own_server(address)) is not None:
            address, token, tls = attrs.evolve(address, host=own[0]), own[1], tls or own[2]
        dial = dialer(address, tls)
    client = Client(info, token, as_user, dial, on_change or _ignore)
    async with open_hidden_nursery() as nursery:
        await nursery.start(client.run)
        try:
            yield client
        finally:
            client.close()
            nursery.cancel_scope.cancel()


def _own_server(address: Address) -> tuple[str, str, ssl.SSLContext | None] | None:
    """Host, token and certificate of the user's own server at an address of this machine."""
    from motet.announced import own_server  # loads the storage, which most clients do not need

    found = own_server(address.host, address.port)
    if found is None:
        return None
    host = "127.0.0.1" if address.host == "localhost" else address.host
    return host, found.token, found.tls()


def _ignore(_: Change) -> None:
    """The default of ``on_change``."""


def _of(result: object, kind: type[R]) -> R:
    try:
        return msgspec.convert(result, kind)
    except msgspec.ValidationError as error:
        raise ClientError(f"the host is of another version: {error}") from None
