"""What the host does and says for a command typed as chat text.

Invariant: no run comes of a command; it acts for the principal only (G16).
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, UnsetType

from motet.actors.gateway.commands import Command, complaint, help_text
from motet.protocols.errors import NotFound
from motet.protocols.gateway import CommandAnswer
from motet.protocols.host import HostApi
from motet.protocols.sessions import Principal, RunInfo, StopReport

_SHOWN: Final = 10


async def answer_command(
    api: HostApi, principal: Principal, session: str, command: Command
) -> CommandAnswer:
    """Carry out a command for a session. Raises what the host raises."""
    trouble = complaint(command)
    if trouble is not None:
        return _answer(command, trouble)
    match command.name:
        case "stop":
            report = await _stop_session(api, principal, session)
            return _answer(command, stop_text(report), report)
        case "stopall":
            report = await api.stop(everything=True, principal=principal)
            return _answer(command, stop_text(report), report)
        case "new":
            await api.reset(session, principal=principal)
            return _answer(command, "A new beginning: the model does not see what was said.")
        case "status":
            return _answer(command, await _status_text(api, principal, session))
        case _:
            return _answer(command, help_text())


def _answer(command: Command, text: str, report: StopReport | UnsetType = UNSET) -> CommandAnswer:
    return CommandAnswer(command=command.name, text=text, report=report)


async def _stop_session(api: HostApi, principal: Principal, session: str) -> StopReport:
    try:
        return await api.stop(session=session, principal=principal)
    except NotFound:
        # Nothing was ever said here, or not by this user: there is nothing of theirs to stop.
        return StopReport()


def stop_text(report: StopReport) -> str:
    """A stop in words."""
    parts = [
        f"{len(ids)} {what}"
        for ids, what in (
            (report.stopped, "stopped"),
            (report.already_stopping, "already stopping"),
            (report.dropped_inputs, "dropped from the queue"),
            (report.still_running, "still cleaning up: " + ", ".join(report.still_running)),
        )
        if ids
    ]
    return "; ".join(parts) if parts else "Nothing was running."


async def _status_text(api: HostApi, principal: Principal, session: str) -> str:
    try:
        info = await api.session(session, principal=principal)
    except NotFound:
        return "Nothing was said here yet."
    running = await api.runs(session=session, status="running", limit=_SHOWN, principal=principal)
    queued = await api.runs(session=session, status="queued", limit=_SHOWN, principal=principal)
    head = f"{session}: agent {info.agent}, {info.rows} rows"
    lines = [_run_line(run) for run in (*running, *queued)]
    return "\n".join([head, *(lines or ["No run."])])


def _run_line(run: RunInfo) -> str:
    return f"{run.status} {run.run_id}: {run.text[:60]}"
