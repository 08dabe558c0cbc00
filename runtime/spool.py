"""A spool in front of a store: takes an item at once, and stores it as soon as it can.

An item is prepared and stored, each together with many others; it is prepared in a thread.
Invariants:

- An item that was put is in memory, in the spill file or in the store. It is counted as lost only
  when the memory of the spool and the spill file are both full.
- A durable entry is on disk: in the store, or in the spill file after its sync. Who shows the id of
  an entry waits for that, so that a kill costs only ids that nobody has seen.
- An id is given to one item. Ids need no store. Where another process has given the same id to an
  item in the same store, the item gets another id as long as nobody has seen its own; after that,
  its record stays in the spill file, and is found there.
- A record that is dropped is neither stored nor written to the spill file from then on, and what
  was in that file is overwritten.

Waiting records are moved to the spill file when the store fails, or takes longer than
:data:`PATIENCE`. What the spill file does not take is held up: it waits in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import islice
from math import inf
from typing import Generic, TypeVar

import trio

from motet.protocols.storage import DatabaseClosed, DatabaseLocked, StorageError
from motet.runtime.describe import summarize
from motet.runtime.outside import foreign_code, foreign_text
from motet.runtime.spill import Identified, Spill, SpillFile
from motet.runtime.spool_entries import AT_ONCE, Counts, Doors, Entry, SpoolStatistics, State

T = TypeVar("T")
R = TypeVar("R", bound=Identified)

PATIENCE = 0.25
"""Seconds that the store may take before records go to the spill file."""
STUCK = 5.0
"""Seconds without any progress after which a prepared item counts as held up."""
RETRY, RETRY_MOST = 0.25, 2.0
"""Seconds between two attempts to store, at first and at most."""
BATCH, BATCH_BYTES = 256, 4_000_000
"""Records in one transaction, and their bytes, at most."""
PASSES = 8
"""Passes of the event loop in which a batch is prepared, if its items are small."""
LARGE = 262_144
"""Bytes of an item that is prepared apart, so that no other waits for it."""
INLINE = 4_500
"""Bytes of an item that is prepared in the event loop: a thread would cost more."""
PORTION, INLINE_PORTION = 1_000_000, 65_536
"""Bytes that are prepared together, in a thread and in the event loop."""
ID_ATTEMPTS = 8
SECONDS = 8
"""Seconds of which the ids are known: items of a crowd are named later than they arrive."""
FULL = "the memory of the spool and its spill file are full"


class Spool(ABC, Generic[T, R]):
    """Takes items at any time, and stores them while :meth:`run` runs.

    Args:
        spill: None: what the store does not take waits in memory.
        clock: Unix seconds.
        threads: prepare items in threads; large ones always are.
        limit: bytes of items in memory.
        deadline: seconds after which a store that does not answer has failed.
    """

    def __init__(
        self,
        spill: SpillFile[R] | None,
        clock: Callable[[], float],
        *,
        threads: bool,
        limit: int,
        deadline: float,
    ) -> None:
        self._spill = Spill(spill, self.trouble)
        self._clock = clock
        self._threads = threads
        self._limit = limit
        self._deadline = deadline
        self._doors = Doors()
        self._lanes: tuple[deque[Entry[T, R]], deque[Entry[T, R]]] = (deque(), deque())
        self._ready: dict[str, Entry[T, R]] = {}
        self._held_up: dict[str, Entry[T, R]] = {}
        self._held = 0
        self._arrivals: deque[Entry[T, R]] = deque()
        self._made: dict[int, set[str]] = {}
        self._counts = Counts()
        self._problem: Exception | None = None
        self._latest: Exception | None = None

    @abstractmethod
    def fresh_id(self, timestamp: float) -> str:
        """An id for an item of that time, which may be taken."""

    @abstractmethod
    def take(self, item: T) -> int:
        """Copy whatever may change of an item that has arrived; its bytes. Raises nothing."""

    @abstractmethod
    def drops(self, record: R) -> bool:
        """Whether the record is not to be stored any more."""

    @abstractmethod
    def prepared(self, entries: Sequence[Entry[T, R]]) -> list[R | None]:
        """The records of items; None for one that has nothing to store. Runs in a thread.

        An item for which it raises is lost.
        """

    @abstractmethod
    def renamed(self, entry: Entry[T, R]) -> R:
        """The record of the entry with its new id."""

    @abstractmethod
    def weight(self, record: R) -> int:
        """The bytes of a record."""

    @abstractmethod
    async def store(self, records: Sequence[R]) -> Collection[str]:
        """Store all records in one transaction; those of their ids that other items have.

        A record that is stored already is left as it is. Any exception: nothing was stored.
        """

    @abstractmethod
    def loss(self, count: int) -> T:
        """An item that says how many were lost."""

    @abstractmethod
    def trouble(self, event: str, /, **facts: object) -> None:
        """Called when the storage fails, for the log."""

    def statistics(self) -> SpoolStatistics:
        waiting = len(self._ready) + len(self._held_up) + len(self._arrivals)
        waiting += self._doors.waiting + sum(map(len, self._lanes))
        problem = "" if self._problem is None else str(self._problem)
        return SpoolStatistics(
            *(waiting, self._held, len(self._spill)),
            *(self._counts.stored, self._counts.lost, problem),
        )

    # Taking items

    @property
    def is_crowded(self) -> bool:
        """Whether an item has to wait for its :meth:`turn`."""
        doors = self._doors
        return doors.open and (doors.waiting > 0 or doors.entered >= AT_ONCE or not self.has_room)

    async def turn(self) -> None:
        """Wait with an item until it can be taken.

        In one pass of the event loop so many items are taken; others wait for the next, and while
        the memory is full. Thousands wait at once: a caller makes nothing for its item until then.
        """
        doors = self._doors
        doors.waiting += 1
        if doors.waiting == 1:
            doors.crowded.unpark()
        try:
            while True:
                await doors.turn.wait()
                if self.has_room or doors.is_stuck or not doors.open:
                    return
        finally:
            doors.waiting -= 1

    async def deliver(
        self, item: T, *, patient: bool = False, since: float | None = None
    ) -> Entry[T, R]:
        """Take an item, and wait until its fate is known.

        It waits for its turn first, if the caller has not: with the time ``since`` which it did.
        After a cancellation the item is taken nevertheless.
        """
        came = self.now() if since is None else since
        entry: Entry[T, R] = Entry("", item, came, 0, patient=patient)
        # So many patient ones come at once as a store has places for requests: that is no crowd.
        if since is None and self.is_crowded and not (patient and self.has_room):
            try:
                await self.turn()
            except BaseException:
                self._follow(entry)
                raise
        self._doors.entered += 1
        if self._doors.entered >= AT_ONCE:
            self._doors.crowded.unpark()
        self._accept(entry)
        if entry.state == "waiting":
            entry.waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(entry.leave)
        else:
            await trio.lowlevel.checkpoint()
        return entry

    def leave(self, item: T, since: float) -> None:
        """Have an item taken whose caller was cancelled while it waited for its turn."""
        self._follow(Entry("", item, since, 0))

    def _follow(self, entry: Entry[T, R]) -> None:
        if self._doors.open:
            self._arrivals.append(entry)
            self._doors.crowded.unpark()
        else:
            self._accept(entry)

    def put(self, item: T) -> Entry[T, R]:
        """Take an item at once. Its entry has its id, and is settled once its fate is known."""
        entry: Entry[T, R] = Entry("", item, self.now(), 0)
        self._accept(entry)
        return entry

    def now(self) -> float:
        return round(self._clock(), 6)

    @property
    def has_room(self) -> bool:
        """Whether there is room for an item, or it is known that nothing makes room for it."""
        return self._held < self._limit or bool(self._held_up)

    def _accept(self, entry: Entry[T, R]) -> None:
        entry.size = self.take(entry.item)
        if self._held >= self._limit:
            self._lose(entry, StorageError(FULL))
        elif self._name(entry):
            self._held += entry.size
            is_idle = not (self._ready or self._lanes[0] or self._lanes[1])
            if not self._doors.open:
                self._lanes[entry.size > LARGE].append(entry)
                entry.settle("held up", DatabaseClosed("the spool has stopped"))
            elif is_idle and entry.size <= INLINE:
                # Of a single item, a task that prepares it would take most of the time.
                self._is_prepared(entry, *self._prepared([entry]))
                self._doors.prepared.unpark_all()
            else:
                self._lanes[entry.size > LARGE].append(entry)
                if self._doors.arrived:
                    self._doors.arrived.unpark_all()

    def _name(self, entry: Entry[T, R]) -> bool:
        """Give an entry an id that no other has; False, and it is lost, after too many clashes."""
        second = int(entry.timestamp)
        made = self._made.get(second)
        if made is None:
            made = self._made[second] = set[str]()
            if len(self._made) > SECONDS:
                del self._made[min(self._made)]
        while entry.attempts < ID_ATTEMPTS:
            entry.attempts += 1
            entry.id = self.fresh_id(entry.timestamp)
            if entry.id not in made and entry.id not in self._spill:
                made.add(entry.id)
                return True
        problem = f"no free id in {ID_ATTEMPTS} attempts"
        self._lose(entry, StorageError(f"{problem}: is the source of randomness working?"))
        return False

    async def find(self, identity: str) -> R | None:
        """A record that is not in the store yet. Raises ``OSError``."""
        entry = self._ready.get(identity) or self._held_up.get(identity)
        if entry is not None:
            return entry.record
        found = await self._spill.read([identity]) if identity in self._spill else []
        return found[0] if found else None

    # Running

    async def open(self, look: Callable[[], Awaitable[object]] | None = None) -> None:
        """Store first what an earlier process has left in the spill file, within some seconds.

        ``look``: called before that, when the file was read.
        """
        self._doors.open = True
        await self._spill.load()
        await self._spill.tidy()
        if look is not None:
            await look()
        with trio.move_on_after(STUCK):
            while self._spill and await self._drain():
                pass

    async def run(self) -> None:
        """Prepare and store items until it is cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._doors.open = True
                for lane in self._lanes:
                    nursery.start_soon(self._prepare_all, lane)
                nursery.start_soon(self._store_all)
                nursery.start_soon(self._watch)
                nursery.start_soon(self._watch_all)
                nursery.start_soon(self._admit_all)
        finally:
            self._doors.open = False
            self._doors.turn.end_pass(waits_long=True)
            self._doors.turn.wake_all()
            while self._arrivals:
                self._accept(self._arrivals.popleft())
            # They are stored by `finish`; but the actor that would call it waits for their tasks.
            for entry in (*self._ready.values(), *self._lanes[0], *self._lanes[1]):
                if entry.patient and entry.waiter is not None:
                    entry.settle("held up", DatabaseClosed("the spool has stopped"))

    async def finish(self, seconds: float) -> None:
        """Store what is left, or write it to the spill file; :meth:`run` has ended."""
        while self._doors.waiting:  # for one pass of the loop
            await trio.lowlevel.cancel_shielded_checkpoint()
        for lane in self._lanes:
            while lane:
                await self._prepare(lane)
        with trio.move_on_after(seconds):
            while (self._ready or self._held_up) and await self._store_batch():
                pass
        await self._keep([*self._ready.values(), *self._held_up.values()])
        if left := len(self._ready) + len(self._held_up):
            self.trouble("errors_lost", count=left, reason="the host stops, and nothing takes them")
        await self._spill.close()

    async def _admit_all(self) -> None:
        """Let those enter whose turn it is, so many in each pass."""
        doors = self._doors
        while True:
            if not (self._arrivals or doors.waiting) and doors.entered < AT_ONCE:
                await doors.crowded.park()
            doors.turn.end_pass(waits_long=not self.has_room)
            await trio.lowlevel.checkpoint()
            if doors.is_stuck:  # those who have their turn enter first
                await trio.lowlevel.checkpoint()
                doors.is_stuck = False
            if (self._arrivals or doors.waiting) and not self.has_room:
                with trio.move_on_after(STUCK) as waiting:
                    await doors.room.park()
                doors.is_stuck = waiting.cancelled_caught
            doors.entered = 0
            for _ in range(min(AT_ONCE, len(self._arrivals))):
                if doors.is_stuck or self.has_room:
                    doors.entered += 1
                    self._accept(self._arrivals.popleft())
            doors.turn.wake(AT_ONCE - doors.entered)

    async def _prepare_all(self, lane: deque[Entry[T, R]]) -> None:
        while True:
            if not lane:
                await self._doors.arrived.park()
            else:
                await self._prepare(lane)

    async def _prepare(self, lane: deque[Entry[T, R]]) -> None:
        """Prepare the first items of a lane."""
        by_thread = self._threads and lane[0].size > INLINE
        portion = _portion(lane, PORTION if by_thread else INLINE_PORTION)
        by_thread = by_thread or (self._threads and any(one.size > INLINE for one in portion))
        if by_thread or sum(one.size for one in portion) > LARGE:
            thread = self._doors.threads
            made = await trio.to_thread.run_sync(self._prepared, portion, limiter=thread)
        else:
            made = self._prepared(portion)
        for entry, record in zip(portion, made, strict=True):
            lane.popleft()
            self._is_prepared(entry, record)
        self._doors.prepared.unpark_all()
        if lane:
            await trio.lowlevel.checkpoint()

    def _prepared(self, entries: Sequence[Entry[T, R]]) -> Sequence[R | Exception | None]:
        # One that raises would be the first of its lane for ever, and end the actor each time.
        try:
            with foreign_text:
                return self.prepared(entries)
        except Exception as error:
            return [self._prepared([one])[0] for one in entries[1:] and entries] or [error]

    def _is_prepared(self, entry: Entry[T, R], record: R | Exception | None) -> None:
        self._counts.steps += 1
        if isinstance(record, Exception):
            self._resize(entry, 0)
            self._lose(entry, StorageError(f"it cannot be described: {summarize(record)}"))
            return
        entry.record = record
        if record is None or self.drops(record):
            self._leave(entry, "blank")
        else:
            self._ready[entry.id] = entry
            self._resize(entry, self.weight(record))
            if not entry.patient and self._doors.impatient:
                self._doors.impatient.unpark_all()

    async def _store_all(self) -> None:
        delay = RETRY
        while True:
            stored = self._counts.stored
            if not (self._ready or self._held_up or self._spill):
                await self._doors.prepared.park()
            elif await self._store_batch() and (not self._spill or await self._drain()):
                delay = RETRY
                if self._counts.stored > stored:  # else what tells of losses is lost, too, and told
                    self._tell_losses()
            else:
                with trio.move_on_after(delay):
                    await self._doors.prepared.park()
                delay = min(2 * delay, RETRY_MOST)

    async def _gather(self) -> None:
        """Let items that are prepared in the next passes come along: they share a commit then."""
        several = len(self._ready) > 1
        for _ in range(PASSES):
            if len(self._ready) >= BATCH or not (several or self._lanes[0]):
                return
            await trio.lowlevel.checkpoint()
            several = False

    async def _watch(self) -> None:
        """Move records to the spill file that the store does not take in time."""
        while True:
            first = next((e for e in self._ready.values() if not e.patient), None)
            if first is None:
                await self._doors.impatient.park()
                continue
            await trio.sleep(PATIENCE)
            if first.id in self._ready:
                waited = f"no answer within {PATIENCE * 1000:.0f} ms"
                self._problem = self._problem or StorageError(waited)
                await self._keep([e for e in self._ready.values() if not e.patient])

    async def _watch_all(self) -> None:
        """Let nobody wait while neither the store nor the spill file answers."""
        while True:
            if not self._ready:
                await self._doors.prepared.park()
                continue
            steps = self._counts.steps
            await trio.sleep(STUCK)
            if steps == self._counts.steps:
                for entry in self._ready.values():
                    if not entry.patient and entry.state == "waiting":
                        entry.settle("held up", StorageError(f"no answer within {STUCK:g} s"))

    # Storing

    async def _store_batch(self) -> bool:
        """Store the first records in memory; False if the store takes none of them."""
        await self._gather()
        entries = (self._ready or self._held_up).values()
        batch = {entry.id: entry for entry in _portion(entries, BATCH_BYTES)}
        records = [entry.record for entry in batch.values() if entry.record is not None]
        if not records:
            return True
        stored, clashes = await self._transact(records)
        self._counts.stored += len(stored)
        self._spill.forget(stored)
        for identity in stored:
            self._leave(batch[identity], "stored")
        for identity in clashes:
            if batch[identity].durable:  # spilled meanwhile, and its id was shown
                self._spill.set_aside(identity)
            else:
                self._rename(batch[identity])
        if self._spill.is_used:
            await self._spill.tidy()
        if left := [entry for entry in batch.values() if entry.id in self._ready]:
            await self._keep(left)
        return bool(stored or clashes)

    async def _drain(self) -> bool:
        """Store the first records of the spill file; False if the store takes none of them."""
        ids = self._spill.first(BATCH, BATCH_BYTES)
        try:
            records = await self._spill.read(ids)
        except OSError as error:
            self.trouble("spill_file_not_read", reason=str(error))
            return False
        stored, clashes = await self._transact(records) if records else ([], ())
        for taken in clashes:
            self._spill.set_aside(taken)
            self.trouble("error_id_taken", id=taken)
        whole = {record.id for record in records}
        # Others were stored meanwhile, by a transaction that had begun before they were spilled.
        if damaged := [one for one in ids if one not in whole and one in self._spill]:
            self._counts.lost += len(damaged)
            self.trouble("errors_lost", count=len(damaged), reason="the spill file is damaged")
        self._counts.stored += len(stored)
        self._spill.forget([*stored, *damaged])
        await self._spill.tidy()
        return bool(stored or clashes or damaged)

    async def _transact(self, records: Sequence[R]) -> tuple[list[str], Collection[str]]:
        """Store records; the ids of those that are stored, and those that other items have."""
        try:
            with foreign_code:
                clashes = await self._answer(records)
        except Exception as error:
            self._problem = self._latest = error
            if len(records) == 1 or isinstance(error, DatabaseLocked | DatabaseClosed):
                return [], ()
        else:
            self._problem = None
            self._counts.steps += 1
            return [record.id for record in records if record.id not in clashes], clashes
        # One may be too large for the disk, and the others must not suffer for it. When the first
        # few all fail, nothing can be stored.
        stored, taken, failed = list[str](), list[str](), 0
        for record in records:
            if failed == 3 and not stored:
                break
            one, clashes = await self._transact([record])
            stored, taken = [*stored, *one], [*taken, *clashes]
            failed += not one and not clashes
        return stored, taken

    async def _answer(self, records: Sequence[R]) -> Collection[str]:
        try:
            return await self._attempt(records)
        except DatabaseLocked:
            return await self._attempt(records)

    async def _attempt(self, records: Sequence[R]) -> Collection[str]:
        if self._deadline == inf:
            return await self.store(records)
        with trio.move_on_after(self._deadline):
            return await self.store(records)
        raise StorageError(f"the store has not answered within {self._deadline:g} s")

    async def _keep(self, entries: Sequence[Entry[T, R]]) -> None:
        """Move records to the spill file; what it does not take is held up."""
        spilled = await self._spill.append(
            lambda: [e.record for e in entries if e.record is not None and not self.drops(e.record)]
        )
        self._spill.forget({*spilled} - {entry.id for entry in entries})  # renamed meanwhile
        for entry in entries:
            if entry.state == "stored":  # meanwhile
                self._spill.forget([entry.id])
            elif entry.id in spilled:
                self._leave(entry, "spilled")
            elif self._ready.pop(entry.id, None) is not None:
                self._held_up[entry.id] = entry
                entry.settle("held up", self._problem or self._latest)
                self._doors.room.unpark_all()
        await self._spill.tidy()

    # Changes of one entry

    async def purge(self) -> bool:
        """Let go of everything that :meth:`drops` names now; False: some of it is still on disk."""
        for entry in [*self._ready.values(), *self._held_up.values()]:
            if entry.record is not None and self.drops(entry.record):
                self._leave(entry, "blank")
        return await self._spill.erase(self.drops)

    def _leave(self, entry: Entry[T, R], state: State) -> None:
        """An entry is no longer in memory."""
        self._ready.pop(entry.id, None)
        self._held_up.pop(entry.id, None)
        self._resize(entry, 0)
        entry.settle(state)

    def _lose(self, entry: Entry[T, R], problem: Exception) -> None:
        self._counts.lost += 1
        entry.settle("lost", problem)
        self.trouble("errors_lost", count=1, id=entry.id, reason=str(problem))

    def _resize(self, entry: Entry[T, R], size: int) -> None:
        self._held += size - entry.size
        entry.size = size
        if self._held < self._limit and self._doors.room:
            self._doors.room.unpark_all()

    def _rename(self, entry: Entry[T, R]) -> None:
        """Give an entry a new id, since another process has stored an item with its own."""
        self._ready.pop(entry.id, None)
        self._held_up.pop(entry.id, None)
        if self._name(entry):
            entry.record = self.renamed(entry)
            self._ready[entry.id] = entry
        else:
            self._resize(entry, 0)

    def _tell_losses(self) -> None:
        """Put an item that counts those that were lost since the last one."""
        count = self._counts.lost - self._counts.told
        if count and self._problem is None:
            self._counts.told += count
            self.put(self.loss(count))


def _portion(entries: Iterable[Entry[T, R]], limit: int) -> list[Entry[T, R]]:
    """The first of the entries: at least one, at most :data:`BATCH`, of about so many bytes."""
    chosen: list[Entry[T, R]] = []
    for entry in islice(entries, BATCH):
        limit -= entry.size
        if limit < 0 and chosen:
            break
        chosen.append(entry)
    return chosen
