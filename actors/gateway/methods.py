"""The methods of ``motet.v1``: for each its least role, its parameters and its handler.

``docs/protocol.md`` describes them. Invariants: :func:`call` checks parameters and role before a
handler runs; a handler sees no more of its connection than a :class:`Caller`; what it raises
becomes an error object in :func:`.method.error_body` alone. Stops and commands have to get through
when all else is stuck: they spend no messages of the user, wait for no session's actor, and a stop
does not wait for the disk either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import attrs
from msgspec import Struct
from msgspec.structs import asdict, replace

from motet.actors.gateway import talk
from motet.actors.gateway.auth import may
from motet.actors.gateway.commands import answer_command
from motet.actors.gateway.context import Context
from motet.actors.gateway.idempotency import Idempotency
from motet.actors.gateway.method import Refusal, first_page, last_page
from motet.actors.gateway.streams import Streams
from motet.protocols import gateway as wire
from motet.protocols import gateway_approvals as approvals
from motet.protocols import gateway_records as records
from motet.protocols import gateway_rooms as rooms
from motet.protocols import room_acts as acts
from motet.protocols.chat import AssistantMessage, ChatMessage, JsonObject, UserMessage
from motet.protocols.commands import Command, message_text, parse_command
from motet.protocols.errors import GroupErrors, InputValidation, ListErrors, listing, nearest
from motet.protocols.host import Expected, HostApi
from motet.protocols.policy import ToolsList, ToolsListParams
from motet.protocols.sessions import FINAL, RESEND, Ack, Principal, Role

_PREVIEW: Final = 200
_COUNTED: Final = 200
P = TypeVar("P", bound=Struct)


@attrs.frozen
class Answer:
    """A result. ``when_queued`` is called as soon as its frame is in the outbox."""

    result: object
    when_queued: Callable[[], None] | None = None


@attrs.frozen
class Caller:
    """One request of a connection, as its handler sees it: on behalf of its user or, from a bridge,
    of another one. It does what that user could do with a token of their own, never more than an
    operator (G16), and the messages count as theirs.

    ``expected``: the input of this request, as it was noted when the request was read.
    """

    principal: Principal
    _context: Context
    _streams: Streams
    expected: Expected | None = None

    @property
    def api(self) -> HostApi:
        return self._context.api

    @property
    def idempotency(self) -> Idempotency:
        return self._context.idempotency

    def now(self) -> float:
        """Unix seconds."""
        return self._context.now()

    def spend_message(self) -> None:
        """Raises :class:`Refusal` when the user sent too many."""
        self._context.spend_message(self.principal.user)

    async def spend_input(self, method: str, key: str) -> None:
        """As :meth:`spend_message`, but a resend under an accepted key always passes."""
        await self._context.spend_input(self.principal, method, key)

    async def subscribe(
        self, stream: str, after: int | None
    ) -> tuple[wire.StreamState, Callable[[], None]]:
        return await self._streams.subscribe(stream, after, self.principal)

    def unsubscribe(self, stream: str) -> bool:
        return self._streams.unsubscribe(stream)


@attrs.frozen
class Method:
    name: str
    role: Role
    params: type[Struct]
    call: Callable[[Caller, JsonObject], Awaitable[Answer]]


def method(
    name: str, role: Role, params: type[P], handler: Callable[[Caller, P], Awaitable[Answer]]
) -> Method:
    """A method for the table; parameters that do not fit raise :class:`FrameError`."""

    async def call(caller: Caller, given: JsonObject) -> Answer:
        return await handler(caller, wire.decode_params(given, params))

    return Method(name, role, params, call)


# -- the connection and its host ------------------------------------------------------------------


async def _connect(_caller: Caller, _params: wire.ConnectParams) -> Answer:
    raise Refusal("invalid_params", "this connection is connected already")


async def _ping(caller: Caller, _params: wire.NoParams) -> Answer:
    return Answer(wire.Pong(caller.now()))


async def _status(caller: Caller, _params: wire.NoParams) -> Answer:
    status, who = caller.api.status(), caller.principal
    if who.role == "admin":
        return Answer(status)
    # Others' sessions and runs are not counted (G16).
    running, queued = [
        await caller.api.runs(status=state, limit=_COUNTED, principal=who)
        for state in ("running", "queued")
    ]
    own = replace(
        status,
        live_sessions=len({run.session for run in (*running, *queued)}),
        running=len(running),
        queued=len(queued),
        dropped_events=0,
        unsaved_ends=0,
    )
    return Answer(own)


async def _agents(caller: Caller, _params: wire.NoParams) -> Answer:
    return Answer(wire.AgentsList(caller.api.agents()))


async def _tools(caller: Caller, params: ToolsListParams) -> Answer:
    who = caller.principal
    if params.as_user not in (None, who.user) or params.role not in (None, who.role):
        if who.role != "admin":
            raise Refusal("forbidden", "only an admin may list the tools of another user")
        who = Principal(params.as_user or who.user, params.role or "operator")
    tools = await caller.api.tools(params.agent, principal=who)
    return Answer(ToolsList(params.agent, who.user, who.role, tools))


# -- inputs, commands and stops -------------------------------------------------------------------


async def _send(caller: Caller, params: wire.ChatSendParams) -> Answer:
    command = parse_command(params.text)
    if command is not None:
        return await _command(caller, params.session, command, params.key, sender=params.sender)
    text = message_text(params.text)
    if not text.strip():
        raise InputValidation("`text` is empty")
    await caller.spend_input("chat.send", params.key)
    ack = await caller.api.submit(
        text,
        session=params.session,
        agent=params.agent,
        mode=params.mode or caller.api.queue_mode(params.session, principal=caller.principal),
        sender=params.sender,
        principal=caller.principal,
        key=params.key,
        expected=caller.expected,
    )
    return await _sent(caller, params.session, ack)


async def _post(caller: Caller, params: rooms.RoomsPostParams) -> Answer:
    command = parse_command(params.text)
    if command is not None:
        if not command.stops:
            await caller.api.rooms.get(params.room, principal=caller.principal)
        return await _command(caller, "", command, params.key, room=params.room)
    await caller.spend_input("rooms.post", params.key)
    said = await caller.api.rooms.post(
        params.room,
        message_text(params.text),
        key=params.key,
        reply_to=params.reply_to,
        principal=caller.principal,
    )
    return Answer(rooms.Posted(said.seq, "duplicate" if said.duplicate else "accepted"))


async def _resend(caller: Caller, params: records.RunsResendParams) -> Answer:
    await caller.spend_input(RESEND, f"resend:{params.run_id}")
    ack = await caller.api.resend(params.run_id, principal=caller.principal)
    run = await caller.api.find_run(ack.run_id, principal=caller.principal)
    return await _sent(caller, run.session, ack)


async def _sent(caller: Caller, session: str, ack: Ack) -> Answer:
    seq = await caller.api.events.input(f"session:{session}", ack.run_id)
    return Answer(wire.Sent(ack.run_id, ack.status, ack.position, seq))


async def _inject(caller: Caller, params: records.ChatInjectParams) -> Answer:
    await caller.spend_input("chat.inject", params.key)
    ack = await caller.api.inject(
        params.text,
        session=params.session,
        role=params.role,
        key=params.key,
        principal=caller.principal,
    )
    again = ack.status == "duplicate"
    return Answer(records.Injected(ack.run_id, "duplicate" if again else "accepted"))


async def _command(
    caller: Caller, session: str, command: Command, key: str, *, room: str = "", sender: str = ""
) -> Answer:
    """Carry out a command of a session or a room, once for its key."""

    async def work() -> wire.CommandAnswer:
        return await answer_command(
            caller.api, caller.principal, session, command, room=room, sender=sender
        )

    if command.name == "invite":  # its token is shown once, and stored nowhere
        return Answer(await work())
    scope = (caller.principal.user, "rooms.post" if room else "chat.send", key)
    said, kept = (session, room, sender, command), not command.shows
    answer, again = await caller.idempotency.once(scope, said, wire.CommandAnswer, work, keep=kept)
    return Answer(replace(answer, status="duplicate") if again else answer)


async def _stop(caller: Caller, params: wire.RunsStopParams) -> Answer:
    async def work() -> wire.Stopped:
        report = await caller.api.stop(
            run_id=params.run_id,
            session=params.session,
            room=params.room,
            everything=params.all,
            principal=caller.principal,
            grace=params.grace_ms / 1000,
        )
        return wire.Stopped(**asdict(report))

    scope = (caller.principal.user, "runs.stop", params.key)
    stopped, again = await caller.idempotency.once(scope, params, wire.Stopped, work)
    return Answer(replace(stopped, status="duplicate") if again else stopped)


# -- streams --------------------------------------------------------------------------------------


async def _subscribe(caller: Caller, params: wire.SubscribeParams) -> Answer:
    state, start = await caller.subscribe(params.stream, params.after)
    return Answer(state, start)


async def _unsubscribe(caller: Caller, params: wire.UnsubscribeParams) -> Answer:
    return Answer(wire.Unsubscribed(params.stream, caller.unsubscribe(params.stream)))


# -- sessions and runs ----------------------------------------------------------------------------


async def _sessions(caller: Caller, params: wire.SessionsListParams) -> Answer:
    found = await caller.api.sessions(
        limit=params.limit, cursor=params.cursor, principal=caller.principal
    )
    cursor = found[-1].updated if len(found) == params.limit else None
    return Answer(wire.SessionsList(found, cursor))


async def _history(caller: Caller, params: wire.SessionsHistoryParams) -> Answer:
    rows = await caller.api.history(
        params.session, before=params.before, limit=params.limit, principal=caller.principal
    )
    kept = last_page(rows)
    before = kept[0].pos if kept and kept[0].pos > 1 else None
    shown = tuple(row for row in kept if not _is_silent(row.row))
    return Answer(wire.SessionsHistory(params.session, shown, before))


def _is_silent(row: ChatMessage) -> bool:
    """A stored row that clients do not show: an agent's "no answer", an answer that had to be
    repaired, and the hint to the model about that.
    """
    return (isinstance(row, AssistantMessage) and row.note == "silent") or (
        isinstance(row, UserMessage) and row.note == "hint"
    )


async def _reset(caller: Caller, params: records.SessionParams) -> Answer:
    await caller.api.reset(params.session, principal=caller.principal)
    return Answer(records.SessionWasReset(params.session))


async def _compact(caller: Caller, params: records.SessionParams) -> Answer:
    done = await caller.api.compact(params.session, principal=caller.principal)
    start, end = (None, None) if done is None else (done.start, done.end)
    return Answer(records.SessionWasCompacted(params.session, start, end))


async def _delete(caller: Caller, params: records.SessionParams) -> Answer:
    rows = await caller.api.delete(params.session, principal=caller.principal)
    return Answer(records.SessionWasDeleted(params.session, rows))


async def _runs(caller: Caller, params: wire.RunsListParams) -> Answer:
    runs = await caller.api.runs(**asdict(params), principal=caller.principal)
    short = (replace(run, text=run.text[:_PREVIEW]) for run in runs)
    return Answer(wire.RunsList(tuple(short)))


async def _run(caller: Caller, params: records.RunsGetParams) -> Answer:
    return Answer(await caller.api.find_run(params.run_id, principal=caller.principal))


async def _wait(caller: Caller, params: records.RunsWaitParams) -> Answer:
    run = await caller.api.wait_run(
        params.run_id, timeout=params.timeout_ms / 1000, principal=caller.principal
    )
    return Answer(records.RunWaited(run.status in FINAL, run))


# -- escalations and approvals --------------------------------------------------------------------


async def _escalations(caller: Caller, params: wire.EscalationsListParams) -> Answer:
    found = await caller.api.escalations(**asdict(params), principal=caller.principal)
    return Answer(wire.EscalationsList(tuple(first_page(found))))


async def _resolve(caller: Caller, params: wire.EscalationsResolveParams) -> Answer:
    info = await caller.api.resolve(
        params.escalation, params.decision, note=params.note, principal=caller.principal
    )
    return Answer(info)


async def _approvals(caller: Caller, params: approvals.ApprovalsListParams) -> Answer:
    found = await caller.api.approvals(**asdict(params), principal=caller.principal)
    return Answer(approvals.ApprovalsList(tuple(first_page(found))))


async def _approve(caller: Caller, params: approvals.ApprovalsResolveParams) -> Answer:
    async def work() -> approvals.Resolved:
        info = await caller.api.approve(
            params.id, params.decision, note=params.note, principal=caller.principal
        )
        return approvals.Resolved(**asdict(info))

    scope = (caller.principal.user, "approvals.resolve", params.key)
    # Not kept: it quotes the call. The same answer again changes nothing, and shows it as it is.
    once = caller.idempotency.once
    resolved, again = await once(scope, params, approvals.Resolved, work, keep=False)
    return Answer(replace(resolved, status="duplicate") if again else resolved)


async def _grants(caller: Caller, params: approvals.ApprovalsGrantsParams) -> Answer:
    who = caller.principal
    found = await caller.api.grants(agent=params.agent, room=params.room, principal=who)
    return Answer(approvals.GrantsList(found))


async def _revoke(caller: Caller, params: approvals.ApprovalsRevokeParams) -> Answer:
    await caller.api.revoke(params.grant, room=params.room, principal=caller.principal)
    return Answer(approvals.Revoked(params.grant))


# -- rooms ----------------------------------------------------------------------------------------


async def _rooms(caller: Caller, params: rooms.RoomsListParams) -> Answer:
    page = await caller.api.rooms.page(**asdict(params), principal=caller.principal)
    return Answer(rooms.RoomsList(page.rooms, page.next))


async def _room(caller: Caller, params: rooms.RoomParams) -> Answer:
    return Answer(await caller.api.rooms.get(params.room, principal=caller.principal))


async def _room_history(caller: Caller, params: rooms.RoomsHistoryParams) -> Answer:
    found = await caller.api.rooms.history(**asdict(params), principal=caller.principal)
    kept = last_page(found)
    before = kept[0].seq if kept and kept[0].seq > 1 else None
    return Answer(rooms.RoomsHistory(params.room, kept, before))


async def _create_room(caller: Caller, params: rooms.RoomsCreateParams) -> Answer:
    caller.spend_message()
    who, given = caller.principal, (params.name, params.plan)
    return Answer(await caller.api.rooms.create(*given, people=params.people, principal=who))


async def _change_room(caller: Caller, params: rooms.RoomsSetParams) -> Answer:
    return Answer(await caller.api.rooms.change(params.room, params, principal=caller.principal))


async def _act(caller: Caller, act: acts.RoomAct) -> Answer:
    caller.spend_message()
    return Answer(await caller.api.rooms.manage(act, principal=caller.principal))


async def _invite(caller: Caller, params: rooms.RoomsInviteParams) -> Answer:
    caller.spend_message()
    return Answer(await caller.api.rooms.invite(**asdict(params), principal=caller.principal))


async def _join(caller: Caller, params: rooms.RoomsJoinParams) -> Answer:
    caller.spend_message()  # tokens cannot be tried out
    return Answer(await caller.api.rooms.join(params.token, principal=caller.principal))


async def _export(caller: Caller, params: rooms.RoomsExportParams) -> Answer:
    part = await caller.api.rooms.export(**asdict(params), principal=caller.principal)
    kept = tuple(first_page(part.messages))
    more = kept[-1].seq if len(kept) < len(part.messages) else part.next
    return Answer(replace(part, messages=kept, next=more))


async def _delete_room(caller: Caller, params: rooms.RoomParams) -> Answer:
    await caller.api.delete_room(params.room, principal=caller.principal)
    return Answer(rooms.RoomDone(params.room))


def _talk(act: talk.Act[P]) -> Callable[[Caller, P], Awaitable[Answer]]:
    async def answer(caller: Caller, params: P) -> Answer:
        if act in talk.COUNTED:
            caller.spend_message()
        return Answer(await act(caller.api.rooms, caller.principal, params))

    return answer


# -- stored records -------------------------------------------------------------------------------


async def _errors(caller: Caller, params: records.ErrorsListParams) -> Answer:
    who, of = caller.principal, (params.session, params.tool, params.since, params.until)
    if params.grouped:
        groups = GroupErrors(
            *(params.user, params.agent, params.tool, params.kind, params.resolved, params.since),
            *(params.limit, params.cursor),
        )
        found = await caller.api.error_groups(groups, room=params.room, principal=who)
        return Answer(records.ErrorsList((), found.cursor, found.groups))
    which = ListErrors(
        *(*of, params.limit, params.kind, params.user, params.agent),
        *(params.run_id, params.fingerprint, params.resolved),
    )
    page = await caller.api.error_page(which, cursor=params.cursor, room=params.room, principal=who)
    return Answer(records.ErrorsList(tuple(map(records.ErrorInfo.of, page.errors)), page.cursor))


async def _error(caller: Caller, params: records.ErrorsGetParams) -> Answer:
    """Whole, if its raw error fits in a page; else a page of that as text."""
    error, text = await caller.api.error_text(
        params.id, params.offset or 0, principal=caller.principal
    )
    size, end = text.size, text.offset + len(text.text)
    if params.offset is None and end >= size:
        error = await caller.api.error(params.id, principal=caller.principal)
        return Answer(records.ErrorWhole(**asdict(error), size=size))
    after = end if end < size and text.text else None
    page = records.ErrorWhole(**asdict(error), page=text.text, next_offset=after, size=size)
    return Answer(page)


async def _traces(caller: Caller, params: records.TracesListParams) -> Answer:
    found = await caller.api.traces(**asdict(params), principal=caller.principal)
    return Answer(records.TracesList(found))


async def _trace(caller: Caller, params: records.TracesGetParams) -> Answer:
    return Answer(await caller.api.trace(params.run_id, principal=caller.principal))


# -- operation: for admins ------------------------------------------------------------------------


async def _config(caller: Caller, _params: wire.NoParams) -> Answer:
    return Answer(caller.api.configuration())


async def _reload(caller: Caller, params: records.ConfigReloadParams) -> Answer:
    if params.dry_run:
        return Answer(caller.api.plan_reload())
    return Answer(await caller.api.reload(expect_hash=params.expect_hash))


async def _actors(caller: Caller, _params: wire.NoParams) -> Answer:
    return Answer(records.ActorsList(caller.api.actors()))


async def _logs(caller: Caller, params: records.LogsTailParams) -> Answer:
    lines = caller.api.log_tail(params.limit)
    new = tuple(line for line in lines if line.number > params.after)
    return Answer(records.LogsTail(last_page(new)))


async def _tokens(caller: Caller, _params: wire.NoParams) -> Answer:
    return Answer(records.TokensList(await caller.api.tokens()))


async def _new_token(caller: Caller, params: records.TokensNewParams) -> Answer:
    return Answer(await caller.api.new_token(**asdict(params)))


async def _revoke_token(caller: Caller, params: records.TokensRevokeParams) -> Answer:
    return Answer(await caller.api.revoke_token(params.id))


async def _delete_user(caller: Caller, params: records.UsersDeleteParams) -> Answer:
    return Answer(await caller.api.delete_user(params.user, rooms=params.rooms))


METHODS: Final[dict[str, Method]] = {
    one.name: one
    for one in (
        method("connect", "viewer", wire.ConnectParams, _connect),
        method("ping", "viewer", wire.NoParams, _ping),
        method("status", "viewer", wire.NoParams, _status),
        method("agents.list", "viewer", wire.NoParams, _agents),
        method("tools.list", "viewer", ToolsListParams, _tools),
        method("chat.send", "operator", wire.ChatSendParams, _send),
        method("subscribe", "viewer", wire.SubscribeParams, _subscribe),
        method("unsubscribe", "viewer", wire.UnsubscribeParams, _unsubscribe),
        method("sessions.list", "viewer", wire.SessionsListParams, _sessions),
        method("sessions.history", "viewer", wire.SessionsHistoryParams, _history),
        method("runs.list", "viewer", wire.RunsListParams, _runs),
        method("runs.stop", "operator", wire.RunsStopParams, _stop),
        method("runs.resend", "operator", records.RunsResendParams, _resend),
        method("escalations.list", "viewer", wire.EscalationsListParams, _escalations),
        method("escalations.resolve", "operator", wire.EscalationsResolveParams, _resolve),
        method("approvals.list", "viewer", approvals.ApprovalsListParams, _approvals),
        method("approvals.resolve", "operator", approvals.ApprovalsResolveParams, _approve),
        method("approvals.grants", "viewer", approvals.ApprovalsGrantsParams, _grants),
        method("approvals.revoke", "operator", approvals.ApprovalsRevokeParams, _revoke),
        method("sessions.reset", "operator", records.SessionParams, _reset),
        method("sessions.compact", "operator", records.SessionParams, _compact),
        method("sessions.delete", "operator", records.SessionParams, _delete),
        method("chat.inject", "operator", records.ChatInjectParams, _inject),
        method("runs.get", "viewer", records.RunsGetParams, _run),
        method("runs.wait", "viewer", records.RunsWaitParams, _wait),
        method("errors.list", "viewer", records.ErrorsListParams, _errors),
        method("errors.get", "viewer", records.ErrorsGetParams, _error),
        method("traces.list", "viewer", records.TracesListParams, _traces),
        method("traces.get", "viewer", records.TracesGetParams, _trace),
        method("config.get", "admin", wire.NoParams, _config),
        method("logs.tail", "admin", records.LogsTailParams, _logs),
        method("tokens.list", "admin", wire.NoParams, _tokens),
        method("tokens.new", "admin", records.TokensNewParams, _new_token),
        method("tokens.revoke", "admin", records.TokensRevokeParams, _revoke_token),
        method("users.delete", "admin", records.UsersDeleteParams, _delete_user),
        method("rooms.list", "viewer", rooms.RoomsListParams, _rooms),
        method("rooms.get", "viewer", rooms.RoomParams, _room),
        method("rooms.history", "viewer", rooms.RoomsHistoryParams, _room_history),
        method("rooms.create", "operator", rooms.RoomsCreateParams, _create_room),
        method("rooms.set", "operator", rooms.RoomsSetParams, _change_room),
        method("rooms.post", "operator", rooms.RoomsPostParams, _post),
        *(method(name, "operator", act, _act) for name, act in acts.ACTS.items()),
        method("rooms.invite", "operator", rooms.RoomsInviteParams, _invite),
        method("rooms.join", "operator", rooms.RoomsJoinParams, _join),
        method("rooms.export", "operator", rooms.RoomsExportParams, _export),
        method("rooms.delete", "operator", rooms.RoomParams, _delete_room),
        *(method(name, role, kind, _talk(act)) for name, (role, kind, act) in talk.TALK.items()),
        method("config.reload", "admin", records.ConfigReloadParams, _reload),
        method("actors.list", "admin", wire.NoParams, _actors),
    )
}


def allowed(role: Role) -> tuple[str, ...]:
    """The methods a role may call, by name."""
    return tuple(name for name, one in METHODS.items() if may(role, one.role))


async def call(caller: Caller, frame: wire.RequestFrame) -> Answer:
    """Carry out a request. Raises :class:`Refusal` for an unknown or a forbidden method."""
    found = METHODS.get(frame.method)
    if found is None:
        near = nearest(frame.method, tuple(METHODS))
        hint = f"did you mean {near}?" if near else f"there are {listing(tuple(METHODS), 20)}"
        raise Refusal("unknown_method", f"unknown method {frame.method!r}; {hint}")
    if not may(caller.principal.role, found.role):
        raise Refusal(
            "forbidden",
            f"{frame.method} is for role {found.role}, this token has {caller.principal.role}",
        )
    return await found.call(caller, frame.params)
