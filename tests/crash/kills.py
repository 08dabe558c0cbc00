"""Lives of a host that end by SIGKILL at a random instant, and what each of them leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import attrs

from tests.crash.checks import Checker
from tests.crash.workload import lines

ROOT = Path(__file__).parents[2]
EARLY = 0.15
"""Share of the kills that come while the host starts."""
GENTLE = 0.1
"""Share of the others that are told to end, and do it in order."""
LONG = 0.15
"""Share of the lives that have time for runs that wait for a person, and are steered meanwhile."""
START = 0.3
BUSY = 0.4
GROWN = 3.0
"""Seconds within which a kill comes: from the start of the process; from when it serves, also in a
long life."""


@attrs.define
class Outcome:
    """``kills``: seconds after which each came; ``problems``: laws that were broken."""

    kills: list[float] = attrs.field(factory=list[float])
    problems: list[str] = attrs.field(factory=list[str])
    serving: list[float] = attrs.field(factory=list[float])
    cpu: list[float] = attrs.field(factory=list[float])
    notes: Counter[str] = attrs.field(factory=Counter[str])
    runs: Counter[str] = attrs.field(factory=Counter[str])
    acked: int = 0
    effects: int = 0
    rooms: str = ""

    def line(self) -> str:
        found = f"{len(self.problems)} PROBLEMS" if self.problems else "all laws hold"
        done = f"{self.acked} inputs acknowledged, {self.effects} effects"
        return f"{len(self.kills)} kills, {done}: {found}"

    def summary(self) -> str:
        runs = ", ".join(f"{count} {status}" for status, count in sorted(self.runs.items()))
        return (
            f"{self.line()}\n"
            f"runs: {runs}\n"
            f"{self.rooms}\n"
            f"taken up: {self.notes['resumed']} runs; put aside and released: "
            f"{self.notes['released']} sessions\n"
            f"serving again after {_spread(self.serving)}\n"
            f"of which on the processor {_spread(self.cpu)}"
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
        self._status = 0

    def run(self, kills: int) -> Outcome:
        """Ends early at the first kill that breaks a law."""
        with (self._folder / "stderr").open("a") as errors:
            command = [sys.executable, "-m", "tests.crash.stable", str(self._folder)]
            self._stable = subprocess.Popen(
                [*command, str(self._seed)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )
        try:
            return self._run(kills)
        finally:
            os.killpg(self._stable.pid, signal.SIGKILL)
            self._stable.communicate()

    def _run(self, kills: int) -> Outcome:
        for life in range(kills):
            self._one(life)
            if self.outcome.problems:
                return self._counted()
        self._quiet(kills)
        return self._counted()

    def _one(self, life: int) -> None:
        random = self._random
        early, at = random.random() < EARLY, random.random()
        end = signal.SIGTERM if not early and random.random() < GENTLE else signal.SIGKILL
        within = GROWN if random.random() < LONG else BUSY
        began = time.monotonic()
        pid = self._start(f"{life}")
        serves = early or self._hears("serving") > 0
        if serves:
            time.sleep(at * (START if early else within))
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(pid, end)
            self._hears("ended")
        if not serves or self._status != (end if end == signal.SIGKILL else 0):
            self.outcome.problems.append(f"life {life} has ended by itself: {self._why()}")
        self.outcome.kills.append(time.monotonic() - began)
        self._look()
        if self._told is not None:
            self._told(self.outcome)

    def _quiet(self, life: int) -> None:
        self._start(f"{life} quiet")
        self._hears("ended")
        if self._status:
            self.outcome.problems.append(f"the last life has failed: {self._why()}")
        self._look(quiet=True)

    def _look(self, *, quiet: bool = False) -> None:
        self.outcome.problems += self._checker.problems(quiet=quiet)
        self.outcome.acked = len(lines(self._folder / "acks"))
        self.outcome.effects = len(lines(self._folder / "effects"))

    def _counted(self) -> Outcome:
        for line in lines(self._folder / "starts"):
            what, value = line.split(" ", 1)
            if what == "serving":
                elapsed, cpu = map(float, value.split())
                self.outcome.serving.append(elapsed)
                self.outcome.cpu.append(cpu)
            else:
                self.outcome.notes[what] += int(value) if value.isdigit() else 1
        self.outcome.runs = self._checker.counts()
        self.outcome.rooms = self._checker.calls.summary()
        return self.outcome

    def _start(self, life: str) -> int:
        assert self._stable.stdin is not None
        self._stable.stdin.write(f"{life}\n")
        self._stable.stdin.flush()
        return self._hears("pid")

    def _hears(self, word: str) -> int:
        """What is said behind this word; 0 when the host, or all of them, have ended before."""
        assert self._stable.stdout is not None
        for line in self._stable.stdout:
            what, _, value = line.strip().partition(" ")
            if what == "ended":
                self._status = int(value)
            if what == word:
                return int(value or 1) or 1
            if what == "ended":
                return 0
        raise RuntimeError(f"no host can be started: {self._why()}")

    def _why(self) -> str:
        errors = (self._folder / "stderr").read_text("utf-8")
        return errors[-3000:] or f"status {self._status}"


def _spread(seconds: list[float]) -> str:
    times = [one * 1e3 for one in sorted(seconds)] or [0.0]
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    return f"{p50:.0f} ms (median), {p99:.0f} ms (99 %), {times[-1]:.0f} ms (most)"
