"""Defects of supervision: wrong groups, wrong order, wrong sums; in the table and in its shell."""

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

import motet.runtime.actor as actor_module
import motet.runtime.cell as cell_module
import motet.runtime.incarnation as incarnation_module
from motet.runtime import links
from motet.runtime.cell import Cell
from motet.runtime.envelope import Ask, Raised
from motet.runtime.errors import ActorDead, LinkBroken
from motet.runtime.kernel import Owner
from motet.runtime.stopping import within
from motet.runtime.supervision import ChildTable, Decision, Supervision
from motet.runtime.supervisor import Supervisor, _Busy
from motet.runtime.testing.scheduler import Patch
from motet.runtime.waits import Groups, Work
from tests.guarantees.law import Mutant
from tests.guarantees.worlds.linked import NAME as LINKS
from tests.guarantees.worlds.regroup import NAME as GROUPS

__all__ = ["MUTANTS"]


def _allow_one_more() -> list[Patch]:
    """The restart that is too many is allowed."""
    spend = ChildTable._spend_restart

    def spend_generously(table: ChildTable, now: float) -> bool:
        return spend(table, now) or len(table._restarts) == table.supervision.intensity + 1

    return [(ChildTable, "_spend_restart", spend_generously)]


def _forget_no_restart() -> list[Patch]:
    """Restarts of long ago count, too."""

    def spend(table: ChildTable, now: float) -> bool:
        table._restarts.append(now)
        return len(table._restarts) <= table.supervision.intensity

    return [(ChildTable, "_spend_restart", spend)]


def _spare_the_later() -> list[Patch]:
    """``rest_for_one`` restarts what stands before instead of what stands after."""
    group = ChildTable._group

    def group_before(table: ChildTable, failed: str) -> tuple[str, ...]:
        names = tuple(table._children)
        if table.supervision.strategy != "rest_for_one":
            return group(table, failed)
        return names[: names.index(failed) + 1]

    return [(ChildTable, "_group", group_before)]


def _stop_in_start_order() -> list[Patch]:
    """What was started first is stopped first, under those that need it."""
    restart = ChildTable._restart

    def restart_forwards(table: ChildTable, failed: str, delay: float) -> Decision:
        decision = restart(table, failed, delay)
        return msgspec.structs.replace(decision, stops=decision.stops[::-1])

    return [(ChildTable, "_restart", restart_forwards)]


def _restart_the_temporary() -> list[Patch]:
    """A temporary child comes back when its siblings do."""
    restart = ChildTable._restart

    def restart_all(table: ChildTable, failed: str, delay: float) -> Decision:
        for child in table._children.values():
            if child.restart == "temporary":
                child.restart = "transient"
        return restart(table, failed, delay)

    return [(ChildTable, "_restart", restart_all)]


def _double_the_delay() -> list[Patch]:
    """The first back-off is the second one."""
    delay = Supervision.delay

    def late(spec: Supervision, streak: int, chance: float) -> float:
        return delay(spec, streak + 1, chance)

    return [(Supervision, "delay", late)]


def _do_not_wait_for_the_old() -> list[Patch]:
    """A sibling is told to stop, and started anew before it has stopped."""

    async def halt(supervisor: Supervisor[Cell], cell: Cell, *, final: bool) -> None:
        supervisor._due.pop(cell.name, None)
        cell.stop(within(None), final=final)

    return [(Supervisor, "_halt", halt)]


def _count_siblings_together() -> list[Patch]:
    """With a limit for each child, the restarts of its siblings count too."""
    recent = ChildTable._recent

    def of_all(table: ChildTable, restarts: list[float], now: float) -> list[float]:
        if table.supervision.give_up == "child":
            restarts = [at for child in table._children.values() for at in child.restarts or ()]
        return recent(table, restarts, now)

    return [(ChildTable, "_recent", of_all)]


def _let_siblings_go_too() -> list[Patch]:
    """A child that has spent its own restarts ends its siblings."""
    let_go = ChildTable._let_go

    def let_all_go(table: ChildTable, name: str, child: Any) -> Decision:
        decision = let_go(table, name, child)
        if child.restarts is None or len(child.restarts) <= table.supervision.intensity:
            return decision
        return msgspec.structs.replace(decision, escalate=True)

    return [(ChildTable, "_let_go", let_all_go)]


# ---------------------------------------------------------------------- groups


def _wait_for_nobody() -> list[Patch]:
    """What a supervisor waits for is no edge of the wait-for graph."""

    def nobody(_: Supervisor[Cell], cell: Cell) -> Groups:
        return ()

    return [(Supervisor, "before_restart", nobody)]


def _look_at_nobody() -> list[Patch]:
    """Those who wait already for a member are not looked at when its group is to restart."""

    def leave(_: Cell) -> None:
        pass

    return [(Cell, "refuse_all_endless", leave)]


def _forget_who_ends_last() -> list[Patch]:
    """Only the member that is being stopped counts, not those to be stopped after it."""

    def first(busy: _Busy[Cell]) -> list[Work]:
        return [work for cell in busy.halting[:1] for work in cell.works()]

    return [(_Busy, "works", first)]


def _forget_the_start() -> list[Patch]:
    """A member that starts after another does not wait for it."""

    def halted(busy: _Busy[Cell]) -> list[Work]:
        return [work for cell in busy.halting for work in cell.works()]

    return [(_Busy, "works", halted)]


def _refuse_all_of_the_group() -> list[Patch]:
    """Whoever waits for a member that has failed is refused, also from outside of the group."""
    execute = Supervisor[Cell]._execute

    async def refuse_and_execute(
        supervisor: Supervisor[Cell], decision: Decision, now: float
    ) -> None:
        for name in decision.starts if len(decision.starts) > 1 else ():
            cell = supervisor.cells[name]
            for item in [*cell.mailbox.queue.present()]:
                if isinstance(item, Ask) and item.asked_from is not None:
                    cell.mailbox.withdraw(item)
                    item.settle(Raised(ActorDead(cell.path, "it starts again")))
        await execute(supervisor, decision, now)

    return [(Supervisor, "_execute", refuse_and_execute)]


# ---------------------------------------------------------------------- links


def _tell_the_next_only() -> list[Patch]:
    """Those who are linked to one that fails by its link go on."""

    def break_next(owner: Owner, error: Exception | None) -> None:
        for other, fail in links._taken(owner).items():
            links.drop_links(other)
            fail(LinkBroken(owner.path, f"has failed: {error}"))

    return _broken_by(break_next)


def _break_by_any_end() -> list[Patch]:
    """An actor that ends by itself fails those who are linked to it."""

    def break_all(owner: Owner) -> None:
        links.break_links(owner, None)

    return [(cell_module, "drop_links", break_all)]


def _keep_links() -> list[Patch]:
    """A link holds for all incarnations."""

    def tell(owner: Owner, error: Exception | None) -> None:
        for fail in [*(owner.links or {}).values()]:
            fail(LinkBroken(owner.path, f"has failed: {error}"))

    return _broken_by(tell)


def _forget_one_side() -> list[Patch]:
    """Only the one that has linked fails with the other."""

    def link_once(one: Owner, _: links.Fail, other: Owner, fail_other: links.Fail) -> None:
        if one is not other:
            links._links_of(one)[other] = fail_other

    return [(actor_module, "link", link_once)]


def _restart_silently() -> list[Patch]:
    """Who is linked to an actor that restarts with its group is not told."""

    def break_if_failed(owner: Owner, error: Exception | None) -> None:
        if error is None:
            links.drop_links(owner)
        else:
            links.break_links(owner, error)

    return [(cell_module, "break_links", break_if_failed)]


def _broken_by(function: Callable[[Owner, Exception | None], None]) -> list[Patch]:
    return [(module, "break_links", function) for module in (cell_module, incarnation_module)]


MUTANTS = (
    Mutant("G9", "allows one restart too many", _allow_one_more),
    Mutant("G9", "counts restarts for ever", _forget_no_restart),
    Mutant("G9", "rest_for_one takes the wrong side", _spare_the_later),
    Mutant("G9", "stops in start order", _stop_in_start_order),
    Mutant("G9", "restarts temporary children", _restart_the_temporary),
    Mutant("G9", "waits twice as long", _double_the_delay),
    Mutant("G9", "starts anew before the old has ended", _do_not_wait_for_the_old),
    Mutant("G9", "counts the restarts of siblings together", _count_siblings_together),
    Mutant("G9", "escalates for one child with a limit of its own", _let_siblings_go_too),
    Mutant(LINKS, "tells only those who are linked directly", _tell_the_next_only),
    Mutant(LINKS, "breaks links by normal ends", _break_by_any_end),
    Mutant(LINKS, "keeps links over restarts", _keep_links),
    Mutant(LINKS, "forgets one side of a link", _forget_one_side),
    Mutant(LINKS, "ends links silently in the restart of a group", _restart_silently),
    Mutant(GROUPS, "has a restart of a group wait for nobody", _wait_for_nobody),
    Mutant(GROUPS, "looks at nobody who waits for a member", _look_at_nobody),
    Mutant(GROUPS, "counts only the member that ends now", _forget_who_ends_last),
    Mutant(GROUPS, "has no member wait for the start of another", _forget_the_start),
    Mutant(GROUPS, "refuses whoever waits for the group", _refuse_all_of_the_group),
)
