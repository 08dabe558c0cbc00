"""Commands in chat text: what is for the host and not for the model. Pure.

Invariants: a text is either one command or a text for the model, never both, and nothing that was
said is swallowed: only a word that stands alone is a command without a slash, and ``//`` at its
start escapes a text that would be taken for one.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, get_args

import attrs
import msgspec
import trio
from msgspec import UNSET, UnsetType

from motet.actors.gateway.command_texts import (
    agents_text,
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
from motet.protocols.approvals import ApprovalDecision, ApprovalInfo
from motet.protocols.errors import ConfigError, NotFound, UnknownName, nearest
from motet.protocols.gateway import CommandAnswer
from motet.protocols.host import HostApi
from motet.protocols.queueing import MODES, QueueMode
from motet.protocols.rooms import RoomChange
from motet.protocols.session_keys import is_group
from motet.protocols.sessions import Principal, RunInfo, RunStatus, StopReport


class Command(msgspec.Struct, frozen=True):
    """A command as it was typed. ``known`` is false for a name that nobody has."""

    name: str
    argument: str = ""
    known: bool = True

    @property
    def stops(self) -> bool:
        """Whether it has to get through when everything else is stuck."""
        return self.name in _STOPS


COMMANDS: Final[dict[str, str]] = {
    "help": "what can be typed here",
    "status": "what goes on here",
    "stop": "end your newest run here: /stop [RUN]; `stop`, `abort` or `esc` alone do it too",
    "stopall": "end all that you have going, in every session, with its queue and sub-agents",
    "new": "begin anew: the model forgets what was said, the transcript stays",
    "queue": "what waits here, and what becomes of a message during a run: /queue [MODE]",
    "model": "which model answers here; /model NAME sets another, /model default the agent's own",
    "compact": "summarise what was said, so that the model has room; the transcript stays",
    "approve": "answer what waits: /approve [ID] allow-once, allow-always or deny [why]",
    "errors": "the last errors of tools here",
    "usage": "what the last runs here have used",
    "agents": "the agents of this host",
    "who": "who you are here",
}
_STOPS: Final = frozenset({"stop", "stopall"})
_WITHOUT_ARGUMENT: Final = frozenset({"new"})
_BARE_STOPS: Final = frozenset({"stop", "abort", "esc"})
# A path such as /usr/bin is no command: a name ends at white space or the end of the text.
_SLASH: Final = re.compile(r"/([A-Za-z][A-Za-z0-9_-]*)(?:\s+(.*))?", re.DOTALL)


def parse_command(text: str) -> Command | None:
    """The command a text is, or None for a text that goes to the model."""
    stripped = text.strip()
    if is_bare_stop(stripped):
        return Command("stop")
    found = _SLASH.fullmatch(stripped)
    if found is None:
        return None
    name, argument = found[1].lower(), (found[2] or "").strip()
    if name == "stop" and argument.lower() == "all":
        return Command("stopall")
    return Command(name, argument, known=name in COMMANDS)


def is_bare_stop(text: str) -> bool:
    """Whether it is a word that stands for ``/stop`` when nothing else is said."""
    return text.strip().rstrip(".!").rstrip().lower() in _BARE_STOPS


def message_text(text: str) -> str:
    """The text as the model is to read it: an escaped ``//text`` becomes ``/text``."""
    stripped = text.lstrip()
    return stripped[1:] if stripped.startswith("//") else text


def help_text() -> str:
    """All commands, a line each."""
    lines = [f"/{name}: {what}" for name, what in COMMANDS.items()]
    return "\n".join([*lines, "To send a text that begins with a slash, double it: //text"])


def complaint(command: Command) -> str | None:
    """Why a command cannot be carried out, or None when it can."""
    if not command.known:
        near = nearest(command.name, tuple(COMMANDS))
        hint = f"did you mean /{near}?" if near else "/help lists the commands."
        return (
            f"There is no command /{command.name}; {hint} "
            f"To send it as a text, double the slash: //{command.name}"
        )
    if command.argument and command.name in _WITHOUT_ARGUMENT:
        return (
            f"Nothing was done: /{command.name} stands alone. "
            f"Send /{command.name}, then the text as the next message."
        )
    return None


# What the host does and says for a command typed as chat text, wherever it was typed.
#
# Invariants: no run comes of a command; it acts for the principal only (G16); a stop reads nothing
# from the disk, and its answer is given when the runs have ended, or names those that have not.


_SHOWN: Final = 10
_COUNTED: Final = 200
PATIENCE: Final = 10.0
"""Seconds in which the stores have to answer, so that nobody waits for ever on a stuck disk."""
_LIVE: Final[tuple[RunStatus, ...]] = ("running", "waiting", "queued")
OWN: Final = "default"
"""In place of a model's name: the agent's own."""
NOTHING_YET: Final = "Nothing was said here yet."
SAY_FIRST: Final = "Say something first; then it can be set."


@attrs.frozen
class Asked:
    """A command, who has typed it, and where: in a session, or in a room.

    ``sender``: who it is, in a group whose session the principal keeps.
    """

    api: HostApi
    principal: Principal
    session: str
    room: str
    sender: str
    argument: str

    @property
    def place(self) -> str:
        return f"the room {self.room}" if self.room else self.session

    async def agent(self) -> str | None:
        """The agent that answers here; None: nobody has yet."""
        try:
            return (await self.api.session(self.session, principal=self.principal)).agent
        except NotFound:
            return None


Reply: TypeAlias = str | StopReport


async def answer_command(
    api: HostApi,
    principal: Principal,
    session: str,
    command: Command,
    *,
    room: str = "",
    sender: str = "",
) -> CommandAnswer:
    """Carry out a command for a session, or for a room. Raises what the host raises.

    ``sender``: who typed it, of several people for whom the principal speaks.
    """
    trouble = complaint(command)
    if trouble is None and room and command.name in _SESSIONS_ONLY:
        trouble = f"Nothing was done: /{command.name} is about a session, and this is a room."
    if trouble is not None:
        return _answer(command, trouble)
    sender = sender if is_group(session) else ""
    asked = Asked(api, principal, session, room, sender, command.argument)
    patience = float("inf") if command.name in _UNBOUNDED else PATIENCE
    with trio.move_on_after(patience):
        reply = await _reply(asked, command)
        if isinstance(reply, StopReport):
            return _answer(command, stop_text(reply), reply)
        return _answer(command, reply)
    late = f"The stores of the host have not answered /{command.name} in {PATIENCE:.0f} s."
    return _answer(command, f"{late} /stop works all the same.")


async def _reply(asked: Asked, command: Command) -> Reply:
    try:
        return await _HANDLERS[command.name](asked)
    except NotFound:
        if command.name in _ACTS:
            raise
        return f"{NOTHING_YET} {SAY_FIRST}" if asked.argument else NOTHING_YET


def _answer(command: Command, text: str, report: StopReport | UnsetType = UNSET) -> CommandAnswer:
    return CommandAnswer(command=command.name, text=text, report=report)


async def _help(_: Asked) -> Reply:
    return help_text()


async def _stop(asked: Asked) -> Reply:
    api, principal = asked.api, asked.principal
    try:
        if asked.argument.startswith("run_"):
            return await api.stop(run_id=asked.argument, principal=principal)
        if asked.room:
            return await api.stop(room=asked.room, principal=principal)
        return await api.stop(
            session=asked.session, newest=True, sender=asked.sender, principal=principal
        )
    except NotFound:
        # It has ended meanwhile, or is somebody else's: there is nothing of theirs to stop.
        return StopReport()


async def _stop_all(asked: Asked) -> Reply:
    if asked.sender:  # What others have said in the group is not theirs to stop.
        return await asked.api.stop(
            session=asked.session, sender=asked.sender, principal=asked.principal
        )
    return await asked.api.stop(everything=True, principal=asked.principal)


async def _new(asked: Asked) -> Reply:
    await asked.api.reset(asked.session, principal=asked.principal)
    return "A new beginning: the model does not see what was said."


async def _status(asked: Asked) -> Reply:
    api, principal = asked.api, asked.principal
    if asked.room:
        return room_text(await api.rooms.get(asked.room, principal=principal))
    info = await api.session(asked.session, principal=principal)
    return status_text(info, await _runs(asked, *_LIVE))


async def _runs(asked: Asked, *statuses: RunStatus) -> list[RunInfo]:
    """Those of the session, in the order in which they came."""
    found: list[RunInfo] = []
    for status in statuses:
        runs = await asked.api.runs(
            session=asked.session, status=status, limit=_SHOWN, principal=asked.principal
        )
        found += reversed(runs)
    return found


async def _queue(asked: Asked) -> Reply:
    api, wanted = asked.api, asked.argument.lower()
    known: dict[str, QueueMode] = {one: one for one in MODES}
    mode = known.get(wanted)
    if wanted and mode is None:
        return f"{wanted!r} is no mode: {', '.join(MODES)}"
    if asked.room:
        return await _room_mode(asked, mode)
    if mode is not None:
        await api.set_queue(asked.session, mode, principal=asked.principal)
    return queue_text(api.queue_mode(asked.session), await _runs(asked, "queued"))


async def _room_mode(asked: Asked, mode: QueueMode | None) -> Reply:
    rooms, principal = asked.api.rooms, asked.principal
    if mode is None:
        return mode_text(await rooms.get(asked.room, principal=principal))
    try:
        return mode_text(
            await rooms.change(asked.room, RoomChange(mode=mode), principal=principal), mode
        )
    except (ConfigError, NotFound) as error:
        return f"Nothing was changed: {error}"


async def _model(asked: Asked) -> Reply:
    api, wanted, session = asked.api, asked.argument, asked.session
    if wanted:
        try:
            await api.set_model(
                session, None if wanted == OWN else wanted, principal=asked.principal
            )
        except UnknownName as error:
            return f"Nothing was changed: {error}"
    agents = api.agents()
    agent = await asked.agent() or (agents[0].name if agents else "")
    chosen = api.session_model(session)
    return model_text(agent, agents, chosen, () if wanted else api.models())


async def _compact(asked: Asked) -> Reply:
    return compacted_text(await asked.api.compact(asked.session, principal=asked.principal))


async def _approve(asked: Asked) -> Reply:
    """Answer the approval that is named, or the only one that waits in the session."""
    api, principal = asked.api, asked.principal
    try:
        pending = await _asked_for(asked)
    except NotFound:
        return "What is asked for here, the owner of the room and admins answer."
    words = asked.argument.split(None, 2)
    if words and words[0] in get_args(ApprovalDecision):
        words.insert(0, pending[0].id if len(pending) == 1 else "")
    waiting = "\n".join(f"{one.id}: {one.tool}, {one.reason}" for one in reversed(pending))
    if len(words) < 2 or not words[0]:
        how = "Say which and how: /approve ID allow-once, allow-always or deny."
        return f"{waiting}\n{how}" if waiting else "Nothing waits for an approval here."
    decision = next((one for one in get_args(ApprovalDecision) if one == words[1]), None)
    if decision is None:
        return f"{words[1]!r} is no answer: {', '.join(get_args(ApprovalDecision))}"
    note = " ".join(words[2:])
    info = await api.approve(words[0], decision, note=note, principal=principal)
    blocked = f"; {info.blocked}" if info.blocked else ""
    return f"{info.tool}: {info.state}{blocked}"


async def _asked_for(asked: Asked) -> tuple[ApprovalInfo, ...]:
    """What waits for an approval in the session or the room."""
    api, principal = asked.api, asked.principal
    if asked.room:
        return await api.approvals(room=asked.room, state="pending", principal=principal)
    return await api.approvals(session=asked.session, state="pending", principal=principal)


async def _errors(asked: Asked) -> Reply:
    api, principal = asked.api, asked.principal
    return errors_text(await api.errors(session=asked.session, limit=_SHOWN, principal=principal))


async def _usage(asked: Asked) -> Reply:
    api, principal = asked.api, asked.principal
    return usage_text(await api.traces(session=asked.session, limit=_COUNTED, principal=principal))


async def _agents(asked: Asked) -> Reply:
    return agents_text(asked.api.agents())


async def _who(asked: Asked) -> Reply:
    agent = None if asked.room else await asked.agent()
    return who_text(asked.principal, asked.place, agent)


_HANDLERS: Final[dict[str, Callable[[Asked], Awaitable[Reply]]]] = {
    "help": _help,
    "status": _status,
    "stop": _stop,
    "stopall": _stop_all,
    "new": _new,
    "queue": _queue,
    "model": _model,
    "compact": _compact,
    "approve": _approve,
    "errors": _errors,
    "usage": _usage,
    "agents": _agents,
    "who": _who,
}
# A stop has a bound of its own, and a summary takes the time of a model.
_UNBOUNDED: Final = frozenset({"stop", "stopall", "compact"})
_ACTS: Final = frozenset({"new", "compact", "approve"})
_SESSIONS_ONLY: Final = frozenset({"new", "model", "compact", "errors", "usage"})
