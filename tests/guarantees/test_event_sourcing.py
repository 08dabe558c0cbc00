"""No acknowledged event is lost or doubled, and none is applied that is not stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio

from motet.protocols.domain_events import StoredEvent
from motet.runtime import MemoryJournal
from motet.runtime import event_sourced as module
from motet.runtime.testing.scheduler import Patch
from tests.guarantees.law import ANY, SEARCH, Law, Mutant, first_finding, planted
from tests.guarantees.worlds import event_sourcing as world

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

LAW = Law(ANY, world.SEARCH)


def test_whatever_fails_events_are_stored_once_in_order_before_they_are_applied() -> None:
    """Law: for each schedule of asks, crashes, stops, passivations, cancellations and failures of
    the journal, with two actors for each stream: an answered event is stored, once, in the order of
    its client; events of one write are together; no state has an event that is not stored; and a
    new incarnation has exactly what is stored."""
    assert first_finding(LAW, range(300)) is None


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(10))
def test_events_are_stored_once_in_20_000_schedules(part: int) -> None:
    assert first_finding(LAW, range(part * 2_000, (part + 1) * 2_000)) is None


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
