"""Links and restart events, where they meet identities, threads, suspension, back-off and stops.

The laws of links alone, and of restarts alone, are G9 (``worlds/linked.py``, ``regroup.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import msgspec
import pytest
import trio

from motet.runtime import RestartEvent, links, registry
from motet.runtime import cell as cell_module
from motet.runtime.cell import Cell
from motet.runtime.feed import Restarts
from motet.runtime.kernel import Owner
from motet.runtime.stopping import StopPlan, at_once
from motet.runtime.supervision import Decision
from motet.runtime.supervisor import Supervisor
from motet.runtime.testing.scheduler import Patch
from motet.runtime.threads import Inbox, LoopFuture
from tests.guarantees.law import SEARCH, Law, Mutant, first_finding, planted
from tests.guarantees.mutants import supervision
from tests.guarantees.worlds.follow import FOLLOWED
from tests.guarantees.worlds.ties import TIES

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

LAWS = {law.guarantee: law for law in (TIES, FOLLOWED)}


def test_links_end_with_a_passivation_and_a_failure_reaches_those_who_are_linked() -> None:
    """Law: for each schedule of links between identities and a hub, of crashes, ends, stops,
    passivations, and of threads that tell and ask them: exactly those who are linked to one that
    fails are restarted, a link is gone with an end that is no failure, and each future of a thread
    has one outcome."""
    # In the last one an identity is made anew between two looks for idle ones.
    assert first_finding(TIES, (*range(40), 4_263)) is None


def test_each_restart_is_one_event_and_happens_as_that_says() -> None:
    """Law: for each schedule of crashes, suspensions, back-offs, stops and groups: an event for
    each decision, with its number and its cause, and the next incarnation after its delay."""
    assert first_finding(FOLLOWED, range(60)) is None


@pytest.mark.sweep
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("part", range(5))
def test_the_laws_in_10_000_schedules(law: Law, part: int) -> None:
    assert first_finding(law, range(part * 2_000, (part + 1) * 2_000)) is None


# ---------------------------------------------------------------------- links of identities


def _fail_by_passivation() -> list[Patch]:
    def passivate(supervisor: Supervisor[Cell], cell: Cell) -> bool:
        links.break_links(cell, None)
        supervisor.stop(cell, at_once())
        return True

    return [(registry, "_passivate", passivate)]


def _keep_links_of_the_passivated() -> list[Patch]:
    def keep(_: Owner) -> None:
        pass

    return [(cell_module, "drop_links", keep)]


def _leave_the_successor_its_links() -> list[Patch]:
    """The next actor of an identity has the links of the one before."""
    drop = links.drop_links
    of_path: dict[str, dict[Owner, links.Fail]] = {}

    def note(owner: Owner) -> None:
        of_path[owner.path] = {**(owner.links or {})}
        drop(owner)

    begin = Cell.begin

    def begin_with(self: Cell, nursery: trio.Nursery) -> None:
        begin(self, nursery)
        for other in of_path.pop(self.path, {}):
            if isinstance(other, Cell) and other.state == "running":
                links.link(self, self.fail, other, other.fail)

    return [(cell_module, "drop_links", note), (Cell, "begin", begin_with)]


def _tell_no_thread_of_the_end() -> list[Patch]:
    """A future of a thread is forgotten when its actor fails by a link."""
    settle = LoopFuture[Any].settle

    def lose(self: LoopFuture[Any], result: Any) -> None:
        error = getattr(result, "error", None)
        if error is None:
            settle(self, result)

    return [(LoopFuture, "settle", lose)]


def _lose_what_a_thread_hands_over() -> list[Patch]:
    def drain(self: Inbox) -> None:
        self._scheduled = False
        self._items.clear()

    return [(Inbox, "_drain", drain)]


# ---------------------------------------------------------------------- restart events


def _no_event_of_the_suspended() -> list[Patch]:
    report = Supervisor[Cell]._report

    def silent(self: Supervisor[Cell], cell: Cell, decision: Decision) -> None:
        if not cell.paused:
            report(self, cell, decision)

    return [(Supervisor, "_report", silent)]


def _an_event_for_the_crashed_only() -> list[Patch]:
    report = Supervisor[Cell]._report

    def alone(self: Supervisor[Cell], cell: Cell, decision: Decision) -> None:
        only = tuple(name for name in decision.starts if name == cell.name)
        report(self, cell, msgspec.structs.replace(decision, starts=only))

    return [(Supervisor, "_report", alone)]


def _the_number_of_the_last_restart() -> list[Patch]:
    return _changed(lambda event: {"restarts": event.restarts - 1})


def _each_its_own_cause() -> list[Patch]:
    return _changed(lambda event: {"by": event.path})


def _no_delay() -> list[Patch]:
    return _changed(lambda _: {"delay": 0.0})


def _changed(fields: Callable[[RestartEvent], dict[str, Any]]) -> list[Patch]:
    add = Restarts.add

    def changed(self: Restarts, event: RestartEvent) -> None:
        add(self, msgspec.structs.replace(event, **fields(event)))

    return [(Restarts, "add", changed)]


def _resume_by_a_restart() -> list[Patch]:
    begin = Cell.begin

    def awake(self: Cell, nursery: trio.Nursery) -> None:
        self.paused = False
        begin(self, nursery)

    return [(Cell, "begin", awake)]


def _stop_only_who_runs() -> list[Patch]:
    """A stop is no order to one that waits for its restart."""
    stop = Supervisor[Cell].stop

    def later(self: Supervisor[Cell], cell: Cell, plan: StopPlan) -> None:
        if cell.state != "suspended" or self.closing:
            stop(self, cell, plan)

    return [(Supervisor, "stop", later)]


def _begin_at_once() -> list[Patch]:
    """A back-off is told, and not waited for."""
    execute = Supervisor[Cell]._execute

    async def hasty(self: Supervisor[Cell], decision: Decision, now: float) -> None:
        await execute(self, decision, now - decision.delay)

    return [(Supervisor, "_execute", hasty)]


def _wait_again_after_a_resume() -> list[Patch]:
    """Whoever is suspended when its restart is due waits for the whole back-off again."""
    begin_due = Supervisor[Cell]._begin_due

    def begin(self: Supervisor[Cell]) -> None:
        now = trio.current_time()
        for cell in self.cells.values():
            if cell.paused and self._due.get(cell.name, now + 1) <= now:
                self._due[cell.name] = now + 1
                return
        begin_due(self)

    return [(Supervisor, "_begin_due", begin)]


MUTANTS = (
    Mutant(TIES.guarantee, "fails those linked to a passivated one", _fail_by_passivation),
    Mutant(TIES.guarantee, "keeps links of a passivated one", _keep_links_of_the_passivated),
    Mutant(TIES.guarantee, "gives the successor the links", _leave_the_successor_its_links),
    Mutant(TIES.guarantee, "tells no thread of a broken link", _tell_no_thread_of_the_end),
    Mutant(TIES.guarantee, "loses what threads tell", _lose_what_a_thread_hands_over),
    *(
        attrs.evolve(mutant, guarantee=TIES.guarantee)
        for mutant in supervision.MUTANTS
        if mutant.name in ("forgets one side of a link", "keeps links over restarts")
    ),
    Mutant(FOLLOWED.guarantee, "tells no restart of a suspended one", _no_event_of_the_suspended),
    Mutant(FOLLOWED.guarantee, "tells the crashed of a group only", _an_event_for_the_crashed_only),
    Mutant(FOLLOWED.guarantee, "tells the number before", _the_number_of_the_last_restart),
    Mutant(FOLLOWED.guarantee, "tells each member as its own cause", _each_its_own_cause),
    Mutant(FOLLOWED.guarantee, "tells no delay", _no_delay),
    Mutant(FOLLOWED.guarantee, "resumes by a restart", _resume_by_a_restart),
    Mutant(FOLLOWED.guarantee, "stops nobody in a back-off", _stop_only_who_runs),
    Mutant(FOLLOWED.guarantee, "waits for no back-off", _begin_at_once),
    Mutant(FOLLOWED.guarantee, "begins no suspended one", _wait_again_after_a_resume),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_law_finds_a_kernel_that(mutant: Mutant) -> None:
    """A planted defect is found within 200 schedules."""
    with planted(mutant):
        assert first_finding(LAWS[mutant.guarantee], range(SEARCH)) is not None
