"""Commands typed as chat text, carried out on the host.

Invariants: a command makes no run, and acts for the principal only (G16); the answer to an
escalation starts one, as it does elsewhere. A stop reads nothing from the disk, and its answer
comes when the runs have ended, or names those that have not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import attrs
import trio
from msgspec import UNSET, UnsetType

from motet.actors.gateway.talk import ROOM_COMMANDS
from motet.protocols.approvals import ApprovalInfo
from motet.protocols.command_texts import (
    activation_text,
    agents_text,
    answer_wanted,
    approval_wanted,
    compacted_text,
    errors_text,
    mode_text,
    model_text,
    queue_text,
    room_text,
    status_text,
    stop_text,
    usage_text,
    who_text,
)
from motet.protocols.commands import Command, help_text, problem_with
from motet.protocols.errors import ConfigError, Forbidden, InputValidation, NotFound, UnknownName
from motet.protocols.gateway import CommandAnswer
from motet.protocols.host import HostApi
from motet.protocols.host_rooms import RoomInfo
from motet.protocols.queueing import MODES, QueueMode
from motet.protocols.rooms import ACTIVATIONS, Activation, RoomChange
from motet.protocols.session_keys import is_group
from motet.protocols.sessions import Principal, RunInfo, RunStatus, StopReport
from motet.runtime.outside import wall_time

_SHOWN: Final = 10
_COUNTED: Final = 200
STORE_SECONDS: Final = 10.0
"""Time in which the stores have to answer, so that no command waits for ever on a stuck disk."""
_LIVE: Final[tuple[RunStatus, ...]] = ("running", "waiting", "queued")
OWN: Final = "default"
"""The name that stands for the agent's own model."""
NOTHING_YET: Final = "Nothing was said here yet."
SAY_FIRST: Final = "Say something first; then it can be set."


@attrs.frozen
class Invocation:
    """The session, or the room, of a command, and its author.

    ``sender``: the author, in a group for which the principal speaks.
    """

    api: HostApi
    principal: Principal
    session: str
    room: str
    sender: str
    argument: str

    @property
    def name(self) -> str:
        return f"the room {self.room}" if self.room else self.session

    async def agent(self) -> str | None:
        """The agent of the session; None: it has none yet."""
        try:
            return (await self.api.session(self.session, principal=self.principal)).agent
        except NotFound:
            return None


@attrs.frozen
class GoesOn:
    """A reply after which a run goes on."""

    text: str
    run_id: str


Reply: TypeAlias = str | StopReport | GoesOn


async def answer_command(
    api: HostApi,
    principal: Principal,
    session: str,
    command: Command,
    *,
    room: str = "",
    sender: str = "",
) -> CommandAnswer:
    """Carry out a command in a session or a room. Raises the errors of the host.

    ``sender``: the author, in a group for which the principal speaks.
    """
    problem = problem_with(command)
    if problem is None and room and command.name in _SESSIONS_ONLY:
        problem = f"Nothing was done: /{command.name} is about a session, and this is a room."
    if problem is None and not room and command.name in _ROOMS_ONLY:
        problem = f"Nothing was done: /{command.name} is about a room, and this is a session."
    if problem is not None:
        return _answer(command, problem)
    sender = sender if is_group(session) else ""
    call = Invocation(api, principal, session, room, sender, command.argument)
    seconds = float("inf") if command.name in _UNBOUNDED else STORE_SECONDS
    with trio.move_on_after(seconds):
        reply = await _reply(call, command)
        if isinstance(reply, StopReport):
            return _answer(command, stop_text(reply), reply)
        if isinstance(reply, GoesOn):
            return CommandAnswer(command=command.name, text=reply.text, run_id=reply.run_id)
        return _answer(command, reply)
    late = f"The stores of the host have not answered /{command.name} in {STORE_SECONDS:.0f} s."
    return _answer(command, f"{late} /stop works all the same.")


async def _reply(call: Invocation, command: Command) -> Reply:
    try:
        if command.name in ROOM_COMMANDS:
            act = ROOM_COMMANDS[command.name]
            return await act(call.api.rooms, call.principal, call.room, call.argument)
        return await _HANDLERS[command.name](call)
    except NotFound:
        if call.room and command.name in ("errors", "usage"):
            return f"Nothing was done: /{command.name} of a room is for its owner."
        if command.name in _ACTS or command.name in ROOM_COMMANDS:
            raise
        return f"{NOTHING_YET} {SAY_FIRST}" if call.argument else NOTHING_YET


def _answer(command: Command, text: str, report: StopReport | UnsetType = UNSET) -> CommandAnswer:
    return CommandAnswer(command=command.name, text=text, report=report)


async def _help(_: Invocation) -> Reply:
    return help_text()


async def _stop(call: Invocation) -> Reply:
    api, principal = call.api, call.principal
    try:
        if call.argument.startswith("run_"):
            return await api.stop(run_id=call.argument, principal=principal)
        if call.room:
            return await api.stop(room=call.room, principal=principal)
        return await api.stop(
            session=call.session, newest=True, sender=call.sender, principal=principal
        )
    except Forbidden as error:
        return f"Nothing was stopped: {error}"
    except NotFound:
        # It has ended meanwhile, or is another user's: there is nothing to stop.
        return StopReport()


async def _stop_all(call: Invocation) -> Reply:
    api, principal = call.api, call.principal
    if call.sender:  # Inputs of others in the group are not the sender's to stop.
        return await api.stop(session=call.session, sender=call.sender, principal=principal)
    return await api.stop(everything=True, principal=principal)


async def _new(call: Invocation) -> Reply:
    await call.api.reset(call.session, principal=call.principal)
    return "The model starts from an empty history; the transcript stays."


async def _status(call: Invocation) -> Reply:
    api, principal = call.api, call.principal
    if call.room:
        return room_text(await api.rooms.get(call.room, principal=principal), wall_time())
    info = await api.session(call.session, principal=principal)
    return status_text(info, await _runs(call, *_LIVE))


async def _runs(call: Invocation, *statuses: RunStatus) -> list[RunInfo]:
    """The runs of the session with these statuses, oldest first."""
    found: list[RunInfo] = []
    for status in statuses:
        runs = await call.api.runs(
            session=call.session, status=status, limit=_SHOWN, principal=call.principal
        )
        found += reversed(runs)
    return found


async def _queue(call: Invocation) -> Reply:
    api, wanted = call.api, call.argument.lower()
    known: dict[str, QueueMode] = {one: one for one in MODES}
    mode = known.get(wanted)
    if wanted and mode is None:
        return f"{wanted!r} is not a mode: {', '.join(MODES)}"
    if call.room:
        change = None if mode is None else RoomChange(mode=mode)
        return await _room_setting(call, change, lambda room: mode_text(room, mode))
    if mode is not None:
        await api.set_queue(call.session, mode, principal=call.principal)
    mode = api.queue_mode(call.session, principal=call.principal)
    return queue_text(mode, await _runs(call, "queued"))


async def _room_setting(
    call: Invocation, change: RoomChange | None, text: Callable[[RoomInfo], str]
) -> Reply:
    rooms, principal = call.api.rooms, call.principal
    if change is None:
        return text(await rooms.get(call.room, principal=principal))
    try:
        return text(await rooms.change(call.room, change, principal=principal))
    except (ConfigError, NotFound) as error:
        return f"Nothing was changed: {error}"


async def _activation(call: Invocation) -> Reply:
    wanted = call.argument.lower()
    known: dict[str, Activation | None] = {one: one for one in ACTIVATIONS}
    known[OWN] = None
    if not wanted or wanted in known:
        change = RoomChange(activation=known[wanted]) if wanted else None
        return await _room_setting(call, change, lambda room: activation_text(room, wanted))
    return f"{wanted!r} is no activation: {', '.join(known)}"


async def _model(call: Invocation) -> Reply:
    api, wanted, session = call.api, call.argument, call.session
    if wanted:
        try:
            chosen = None if wanted == OWN else wanted
            await api.set_model(session, chosen, principal=call.principal)
        except UnknownName as error:
            return f"Nothing was changed: {error}"
    agents = api.agents()
    agent = await call.agent() or (agents[0].name if agents else "")
    chosen = api.session_model(session, principal=call.principal)
    return model_text(agent, agents, chosen, () if wanted else api.models())


async def _compact(call: Invocation) -> Reply:
    return compacted_text(await call.api.compact(call.session, principal=call.principal))


async def _approve(call: Invocation) -> Reply:
    """Answer the approval that is named, or the only one that is pending here."""
    api, principal = call.api, call.principal
    try:
        pending = await _pending(call)
    except NotFound:
        return "Only the owner of this room or an admin can answer approvals here."
    wanted = approval_wanted(call.argument, pending)
    if isinstance(wanted, str):
        return wanted
    info = await api.approve(*wanted[:2], note=wanted[2], principal=principal)
    blocked = f"; {info.blocked}" if info.blocked else ""
    return f"{info.tool}: {info.state}{blocked}"


async def _pending(call: Invocation) -> tuple[ApprovalInfo, ...]:
    """The pending approvals of the session or the room."""
    api, principal = call.api, call.principal
    if call.room:
        return await api.approvals(room=call.room, state="pending", principal=principal)
    return await api.approvals(session=call.session, state="pending", principal=principal)


async def _resolve(call: Invocation) -> Reply:
    """Answer the escalation that is named, or the only one that is open here."""
    api, principal, room = call.api, call.principal, call.room or None
    here = None if room else call.session
    try:
        found = await api.escalations(session=here, room=room, state="open", principal=principal)
    except NotFound:
        return "What failed here, the owner of the room and admins decide."
    wanted = answer_wanted(call.argument, found)
    if isinstance(wanted, str):
        return wanted
    try:
        info = await api.resolve(*wanted[:2], note=wanted[2], principal=principal)
    except InputValidation as error:
        return f"Nothing was done: {error}"
    run, reply = info.next_run, f"{info.id}: {info.decision}"
    return GoesOn(f"{reply}, {run} goes on", run) if run else reply


async def _errors(call: Invocation) -> Reply:
    api, where, room = call.api, None if call.room else call.session, call.room or None
    found = await api.errors(session=where, limit=_SHOWN, room=room, principal=call.principal)
    return errors_text(found)


async def _usage(call: Invocation) -> Reply:
    api, where, room = call.api, None if call.room else call.session, call.room or None
    found = await api.traces(session=where, limit=_COUNTED, room=room, principal=call.principal)
    return usage_text(found)


async def _agents(call: Invocation) -> Reply:
    return agents_text(call.api.agents())


async def _delete_room(call: Invocation) -> Reply:
    if call.argument != call.room:
        return f"Nothing was deleted. To delete this room and all in it: /deleteroom {call.room}"
    await call.api.delete_room(call.room, principal=call.principal)
    return "The room is deleted."  # kept for a resend, and no row may name the room


async def _join(call: Invocation) -> Reply:
    room = await call.api.rooms.join(call.argument, principal=call.principal)
    return f"You are in the room {room.name}."


async def _who(call: Invocation) -> Reply:
    agent = None if call.room else await call.agent()
    return who_text(call.principal, call.name, agent)


_HANDLERS: Final[dict[str, Callable[[Invocation], Awaitable[Reply]]]] = {
    "help": _help, "status": _status, "stop": _stop, "stopall": _stop_all, "new": _new,
    "queue": _queue, "activation": _activation, "model": _model, "compact": _compact,
    "approve": _approve, "resolve": _resolve, "errors": _errors, "usage": _usage,
    "agents": _agents, "who": _who, "deleteroom": _delete_room, "join": _join,
}  # fmt: skip
# A stop has a bound of its own, and a summary takes the time of a model.
_UNBOUNDED: Final = frozenset({"stop", "stopall", "compact", "deleteroom"})
_ACTS: Final = frozenset(
    {"new", "compact", "approve", "resolve", "deleteroom", "join", *ROOM_COMMANDS}
)
_ROOMS_ONLY: Final = frozenset({"activation", "deleteroom", *ROOM_COMMANDS})
_SESSIONS_ONLY: Final = frozenset({"new", "model", "compact"})
