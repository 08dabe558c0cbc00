"""``make guarantees``: every law on 10,000 schedules, every planted defect, and the long runs.

Prints a table and exits with 1 if a law was broken, a defect not found, a run incomplete, or a
guarantee without a law or two defects.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache, partial

import attrs

from motet.runtime.testing.scheduler import many_runs
from motet.runtime.testing.sweep import sweep
from tests.guarantees.exits import difference, random_cases, shrunk
from tests.guarantees.law import POLICIES, SEARCH, Search, first_finding, planted
from tests.guarantees.laws import GUARANTEES, LAWS, MUTANTS, OF_HOSTS, mutants_of
from tests.guarantees.soak import soak
from tests.guarantees.worlds.call_graph import ASKERS, call_graph
from tests.guarantees.worlds.replays import REPLAY, plan, replay

CHUNK = 500  # schedules per piece of work
LEAST_MUTANTS = 2
SWEPT = 100  # random call graphs
LEAST_WORLDS = 5_000
BLOCKS, PER_BLOCK = 20, 50_000  # of exit sequences
MESSAGES, ACTORS = 1_000_000, 1_000
PLANS = 400  # run in two processes


@attrs.frozen
class Done:
    """A piece of work: how much was tried, what was found wrong, the seconds it took.

    ``hashes`` are those of the traces of plans that G12 runs again.
    """

    tried: int
    wrong: tuple[str, ...] = ()
    seconds: float = 0.0
    hashes: Mapping[int, str] = attrs.field(factory=dict[int, str])


# ---------------------------------------------------------------------- pieces of work


def clean(guarantee: str, first: int, end: int, plans: int) -> Done:
    """The law holds on every schedule from ``first`` up to ``end``.

    Schedules that are among the first ``plans`` of G12 leave their traces' hashes.
    """
    search = LAWS[guarantee].broken
    assert isinstance(search, Search)
    hashes: dict[int, str] = {}
    with many_runs():
        for schedule in range(first, end):
            number = plans_by_schedule(plans).get((guarantee, schedule))
            outcome = search.run(schedule, traced=number is not None)
            how = search.judged(outcome)
            if how is not None:
                return Done(end - first, (f"{guarantee}, schedule {schedule}: {how}",))
            if number is not None:
                hashes[number] = outcome.hash
    return Done(end - first, hashes=hashes)


@cache
def plans_by_schedule(plans: int) -> Mapping[tuple[str, int], int]:
    """The plans of G12 by the guarantee and the number of their schedules."""
    found: dict[tuple[str, int], int] = {}
    for number in range(plans):
        search, schedule = plan(number)
        found[search.guarantee, schedule] = number
    return found


def repeated(hashes: Mapping[int, str]) -> Done:
    """These plans leave the same traces once more, often in another process than at first."""
    with many_runs():
        for number, first in hashes.items():
            if (how := replay(number, first)) is not None:
                return Done(len(hashes), (f"G12, plan {number}: {how}",))
    return Done(len(hashes))


def run_twice(numbers: Iterable[int]) -> Done:
    """These plans, which no other search has run, leave the same trace twice."""
    mine = tuple(numbers)
    found = first_finding(REPLAY, mine)
    wrong = () if found is None else (f"G12, plan {found.schedule}: {found.how}",)
    return Done(len(mine), wrong)


def hunted(name: str) -> Done:
    """The defect is found; ``tried`` is how many schedules that took."""
    mutant = MUTANTS[name]
    try:
        with planted(mutant):
            found = first_finding(LAWS[mutant.guarantee], range(SEARCH))
    except AttributeError as error:
        return Done(0, (f"{name}: cannot be planted in this kernel: {error}",))
    if found is None:
        return Done(SEARCH, (f"{name}: not found within {SEARCH} schedules",))
    return Done(found.schedule + 1)


def swept(first: int, end: int) -> Done:
    """One asker of a random call graph is cancelled at every step, one world each."""
    worlds, wrong = 0, list[str]()
    for seed in range(first, end):
        target = f"asker {seed % ASKERS}"
        policy = POLICIES[seed % len(POLICIES)]
        report = sweep(call_graph, "cancel", seeds=(seed,), targets=(target,), policy=policy)
        worlds += report.worlds
        wrong += [str(finding) for finding in report.findings]
    return Done(worlds, tuple(wrong))


def exited(block: int) -> Done:
    """Table and model agree on every sequence of a block."""
    for case in random_cases(block, PER_BLOCK):
        if difference(case) is not None:
            smallest = shrunk(case)
            return Done(PER_BLOCK, (f"{smallest}: {difference(smallest)}",))
    return Done(PER_BLOCK)


def soaked() -> Done:
    """A million messages are accounted for, and memory stays flat."""
    books = soak(MESSAGES, ACTORS)
    return Done(books.sent, tuple(books.problems))


def replayed() -> Done:
    """The same plans have the same hashes in processes that hash strings differently."""
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.guarantees.worlds.replays", "0", str(PLANS)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    first, second = (run.communicate()[0].splitlines() for run in runs)
    wrong = [f"{one} | {other}" for one, other in zip(first, second, strict=True) if one != other]
    if len(first) != PLANS or any(run.returncode for run in runs):
        wrong.append("a process failed")
    return Done(len(first), tuple(wrong))


def timed(work: Callable[[], Done]) -> Done:
    """Do the work, and say how much time of the processor it took."""
    began = cpu_seconds()
    return attrs.evolve(work(), seconds=cpu_seconds() - began)


def cpu_seconds() -> float:
    """Of this process and its ended children; what else the machine does is not in it."""
    return sum(os.times()[:4])


def prepare() -> None:
    """In each process: collections of garbage leave out the modules, since a world is far less."""
    gc.collect()
    gc.freeze()


# ---------------------------------------------------------------------- the table


@attrs.define
class Row:
    """What is known of one guarantee, or of one of the long runs."""

    pieces: list[Done] = attrs.field(factory=list[Done])
    hunts: list[Done] = attrs.field(factory=list[Done])

    @property
    def tried(self) -> int:
        return sum(piece.tried for piece in self.pieces)

    @property
    def wrong(self) -> list[str]:
        return [line for piece in (*self.pieces, *self.hunts) for line in piece.wrong]

    @property
    def seconds(self) -> float:
        return sum(piece.seconds for piece in (*self.pieces, *self.hunts))

    def line(self, name: str) -> str:
        """One line of the table; a defect that was not found has a dash."""
        found = [hunt for hunt in self.hunts if not hunt.wrong]
        hunts = f"{len(found)} of {len(self.hunts)}" if self.hunts else ""
        each = " ".join("-" if hunt.wrong else str(hunt.tried) for hunt in self.hunts)
        state = "broken" if any(piece.wrong for piece in self.pieces) else "holds"
        return f"{name:<34}{self.tried:>11,}  {state:<7} {hunts:<8} {each:<27}{self.seconds:>7.1f}"


LONG: dict[str, list[Callable[[], Done]]] = {
    "cancel at every step: worlds": [
        partial(swept, first, first + 10) for first in range(0, SWEPT, 10)
    ],
    "G9 table = model: exit sequences": [partial(exited, block) for block in range(BLOCKS)],
    "G4 crashing actors: messages": [soaked],
    "G12 across processes: plans": [replayed],
}


def everything(schedules: int, of_hosts: int) -> Iterable[tuple[str, str, Callable[[], Done]]]:
    """All pieces of work but :func:`repeated`, the longest first: the row, what it is, the work."""
    for name, pieces in reversed(LONG.items()):
        yield from ((name, "piece", work) for work in pieces)
    searched: dict[str, int] = {}
    for guarantee in sorted(LAWS, key=OF_HOSTS.__contains__, reverse=True):
        yield from ((guarantee, "hunt", partial(hunted, name)) for name in mutants_of(guarantee))
        if guarantee == REPLAY.guarantee:
            continue
        count = min(schedules, of_hosts) if guarantee in OF_HOSTS else schedules
        searched[guarantee] = count
        for first in range(0, count, CHUNK):
            work = partial(clean, guarantee, first, min(first + CHUNK, count), schedules)
            yield guarantee, "piece", work
    # Those beyond a short search of hosts.
    rest = [
        number
        for (guarantee, schedule), number in plans_by_schedule(schedules).items()
        if schedule >= searched[guarantee]
    ]
    if rest:
        yield REPLAY.guarantee, "piece", partial(run_twice, rest)


def missing() -> Iterable[str]:
    """What nobody searches for."""
    for guarantee in GUARANTEES:
        if guarantee not in LAWS:
            yield f"{guarantee} has no law"
        if (found := len(mutants_of(guarantee))) < LEAST_MUTANTS:
            yield f"{guarantee} has {found} planted defects, not {LEAST_MUTANTS}"


def table(rows: dict[str, Row]) -> str:
    """Guarantees first, in their order, then the long runs."""
    titles = ("guarantee", "clean", "mutants", "found after schedules", "CPU s")
    head = f"{titles[0]:<34}{titles[1]:>11}  {'':<7} {titles[2]:<8} {titles[3]:<27}{titles[4]:>7}"
    return "\n".join([head, *(rows[name].line(name) for name in (*LAWS, *LONG))])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=10_000, help="clean ones, per guarantee")
    parser.add_argument(
        "--hosts", type=int, default=10_000, help="clean ones at most, where they are whole hosts"
    )
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    began = time.perf_counter()
    rows: dict[str, Row] = defaultdict(Row)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, context, prepare) as pool:
        pending: list[tuple[str, str, Future[Done]]] = [
            (row, what, pool.submit(timed, work))
            for row, what, work in everything(options.schedules, options.hosts)
        ]
        for row, what, future in pending:
            done = future.result()
            into = rows[row].hunts if what == "hunt" else rows[row].pieces
            into.append(done)
            if done.hashes:
                again = pool.submit(timed, partial(repeated, done.hashes))
                pending.append((REPLAY.guarantee, "piece", again))
    wrong = [*missing()]
    wrong += [f"{name}: {line}" for name, row in rows.items() for line in row.wrong]
    worlds = rows["cancel at every step: worlds"].tried
    if worlds < LEAST_WORLDS:
        wrong.append(f"the cancel sweep had only {worlds} worlds, not {LEAST_WORLDS}")
    print(table(rows))
    print(f"{time.perf_counter() - began:.0f} s with {options.processes} processes")
    for line in wrong:
        print(f"WRONG {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
