"""``runs.stop``, and the commands of chat text: what has to get through when all else is stuck.

Invariant: nothing here spends the user's messages, waits for a session's actor or, for a stop, for
the disk.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import asdict, replace

from motet.actors.commands.answers import answer_command
from motet.actors.commands.parse import Command
from motet.actors.gateway.method import Answer, Caller, Method, method
from motet.protocols import gateway as wire


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

    async def work() -> wire.CommandAnswer:
        return await answer_command(
            caller.api, caller.principal, session, command, room=room, sender=sender
        )

    whose = (caller.principal.user, "rooms.post" if room else "chat.send", key)
    said = (session, room, sender, command)
    answer, again = await caller.once.do(whose, said, wire.CommandAnswer, work)
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

    whose = (caller.principal.user, "runs.stop", params.key)
    stopped, again = await caller.once.do(whose, params, wire.Stopped, work)
    return Answer(replace(stopped, status="duplicate") if again else stopped)


STOPS: Final[tuple[Method, ...]] = (method("runs.stop", "operator", wire.RunsStopParams, _stop),)
