"""Inputs, runs, escalations and settings of sessions: statements and handlers.

A transaction does not branch. Each statement says how many rows it must return or change; with
any other number the whole transaction is rolled back. Invariants: a key, its session and its run
are stored together or not at all; a run that has ended is never changed; an escalation is stored
with the end of its run or not at all, and answered once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from motet.actors.errors.tracker import successes
from motet.actors.storage import recovery
from motet.actors.storage.error_spool import ErrorSpool
from motet.actors.storage.events import SETTLE, event_of, text_of
from motet.actors.storage.idempotency import CLAIM_KEY, claim_key, first_use
from motet.actors.storage.readers import Readers
from motet.actors.storage.recovery import RUN, RUNS, run_info, runs_query
from motet.actors.storage.run_access import UNKNOWN, ContextCache, RunJournal, add_step, begin_run
from motet.actors.storage.tables import (
    AT_ONCE,
    Query,
    TableStore,
    clamped,
    encode_message,
    rows_of,
    storable,
    stored_form,
    struct,
    to_json,
    where,
)
from motet.actors.transcript.grammar import close_calls, recovered_rows
from motet.protocols.approval_tables import KEEP_ROW
from motet.protocols.approvals import transition
from motet.protocols.chat import ChatMessage
from motet.protocols.error_rows import OF_SESSION, RESOLVE
from motet.protocols.errors import CompactError, NotFound, Resolved
from motet.protocols.escalations import (
    AnswerEscalation,
    EscalationAnswered,
    EscalationInfo,
    GetEscalation,
    ListEscalations,
    NewEscalation,
    escalation_id,
)
from motet.protocols.events import InputDropped, InputSteered, RunInterrupted
from motet.protocols.models import Usage
from motet.protocols.queueing import MODES, JoinInputs, QueueMode, SetQueueMode
from motet.protocols.room_costs import OF_ROOM, spent, turn_begun
from motet.protocols.sessions import (
    FINAL,
    Accepted,
    AcceptInput,
    EnterRun,
    FinishRun,
    GetRun,
    HandOver,
    ListBackgroundRuns,
    ListRuns,
    ListSettings,
    ListUnpublishedEnds,
    MarkStopped,
    NewInput,
    RecordIntent,
    RecoverRuns,
    RunInfo,
    SessionContext,
    SessionSetting,
    SetSessionModel,
    UnpublishedEnd,
)
from motet.protocols.storage import (
    Commit,
    ExpectationFailed,
    Row,
    Statement,
    Transaction,
    last_number,
)
from motet.runtime import handles
from motet.runtime.outside import wall_time

_ADD_ESCALATION = """
INSERT INTO escalations
    (id, session, run_id, agent, user, tool, reason, created, sender, history)
SELECT ?2, session, run_id, agent, user, ?3, ?4, ?5, ?6, ?7 FROM runs WHERE run_id = ?1"""

# The same answer once more: earlier hosts stored it before its run, and may have died in between.
_ANSWER_ESCALATION = """
UPDATE escalations SET decision = ?2, note = ?3, resolved_by = ?4, resolved = ?5, next_run = ?6
WHERE id = ?1 AND (decision IS NULL OR (
    decision = ?2 AND note = ?3 AND next_run NOT IN (SELECT run_id FROM runs)))
RETURNING 1"""

_ESCALATIONS = """
SELECT id, session, run_id, agent, user, tool, reason, created,
       CASE WHEN decision IS NULL THEN 'open' ELSE 'resolved' END AS state,
       decision, note, resolved_by, resolved, next_run, sender, history
FROM escalations"""
_HISTORY = {"error_history": tuple[CompactError, ...]}

_OF = "WHERE session = ?1 AND generation = coalesce(?3, generation) RETURNING 1"
_SET_MODE = f"UPDATE sessions SET queue_mode = ?2 {_OF}"
_SET_MODEL = f"UPDATE sessions SET model = ?2 {_OF}"
_SETTINGS = """
SELECT session, owner, generation, queue_mode, model FROM sessions
WHERE queue_mode IS NOT NULL OR model IS NOT NULL"""


def add_escalation(run_id: str, new: NewEscalation, now: float) -> Statement:
    """For the transaction that ends the run."""
    told = (storable(new.tool), storable(new.reason), now, storable(new.sender))
    history = storable(to_json(new.error_history))
    return Statement(_ADD_ESCALATION, (run_id, escalation_id(run_id), *told, history))


def answer_statement(answer: AnswerEscalation, now: float) -> Statement:
    """It fails when the escalation has an answer, or does not exist."""
    given = (answer.id, answer.decision, storable(answer.note), answer.by, now, answer.next_run)
    return Statement(_ANSWER_ESCALATION, given, expect=1)


async def same_answer(readers: Readers, answer: AnswerEscalation) -> str:
    """The run that this very answer has started before; raises when there is another answer."""
    found = await readers.read(*escalation_query(answer.id))
    if not found:
        raise NotFound(f"no escalation {answer.id!r}")
    known = escalation_info(found[0])
    if (known.decision, known.note) != (answer.decision, storable(answer.note)):
        raise EscalationAnswered(
            f"{known.resolved_by} has answered {known.id} with {known.decision!r} already"
        )
    return known.next_run or ""


def escalations_query(request: ListEscalations) -> Query:
    is_open = None if request.state is None else int(request.state == "open")
    condition, params = where(
        ("user = ?", request.user),
        ("session = ?", request.session),
        ("(decision IS NULL) = ?", is_open),
    )
    sql = f"{_ESCALATIONS}{condition} ORDER BY created DESC, rowid DESC LIMIT ?"
    return sql, (*params, clamped(request.limit))


def escalation_query(escalation: str) -> Query:
    return f"{_ESCALATIONS} WHERE id = ?", (escalation,)


def escalation_info(row: Row) -> EscalationInfo:
    return struct(row, EscalationInfo, json_columns=_HISTORY)


class SettingTables(TableStore):
    """Handles escalations, queue modes and models for :class:`SessionStore`."""

    @handles(ListEscalations, concurrent=AT_ONCE)
    async def list_escalations(self, request: ListEscalations) -> tuple[EscalationInfo, ...]:
        return await self._read(escalation_info, *escalations_query(request))

    @handles(GetEscalation, concurrent=AT_ONCE)
    async def get_escalation(self, request: GetEscalation) -> EscalationInfo | None:
        return await self._read_one(escalation_info, *escalation_query(request.id))

    @handles(AnswerEscalation, concurrent=AT_ONCE)
    async def answer_escalation(self, request: AnswerEscalation) -> bool:
        """False when it has this very answer; raises when it has another, or does not exist."""
        if await self._succeeds((answer_statement(request, self._clock()),)):
            return True
        await same_answer(self._readers, request)
        return False

    @handles(SetQueueMode, concurrent=AT_ONCE)
    async def set_queue_mode(self, request: SetQueueMode) -> None:
        await self._set(_SET_MODE, request.session, request.mode, request.generation)

    @handles(SetSessionModel, concurrent=AT_ONCE)
    async def set_model(self, request: SetSessionModel) -> None:
        await self._set(_SET_MODEL, request.session, request.model, request.generation)

    async def _set(self, sql: str, session: str, value: str | None, of: str | None) -> None:
        params = (storable(session), None if value is None else storable(value), of)
        if not await self._succeeds((Statement(sql, params, expect=1),)):
            raise NotFound(f"no session {session!r}")

    @handles(ListSettings)
    async def settings(self, _: ListSettings) -> tuple[SessionSetting, ...]:
        # Without a mode that only a newer motet knows.
        modes: dict[str, QueueMode] = {mode: mode for mode in MODES}
        return tuple(
            SessionSetting(
                str(session), str(owner), str(generation), modes.get(str(mode)), str(model or "")
            )
            for session, owner, generation, mode, model in await self._readers.read(_SETTINGS)
        )


CLAIM_SESSION = """
INSERT INTO sessions (session, agent, owner, created, updated, parent, beside, generation, listed)
VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6, ?7, nullif(?3 GLOB 'room:*', 0))
ON CONFLICT (session) DO UPDATE SET agent = excluded.agent WHERE owner = excluded.owner"""

# The errors too: without any, no end of a run has to look for those that its tools resolve. With
# ``RETURNING`` the statement before would cost twice as much.
STATE_OF_SESSION = (
    "SELECT generation, EXISTS (SELECT 1 FROM messages WHERE session = ?1),"
    f" EXISTS ({OF_SESSION}) FROM sessions WHERE session = ?1"
)

_ADD_RUN = f"""
INSERT INTO runs (run_id, session, agent, user, status, text, created, updated, given, after, open)
VALUES (?1, ?2, ?3, ?4, 'queued', ?5, ?6, ?6, nullif(?7, ''),
        {last_number("'session:' || ?2")}, 1)"""

_JOIN_TEXT = """
UPDATE runs SET text = ?2, status = 'running', updated = ?3
WHERE run_id = ?1 AND status IN ('queued', 'running') RETURNING 1"""

_SET_USAGE = "UPDATE runs SET usage = ?, updated = ? WHERE run_id = ?"

# With ``IN`` and a list of three SQLite would build a table to look into.
END_RUN = """
UPDATE runs SET status = ?2, usage = ?3, detail = ?4, updated = ?5, ending = ?6
WHERE run_id = ?1 AND (status = 'queued' OR status = 'running' OR status = 'waiting')"""

ROWS_AT_ONCE = 8
"""Rows of a transcript in one statement: each more costs a third of a statement of its own."""
_ADD_MESSAGES = """
INSERT INTO messages (session, pos, run_id, ts, role, body)
SELECT ?1, column1 + coalesce((SELECT max(pos) FROM messages WHERE session = ?1), 0), ?2, ?3,
       column2, column3 FROM"""
_CLEAR_STEPS = "DELETE FROM steps WHERE run_id = ?"

_ADD_LATE_END = """
UPDATE runs SET ending = ?2, open = 1
WHERE run_id = ?1 AND status = 'steered' AND ending IS NULL"""
# Inputs that have entered a run end with it or before.
_ENDS = """
SELECT session, user, run_id, ending FROM runs WHERE open = 1 AND ending IS NOT NULL
ORDER BY updated, status = 'steered' DESC, rowid"""

_WITHDRAW_APPROVALS = f"{transition('withdraw', 'resolved = ?2', 'run_id = ?1')} RETURNING id"

# Its policy holds for the agents after it, in the next host too.
_HAND_RUN_OVER = """
UPDATE runs SET agent = ?2, given = json_set(given, '$.next_agent', '', '$.lineage', json_insert(
    coalesce(json_extract(given, '$.lineage'), '[]'), '$[#]', json_object(
        'agent', agent, 'user', user, 'role', json_extract(given, '$.role'), 'session', session)))
WHERE run_id = ?1 AND status IN ('queued', 'running') AND agent <> ?2"""

_MARK_STOPPED = """
UPDATE runs SET given = json_set(given, '$.stopped', ?2)
WHERE run_id = ?1 AND status IN ('queued', 'running') AND given IS NOT NULL"""

_HAND_SESSION_OVER = """
UPDATE sessions SET agent = ?2
WHERE session = (SELECT session FROM runs WHERE run_id = ?1 AND status IN ('queued', 'running'))"""

_BACKGROUND_RUNS = f"""
{RUNS} WHERE session IN (SELECT session FROM sessions WHERE parent = ? AND beside)
ORDER BY rowid"""

_NO_USAGE = to_json(Usage())
_log = logging.getLogger(__name__)


def input_statements(new: NewInput, now: float) -> tuple[Statement, ...]:
    """Store an input, with the answer to an escalation that it carries out. ``CLAIM_KEY``,
    :data:`CLAIM_SESSION` or the answer's statement fails for one it cannot have.
    """
    answered = () if new.answers is None else (answer_statement(new.answers, now),)
    beside = int(new.beside)
    session = (new.session, new.agent, new.user, now, new.parent, beside, new.run_id)
    run = (new.run_id, new.session, new.agent, new.user, storable(new.text), now, new.given)
    stored = (
        *answered,
        Statement(CLAIM_SESSION, session, changes=1),
        Statement(STATE_OF_SESSION, (new.session,)),
        Statement(_ADD_RUN, run),
        *((turn_begun(new.run_id),) if new.user.startswith(OF_ROOM) else ()),
    )
    if new.key is None:
        return stored
    return (*claim_key(new.user, new.method, new.key, new.body_hash, new.run_id), *stored)


def join_statements(request: JoinInputs, now: float, of_room: bool) -> tuple[Statement, ...]:
    """A statement fails when the run, which an earlier host may have begun, or one has ended."""
    text = Statement(_JOIN_TEXT, (request.run_id, storable(request.text), now), expect=1)
    return (text, *_steered(request.inputs, request.run_id, now, of_room))


def enter_statements(request: EnterRun, now: float, of_room: bool) -> tuple[Statement, ...]:
    """Inputs enter a run; a statement fails when it, or one of them, has ended before."""
    steps = enumerate(request.rows, request.step)
    return (
        *(add_step(request.run_id, step, row, must=True) for step, row in steps),
        *_steered(request.late, request.run_id, now, of_room, late=True),
        *_steered(request.inputs, request.run_id, now, of_room),
    )


def _steered(
    inputs: tuple[str, ...], run_id: str, now: float, of_room: bool, late: bool = False
) -> tuple[Statement, ...]:
    """Inputs end because another run answers them. ``late``: that could not be stored before, and
    one that has ended stays.
    """
    if not inputs:
        return ()
    told = text_of(InputSteered(run_id))
    end = "steered", _NO_USAGE, f"it has entered {run_id}", now, told
    changes = None if late else 1
    return (
        *((spent(one, _NO_USAGE, now, "steered") for one in inputs) if of_room else ()),
        *(Statement(END_RUN, (one, *end), changes=changes) for one in inputs),
        *(Statement(_ADD_LATE_END, (one, told)) for one in inputs if late),
    )


def _handed_over(run_id: str, agents: tuple[str, ...]) -> tuple[Statement, ...]:
    """The agents that have taken over, one after the other."""
    if not agents:
        return ()
    runs = (Statement(_HAND_RUN_OVER, (run_id, agent)) for agent in agents)
    return (*runs, Statement(_HAND_SESSION_OVER, (run_id, agents[-1])))


def finish_statements(
    request: FinishRun,
    messages: Sequence[tuple[str, str]],
    session: str,
    now: float,
    resolved: Resolved,
    of_room: bool = False,
) -> tuple[Statement, ...]:
    """End a run with these rows (role and body); a statement fails when it has ended before."""
    run_id, usage, detail = request.run_id, to_json(request.usage), storable(request.detail)
    escalation = request.escalation
    told = None if request.event is None else text_of(request.event)
    return (
        *_handed_over(run_id, request.agents),
        *((spent(run_id, usage, now, request.status),) if of_room else ()),
        Statement(END_RUN, (run_id, request.status, usage, detail, now, told), changes=1),
        *((add_escalation(run_id, escalation, now),) if escalation else ()),
        *((Statement(_WITHDRAW_APPROVALS, (run_id, now)),) if request.withdraw else ()),
        *_add_messages(session, run_id, now, messages),
        Statement(_CLEAR_STEPS, (run_id,)),
        *_steered(request.inputs, run_id, now, of_room, late=True),
        *(_resolve(session, resolved, now) if resolved else ()),
        *(() if told else (Statement(sql, (run_id,)) for sql in SETTLE)),
    )


def _add_messages(
    session: str, run_id: str, now: float, messages: Sequence[tuple[str, str]]
) -> Iterator[Statement]:
    for first in range(0, len(messages), ROWS_AT_ONCE):
        rows = messages[first : first + ROWS_AT_ONCE]
        places = [value for place, row in enumerate(rows, start=1) for value in (place, *row)]
        values = ", ".join(["(?, ?, ?)"] * len(rows))
        yield Statement(f"{_ADD_MESSAGES} (VALUES {values})", (session, run_id, now, *places))


def _resolve(session: str, tools: Resolved, now: float) -> tuple[Statement, ...]:
    """Resolve the errors of tools that have succeeded in the session."""
    each = [
        (storable(session), storable(tool), to_json(later), now) for tool, later in tools.items()
    ]
    return (Statement(RESOLVE, each=tuple(each)),)


def _unpublished_end(row: Row) -> UnpublishedEnd:
    session, user, run_id, body = row
    return UnpublishedEnd(str(session), str(user), str(run_id), event_of(str(body)))


class RunTables(TableStore):
    """Handles inputs and runs. Runs call it without a message, which costs as much as a commit."""

    def __init__(
        self,
        commit: Commit,
        readers: Readers,
        clock: Callable[[], float] = wall_time,
        *,
        journal: RunJournal | None = None,
        contexts: ContextCache | None = None,
        errors: ErrorSpool | None = None,
    ) -> None:
        super().__init__(commit, readers, clock)
        self._journal = RunJournal() if journal is None else journal
        self._contexts = ContextCache() if contexts is None else contexts
        self._unfinished = self._journal.accepted
        self._errors = errors

    # Inputs

    @handles(AcceptInput, concurrent=AT_ONCE)
    async def accept(self, request: AcceptInput) -> Accepted:
        new = request.input
        while True:
            statements = input_statements(new, self._clock())
            token = self._contexts.begin_read(new.session)
            try:
                answer = await self._write(statements)
            except ExpectationFailed as failed:
                if new.answers is not None and failed.sql == _ANSWER_ESCALATION:
                    return Accepted(await same_answer(self._readers, new.answers), duplicate=True)
                if failed.sql != CLAIM_KEY:
                    raise NotFound(f"no session {new.session!r}") from None
            else:
                self._unfinished[new.run_id] = new.session, new.user.startswith(OF_ROOM)
                ((generation, has_rows, has_errors),) = rows_of(
                    STATE_OF_SESSION, statements, answer
                )
                if has_errors and self._errors is not None:
                    self._errors.failing.add(new.session)
                if not has_rows:
                    # A fresh session: its first turn need not read an empty context.
                    fresh = SessionContext(generation=str(generation))
                    self._contexts.end_read(new.session, token, fresh, 0)
                return Accepted(new.run_id)
            first = await self.first_of(new)
            if first is not None:
                return Accepted(first, duplicate=True)

    async def first_of(self, new: NewInput) -> str | None:
        """The run of an input that was stored under its key; raises ``KeyConflict``."""
        of, hashes = (new.user, new.method, new.key or ""), (new.body_hash, new.old_hash)
        return None if new.key is None else await first_use(self._readers, *of, *hashes)

    @handles(JoinInputs, concurrent=AT_ONCE)
    async def join_inputs(self, request: JoinInputs) -> None:
        _, of_room = self._unfinished.get(request.run_id, UNKNOWN)
        if not await self._succeeds(join_statements(request, self._clock(), of_room)):
            raise NotFound(f"no unfinished run {request.run_id!r}, or none of its inputs")
        for one in request.inputs:
            self._unfinished.pop(one, None)

    # Runs that go on

    @handles(RecordIntent, concurrent=AT_ONCE)
    async def record_intent(self, request: RecordIntent) -> None:
        """Raises ``NotFound`` for a run that is unknown or has ended: its calls must not start.

        Earlier steps that are still in the journal are written in the same transaction, so each
        step added before is on disk with the intent, whichever commit comes first. Writing a step
        twice is harmless. ``earlier`` rows replace those of a journal that has lost some.
        """
        run_id, now = request.run_id, self._clock()
        _, of_room = self._unfinished.get(run_id, UNKNOWN)
        steps, again = self._journal.pending(run_id), tuple[Statement, ...]()
        if request.earlier:
            rows = enumerate(request.earlier)
            again = (begin_run(run_id, now), *(add_step(run_id, at, row) for at, row in rows))
        again += _handed_over(run_id, request.agents)
        again += _steered(request.inputs, run_id, now, of_room, late=True)
        intent = add_step(run_id, request.step, request.row, must=True)
        known = tuple((run_id, at, encode_message(row)) for at, row in request.results)
        results: Transaction = (Statement(KEEP_ROW, each=known),) if known else ()
        if request.usage is not None:
            usage = to_json(request.usage)
            results += (spent(run_id, usage, now),) if of_room else ()
            results += (Statement(_SET_USAGE, (usage, now, run_id)),)
        if not await self._succeeds((*steps, *again, intent, *results)):
            raise NotFound(f"no unfinished run {run_id!r}")
        self._journal.written(run_id, steps)
        if request.earlier:
            self._journal.torn.discard(run_id)
        for one in request.inputs:
            self._unfinished.pop(one, None)

    @handles(EnterRun, concurrent=AT_ONCE)
    async def enter_run(self, request: EnterRun) -> None:
        """Writes the pending steps as an intent does. Raises ``NotFound`` when one has ended."""
        steps, now = self._journal.pending(request.run_id), self._clock()
        _, of_room = self._unfinished.get(request.run_id, UNKNOWN)
        if not await self._succeeds((*steps, *enter_statements(request, now, of_room))):
            raise NotFound(f"no unfinished run {request.run_id!r}, or none of its inputs")
        self._journal.written(request.run_id, steps)
        for one in request.inputs:
            self._unfinished.pop(one, None)

    @handles(HandOver, concurrent=AT_ONCE)
    async def hand_over(self, request: HandOver) -> None:
        # With the pending rows: the new agent must not find the call that has handed over open.
        steps = self._journal.pending(request.run_id)
        await self._write((*steps, *_handed_over(request.run_id, request.agents)))
        self._journal.written(request.run_id, steps)

    @handles(MarkStopped, concurrent=AT_ONCE)
    async def mark_stopped(self, request: MarkStopped) -> None:
        await self._write((Statement(_MARK_STOPPED, (request.run_id, storable(request.reason))),))

    # Ends of runs

    @handles(FinishRun, concurrent=AT_ONCE)
    async def finish(self, request: FinishRun) -> tuple[str, ...]:
        """Raises ``NotFound`` for an unknown run; one that has ended stays as it is."""
        if request.status not in FINAL:
            raise ValueError(f"a run ends as one of {sorted(FINAL)}, not {request.status!r}")
        closed = close_calls(request.rows, outcome="unknown")
        if closed != request.rows:
            _log.error("run %s left calls without a result: they are unknown", request.run_id)
        session, of_room = self._unfinished.get(request.run_id, UNKNOWN)
        if not session:  # accepted by another incarnation, or it has ended
            run = await self.get_run(GetRun(request.run_id))
            if run is None:
                raise NotFound(f"no run {request.run_id!r}")
            session, of_room = run.session, run.user.startswith(OF_ROOM)
        return await self._end(request, session, of_room, closed) or ()

    async def _end(
        self, request: FinishRun, session: str, of_room: bool, transcript: tuple[ChatMessage, ...]
    ) -> tuple[str, ...] | None:
        """End a run; the approvals that this withdraws, or None when it has ended before."""
        run_id, now = request.run_id, self._clock()
        rows, messages, size = list[ChatMessage](), list[tuple[str, str]](), 0
        for row in transcript:
            body, stored = stored_form(row)
            rows.append(stored)
            messages.append((str(stored.__struct_config__.tag), body))
            size += len(body)
        # The acceptance of an input, if this process has stored it, has looked for older errors.
        errors, is_known = self._errors, run_id in self._unfinished
        is_clean = is_known and errors is not None and not errors.may_be_open(session)
        resolved: Resolved = {} if is_clean else successes(transcript)
        statements = finish_statements(request, messages, session, now, resolved, of_room)
        sequels = errors.sequels(session, resolved, now) if resolved and errors else ()
        statements += sequels
        with self._contexts.changing(session) as change:
            try:
                answer = await self._write(statements)
            except ExpectationFailed:
                return None
            # The cache holds what a reader would decode, not what the run had in hand.
            change.add(rows, size)
        for one in (run_id, *request.inputs):
            self._unfinished.pop(one, None)
        self._journal.discard(run_id)
        if sequels and errors is not None:
            errors.tell()
        if not request.withdraw:
            return ()
        found = rows_of(_WITHDRAW_APPROVALS, statements, answer)
        return tuple([str(approval) for (approval,) in found])

    @handles(RecoverRuns)
    async def recover(self, request: RecoverRuns) -> tuple[RunInfo, ...]:
        """Interrupt the runs that another host left, each with a valid transcript."""
        interrupted: list[RunInfo] = []
        for run in await self._read(run_info, recovery.UNFINISHED):
            if run.run_id in request.keep or run.run_id not in (request.only or (run.run_id,)):
                continue
            why, of_room = request.reasons.get(run.run_id, ""), run.user.startswith(OF_ROOM)
            if run.run_id in request.drop:
                end = FinishRun(run.run_id, "dropped", (), detail=why, event=InputDropped(why))
                await self._end(end, run.session, of_room, ())
                continue
            steps = await self._readers.read(recovery.STEPS, (run.run_id,))
            children = await self._read(
                recovery.child_ended, recovery.BACKGROUND_CHILDREN, (run.run_id,)
            )
            transcript = recovered_rows(recovery.interrupted_rows(run, steps), children)
            told = RunInterrupted(why or "the host ended during this run")
            why = why or "the host stopped"
            end = FinishRun(run.run_id, "interrupted", transcript, run.usage, why, event=told)
            if await self._end(end, run.session, of_room, transcript) is not None:
                ended = await self.get_run(GetRun(run.run_id))
                interrupted += [ended] if ended is not None else []
        return tuple(sorted(interrupted, key=lambda run: run.created))

    @handles(ListUnpublishedEnds)
    async def list_unpublished_ends(self, _: ListUnpublishedEnds) -> tuple[UnpublishedEnd, ...]:
        return await self._read(_unpublished_end, _ENDS)

    # Reading

    @handles(ListRuns, concurrent=AT_ONCE)
    async def list_runs(self, request: ListRuns) -> tuple[RunInfo, ...]:
        return await self._read(run_info, *runs_query(request))

    @handles(GetRun, concurrent=AT_ONCE)
    async def get_run(self, request: GetRun) -> RunInfo | None:
        return await self._read_one(run_info, RUN, (request.run_id,))

    @handles(ListBackgroundRuns, concurrent=AT_ONCE)
    async def list_background_runs(self, request: ListBackgroundRuns) -> tuple[RunInfo, ...]:
        return await self._read(run_info, _BACKGROUND_RUNS, (request.run_id,))
