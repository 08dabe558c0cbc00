"""Escalations, queue modes and models of sessions: statements and handlers.

Invariant: an escalation is stored with the end of its run or not at all, and answered once.
"""

from __future__ import annotations

from motet.actors.storage.tables import AT_ONCE, Query, TableStore, clamped, storable, struct, where
from motet.protocols.errors import NotFound
from motet.protocols.escalations import (
    AnswerEscalation,
    EscalationAnswered,
    EscalationInfo,
    GetEscalation,
    ListEscalations,
    NewEscalation,
    escalation_id,
)
from motet.protocols.queueing import MODES, QueueMode, QueueModes, SetQueueMode
from motet.protocols.sessions import SessionModels, SetSessionModel
from motet.protocols.storage import Row, Statement
from motet.runtime import handles

_ADD_ESCALATION = """
INSERT INTO escalations (id, session, run_id, agent, user, tool, reason, created)
SELECT ?2, session, run_id, agent, user, ?3, ?4, ?5 FROM runs WHERE run_id = ?1"""

_ANSWER_ESCALATION = """
UPDATE escalations SET decision = ?2, note = ?3, resolved_by = ?4, resolved = ?5, next_run = ?6
WHERE id = ?1 AND decision IS NULL
RETURNING 1"""

_ESCALATIONS = """
SELECT id, session, run_id, agent, user, tool, reason, created,
       CASE WHEN decision IS NULL THEN 'open' ELSE 'resolved' END AS state,
       decision, note, resolved_by, resolved, next_run
FROM escalations"""

_SET_MODE = "UPDATE sessions SET queue_mode = ?2 WHERE session = ?1 RETURNING 1"
_MODES = "SELECT session, queue_mode FROM sessions WHERE queue_mode IS NOT NULL"

_SET_MODEL = "UPDATE sessions SET model = ?2 WHERE session = ?1 RETURNING 1"
_MODELS = "SELECT session, model FROM sessions WHERE model IS NOT NULL"


def add_escalation(run_id: str, new: NewEscalation, now: float) -> Statement:
    """For the transaction that ends the run."""
    return Statement(_ADD_ESCALATION, (run_id, escalation_id(run_id), new.tool, new.reason, now))


def escalations_query(request: ListEscalations) -> Query:
    is_open = None if request.state is None else int(request.state == "open")
    condition, params = where(
        ("user = ?", request.user),
        ("session = ?", request.session),
        ("(decision IS NULL) = ?", is_open),
    )
    sql = f"{_ESCALATIONS}{condition} ORDER BY created DESC, rowid DESC LIMIT ?"
    return sql, (*params, clamped(request.limit))


def escalation_info(row: Row) -> EscalationInfo:
    return struct(row, EscalationInfo)


class SettingTables(TableStore):
    """Handles escalations, queue modes and models for :class:`SessionStore`."""

    @handles(ListEscalations, concurrent=AT_ONCE)
    async def list_escalations(self, request: ListEscalations) -> tuple[EscalationInfo, ...]:
        return await self._read(escalation_info, *escalations_query(request))

    @handles(GetEscalation, concurrent=AT_ONCE)
    async def get_escalation(self, request: GetEscalation) -> EscalationInfo | None:
        return await self._read_one(escalation_info, f"{_ESCALATIONS} WHERE id = ?", (request.id,))

    @handles(AnswerEscalation, concurrent=AT_ONCE)
    async def answer_escalation(self, request: AnswerEscalation) -> bool:
        """False when it has this very answer; raises when it has another, or does not exist."""
        answer = (request.decision, request.note, request.by, self._clock(), request.next_run)
        statement = Statement(_ANSWER_ESCALATION, (request.id, *answer), expect=1)
        if await self._succeeds((statement,)):
            return True
        known = await self.get_escalation(GetEscalation(request.id))
        if known is None:
            raise NotFound(f"no escalation {request.id!r}")
        if (known.decision, known.note) == (request.decision, request.note):
            return False
        raise EscalationAnswered(
            f"{known.resolved_by} has answered {known.id} with {known.decision!r} already"
        )

    @handles(SetQueueMode, concurrent=AT_ONCE)
    async def set_queue_mode(self, request: SetQueueMode) -> None:
        statement = Statement(_SET_MODE, (request.session, request.mode), expect=1)
        if not await self._succeeds((statement,)):
            raise NotFound(f"no session {request.session!r}")

    @handles(QueueModes)
    async def queue_modes(self, _: QueueModes) -> dict[str, QueueMode]:
        known: dict[str, QueueMode] = {mode: mode for mode in MODES}
        found = await self._readers.read(_MODES)
        # A mode that only a newer motet knows is left out.
        return {str(session): known[str(mode)] for session, mode in found if str(mode) in known}

    @handles(SetSessionModel, concurrent=AT_ONCE)
    async def set_model(self, request: SetSessionModel) -> None:
        model = None if request.model is None else storable(request.model)
        statement = Statement(_SET_MODEL, (storable(request.session), model), expect=1)
        if not await self._succeeds((statement,)):
            raise NotFound(f"no session {request.session!r}")

    @handles(SessionModels)
    async def session_models(self, _: SessionModels) -> dict[str, str]:
        found = await self._readers.read(_MODELS)
        return {str(session): str(model) for session, model in found}
