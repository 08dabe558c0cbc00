"""Sequences of child exits: made at random, decided by the table and by a model, and compared (G9).

The model is OTP's rules in the plainest way: lists, and nothing clever. It shares no line with the
table. ``Shell`` does with the table's decisions what the supervisor does, without any task.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import msgspec

from motet.runtime import Restart, Strategy, Supervision
from motet.runtime.supervision import ChildTable, ExitKind, GiveUp

__all__ = ["CHANCE", "Case", "Model", "difference", "random_case", "random_cases", "shrunk"]

RESTARTS: tuple[Restart, ...] = ("permanent", "permanent", "transient", "temporary")
STRATEGIES: tuple[Strategy, ...] = ("one_for_one", "one_for_all", "rest_for_one")
KINDS: tuple[ExitKind, ...] = ("crashed", "crashed", "normal")
NAMES = ("c0", "c1", "c2", "c3", "c4")
# Texts of the logs: both sides use the same objects, which are compared without their letters.
START = {name: f"+{name}" for name in NAMES}
STOP = {name: f"-{name}" for name in NAMES}
EXIT = {name: f"!{name}" for name in NAMES}
GAPS = (0.0, 0.5, 1.0, 3.0)
PERIOD = 2.0
CHANCE = 0.5  # what the jitter of every back-off gets
# Delays of 0.225, 0.45 and 0.75 seconds: never due at the moment of an exit.
BACKOFF, BACKOFF_MAX, JITTER = 0.3, 1.0, 0.5


class Case(msgspec.Struct, frozen=True):
    """Children in start order, and which of them exits when: (seconds later, child, how)."""

    strategy: Strategy
    intensity: int
    backoff: bool
    restarts: tuple[Restart, ...]
    exits: tuple[tuple[float, int, ExitKind], ...]
    give_up: GiveUp = "all"

    @property
    def names(self) -> list[str]:
        return [*NAMES[: len(self.restarts)]]

    @property
    def supervision(self) -> Supervision:
        return _supervision(self.strategy, self.intensity, self.backoff, self.give_up)


@cache
def _supervision(strategy: Strategy, intensity: int, backoff: bool, give_up: GiveUp) -> Supervision:
    return Supervision(
        strategy=strategy,
        intensity=intensity,
        period=PERIOD,
        backoff=BACKOFF if backoff else 0.0,
        backoff_max=BACKOFF_MAX,
        jitter=JITTER,
        give_up=give_up,
    )


def random_case(chance: random.Random) -> Case:
    """Up to five children and eight exits."""
    number = chance.random
    children = 1 + int(number() * 5)
    exits: list[tuple[float, int, ExitKind]] = [
        (GAPS[int(number() * 4)], int(number() * children), KINDS[int(number() * 3)])
        for _ in range(int(number() * 9))
    ]
    restarts: list[Restart] = [RESTARTS[int(number() * 4)] for _ in range(children)]
    strategy = STRATEGIES[int(number() * 3)]
    intensity, backoff = int(number() * 5), number() < 0.3
    give_up: GiveUp = "all"
    if strategy == "one_for_one" and number() < 0.5:
        # One strategy only: with it, few exits of one child would be too many.
        give_up, intensity = "child", intensity // 2
    return Case(strategy, intensity, backoff, tuple(restarts), tuple(exits), give_up)


def random_cases(block: int, count: int) -> Iterator[Case]:
    """``count`` cases, the same for the same ``block``."""
    chance = random.Random(block)
    for _ in range(count):
        yield random_case(chance)


class Model:
    """``log`` has ``+c0`` for a start, ``-c0`` for a stop, ``!c0`` for an exit on its own."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.order = case.names
        self.type = dict(zip(self.order, case.restarts, strict=True))
        self.up = set(self.order)
        self.due: dict[str, float] = {}
        self.born = dict.fromkeys(self.order, 0.0)
        self.in_a_row = dict.fromkeys(self.order, 0)
        self.failures: list[tuple[float, str]] = []
        self.given_up = False
        self.log = [START[name] for name in self.order]

    def advance(self, now: float) -> None:
        """Start what is due by ``now``."""
        while self.due and (moment := min(self.due.values())) <= now:
            for name in self.order:
                if name in self.due and self.due[name] <= moment:
                    del self.due[name]
                    self.up.add(name)
                    self.born[name] = moment
                    self.log.append(START[name])

    def exit(self, name: str, kind: ExitKind, now: float) -> None:
        """``name`` has ended by itself at ``now``, after everything due was started."""
        if name not in self.up:
            return
        self.up.remove(name)
        self.log.append(EXIT[name])
        if self.type[name] == "temporary":
            self.order.remove(name)
            return
        if self.type[name] == "transient" and kind == "normal":
            self.order.remove(name)
            return
        self.failures.append((now, name))
        alone = self.case.give_up == "child"
        recent = [who for at, who in self.failures if now - at <= PERIOD]
        if (recent.count(name) if alone else len(recent)) > self.case.intensity:
            if alone:
                self.order.remove(name)
                return
            self.given_up = True
            self.due.clear()
            self.stop(self.order)
            return
        if now - self.born[name] >= PERIOD:
            self.in_a_row[name] = 0
        self.in_a_row[name] += 1
        self.restart(name, now + self.delay(self.in_a_row[name]))
        self.advance(now)

    def restart(self, name: str, when: float) -> None:
        place = self.order.index(name)
        if self.case.strategy == "one_for_one":
            group = [name]
        elif self.case.strategy == "rest_for_one":
            group = self.order[place:]
        else:
            group = list(self.order)
        self.stop(group)
        for other in group:
            if self.type[other] == "temporary":
                self.order.remove(other)
            else:
                self.due[other] = when

    def stop(self, group: list[str]) -> None:
        for name in reversed(group):
            if name in self.up:
                self.up.remove(name)
                self.log.append(STOP[name])

    def delay(self, in_a_row: int) -> float:
        if not self.case.backoff:
            return 0.0
        seconds = BACKOFF
        for _ in range(in_a_row - 1):
            seconds = seconds * 2
        return min(seconds, BACKOFF_MAX) * (1 - JITTER * CHANCE)


class Shell:
    """Executes the decisions of a table, and writes the log that the model writes."""

    def __init__(self, table: ChildTable) -> None:
        self.table = table
        self.log: list[str] = []
        self.due: dict[str, float] = {}
        self.names: list[str] = []
        self.given_up = False

    def add(self, name: str, restart: Restart) -> None:
        self.names.append(name)
        self.table.add(name, restart)
        self.table.starting(name, 0.0)
        self.log.append(START[name])

    def advance(self, now: float) -> None:
        due = self.due
        while due and (moment := min(due.values())) <= now:
            for name in self.names:
                if name in due and due[name] <= moment:
                    del due[name]
                    self.table.starting(name, moment)
                    self.log.append(START[name])

    def exit(self, name: str, kind: ExitKind, now: float) -> None:
        if self.table.is_running(name):
            self.log.append(EXIT[name])
        decision = self.table.exited(name, kind, now, CHANCE)
        for stopped in decision.stops:
            self.log.append(STOP[stopped])
            self.due.pop(stopped, None)
        for gone in decision.removes:
            self.due.pop(gone, None)
        for next_one in decision.starts:
            self.due[next_one] = now + decision.delay
        if decision.escalate:
            self.given_up = True
            self.due.clear()
        self.advance(now)


def difference(case: Case) -> str | None:
    """Where table and model part ways, or None."""
    model, shell = Model(case), Shell(ChildTable(case.supervision))
    names = case.names
    for name, restart in zip(names, case.restarts, strict=True):
        shell.add(name, restart)
    now = 0.0
    for later, index, kind in case.exits:
        now += later
        name = names[index]
        model.advance(now)
        model.exit(name, kind, now)
        shell.advance(now)
        shell.exit(name, kind, now)
        if (
            model.log != shell.log
            or model.given_up != shell.given_up
            or model.up != set(shell.table.running)
        ):
            return f"at {now} s the model has {model.log}, the table {shell.log}"
        if model.given_up:
            return None
    return None


def shrunk(case: Case) -> Case:
    """A smallest part of ``case`` in which table and model still differ."""
    size = len(case.exits)
    while size:
        for first in range(0, len(case.exits), size):
            fewer = case.exits[:first] + case.exits[first + size :]
            smaller = msgspec.structs.replace(case, exits=fewer)
            if difference(smaller) is not None:
                case = smaller
                break
        else:
            size //= 2
    return case
