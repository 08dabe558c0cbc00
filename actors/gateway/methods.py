"""The methods of ``motet.v1``: for each its least role, its parameters and what it does.

Invariant: a handler is called only with parameters that were checked and by a principal whose
role suffices; what it raises becomes an error object in one place (failures.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
from msgspec.structs import asdict, replace

from motet.actors.gateway.auth import may
from motet.actors.gateway.commands import message_text, parse_command
from motet.actors.gateway.context import Context
from motet.actors.gateway.method import Answer, Caller, Method, Once, Refusal, fitting, method
from motet.actors.gateway.methods_records import RECORDS, STOPS, command_answer
from motet.actors.gateway.streams import Streams
from motet.protocols import (
    gateway as wire_in_methods,
)
from motet.protocols import (
    gateway_approvals as approvals,
)
from motet.protocols import (
    gateway_operations as wire_in_methods_operations,
)
from motet.protocols import (
    gateway_rooms as wire,
)
from motet.protocols.chat import AssistantMessage, ChatMessage, UserMessage
from motet.protocols.errors import InputValidation, listing, nearest
from motet.protocols.gateway import NoParams, StreamState
from motet.protocols.gateway_records import RunsResendParams
from motet.protocols.host import Expected, HostApi
from motet.protocols.policy import ToolsList, ToolsListParams
from motet.protocols.sessions import Ack, Principal, Role

# The methods of ``motet.v1`` about rooms: see gateway.md, section 3.


async def _list(caller: Caller, _params: NoParams) -> Answer:
    return Answer(wire.RoomsList(await caller.api.rooms.list(principal=caller.principal)))


async def _create(caller: Caller, params: wire.RoomsCreateParams) -> Answer:
    caller.spend_message()
    made = await caller.api.rooms.create(
        params.name, params.plan, people=params.people, principal=caller.principal
    )
    return Answer(made)


async def _set(caller: Caller, params: wire.RoomsSetParams) -> Answer:
    info = await caller.api.rooms.change(params.room, params, principal=caller.principal)
    return Answer(info)


async def _post(caller: Caller, params: wire.RoomsPostParams) -> Answer:
    command = parse_command(params.text)
    if command is not None:
        if not command.stops:
            await caller.api.rooms.get(params.room, principal=caller.principal)
        return await command_answer(caller, "", command, params.key, room=params.room)
    caller.spend_message()
    said = await caller.api.rooms.post(
        params.room, message_text(params.text), key=params.key, principal=caller.principal
    )
    return Answer(wire.Posted(said.seq, "duplicate" if said.duplicate else "accepted"))


async def _history(caller: Caller, params: wire.RoomsHistoryParams) -> Answer:
    found = await caller.api.rooms.history(
        params.room, before=params.before, limit=params.limit, principal=caller.principal
    )
    kept = tuple(reversed(fitting(tuple(reversed(found)))))
    before = kept[0].seq if kept and kept[0].seq > 1 else None
    return Answer(wire.RoomsHistory(params.room, kept, before))


ROOMS: Final[tuple[Method, ...]] = (
    method("rooms.list", "viewer", NoParams, _list),
    method("rooms.history", "viewer", wire.RoomsHistoryParams, _history),
    method("rooms.create", "operator", wire.RoomsCreateParams, _create),
    method("rooms.set", "operator", wire.RoomsSetParams, _set),
    method("rooms.post", "operator", wire.RoomsPostParams, _post),
)


# Whom a request is for: the user of its connection, or one of the people a bridge speaks for.
#
# Invariants: for a bridge it sees and does what that user would with a token of their own, never
# more than an operator (G16); their messages are counted as theirs.


@attrs.frozen
class Behalf:
    """The :class:`motet.actors.gateway.method.Caller` of one request.

    ``expected``: its input, as it was noted when the request was read.
    """

    principal: Principal
    _context: Context
    _streams: Streams
    expected: Expected | None = None

    @property
    def api(self) -> HostApi:
        return self._context.api

    @property
    def once(self) -> Once:
        return self._context.once

    def now(self) -> float:
        return self._context.now()

    def spend_message(self) -> None:
        self._context.spend_message(self.principal.user)

    async def subscribe(
        self, stream: str, after: int | None
    ) -> tuple[StreamState, Callable[[], None]]:
        return await self._streams.subscribe(stream, after, self.principal)

    def unsubscribe(self, stream: str) -> bool:
        return self._streams.unsubscribe(stream)


# The methods of ``motet.v1`` for who operates a host: see gateway.md, section 3.


async def _reload(caller: Caller, params: wire_in_methods_operations.ConfigReloadParams) -> Answer:
    if params.dry_run:
        return Answer(caller.api.plan_reload())
    return Answer(await caller.api.reload(expect_hash=params.expect_hash))


async def _actors(caller: Caller, _params: NoParams) -> Answer:
    return Answer(wire_in_methods_operations.ActorsList(caller.api.actors()))


OPERATIONS: Final[tuple[Method, ...]] = (
    method("config.reload", "admin", wire_in_methods_operations.ConfigReloadParams, _reload),
    method("actors.list", "admin", NoParams, _actors),
)


_PREVIEW: Final = 200
_COUNTED: Final = 200


def allowed(role: Role) -> tuple[str, ...]:
    """The methods a role may call, by name."""
    return tuple(name for name, one in METHODS.items() if may(role, one.role))


async def call(caller: Caller, frame: wire_in_methods.RequestFrame) -> Answer:
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


# -- handlers ----------------------------------------------------------------------------------


async def _connect(_caller: Caller, _params: wire_in_methods.ConnectParams) -> Answer:
    raise Refusal("invalid_params", "this connection is connected already")


async def _ping(caller: Caller, _params: wire_in_methods.NoParams) -> Answer:
    return Answer(wire_in_methods.Pong(caller.now()))


async def _status(caller: Caller, _params: wire_in_methods.NoParams) -> Answer:
    status, who = caller.api.status(), caller.principal
    if who.role == "admin":
        return Answer(status)
    # How much others do is theirs (G16).
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
    )
    return Answer(own)


async def _agents(caller: Caller, _params: wire_in_methods.NoParams) -> Answer:
    return Answer(wire_in_methods.AgentsList(caller.api.agents()))


async def _tools(caller: Caller, params: ToolsListParams) -> Answer:
    who = caller.principal
    if params.as_user not in (None, who.user) or params.role not in (None, who.role):
        if who.role != "admin":
            raise Refusal("forbidden", "what others may call, only an admin is told")
        who = Principal(params.as_user or who.user, params.role or "operator")
    tools = await caller.api.tools(params.agent, principal=who)
    return Answer(ToolsList(params.agent, who.user, who.role, tools))


async def _send(caller: Caller, params: wire_in_methods.ChatSendParams) -> Answer:
    command = parse_command(params.text)
    if command is not None:
        return await command_answer(
            caller, params.session, command, params.key, sender=params.sender
        )
    text = message_text(params.text)
    if not text.strip():
        raise InputValidation("`text` is empty")
    caller.spend_message()
    ack = await caller.api.submit(
        text,
        session=params.session,
        agent=params.agent,
        mode=params.mode or caller.api.queue_mode(params.session),
        sender=params.sender,
        principal=caller.principal,
        key=params.key,
        expected=caller.expected,
    )
    return await _sent(caller, params.session, ack)


async def _resend(caller: Caller, params: RunsResendParams) -> Answer:
    caller.spend_message()
    ack = await caller.api.resend(params.run_id, principal=caller.principal)
    run = await caller.api.find_run(ack.run_id, principal=caller.principal)
    return await _sent(caller, run.session, ack)


async def _sent(caller: Caller, session: str, ack: Ack) -> Answer:
    seq = await caller.api.events.input(f"session:{session}", ack.run_id)
    return Answer(wire_in_methods.Sent(ack.run_id, ack.status, ack.position, seq))


async def _subscribe(caller: Caller, params: wire_in_methods.SubscribeParams) -> Answer:
    state, start = await caller.subscribe(params.stream, params.after)
    return Answer(state, start)


async def _unsubscribe(caller: Caller, params: wire_in_methods.UnsubscribeParams) -> Answer:
    return Answer(wire_in_methods.Unsubscribed(params.stream, caller.unsubscribe(params.stream)))


async def _sessions(caller: Caller, params: wire_in_methods.SessionsListParams) -> Answer:
    found = await caller.api.sessions(
        limit=params.limit, cursor=params.cursor, principal=caller.principal
    )
    cursor = found[-1].updated if len(found) == params.limit else None
    return Answer(wire_in_methods.SessionsList(found, cursor))


async def _history_of_methods(
    caller: Caller, params: wire_in_methods.SessionsHistoryParams
) -> Answer:
    rows = await caller.api.history(
        params.session, before=params.before, limit=params.limit, principal=caller.principal
    )
    kept = tuple(reversed(fitting(tuple(reversed(rows)))))
    before = kept[0].pos if kept and kept[0].pos > 1 else None
    shown = tuple(row for row in kept if not _is_silent(row.row))
    return Answer(wire_in_methods.SessionsHistory(params.session, shown, before))


def _is_silent(row: ChatMessage) -> bool:
    """A row that is stored and shown to nobody: an answer by which the agent said that it has none,
    or that had to be repaired, and what the model was told of that.
    """
    return (isinstance(row, AssistantMessage) and row.note == "silent") or (
        isinstance(row, UserMessage) and row.note == "hint"
    )


async def _runs(caller: Caller, params: wire_in_methods.RunsListParams) -> Answer:
    runs = await caller.api.runs(
        session=params.session,
        status=params.status,
        limit=params.limit,
        principal=caller.principal,
    )
    short = (replace(run, text=run.text[:_PREVIEW]) for run in runs)
    return Answer(wire_in_methods.RunsList(tuple(short)))


async def _escalations(caller: Caller, params: wire_in_methods.EscalationsListParams) -> Answer:
    found = await caller.api.escalations(
        session=params.session,
        state=params.state,
        limit=params.limit,
        principal=caller.principal,
    )
    return Answer(wire_in_methods.EscalationsList(found))


async def _resolve(caller: Caller, params: wire_in_methods.EscalationsResolveParams) -> Answer:
    info = await caller.api.resolve(
        params.escalation, params.decision, note=params.note, principal=caller.principal
    )
    return Answer(info)


async def _approvals(caller: Caller, params: approvals.ApprovalsListParams) -> Answer:
    found = await caller.api.approvals(
        session=params.session,
        room=params.room,
        state=params.state,
        limit=params.limit,
        principal=caller.principal,
    )
    return Answer(approvals.ApprovalsList(tuple(fitting(found))))


async def _approve(caller: Caller, params: approvals.ApprovalsResolveParams) -> Answer:
    async def work() -> approvals.Resolved:
        info = await caller.api.approve(
            params.id, params.decision, note=params.note, principal=caller.principal
        )
        return approvals.Resolved(**asdict(info))

    whose = (caller.principal.user, "approvals.resolve", params.key)
    resolved, again = await caller.once.do(whose, params, approvals.Resolved, work)
    return Answer(replace(resolved, status="duplicate") if again else resolved)


async def _grants(caller: Caller, params: approvals.ApprovalsGrantsParams) -> Answer:
    found = await caller.api.grants(agent=params.agent, principal=caller.principal)
    return Answer(approvals.GrantsList(found))


async def _revoke(caller: Caller, params: approvals.ApprovalsRevokeParams) -> Answer:
    await caller.api.revoke(params.grant, principal=caller.principal)
    return Answer(approvals.Revoked(params.grant))


METHODS: Final[dict[str, Method]] = {
    one.name: one
    for one in (
        method("connect", "viewer", wire_in_methods.ConnectParams, _connect),
        method("ping", "viewer", wire_in_methods.NoParams, _ping),
        method("status", "viewer", wire_in_methods.NoParams, _status),
        method("agents.list", "viewer", wire_in_methods.NoParams, _agents),
        method("tools.list", "viewer", ToolsListParams, _tools),
        method("chat.send", "operator", wire_in_methods.ChatSendParams, _send),
        method("subscribe", "viewer", wire_in_methods.SubscribeParams, _subscribe),
        method("unsubscribe", "viewer", wire_in_methods.UnsubscribeParams, _unsubscribe),
        method("sessions.list", "viewer", wire_in_methods.SessionsListParams, _sessions),
        method(
            "sessions.history", "viewer", wire_in_methods.SessionsHistoryParams, _history_of_methods
        ),
        method("runs.list", "viewer", wire_in_methods.RunsListParams, _runs),
        *STOPS,
        method("runs.resend", "operator", RunsResendParams, _resend),
        method("escalations.list", "viewer", wire_in_methods.EscalationsListParams, _escalations),
        method(
            "escalations.resolve", "operator", wire_in_methods.EscalationsResolveParams, _resolve
        ),
        method("approvals.list", "viewer", approvals.ApprovalsListParams, _approvals),
        method("approvals.resolve", "operator", approvals.ApprovalsResolveParams, _approve),
        method("approvals.grants", "viewer", approvals.ApprovalsGrantsParams, _grants),
        method("approvals.revoke", "operator", approvals.ApprovalsRevokeParams, _revoke),
        *RECORDS,
        *ROOMS,
        *OPERATIONS,
    )
}
