"""The session store: transcripts, runs and idempotency keys, durable before they are answered.

It writes through the one writer and reads through the readers. What it answers is what is on disk:
in memory it keeps only the steps that are on their way there. Its handlers run beside each other,
so that they share commits instead of waiting for each other's. Invariants: an accepted input is on
disk (G15); a session belongs to the user who made it, to others it does not exist (G16); each
stored transcript has one result for each call (G7).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs

from motet.actors.storage import session_rows as rows
from motet.actors.storage import (
    session_sql as compactions,
)
from motet.actors.storage import (
    session_sql as deletion,
)
from motet.actors.storage import (
    session_sql as escalations,
)
from motet.actors.storage import (
    session_sql as injections,
)
from motet.actors.storage import (
    session_sql as queue_sql,
)
from motet.actors.storage import session_sql as sql
from motet.actors.storage.context_cache import ContextCache
from motet.actors.storage.readers import Readers
from motet.actors.storage.run_journal import RunJournal
from motet.actors.transcript.grammar import close_calls, recovered_rows
from motet.protocols.chat import ChatMessage
from motet.protocols.errors import NotFound
from motet.protocols.escalations import (
    AnswerEscalation,
    EscalationAnswered,
    EscalationInfo,
    GetEscalation,
    ListEscalations,
)
from motet.protocols.events import RunInterrupted
from motet.protocols.queueing import JoinInputs, QueueMode, QueueModes, SetQueueMode
from motet.protocols.sessions import (
    FINAL,
    Accepted,
    AcceptInput,
    DeleteSession,
    EndsToTell,
    EndToTell,
    EnterRun,
    FinishRun,
    GetRun,
    GetSession,
    HandOver,
    HistoryRow,
    InjectRows,
    KeyConflict,
    ListBeside,
    ListRuns,
    ListSessions,
    LoadContext,
    LoadTranscript,
    MarkFlushed,
    ReadHistory,
    RecordIntent,
    RecoverRuns,
    ResetSession,
    RunInfo,
    SessionBusy,
    SessionContext,
    SessionInfo,
    SessionModels,
    SessionStoreMessage,
    SetSessionModel,
    StoreSummary,
)
from motet.protocols.storage import (
    Commit,
    ExpectationFailed,
    Rows,
    Statement,
    Transaction,
    storable,
)
from motet.runtime import Actor, handles
from motet.runtime.outside import wall_time

AT_ONCE = 256
"""Requests of one kind that may wait for commits together."""

_log = logging.getLogger(__name__)


@attrs.frozen
class StoreStatistics:
    """``lost``: rows of journals that could not be written; the runs went on without."""

    lost: int


class SessionStore(Actor[SessionStoreMessage]):
    """Handles the requests of ``motet.protocols.sessions``; ``clock`` gives Unix seconds.

    ``transact`` runs a transaction and returns after its COMMIT, as ``Writer.submit``. ``journal``
    and ``contexts`` are the host's, for runs to add to and to read by plain calls.

    Any of them may raise a ``StorageError``. Cancelling an asker withdraws a write that waits; one
    that is being committed is waited for, and its outcome is what the asker gets.
    """

    def __init__(
        self,
        transact: Commit,
        readers: Readers,
        clock: Callable[[], float] = wall_time,
        *,
        journal: RunJournal | None = None,
        contexts: ContextCache | None = None,
    ) -> None:
        self._transact = transact
        self._readers = readers
        self._clock = clock
        self._journal = RunJournal() if journal is None else journal
        self._contexts = ContextCache() if contexts is None else contexts
        self._unfinished: dict[str, str] = {}  # sessions of the runs that this life has accepted

    async def on_start(self) -> None:
        self.start_soon(self._journal.run, self._write, name="journal")

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(self._journal.lost)

    # ------------------------------------------------------------------ inputs

    @handles(AcceptInput, concurrent=AT_ONCE)
    async def accept(self, request: AcceptInput) -> Accepted:
        new = request.input
        while True:
            statements = sql.accept(new, self._clock())
            token = self._contexts.begin_read(new.session)
            try:
                answer = await self._write(statements)
            except ExpectationFailed as failed:
                if statements[failed.index].sql is not sql.CLAIM_KEY:
                    raise NotFound(f"no session {new.session!r}") from None
            else:
                self._unfinished[new.run_id] = new.session
                if sql.is_fresh(answer):
                    self._contexts.end_read(new.session, token, SessionContext(), 0)
                return Accepted(new.run_id)
            first = await self._first_use(new.user, new.method, new.key or "", new.body_hash)
            if first is not None:
                return first

    @handles(InjectRows, concurrent=AT_ONCE)
    async def inject(self, request: InjectRows) -> Accepted:
        while True:
            statements = injections.inject(request, self._clock())
            with self._contexts.changing(request.session) as change:
                refused = await self._refused(statements)
                if refused is None:
                    bodies = [rows.encode(row) for row in request.rows]
                    change.add([rows.decode(body) for body in bodies], sum(map(len, bodies)))
                    return Accepted(request.id)
            if refused.sql is not sql.CLAIM_KEY:
                raise NotFound(f"no session {request.session!r}")
            first = await self._first_use(
                request.user, injections.METHOD, request.key, request.body_hash
            )
            if first is not None:
                return first

    async def _refused(self, statements: tuple[Statement, ...]) -> Statement | None:
        """Write; which statement did not find what it expects, so that nothing was written."""
        try:
            await self._write(statements)
        except ExpectationFailed as failed:
            return statements[failed.index]
        return None

    async def _first_use(self, user: str, method: str, key: str, body_hash: str) -> Accepted | None:
        """What the key was used for; None if it expired since it was found taken."""
        for run_id, first_hash in await self._readers.read(rows.FIND_KEY, (user, method, key)):
            if first_hash != body_hash:
                raise KeyConflict(
                    f"the key {key!r} was used for another input: use a new key for each"
                )
            return Accepted(str(run_id), duplicate=True)
        return None

    @handles(JoinInputs, concurrent=AT_ONCE)
    async def join_inputs(self, request: JoinInputs) -> None:
        try:
            await self._write(queue_sql.join(request, self._clock()))
        except ExpectationFailed:
            raise NotFound(f"no queued run {request.run_id!r}, or none of its inputs") from None
        for one in request.inputs:
            self._unfinished.pop(one, None)

    @handles(SetQueueMode, concurrent=AT_ONCE)
    async def set_queue_mode(self, request: SetQueueMode) -> None:
        if not await self._moves(queue_sql.set_mode(request)):
            raise NotFound(f"no session {request.session!r}")

    @handles(QueueModes)
    async def queue_modes(self, _: QueueModes) -> dict[str, QueueMode]:
        return queue_sql.modes(await self._readers.read(queue_sql.MODES_SET))

    @handles(SetSessionModel, concurrent=AT_ONCE)
    async def set_model(self, request: SetSessionModel) -> None:
        if not await self._moves(sql.set_model(request.session, request.model)):
            raise NotFound(f"no session {request.session!r}")

    @handles(SessionModels)
    async def session_models(self, _: SessionModels) -> dict[str, str]:
        found = await self._readers.read(rows.MODELS_SET)
        return {str(session): str(model) for session, model in found}

    # ------------------------------------------------------------------ runs

    @handles(RecordIntent, concurrent=AT_ONCE)
    async def record_intent(self, request: RecordIntent) -> None:
        """Takes the steps along that are still on their way: to write one twice is harmless.

        So each step added before is on disk with the intent, whichever commit comes first. Raises
        ``NotFound`` for a run that is unknown or has ended: its calls must not start.
        """
        steps = self._journal.pending(request.run_id)
        intent = sql.record(request.run_id, request.step, request.row, must=True)
        spent = () if request.usage is None else (sql.spent(request.run_id, request.usage),)
        try:
            await self._write((*steps, intent, *spent))
        except ExpectationFailed:
            raise NotFound(f"no unfinished run {request.run_id!r}") from None
        self._journal.written(request.run_id, steps)

    @handles(EnterRun, concurrent=AT_ONCE)
    async def enter_run(self, request: EnterRun) -> None:
        """Takes the steps along, as an intent does. Raises ``NotFound`` when one has ended."""
        steps = self._journal.pending(request.run_id)
        try:
            await self._write((*steps, *sql.enter(request, self._clock())))
        except ExpectationFailed:
            raise NotFound(f"no unfinished run {request.run_id!r}, or none of its inputs") from None
        self._journal.written(request.run_id, steps)
        for one in request.inputs:
            self._unfinished.pop(one, None)

    @handles(FinishRun, concurrent=AT_ONCE)
    async def finish(self, request: FinishRun) -> None:
        """Raises ``NotFound`` for an unknown run; one that has ended stays as it is."""
        if request.status not in FINAL:
            raise ValueError(f"a run ends as one of {sorted(FINAL)}, not {request.status!r}")
        closed = close_calls(request.rows, outcome="unknown")
        if closed != request.rows:
            _log.error("run %s left calls without a result: they are unknown", request.run_id)
        session = self._unfinished.get(request.run_id) or await self._session_of(request.run_id)
        await self._end(request, session, closed)

    async def _session_of(self, run_id: str) -> str:
        """Of a run that another life has accepted, or that has ended. Raises ``NotFound``."""
        run = await self.get_run(GetRun(run_id))
        if run is None:
            raise NotFound(f"no run {run_id!r}")
        return run.session

    async def _end(
        self, request: FinishRun, session: str, transcript: tuple[ChatMessage, ...]
    ) -> bool:
        """Whether this was what ended the run."""
        statements = sql.finish(request, session, transcript, self._clock())
        with self._contexts.changing(session) as change:
            try:
                await self._write(statements)
            except ExpectationFailed:
                return False
            bodies = sql.bodies(statements)
            change.add([rows.decode(body) for body in bodies], sum(map(len, bodies)))
        self._unfinished.pop(request.run_id, None)
        self._journal.discard(request.run_id)
        return True

    @handles(HandOver, concurrent=AT_ONCE)
    async def hand_over(self, request: HandOver) -> None:
        await self._write(sql.hand_over(request.run_id, request.agent))

    @handles(RecoverRuns)
    async def recover(self, request: RecoverRuns) -> tuple[RunInfo, ...]:
        unfinished = [rows.run_info(row) for row in await self._readers.read(rows.UNFINISHED)]
        meant = [
            run
            for run in unfinished
            if run.run_id not in request.keep and run.run_id in (request.only or (run.run_id,))
        ]
        reasons = request.reasons
        ended = [await self._interrupt(run, reasons.get(run.run_id, "")) for run in meant]
        found = (run for run in ended if run is not None)
        return tuple(sorted(found, key=lambda run: run.created))

    async def _interrupt(self, run: RunInfo, why: str) -> RunInfo | None:
        """End a run that a host left behind; None if it has ended meanwhile."""
        steps = await self._readers.read(rows.STEPS, (run.run_id,))
        children = await self._readers.read(rows.BESIDE, (run.run_id,))
        transcript = recovered_rows(rows.recovered(run, steps), map(rows.child_ended, children))
        end = FinishRun(
            run_id=run.run_id,
            status="interrupted",
            rows=transcript,
            usage=run.usage,
            detail=why or "the host stopped",
            event=RunInterrupted(why or "the host ended during this run"),
        )
        if not await self._end(end, run.session, transcript):
            return None
        return await self.get_run(GetRun(run.run_id))

    @handles(EndsToTell)
    async def ends_to_tell(self, _: EndsToTell) -> tuple[EndToTell, ...]:
        return tuple(rows.end_to_tell(row) for row in await self._readers.read(rows.ENDS_TO_TELL))

    # ------------------------------------------------------------------ sessions

    @handles(ResetSession, concurrent=AT_ONCE)
    async def reset(self, request: ResetSession) -> None:
        """Raises ``NotFound``."""
        try:
            with self._contexts.changing(request.session):
                await self._write(sql.reset(request.session, self._clock()))
        except ExpectationFailed:
            raise NotFound(f"no session {request.session!r}") from None

    @handles(DeleteSession)
    async def delete(self, request: DeleteSession) -> int:
        found = await self._readers.read(deletion.BELOW, (request.session,))
        below = [str(session) for (session,) in found]
        try:
            with self._contexts.changing(request.session):
                rows_of_each = await self._write(deletion.delete(request.session, below))
        except ExpectationFailed:
            raise SessionBusy(
                f"session {request.session!r} has an input that is not answered yet: "
                "stop it, then delete it"
            ) from None
        return deletion.deleted(rows_of_each)

    @handles(LoadTranscript, concurrent=AT_ONCE)
    async def load(self, request: LoadTranscript) -> tuple[ChatMessage, ...]:
        found = await self._readers.read(rows.TRANSCRIPT, (request.session,))
        return tuple(rows.history_row(row).row for row in found)

    @handles(LoadContext, concurrent=AT_ONCE)
    async def load_context(self, request: LoadContext) -> SessionContext:
        known = self._contexts.get(request.session)
        if known is not None:
            return known
        token = self._contexts.begin_read(request.session)
        found = await self._readers.read(compactions.CONTEXT, (request.session,))
        context = compactions.context(found)
        size = sum(len(str(row[3])) for row in found)
        self._contexts.end_read(request.session, token, context if found else None, size)
        return context

    @handles(StoreSummary, concurrent=AT_ONCE)
    async def store_summary(self, request: StoreSummary) -> bool:
        text = storable(request.text)
        with self._contexts.changing(request.session):
            return await self._moves(compactions.store(request, text, self._clock()))

    @handles(MarkFlushed, concurrent=AT_ONCE)
    async def mark_flushed(self, request: MarkFlushed) -> bool:
        with self._contexts.changing(request.session):
            return await self._moves(compactions.mark_flushed(request))

    @handles(ReadHistory, concurrent=AT_ONCE)
    async def read_history(self, request: ReadHistory) -> tuple[HistoryRow, ...]:
        found = await self._readers.read(
            *rows.history(request.session, request.before, request.limit)
        )
        return tuple(rows.history_row(row) for row in reversed(found))

    @handles(ListSessions, concurrent=AT_ONCE)
    async def list_sessions(self, request: ListSessions) -> tuple[SessionInfo, ...]:
        found = await self._readers.read(*rows.sessions(request))
        return tuple(rows.session_info(row) for row in found)

    @handles(GetSession, concurrent=AT_ONCE)
    async def get_session(self, request: GetSession) -> SessionInfo | None:
        found = await self._readers.read(rows.SESSION, (request.session,))
        return rows.session_info(found[0]) if found else None

    @handles(ListRuns, concurrent=AT_ONCE)
    async def list_runs(self, request: ListRuns) -> tuple[RunInfo, ...]:
        found = await self._readers.read(*rows.runs(request))
        return tuple(rows.run_info(row) for row in found)

    @handles(GetRun, concurrent=AT_ONCE)
    async def get_run(self, request: GetRun) -> RunInfo | None:
        found = await self._readers.read(rows.RUN, (request.run_id,))
        return rows.run_info(found[0]) if found else None

    @handles(ListBeside, concurrent=AT_ONCE)
    async def list_beside(self, request: ListBeside) -> tuple[RunInfo, ...]:
        found = await self._readers.read(rows.CHILDREN_BESIDE, (request.run_id,))
        return tuple(rows.run_info(row) for row in found)

    # ------------------------------------------------------------------ escalations

    @handles(ListEscalations, concurrent=AT_ONCE)
    async def list_escalations(self, request: ListEscalations) -> tuple[EscalationInfo, ...]:
        found = await self._readers.read(*escalations.search(request))
        return tuple(escalations.info(row) for row in found)

    @handles(GetEscalation, concurrent=AT_ONCE)
    async def get_escalation(self, request: GetEscalation) -> EscalationInfo | None:
        found = await self._readers.read(escalations.ONE, (request.id,))
        return escalations.info(found[0]) if found else None

    @handles(AnswerEscalation, concurrent=AT_ONCE)
    async def answer_escalation(self, request: AnswerEscalation) -> bool:
        try:
            await self._write(escalations.answer(request, self._clock()))
        except ExpectationFailed:
            return await self._answered_before(request)
        return True

    async def _answered_before(self, request: AnswerEscalation) -> bool:
        """False when it had this very answer; raises when it had another, or does not exist."""
        known = await self.get_escalation(GetEscalation(request.id))
        if known is None:
            raise NotFound(f"no escalation {request.id!r}")
        if (known.decision, known.note) == (request.decision, request.note):
            return False
        raise EscalationAnswered(
            f"{known.resolved_by} has answered {known.id} with {known.decision!r} already"
        )

    # ------------------------------------------------------------------ writing

    async def _write(self, statements: Transaction) -> Rows:
        return await self._transact(statements)

    async def _moves(self, statements: tuple[Statement, ...]) -> bool:
        """Whether what the statements expect of the start pointer still held."""
        try:
            await self._write(statements)
        except ExpectationFailed:
            return False
        return True
