"""Fault injection at every step of a story, as SQLite does with failing mallocs.

A story is a function that drives a simulated host. It is played once undisturbed, then with the
fault before step 1, 2, 3 and so on, until the step is beyond its end. After each play the host
comes to rest and is checked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias, Unpack

import attrs
import msgspec

from motet.actors.host import Host
from motet.protocols.errors import MotetError
from motet.runtime.errors import MotetRuntimeError
from motet.runtime.testing.loop import Interrupted
from motet.testing.host import HostOptions, SimulatedHost, simulated_host
from motet.testing.world import power_cut

__all__ = ["Finding", "HostFault", "Story", "SweepReport", "sweep"]

HostFault: TypeAlias = Literal["cancel", "crash", "kill", "delay", "power", "stop"]

Story: TypeAlias = Callable[[SimulatedHost], None]

_LENGTH = 20  # steps of other tasks during which a delayed task waits


class Finding(msgspec.Struct, frozen=True):
    """A fault after which the host or the story's own assertions failed."""

    fault: HostFault
    step: int
    seed: int
    why: str
    report: str

    def __str__(self) -> str:
        return f"{self.fault} before step {self.step} with seed {self.seed}: {self.why}"


class SweepReport(msgspec.Struct, frozen=True):
    """The result of a sweep: ``worlds`` played, ``steps`` in all, faults that ``struck``."""

    worlds: int = 0
    steps: int = 0
    struck: int = 0
    findings: tuple[Finding, ...] = ()

    def check(self) -> None:
        """Raise AssertionError with the first finding's report, if there is any."""
        if self.findings:
            first = self.findings[0]
            raise AssertionError(f"{len(self.findings)} findings, first {first}\n{first.report}")

    def __str__(self) -> str:
        head = f"{self.worlds} worlds, {self.steps} steps, {self.struck} faults struck"
        return "\n".join([f"{head}, {len(self.findings)} findings", *map(str, self.findings)])


def sweep(
    story: Story,
    fault: HostFault,
    *,
    seeds: Iterable[int] = (0,),
    every: int = 1,
    target: str = "",
    check: Callable[[SimulatedHost], None] | None = None,
    max_findings: int = 1,
    **options: Unpack[HostOptions],
) -> SweepReport:
    """Play ``story`` once for each of its steps, with one fault at that step.

    * ``cancel``: the active call of the driver is cancelled;
    * ``crash``: the power is cut, and a new host opens the surviving data;
    * ``kill``: the actor at the path ``target``, such as ``/host/tools``, is killed;
    * ``power``: a crash within a commit: before a change of the disk in place of a step of the
      host, since one commit makes several changes;
    * ``delay``: the task of that step waits while others take up to 20 steps;
    * ``stop``: all activity is stopped.

    Args:
        story: its assertions must hold despite the fault. A disturbed host may raise any error of
            motet in it; a crash or a cancellation ends it.
        seeds: one sweep for each.
        every: take only each n-th step.
        check: checks the host at rest; default: all standard invariants, ``mt.check``.
        options: of :func:`simulated_host`.

    Raises ValueError for a ``kill`` without a target, and the errors of the undisturbed story.
    """
    if fault == "kill" and not target:
        raise ValueError("a kill needs target=, the path of an actor such as '/host/tools'")
    report = SweepReport()
    for seed in seeds:
        step = 0
        while len(report.findings) < max_findings:
            played = _Played(story, fault, step, seed, target, check or _checked)
            report = played.added_to(report, options)
            if step and not played.struck:
                break
            step += every if step else 1
    return report


def _checked(host: SimulatedHost) -> None:
    from motet.testing.checking import check

    check(host)


@attrs.define(eq=False)
class _Played:
    """One world of a sweep. ``step`` 0: no fault."""

    story: Story
    fault: HostFault
    step: int
    seed: int
    target: str
    check: Callable[[SimulatedHost], None]
    struck: bool = False

    def added_to(self, report: SweepReport, options: HostOptions) -> SweepReport:
        with simulated_host(self.seed, **options) as host:
            why = self._play(host)
            lanes = host.report() if why else ""
            steps = host.loop.scheduler.steps
        finding = Finding(self.fault, self.step, self.seed, why, lanes)
        return SweepReport(
            report.worlds + 1,
            report.steps + steps,
            report.struck + self.struck,
            (*report.findings, finding) if why else report.findings,
        )

    def _play(self, host: SimulatedHost) -> str:
        """The reason of a failure; empty: it passed."""
        if self.step and self.fault != "power":
            host.loop.at(host.loop.scheduler.steps + self.step, lambda: self._strike(host))
        try:
            self._tell(host)
            host.loop.at(sys.maxsize, _nothing)
            host.settle()
            self.check(host)
        except Exception as error:
            if not self.step:
                raise
            return f"{type(error).__name__}: {error}"
        return ""

    def _tell(self, host: SimulatedHost) -> None:
        try:
            if self.step and self.fault == "power":
                with power_cut(host, self.step) as power:
                    self._whole(host)
                self.struck = power.failed
            else:
                self._whole(host)
        except Interrupted:
            if self.fault == "crash":
                host.crash()
            else:
                host.cancel()
        except (MotetError, MotetRuntimeError):
            if not self.struck:
                raise

    def _whole(self, host: SimulatedHost) -> None:
        self.story(host)
        host.settle()  # unfinished activity is part of the story

    def _strike(self, host: SimulatedHost) -> None:
        self.struck = True
        host.loop.sim.note(f"FAULT: {self.fault}")
        if self.fault in ("crash", "cancel"):
            raise Interrupted
        if self.fault == "delay":
            host.loop.scheduler.delay(host.loop.scheduler.steps + 1, _LENGTH)
        elif self.fault == "stop":
            host.loop.start_here(_stop_all, host.host, name="stop")
        else:
            host.host.system.inject(self.target, "kill")


def _nothing() -> None:
    """No fault."""


async def _stop_all(host: Host) -> None:
    await host.stop(everything=True)
