"""No acknowledged event is lost or doubled, and none is applied that is not stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio

from motet.protocols.domain_events import StoredEvent
from motet.runtime import MemoryJournal
from motet.runtime import event_sourced as module
from motet.runtime.errors import StartTimeout
from motet.runtime.incarnation import Incarnation
from motet.runtime.testing.scheduler import Patch
from tests.guarantees.law import ANY, SEARCH, Law, Mutant, first_finding, planted
from tests.guarantees.worlds import event_sourcing as world

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

LAW = Law(ANY, world.SEARCH)
TIMED = Law(ANY, world.TIMED)


def test_whatever_fails_events_are_stored_once_in_order_before_they_are_applied() -> None:
    """Law: for each schedule of asks, crashes, stops, passivations, cancellations and failures of
    the journal, with two actors for each stream: an answered event is stored, once, in the order of
    its client; events of one write are together; no state has an event that is not stored; and a
    new incarnation has exactly what is stored."""
    assert first_finding(LAW, range(60)) is None


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(10))
def test_events_are_stored_once_in_20_000_schedules(part: int) -> None:
    assert first_finding(LAW, range(part * 2_000, (part + 1) * 2_000)) is None


def test_a_recovery_that_exceeds_the_time_of_a_start_is_a_failed_start() -> None:
    """Law: the same with long recoveries and a ``start_timeout``: nothing is applied after that
    time, no message is handled by a state that is not whole, no event is lost or applied twice, and
    the actor is whole again as soon as its journal is fast enough."""
    assert first_finding(TIMED, range(40)) is None


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(5))
def test_recoveries_in_time_in_10_000_schedules(part: int) -> None:
    assert first_finding(TIMED, range(part * 2_000, (part + 1) * 2_000)) is None


def _do_not_compare_numbers() -> list[Patch]:
    append = MemoryJournal.append

    async def blind(
        journal: MemoryJournal, stream: str, after: int, events: Sequence[StoredEvent], /
    ) -> None:
        await trio.lowlevel.checkpoint()
        found = journal._streams.get(stream)
        await append(journal, stream, after if found is None else found.head, events)

    return [(MemoryJournal, "append", blind)]


def _do_not_look_up_what_was_cancelled() -> list[Patch]:
    async def hasty(
        stream: module._Stream[world.Noted],
        stored: Sequence[StoredEvent],
        _: Callable[[world.Noted], None],
        crash: Callable[[Exception], None],
    ) -> None:
        try:
            await stream._journal.append(stream.name, stream.number, stored)
        except Exception as error:
            stream._fail(error, crash)
            raise

    return [(module._Stream, "_append", hasty)]


def _go_on_after_a_failed_write() -> list[Patch]:
    def stay(*_: object) -> None:
        pass

    return [(module._Stream, "_fail", stay)]


def _apply_before_the_commit() -> list[Patch]:
    append = module._Stream[world.Noted]._append

    async def early(
        stream: module._Stream[world.Noted],
        stored: Sequence[StoredEvent],
        apply: Callable[[world.Noted], None],
        crash: Callable[[Exception], None],
    ) -> None:
        apply(stream._types.event(stream.name, stored[0]))
        await append(stream, stored, apply, crash)

    return [(module._Stream, "_append", early)]


class _NoLock:
    def locked(self) -> bool:
        return False

    def acquire_nowait(self) -> None:
        pass

    def release(self) -> None:
        pass


def _let_concurrent_handlers_write_at_once() -> list[Patch]:
    return [(trio, "Lock", _NoLock)]


MUTANTS = (
    Mutant(ANY, "compares no numbers", _do_not_compare_numbers),
    Mutant(ANY, "does not look up what was cancelled", _do_not_look_up_what_was_cancelled),
    Mutant(ANY, "goes on after a failed write", _go_on_after_a_failed_write),
    Mutant(ANY, "applies before the commit", _apply_before_the_commit),
    Mutant(ANY, "lets concurrent handlers write at once", _let_concurrent_handlers_write_at_once),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_law_finds_a_base_that(mutant: Mutant) -> None:
    """A planted defect is found within 200 schedules."""
    with planted(mutant):
        assert first_finding(LAW, range(SEARCH)) is not None


def _read_on_after_the_time() -> list[Patch]:
    """A recovery is not cancelled, and fails when it is whole."""
    replay = module._Stream[world.Noted].replay

    async def shielded(
        stream: module._Stream[world.Noted], path: str, apply: Callable[[world.Noted], None]
    ) -> None:
        with trio.CancelScope(shield=True):
            await replay(stream, path, apply)

    return [(module._Stream, "replay", shielded)]


def _begin_with_what_was_read() -> list[Patch]:
    """A recovery out of time is a start with a part of the events."""

    async def start(incarnation: Incarnation) -> None:
        with trio.move_on_after(incarnation.actor.start_timeout):
            await incarnation.actor.on_start()
        incarnation.ready = True
        incarnation.owner.became_ready()
        if incarnation.owner.mailbox.concurrent:
            incarnation._with_workers().begin_concurrent()

    return [(Incarnation, "_start", start)]


def _give_up_with_the_first() -> list[Patch]:
    """Whoever was too slow once is refused for ever."""
    timed_out = set[str]()
    start = Incarnation._start

    async def refuse(incarnation: Incarnation) -> None:
        if incarnation.owner.path in timed_out:
            raise RuntimeError("it was too slow before")
        try:
            await start(incarnation)
        except StartTimeout:
            timed_out.add(incarnation.owner.path)
            raise

    return [(Incarnation, "_start", refuse)]


def _apply_the_first_twice() -> list[Patch]:
    """The first event that is read has its number when it is read again."""
    catch_up = module._Stream[world.Noted]._catch_up

    async def again(
        stream: module._Stream[world.Noted], apply: Callable[[world.Noted], None]
    ) -> None:
        page = await stream._journal.read(stream.name, stream.number, 1)
        for stored in page:
            apply(stream._types.event(stream.name, stored))
        await catch_up(stream, apply)

    return [(module._Stream, "_catch_up", again)]


TIMED_MUTANTS = (
    Mutant(ANY, "reads on after the time of the start", _read_on_after_the_time),
    Mutant(ANY, "begins with what was read in time", _begin_with_what_was_read),
    Mutant(ANY, "gives up with the first recovery that is too long", _give_up_with_the_first),
    Mutant(ANY, "applies the first event of a recovery twice", _apply_the_first_twice),
)


@pytest.mark.parametrize("mutant", TIMED_MUTANTS, ids=lambda mutant: mutant.name)
def test_the_law_of_recoveries_in_time_finds_a_base_that(mutant: Mutant) -> None:
    """A planted defect is found within 200 schedules."""
    with planted(mutant):
        assert first_finding(TIMED, range(SEARCH)) is not None
