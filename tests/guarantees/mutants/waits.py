"""Defects of the search for waits that never end, and sources of chance that no seed controls."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Sequence

from motet.runtime import mailbox, monitors, waits
from motet.runtime.cell import Cell
from motet.runtime.envelope import Ask
from motet.runtime.errors import AskCycle, TellCycle, WaitCycle
from motet.runtime.kernel import Owner
from motet.runtime.mailbox import Mailbox
from motet.runtime.queues import WaitingTell
from motet.runtime.supervisor import Supervisor
from motet.runtime.testing.scheduler import Patch
from motet.runtime.timers import Timers
from motet.runtime.waits import Groups, Work, refuse_cycle
from motet.runtime.workers import Workers
from tests.guarantees.law import Mutant
from tests.guarantees.worlds.waits import NAME as EVERY_WAIT

__all__ = ["MUTANTS"]


def _everywhere(mutated: object) -> list[Patch]:
    """In place of ``refuse_cycle``, wherever it was imported to."""
    kernel = [module for name, module in sys.modules.items() if name.startswith("motet.runtime.")]
    return [
        (module, "refuse_cycle", mutated)
        for module in kernel
        if getattr(module, "refuse_cycle", None) is refuse_cycle
    ]


def _look_for_none() -> list[Patch]:
    def refuse_none(work: Work, groups: Groups, error: type[WaitCycle] = AskCycle) -> None:
        """Let them wait."""

    return _everywhere(refuse_none)


def _look_at_oneself_only() -> list[Patch]:
    """Calling itself is found, calling itself through another is not."""

    def refuse_self(work: Work, groups: Groups, error: type[WaitCycle] = AskCycle) -> None:
        if any(list(group) == [work] for group in groups):
            raise error([work.path, work.path])

    return _everywhere(refuse_self)


def _refuse_all_who_wait() -> list[Patch]:
    """Whoever waits for anybody is taken for a part of a circle."""

    def refuse_waiting(work: Work, groups: Groups, error: type[WaitCycle] = AskCycle) -> None:
        for group in groups:
            if all(one is work or one.waits for one in group):
                raise error([work.path, group[0].path, work.path])

    return _everywhere(refuse_waiting)


def _never_forget() -> list[Patch]:
    """An ask that is over still counts as waiting."""
    asked: dict[Work, set[Work]] = defaultdict(set)

    def reaches(start: Work, goal: Work, seen: set[Work]) -> bool:
        if start is goal:
            return True
        seen.add(start)
        return any(reaches(to, goal, seen) for to in asked[start] if to not in seen)

    def refuse(work: Work, groups: Groups, error: type[WaitCycle] = AskCycle) -> None:
        for target in (one for group in groups for one in group):
            if reaches(target, work, set()):
                raise error([work.path, target.path, work.path])
            asked[work].add(target)

    return _everywhere(refuse)


# ---------------------------------------------------------------------- every wait is an edge


def _nothing(*_: object) -> Groups:
    return ()


def _none(*_: object) -> None:
    return None


def _tells_wait_for_nobody() -> list[Patch]:
    """A sender that waits for room is no edge."""
    return [(WaitingTell, "groups", _nothing)]


def _asks_need_no_room() -> list[Patch]:
    """An ask before a full mailbox waits for its handler only."""

    def groups_of(box: Mailbox, ask: Ask) -> Groups:
        return () if box.holder is None else box.holder.before_begin(type(ask.message))

    def refuse_endless(owner: Owner, work: Work, kind: type) -> None:
        refuse_cycle(work, owner.before_begin(kind))

    return [(Mailbox, "groups_of", groups_of), (Owner, "refuse_endless", refuse_endless)]


def _places_are_always_free() -> list[Patch]:
    """An ask of a concurrent handler waits for nobody until it is handled."""
    return [(Workers, "holding", _none)]


def _one_place_is_all() -> list[Patch]:
    """A single handler that cannot go on is taken for all that have a place."""
    holding = Workers.holding

    def first(workers: Workers, kind: type) -> Sequence[Work] | None:
        works = holding(workers, kind)
        return (works and [one for one in works if one.waits][:1]) or works

    return [(Workers, "holding", first)]


def _an_end_waits_for_nobody() -> list[Patch]:
    """The next incarnation is taken to come whatever the handlers of this one do."""
    return [(Owner, "_before_next", _nothing)]


def _no_look_at_an_end() -> list[Patch]:
    """Those who wait already are not looked at when an incarnation begins to end."""
    return [(Mailbox, "refuse_all_endless", _none)]


def _no_look_at_room() -> list[Patch]:
    """Those who get room are not looked at, nor those who get none."""
    refuse_all = Mailbox.refuse_all_endless
    looks = [False]

    def at_an_end(box: Mailbox) -> None:
        looks[0] = True
        refuse_all(box)
        looks[0] = False

    def cycle_of(work: Work, groups: Groups = ()) -> list[str] | None:
        return waits.cycle_of(work, groups) if looks[0] else None

    return [(mailbox, "cycle_of", cycle_of), (Mailbox, "refuse_all_endless", at_an_end)]


def _own_ends_may_come() -> list[Patch]:
    """A handler may wait for the end of its own actor."""
    return [(monitors, "refuse_own_end", _none)]


def _full_is_for_ever() -> list[Patch]:
    """A handler that meets a full mailbox is refused as if there never were room."""
    put_when_room = Mailbox.put_when_room

    async def refuse(box: Mailbox, message: object) -> None:
        if (work := waits.current_work.get()) is not None:
            raise TellCycle([work.path, box.path, work.path])
        await put_when_room(box, message)  # type: ignore[arg-type]  # pyright: ignore

    return [(Mailbox, "put_when_room", refuse)]


# ---------------------------------------------------------------------- replay


def _admit_by_chance() -> list[Patch]:
    """Which of the waiting senders comes in is drawn from the machine's own chance."""
    admit = Mailbox.admit
    chance = random.SystemRandom()

    def admit_any(box: Mailbox) -> None:
        for sender in chance.sample([*box.waiting], len(box.waiting)):
            box.waiting.move_to_end(sender)
        admit(box)

    return [(Mailbox, "admit", admit_any)]


def _time_by_chance() -> list[Patch]:
    """Time limits are rounded by what the real clock happens to say."""
    start = Timers.start
    chance = random.SystemRandom()

    def start_later(timers: Timers, when: float, *args: object) -> object:
        return start(timers, when + chance.choice((0.0, 0.25)), *args)  # type: ignore[arg-type]  # pyright: ignore

    return [(Timers, "start", start_later)]


def _stop_by_hash() -> list[Patch]:
    """Children are stopped in the order of a set of strings: another one in every process."""
    close = Supervisor[Cell].close

    def close_shuffled(supervisor: Supervisor[Cell], *args: object) -> None:
        cells = supervisor.cells
        for name in set(cells):
            cells[name] = cells.pop(name)
        close(supervisor, *args)  # type: ignore[arg-type]  # pyright: ignore

    return [(Supervisor, "close", close_shuffled)]


MUTANTS = (
    Mutant("G11", "looks for no circles", _look_for_none),
    Mutant("G11", "finds only asks to oneself", _look_at_oneself_only),
    Mutant("G11", "refuses whoever waits", _refuse_all_who_wait),
    Mutant("G11", "never forgets an ask", _never_forget),
    Mutant(EVERY_WAIT, "lets tells wait for nobody", _tells_wait_for_nobody),
    Mutant(EVERY_WAIT, "has asks wait for no room", _asks_need_no_room),
    Mutant(EVERY_WAIT, "takes places for free", _places_are_always_free),
    Mutant(EVERY_WAIT, "takes one place for all", _one_place_is_all),
    Mutant(EVERY_WAIT, "has an end wait for nobody", _an_end_waits_for_nobody),
    Mutant(EVERY_WAIT, "looks at nobody when it ends", _no_look_at_an_end),
    Mutant(EVERY_WAIT, "looks at nobody who gets room", _no_look_at_room),
    Mutant(EVERY_WAIT, "waits for its own end", _own_ends_may_come),
    Mutant(EVERY_WAIT, "takes a full mailbox for an endless wait", _full_is_for_ever),
    Mutant("G12", "lets chance choose the sender", _admit_by_chance),
    Mutant("G12", "lets chance move time limits", _time_by_chance),
)

# Only another process can tell.
HASH_ORDER = Mutant("G12", "stops in the order of a set", _stop_by_hash)
