"""The methods of ``motet.v1`` about what a host has on record: see gateway.md, section 3."""

from __future__ import annotations

from typing import Final

from msgspec.structs import asdict, replace

from motet.actors.gateway.commands import Command, answer_command
from motet.actors.gateway.method import Answer, Caller, Method, fitting, method
from motet.protocols import gateway as wire_in_methods_stop
from motet.protocols import gateway_records as wire
from motet.protocols.gateway import NoParams
from motet.protocols.sessions import FINAL


async def _reset(caller: Caller, params: wire.SessionParams) -> Answer:
    await caller.api.reset(params.session, principal=caller.principal)
    return Answer(wire.SessionWasReset(params.session))


async def _compact(caller: Caller, params: wire.SessionParams) -> Answer:
    done = await caller.api.compact(params.session, principal=caller.principal)
    start, end = (None, None) if done is None else (done.start, done.end)
    return Answer(wire.SessionWasCompacted(params.session, start, end))


async def _delete(caller: Caller, params: wire.SessionParams) -> Answer:
    rows = await caller.api.delete(params.session, principal=caller.principal)
    return Answer(wire.SessionWasDeleted(params.session, rows))


async def _inject(caller: Caller, params: wire.ChatInjectParams) -> Answer:
    caller.spend_message()
    ack = await caller.api.inject(
        params.text,
        session=params.session,
        role=params.role,
        key=params.key,
        principal=caller.principal,
    )
    again = ack.status == "duplicate"
    return Answer(wire.Injected(ack.run_id, "duplicate" if again else "accepted"))


async def _run(caller: Caller, params: wire.RunsGetParams) -> Answer:
    return Answer(await caller.api.find_run(params.run_id, principal=caller.principal))


async def _wait(caller: Caller, params: wire.RunsWaitParams) -> Answer:
    run = await caller.api.wait_run(
        params.run_id, timeout=params.timeout_ms / 1000, principal=caller.principal
    )
    return Answer(wire.RunWaited(run.status in FINAL, run))


async def _errors(caller: Caller, params: wire.ErrorsListParams) -> Answer:
    found = await caller.api.errors(
        session=params.session,
        tool=params.tool,
        since=params.since,
        limit=params.limit,
        principal=caller.principal,
    )
    return Answer(wire.ErrorsList(tuple(map(wire.ErrorInfo.of, found))))


async def _error(caller: Caller, params: wire.ErrorsGetParams) -> Answer:
    return Answer(await caller.api.error(params.id, principal=caller.principal))


async def _traces(caller: Caller, params: wire.TracesListParams) -> Answer:
    found = await caller.api.traces(
        session=params.session,
        agent=params.agent,
        status=params.status,
        since=params.since,
        limit=params.limit,
        principal=caller.principal,
    )
    return Answer(wire.TracesList(found))


async def _trace(caller: Caller, params: wire.TracesGetParams) -> Answer:
    return Answer(await caller.api.trace(params.run_id, principal=caller.principal))


async def _config(caller: Caller, _params: NoParams) -> Answer:
    return Answer(caller.api.configuration())


async def _logs(caller: Caller, params: wire.LogsTailParams) -> Answer:
    lines = caller.api.log_tail(params.limit)
    new = tuple(line for line in lines if line.number > params.after)
    kept = tuple(reversed(fitting(tuple(reversed(new)))))
    return Answer(wire.LogsTail(kept))


async def _new_token(caller: Caller, params: wire.TokensNewParams) -> Answer:
    made = await caller.api.new_token(
        params.user,
        params.role,
        label=params.label,
        expires=params.expires,
        impersonate=params.impersonate,
    )
    return Answer(made)


async def _tokens(caller: Caller, _params: NoParams) -> Answer:
    return Answer(wire.TokensList(await caller.api.tokens()))


async def _revoke_token(caller: Caller, params: wire.TokensRevokeParams) -> Answer:
    return Answer(await caller.api.revoke_token(params.id))


RECORDS: Final[tuple[Method, ...]] = (
    method("sessions.reset", "operator", wire.SessionParams, _reset),
    method("sessions.compact", "operator", wire.SessionParams, _compact),
    method("sessions.delete", "operator", wire.SessionParams, _delete),
    method("chat.inject", "operator", wire.ChatInjectParams, _inject),
    method("runs.get", "viewer", wire.RunsGetParams, _run),
    method("runs.wait", "viewer", wire.RunsWaitParams, _wait),
    method("errors.list", "viewer", wire.ErrorsListParams, _errors),
    method("errors.get", "viewer", wire.ErrorsGetParams, _error),
    method("traces.list", "viewer", wire.TracesListParams, _traces),
    method("traces.get", "viewer", wire.TracesGetParams, _trace),
    method("config.get", "admin", NoParams, _config),
    method("logs.tail", "admin", wire.LogsTailParams, _logs),
    method("tokens.list", "admin", NoParams, _tokens),
    method("tokens.new", "admin", wire.TokensNewParams, _new_token),
    method("tokens.revoke", "admin", wire.TokensRevokeParams, _revoke_token),
)


# ``runs.stop``, and the commands of chat text: what has to get through when all else is stuck.
#
# Invariant: nothing here spends the user's messages, waits for a session's actor or, for a stop,
# for the disk.


async def command_answer(
    caller: Caller,
    session: str,
    command: Command,
    key: str,
    *,
    room: str = "",
    sender: str = "",
) -> Answer:
    """Carry out a command that was typed in a session, or in a room, once for its key."""

    async def work() -> wire_in_methods_stop.CommandAnswer:
        return await answer_command(
            caller.api, caller.principal, session, command, room=room, sender=sender
        )

    whose = (caller.principal.user, "rooms.post" if room else "chat.send", key)
    said = (session, room, sender, command)
    answer, again = await caller.once.do(whose, said, wire_in_methods_stop.CommandAnswer, work)
    return Answer(replace(answer, status="duplicate") if again else answer)


async def _stop(caller: Caller, params: wire_in_methods_stop.RunsStopParams) -> Answer:
    async def work() -> wire_in_methods_stop.Stopped:
        report = await caller.api.stop(
            run_id=params.run_id,
            session=params.session,
            room=params.room,
            everything=params.all,
            principal=caller.principal,
            grace=params.grace_ms / 1000,
        )
        return wire_in_methods_stop.Stopped(**asdict(report))

    whose = (caller.principal.user, "runs.stop", params.key)
    stopped, again = await caller.once.do(whose, params, wire_in_methods_stop.Stopped, work)
    return Answer(replace(stopped, status="duplicate") if again else stopped)


STOPS: Final[tuple[Method, ...]] = (
    method("runs.stop", "operator", wire_in_methods_stop.RunsStopParams, _stop),
)
