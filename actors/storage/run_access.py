"""The session store as runs use it without an ask: a journal that writes behind, and a cache.

Both are plain objects that outlive a restart of the store's actor; an ask would cost two turns of
the scheduler for each row.

The journal: most of its statements are never written, because a run that ends within
:data:`PATIENCE` stores its rows with its end, and a run with calls stores them with the intent of
the calls. Once the oldest has waited that long, all go in one transaction. Invariants: a statement
is on disk, or counted as lost, at most ``PATIENCE`` and a commit after it was added, unless another
transaction of its run has written it; at most :data:`LIMIT` wait: with more, the adding run waits,
and when the writer has ended, the statement is counted as lost.

The cache: only the session store writes sessions, and it announces each change here. Invariants: a
cached context equals the one on disk; a session has none while it is being changed, and a read that
overlaps a change is not cached; the cache takes at most :data:`ROOM` bytes, objects included.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Self, TypeAlias

import attrs
import msgspec
import trio
from msgspec.structs import replace

from motet.actors.storage.tables import encode_message
from motet.actors.transcript.history import EMPTY_SCAN, TranscriptScan
from motet.protocols.chat import ChatMessage
from motet.protocols.sessions import SessionContext
from motet.protocols.storage import Statement, StorageError, StorageUnavailable
from motet.runtime import MotetRuntimeError
from motet.runtime.outside import wall_time

ROOM = 16_000_000
CORRECTED = 1_000
ROW, CONTEXT = 90, 500
"""Bytes of a row's objects beside the characters of its JSON, and of a session's own."""


class _Cached(msgspec.Struct, eq=False):
    context: SessionContext
    characters: int
    scan: TranscriptScan = EMPTY_SCAN

    @property
    def size(self) -> int:
        return self.characters + ROW * len(self.context.rows) + CONTEXT


@attrs.define(eq=False)
class Change:
    """A block that writes to a session. Call :meth:`add` if it only adds rows, after the commit.

    Made by :meth:`ContextCache.changing`, and entered at once.
    """

    _contexts: ContextCache
    session: str
    _before: _Cached | None
    after: _Cached | None = None
    spoilt: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self.after = None
        self._contexts.end_change(self)

    def add(self, rows: Sequence[ChatMessage], size: int) -> None:
        """These rows were added behind the others: the cached context grows instead of ending."""
        if self._before is not None:
            context = self._before.context
            grown = replace(context, rows=(*context.rows, *rows))
            self.after = _Cached(grown, self._before.characters + size, self._before.scan)


class ContextCache:
    """A plain object with LRU eviction. ``size``: bytes that it takes, about."""

    def __init__(self, room: int = ROOM, most_corrected: int = CORRECTED) -> None:
        self._room = room
        self._most_corrected = most_corrected
        self.size = 0
        self._known: dict[str, _Cached] = {}
        self._changing: dict[str, list[Change]] = {}
        self._reading: dict[str, object] = {}
        self._corrected: dict[str, int] = {}
        self._corrections = self._forgotten = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, session: str) -> SessionContext | None:
        known = self._known.pop(session, None)
        if known is None:
            return None
        self._known[session] = known
        return known.context

    def scan(self, session: str) -> TranscriptScan:
        """The scan of the cached rows. It is cached with them, and extended when rows are added."""
        known = self._known.get(session)
        if known is None:
            return EMPTY_SCAN
        known.scan = known.scan.extended_to(known.context.rows)
        return known.scan

    def begin_read(self, session: str) -> object:
        """A read of the session begins. Its result may be cached, unless a change overlaps it."""
        token = object()
        if session not in self._changing:
            self._reading[session] = token
        return token

    def end_read(
        self, session: str, token: object, found: SessionContext | None, size: int
    ) -> None:
        """The read has ended. ``found`` None: there is nothing to cache."""
        if self._reading.get(session) is token:
            del self._reading[session]
            if found is not None:
                self._put(session, _Cached(found, size))

    def changing(self, session: str) -> Change:
        """A block that writes to a session."""
        change = Change(self, session, self._take(session))
        self._reading.pop(session, None)
        self._changing.setdefault(session, []).append(change)
        return change

    @contextmanager
    def correcting(self, session: str) -> Generator[None]:
        """A block that changes rows of a session, which others may read before and after that."""
        with self.changing(session):
            self._correct(session)
            yield
            self._correct(session)

    def corrected(self, session: str) -> int:
        """A number that changes with each correction of the session, and now and then without."""
        return self._corrected.get(session, self._forgotten)

    def _correct(self, session: str) -> None:
        self._corrections += 1
        self._corrected.pop(session, None)
        self._corrected[session] = self._corrections
        if len(self._corrected) > self._most_corrected:
            self._forgotten = self._corrected.pop(next(iter(self._corrected)))

    def end_change(self, change: Change) -> None:
        """The block of a change has ended; for :class:`Change` only."""
        session = change.session
        others = self._changing[session]
        others.remove(change)
        for other in others:  # its context lacks the rows of this change
            other.spoilt = True
        if not others:
            del self._changing[session]
            if change.after is not None and not change.spoilt:
                self._put(session, change.after)

    def _take(self, session: str) -> _Cached | None:
        known = self._known.pop(session, None)
        if known is not None:
            self.size -= known.size
        return known

    def _put(self, session: str, known: _Cached) -> None:
        self._take(session)
        self._known[session] = known
        self.size += known.size
        while self.size > self._room:
            self._take(next(iter(self._known)))


PATIENCE = 0.005
"""Seconds for which a statement may wait for others. A kill loses at most what is that young."""
LIMIT = 256
UNKNOWN = ("", True)  # for a run that another process has accepted: it may be of a room

Write: TypeAlias = Callable[[tuple[Statement, ...]], Awaitable[object]]

_BEGIN_RUN = (
    "UPDATE runs SET status = 'running', updated = ? WHERE run_id = ? AND status = 'queued'"
)

# A row that comes after its run has ended would outlive the run: it is not added.
_ADD_STEP = """
INSERT INTO steps (run_id, step, body)
SELECT run_id, ?2, ?3 FROM runs WHERE run_id = ?1 AND status IN ('queued', 'running')
ON CONFLICT (run_id, step) DO UPDATE SET body = excluded.body"""

_NEXT_AGENT = "UPDATE runs SET given = json_set(given, '$.next_agent', ?2) WHERE run_id = ?1"

_log = logging.getLogger(__name__)


def add_step(run_id: str, step: int, row: ChatMessage, *, must: bool = False) -> Statement:
    """Store one row. ``must``: the statement fails when the run is unknown or has ended."""
    body = encode_message(row)
    return Statement(_ADD_STEP, (run_id, step, body), changes=1 if must else None)


def _add_steps(steps: Sequence[tuple[str, int, str]]) -> Statement:
    """Store encoded rows with one statement: four of them cost as much as two in one each."""
    return (
        Statement(_ADD_STEP, steps[0])
        if len(steps) == 1
        else Statement(_ADD_STEP, each=tuple(steps))
    )


def begin_run(run_id: str, now: float) -> Statement:
    """A queued run starts; one that has started stays as it is."""
    return Statement(_BEGIN_RUN, (now, run_id))


Entry: TypeAlias = Statement | tuple[int, ChatMessage]
"""A statement, or a step and its row. Most rows are never written, and never made a statement."""


class _Waiting(msgspec.Struct, eq=False):
    since: float
    entries: list[Entry] = []

    def statements(self, run_id: str) -> tuple[Statement, ...]:
        """All entries, as statements from now on: one for the rows that follow each other."""
        found: list[Statement] = []
        steps: list[tuple[str, int, str]] = []
        for entry in (*self.entries, None):
            if isinstance(entry, tuple):
                steps.append((run_id, entry[0], encode_message(entry[1])))
                continue
            if steps:
                found.append(_add_steps(steps))
                steps = []
            if entry is not None:
                found.append(entry)
        self.entries[:] = found
        return tuple(found)


class RunJournal:
    """Collects statements, for :meth:`run` to write.

    ``lost`` counts the statements that could not be written; ``torn``: the live runs that such a
    statement is missing of, whose rows are all stored with their next intent; ``accepted``: session
    of each unfinished run whose input this process has stored, and whether it is of a room;
    ``closed``: :meth:`run` has ended.
    """

    def __init__(self) -> None:
        self.lost = 0
        self.torn: set[str] = set()
        self.accepted: dict[str, tuple[str, bool]] = {}
        self.closed = False
        self._waiting: dict[str, _Waiting] = {}
        self._count = 0
        self._added = trio.Event()
        self._room = trio.Event()

    async def begin(self, run_id: str, now: float | None = None) -> None:
        """A queued run starts, at ``now`` or now."""
        await self.add(run_id, begin_run(run_id, wall_time() if now is None else now))

    async def note(self, run_id: str, step: int, row: ChatMessage) -> None:
        """Journal one row of a run that goes on."""
        await self.add(run_id, (step, row))

    async def hand_over(self, run_id: str, agent: str) -> None:
        """Another agent takes over; to be noted in front of the result that says so."""
        await self.add(run_id, Statement(_NEXT_AGENT, (run_id, agent)))

    async def add(self, run_id: str, entry: Entry) -> None:
        """Have an entry written. A checkpoint only while there is no room."""
        while self._count >= LIMIT:
            if self.closed:
                self._lose(run_id, "nobody writes it")
                return
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()
        waiting = self._waiting.get(run_id)
        if waiting is None:
            waiting = self._waiting[run_id] = _Waiting(trio.current_time())
            self._added.set()
        waiting.entries.append(entry)
        self._count += 1

    def correct(self, run_id: str, fix: Callable[[ChatMessage], ChatMessage]) -> None:
        """Change the rows of a run that are not on their way to disk yet."""
        if waiting := self._waiting.get(run_id):
            entries = waiting.entries
            entries[:] = [e if isinstance(e, Statement) else (e[0], fix(e[1])) for e in entries]

    def pending(self, run_id: str) -> tuple[Statement, ...]:
        """The statements of a run that are not on disk yet, for a transaction that writes them."""
        waiting = self._waiting.get(run_id)
        return () if waiting is None else self._statements(run_id, waiting)

    def _statements(self, run_id: str, waiting: _Waiting) -> tuple[Statement, ...]:
        entries = len(waiting.entries)
        statements = waiting.statements(run_id)
        self._count -= entries - len(statements)
        return statements

    def written(self, run_id: str, statements: tuple[Statement, ...]) -> None:
        """Drop these statements of a run: they are on disk, or lost."""
        waiting = self._waiting.get(run_id)
        if waiting is None:
            return
        done = {id(statement) for statement in statements}
        left = [entry for entry in waiting.entries if id(entry) not in done]
        self._count -= len(waiting.entries) - len(left)
        waiting.entries = left
        if not left:
            del self._waiting[run_id]
        self._room.set()

    def discard(self, run_id: str) -> None:
        """Drop all statements of a run: it has ended."""
        self.torn.discard(run_id)
        waiting = self._waiting.pop(run_id, None)
        if waiting is not None:
            self._count -= len(waiting.entries)
            self._room.set()

    async def run(self, write: Write) -> None:
        """Write for ever. On cancellation waiting statements stay, for the next writer."""
        self.closed = False
        if self._waiting:
            self._added.set()
        try:
            while True:
                await self._added.wait()
                self._added = trio.Event()
                while self._waiting:
                    # Computed anew after each sleep: most runs end, and withdraw their statements,
                    # before these are due. A fixed timer would write some of them for nothing.
                    due = min(one.since for one in self._waiting.values()) + PATIENCE
                    if due > trio.current_time():
                        await trio.sleep_until(due)
                    else:
                        await self._flush(write)
        finally:
            self.closed = True
            self._room.set()

    async def _flush(self, write: Write) -> None:
        taken = {run_id: self._statements(run_id, one) for run_id, one in self._waiting.items()}
        try:
            await write(tuple(one for waiting in taken.values() for one in waiting))
        except StorageUnavailable as error:
            # The runs still have these rows, and store them later. To try each would take as long.
            for run_id, waiting in taken.items():
                self._lose(run_id, error, len(waiting))
        except (StorageError, MotetRuntimeError):
            await self._one_by_one(taken, write)
        finally:
            for run_id, waiting in taken.items():
                self.written(run_id, waiting)

    async def _one_by_one(self, taken: dict[str, tuple[Statement, ...]], write: Write) -> None:
        """After a failed batch: one bad statement must not cost the others."""
        for run_id, waiting in taken.items():
            for statement in waiting:
                try:
                    await write((statement,))
                except (StorageError, MotetRuntimeError) as error:
                    self._lose(run_id, error)

    def _lose(self, run_id: str, why: object, count: int = 1) -> None:
        self.lost += count
        if run_id in self._waiting:  # else it has ended meanwhile
            self.torn.add(run_id)
        _log.warning("run %s continues without a row of its journal: %s", run_id, why)
