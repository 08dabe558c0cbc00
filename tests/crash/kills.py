"""Lives of a host that end by SIGKILL at a random instant, and what each of them leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import attrs

from tests.crash.checks import Checker
from tests.crash.workload import lines

ROOT = Path(__file__).parents[2]
EARLY = 0.15
"""Share of the kills that come while the host starts."""
START = 1.0
BUSY = 0.4
"""Seconds within which a kill comes: from the start of the process; from when it serves."""
PATIENCE = 120.0


@attrs.define
class Outcome:
    """``kills``: seconds after which each came; ``problems``: laws that were broken."""

    kills: list[float] = attrs.field(factory=list[float])
    problems: list[str] = attrs.field(factory=list[str])
    serving: list[float] = attrs.field(factory=list[float])
    notes: Counter[str] = attrs.field(factory=Counter[str])
    runs: Counter[str] = attrs.field(factory=Counter[str])
    acked: int = 0

    def line(self) -> str:
        found = f"{len(self.problems)} PROBLEMS" if self.problems else "all laws hold"
        return f"{len(self.kills)} kills, {self.acked} inputs acknowledged: {found}"

    def summary(self) -> str:
        runs = ", ".join(f"{count} {status}" for status, count in sorted(self.runs.items()))
        times = sorted(self.serving) or [0.0]
        p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
        return (
            f"{self.line()}\n"
            f"runs: {runs}\n"
            f"taken up: {self.notes['resumed']} runs; put aside and released: "
            f"{self.notes['released']} sessions\n"
            f"serving again after {p50 * 1e3:.0f} ms (median), {p99 * 1e3:.0f} ms (99 %), "
            f"{times[-1] * 1e3:.0f} ms (most), of {len(times)} starts"
        )


class Kills:
    """One series, in one folder. ``told`` is called after each kill."""

    def __init__(
        self, folder: Path, seed: int, *, told: Callable[[Outcome], None] | None = None
    ) -> None:
        self.outcome = Outcome()
        self._folder = folder
        self._seed = seed
        self._random = Random(seed)
        self._checker = Checker(folder)
        self._told = told

    def run(self, kills: int) -> Outcome:
        """Ends early at the first kill that breaks a law."""
        for life in range(kills):
            self._one(life)
            if self.outcome.problems:
                return self._counted()
        self._quiet(kills)
        return self._counted()

    def _one(self, life: int) -> None:
        random = self._random
        early, at = random.random() < EARLY, random.random()
        victim = self._start(life)
        try:
            began = time.monotonic()
            if early:
                time.sleep(at * START)
            else:
                assert victim.stdout is not None
                if not victim.stdout.readline():
                    self.outcome.problems.append(f"life {life} has ended by itself: {_of(victim)}")
                time.sleep(at * BUSY)
        finally:
            self._end(victim)
        self.outcome.kills.append(time.monotonic() - began)
        self._look()
        if self._told is not None:
            self._told(self.outcome)

    def _end(self, victim: subprocess.Popen[str]) -> None:
        if victim.poll() is not None and victim.returncode != -signal.SIGKILL:
            self.outcome.problems.append(f"it ended by itself: {_of(victim)}")
        victim.kill()
        victim.communicate()

    def _quiet(self, life: int) -> None:
        victim = self._start(life, "quiet")
        try:
            _, error = victim.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            victim.kill()
            self.outcome.problems.append("the last life does not end: something is left undone")
            victim.communicate()
            return
        if victim.returncode:
            self.outcome.problems.append(f"the last life has failed: {error[-2000:]}")
        self._look(quiet=True)

    def _look(self, *, quiet: bool = False) -> None:
        self.outcome.problems += self._checker.problems(quiet=quiet)
        self.outcome.acked = len(lines(self._folder / "acks"))

    def _counted(self) -> Outcome:
        for line in lines(self._folder / "starts"):
            what, value = line.split(" ", 1)
            if what == "serving":
                self.outcome.serving.append(float(value))
            else:
                self.outcome.notes[what] += int(value) if value.isdigit() else 1
        self.outcome.runs = self._checker.counts()
        return self.outcome

    def _start(self, life: int, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.crash.victim", str(self._folder)]
        return subprocess.Popen(
            [*command, str(self._seed), str(life), *more],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


def _of(victim: subprocess.Popen[str]) -> str:
    _, error = victim.communicate()
    return error[-2000:] or f"exit code {victim.returncode}"
