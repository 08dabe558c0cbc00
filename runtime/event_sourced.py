"""Event-sourced actors: the state is the fold of stored events, so it survives every end.

A handler decides on an event and calls :meth:`EventSourced.persist`, which returns when the event
is committed and applied. A start reads the newest snapshot and the events after it, and applies
them before the first message. The invariants:

* nothing is applied that is not stored, and nothing is stored without being applied before the
  next message, in the order of the numbers;
* two incarnations of one stream never both write: the journal compares the number;
* a write that failed, or whose outcome nobody knows, ends the incarnation: the next one reads what
  is stored. A cancelled write is looked up at once instead, since cancelled asks are usual, and
  each would count as a crash;
* a snapshot is a shortcut and never the only copy, unless ``retain`` says so: its failure is logged
  and ends nothing.

Choices not taken. A handler that returns events for the kernel to store (as Akka's effects do) says
the same with one more type, and cannot persist twice around an ask. Applying before the commit, to
find a failing ``apply`` early, needs a copy of the state for each event.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, Generic, TypeVar, final

import msgspec
import trio

from motet.protocols.domain_events import (
    DomainEvent,
    EventNotApplied,
    EventTypes,
    JournalError,
    JournalGap,
    StoredEvent,
)
from motet.protocols.messages import Message
from motet.runtime.actor import Actor
from motet.runtime.errors import MotetRuntimeError
from motet.runtime.event_journal import Journal
from motet.runtime.foreign import shown
from motet.runtime.handlers import check_protocol, declared_types
from motet.runtime.outside import foreign_code

__all__ = ["EventSourced", "Persistence"]

P_contra = TypeVar("P_contra", bound=Message, contravariant=True)
E = TypeVar("E", bound=DomainEvent)

_log = logging.getLogger("motet.runtime")

PAGE: Final = 500  # events read at once, so that a long stream takes no memory
LOOK_UP_WITHIN: Final = 10.0  # seconds in which a cancelled write is looked up


class Persistence(msgspec.Struct, frozen=True):
    """How an actor keeps its events.

    A snapshot is stored about every ``snapshot_every`` events, if the actor makes any. ``retain``:
    the number of events that stay before the newest snapshot; None: all, for ever.
    """

    snapshot_every: int = 100
    retain: int | None = None

    def __post_init__(self) -> None:
        if self.snapshot_every < 1 or (self.retain is not None and self.retain < 0):
            raise ValueError(
                "snapshot_every must be >= 1 and retain >= 0 or None, not "
                f"{self.snapshot_every} and {self.retain}"
            )


class EventSourced(Actor[P_contra], Generic[P_contra, E]):
    """An actor whose state is made of its stored events.

    ``EventSourced[Deposit | Balance, Deposited]``: the first parameter is its protocol, as of any
    actor, the second its events. ``journal`` is shared by all actors; ``stream`` is the name of
    this one's events in it, unique in the journal, such as ``account/alice``. Give the attributes
    of the empty state in the class or in ``__init__``, and change them in :meth:`apply` only.
    """

    persistence: ClassVar[Persistence] = Persistence()
    __motet_events__: ClassVar[EventTypes[Any]] = EventTypes(())

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        check_protocol(cls, EventSourced, cls.__motet_handlers__)
        kinds = declared_types(cls, EventSourced, 1)
        if kinds is None:
            return  # a generic class between this one and the actor
        cls.__motet_events__ = EventTypes(kinds)
        base: type[EventSourced[Any, Any]] = EventSourced
        if cls.on_start is not base.on_start:
            raise TypeError(
                f"{cls.__qualname__} overrides on_start, which reads its events: override "
                "on_replayed instead, which runs after it"
            )
        if cls.apply is base.apply or inspect.iscoroutinefunction(cls.apply):
            raise TypeError(f"{cls.__qualname__} needs a method apply(event) that is no coroutine")

    def __init__(self, journal: Journal, stream: str) -> None:
        if not stream:
            raise ValueError("the name of a stream is not empty")
        self.__motet_stream__ = _Stream[E](journal, stream, type(self).__motet_events__)

    # ------------------------------------------------------------------ for subclasses to write

    def apply(self, event: E) -> None:
        """Change the state by one event. Must be pure: no I/O, no clock, no chance, no wait.

        It runs when the event is stored, and again at every start. A failure ends the actor, and
        every start after it: refuse what cannot be applied before it is persisted.
        """
        raise NotImplementedError

    def snapshot(self) -> E | None:
        """An event that replaces the whole state when it is applied; None: no snapshots.

        It is one of the declared events, so it has a version and an upcast as they have. Must not
        wait. A failure is logged.
        """
        return None

    async def on_replayed(self) -> None:
        """Runs after the stored events were applied, before the first message.

        A failure here is a failed start, as in ``on_start`` of any actor.
        """

    # ------------------------------------------------------------------ for subclasses to call

    @final
    async def persist(self, *events: E) -> int:
        """Store ``events``, all or none, and apply them; returns the number of the last one.

        From a handler, a task or a callback of this actor. Concurrent handlers take turns here.
        Returns after the commit. Cancelled: nothing was stored, or the events are applied also.

        Raises EventNotPortable before anything is stored, and the actor goes on. Any other error is
        the journal's, such as JournalConflict, or of :meth:`apply`: it ends this incarnation, and
        the next one begins with what is stored.
        """
        incarnation = self._incarnation
        if incarnation is None:
            raise MotetRuntimeError(f"{self.path} does not run, so it stores no events")
        stream = self.__motet_stream__
        number = await stream.persist(events, self.apply, incarnation.crash)
        if stream.is_due(self.persistence.snapshot_every) and not incarnation.is_over:
            stored = stream.make_snapshot(self.path, self.snapshot)
            if stored is not None:
                self.start_soon(self._keep, stored, name="snapshot")
        return number

    @property
    def event_number(self) -> int:
        """The number of the last event that was applied; 0 at the beginning."""
        return self.__motet_stream__.number

    @property
    def stream(self) -> str:
        """The name of this actor's events in the journal."""
        return self.__motet_stream__.name

    @final
    async def on_start(self) -> None:
        """Read and apply the stored events. Override :meth:`on_replayed` instead."""
        await self.__motet_stream__.replay(self.path, self.apply)
        await self.on_replayed()

    async def _keep(self, stored: StoredEvent) -> None:
        retain = self.persistence.retain
        forget = 0 if retain is None else max(0, stored.number - retain)
        await self.__motet_stream__.keep(self.path, stored, forget)


class _Stream(Generic[E]):
    """The events of one incarnation: how far it has applied them, and its writes.

    It does not refer to its actor, so that each end leaves no cycle to the garbage collector.
    """

    def __init__(self, journal: Journal, name: str, types: EventTypes[E]) -> None:
        self.name = name
        self.number = 0
        self._journal = journal
        self._types = types
        self._turn = trio.Lock()
        self._failure: Exception | None = None  # of a write: the state may be behind the journal
        self._snapshot = 0  # the number at which a snapshot was last tried
        self._keeping = False

    # ------------------------------------------------------------------ reading

    async def replay(self, path: str, apply: Callable[[E], None]) -> None:
        """Apply what is stored, to the empty state."""
        try:
            await self._take_snapshot(apply)
        except EventNotApplied:
            raise
        except JournalError as error:
            # An older program after a newer one, for example: the events may be readable. If they
            # are gone, `_catch_up` raises the same.
            with suppress(Exception), foreign_code:
                _log.warning("%s reads all its events, without the snapshot: %s", path, error)
        await self._catch_up(apply)

    async def _take_snapshot(self, apply: Callable[[E], None]) -> bool:
        """Apply the newest snapshot if it goes beyond what is applied."""
        stored = await self._journal.snapshot(self.name)
        if stored is None or stored.number <= self.number:
            return False
        self._take(stored.number, self._types.event(self.name, stored), apply)
        self._snapshot = stored.number
        return True

    async def _catch_up(self, apply: Callable[[E], None]) -> None:
        while page := await self._journal.read(self.name, self.number, PAGE):
            for stored in page:
                expected = self.number + 1
                if stored.number == expected:
                    self._take(expected, self._types.event(self.name, stored), apply)
                # Another incarnation may have stored a snapshot meanwhile, and deleted the events.
                elif await self._take_snapshot(apply):
                    break
                else:
                    raise JournalGap(self.name, expected, stored.number)
            else:
                if len(page) < PAGE:
                    return

    def _take(self, number: int, event: E, apply: Callable[[E], None]) -> None:
        """Apply one stored event. The only place that changes the number, and by it the state."""
        try:
            with foreign_code:
                apply(event)
        except Exception as error:
            raise EventNotApplied(self.name, number, event) from error
        self.number = number

    # ------------------------------------------------------------------ writing

    async def persist(
        self, events: Sequence[E], apply: Callable[[E], None], crash: Callable[[Exception], None]
    ) -> int:
        """Store and apply; ``crash`` ends the incarnation."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._turn.locked():
            await self._turn.acquire()
        else:
            self._turn.acquire_nowait()  # no checkpoint, which would cost a task switch
        try:
            if self._failure is not None:
                # Its handler has caught the failure, or ran beside the one that failed.
                raise MotetRuntimeError(
                    f"{self.name} stores no further events before it is started again"
                ) from self._failure
            if events:
                # Numbered only now, in its turn.
                numbered = [*enumerate(events, self.number + 1)]
                stored = [self._types.stored(number, event) for number, event in numbered]
                await self._append(stored, apply, crash)
                # Not reached by a cancelled write: the look at the journal has applied that.
                for number, event in numbered:
                    self._take(number, event, apply)
            return self.number
        except EventNotApplied as error:
            self._fail(error, crash)
            raise
        finally:
            self._turn.release()

    async def _append(
        self,
        stored: Sequence[StoredEvent],
        apply: Callable[[E], None],
        crash: Callable[[Exception], None],
    ) -> None:
        try:
            await self._journal.append(self.name, self.number, stored)
        except Exception as error:
            self._fail(error, crash)
            raise
        except BaseException:
            # Cancelled. In a shield: its handler may go on in a clean-up, and others of the actor
            # do in any case, with a state that must not be behind the journal.
            with trio.CancelScope(shield=True) as scope:
                scope.deadline = trio.current_time() + LOOK_UP_WITHIN
                try:
                    await self._catch_up(apply)
                    if await self._take_snapshot(apply):  # others have deleted the last events
                        await self._catch_up(apply)
                except Exception as error:
                    self._fail(error, crash)
            if scope.cancelled_caught:
                self._fail(JournalError(f"the end of {self.name!r} cannot be read"), crash)
            raise

    def _fail(self, error: Exception, crash: Callable[[Exception], None]) -> None:
        self._failure = error
        crash(error)

    # ------------------------------------------------------------------ snapshots

    def is_due(self, every: int) -> bool:
        """Whether a snapshot is to be made; not while one is being stored."""
        return self.number - self._snapshot >= every and not self._keeping

    def make_snapshot(self, path: str, make: Callable[[], E | None]) -> StoredEvent | None:
        """The snapshot of this very step, in the form that is stored."""
        self._snapshot = self.number
        try:
            with foreign_code:
                event = make()
            return None if event is None else self._types.stored(self.number, event)
        except Exception as error:
            self._warn(path, error)
            return None

    async def keep(self, path: str, stored: StoredEvent, forget: int) -> None:
        """Store a snapshot, and delete the events up to ``forget``."""
        self._keeping = True
        try:
            await self._journal.keep(self.name, stored, forget)
        except Exception as error:
            self._warn(path, error)
        finally:
            self._keeping = False

    def _warn(self, path: str, error: Exception) -> None:
        with suppress(Exception), foreign_code:
            _log.warning("%s has no new snapshot of its events: %s", path, shown(error))
