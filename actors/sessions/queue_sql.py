"""Queues as the session store writes and reads them: pure functions, statements and rows."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from motet.actors.sessions.store_sql import END_RUN, to_tell
from motet.protocols.events import InputSteered
from motet.protocols.models import Usage
from motet.protocols.queueing import MODES, JoinInputs, QueueMode, SetQueueMode
from motet.protocols.storage import Row, Statement, storable

JOIN_TEXT = """
UPDATE runs SET text = ?2, updated = ?3 WHERE run_id = ?1 AND status = 'queued' RETURNING 1"""
SET_MODE = "UPDATE sessions SET queue_mode = ?2 WHERE session = ?1 RETURNING 1"
MODES_SET = "SELECT session, queue_mode FROM sessions WHERE queue_mode IS NOT NULL"


def join(request: JoinInputs, now: float) -> tuple[Statement, ...]:
    """A statement fails when the input, or one that is answered with it, has begun or ended."""
    usage, detail = msgspec.json.encode(Usage()).decode(), f"it has entered {request.run_id}"
    ends = ((one, "steered", usage, detail, now) for one in request.inputs)
    return (
        Statement(JOIN_TEXT, (request.run_id, storable(request.text), now), expect=1),
        *(Statement(END_RUN, end, changes=1) for end in ends),
        *(to_tell(one, InputSteered(request.run_id)) for one in request.inputs),
    )


def set_mode(request: SetQueueMode) -> tuple[Statement, ...]:
    return (Statement(SET_MODE, (request.session, request.mode), expect=1),)


def modes(found: Iterable[Row]) -> dict[str, QueueMode]:
    """Without those that only another motet knows."""
    known: dict[str, QueueMode] = {mode: mode for mode in MODES}
    return {str(session): known[str(mode)] for session, mode in found if str(mode) in known}
