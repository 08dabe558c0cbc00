"""What the host does and says for a command typed as chat text.

Invariant: no run comes of a command; it acts for the principal only (G16).
"""

from __future__ import annotations

from typing import Final, get_args

from msgspec import UNSET, UnsetType

from motet.actors.gateway.commands import Command, complaint, help_text
from motet.protocols.approvals import ApprovalDecision
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
        case "approve":
            return _answer(command, await _approve(api, principal, session, command.argument))
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


async def _approve(api: HostApi, principal: Principal, session: str, argument: str) -> str:
    """Answer the approval that is named, or the only one that waits in the session."""
    pending = await api.approvals(session=session, state="pending", principal=principal)
    words = argument.split(None, 2)
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
    told = "; ".join(parts) if parts else "Nothing was running."
    return "\n".join([told, *report.held_by])


async def _status_text(api: HostApi, principal: Principal, session: str) -> str:
    try:
        info = await api.session(session, principal=principal)
    except NotFound:
        return "Nothing was said here yet."
    running = await api.runs(session=session, status="running", limit=_SHOWN, principal=principal)
    waiting = await api.runs(session=session, status="waiting", limit=_SHOWN, principal=principal)
    queued = await api.runs(session=session, status="queued", limit=_SHOWN, principal=principal)
    head = f"{session}: agent {info.agent}, {info.rows} rows"
    lines = [_run_line(run) for run in (*running, *waiting, *queued)]
    return "\n".join([head, *(lines or ["No run."])])


def _run_line(run: RunInfo) -> str:
    return f"{run.status} {run.run_id}: {run.text[:60]}"
