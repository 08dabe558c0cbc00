"""Sweeps: one fault at every step of a world, one run each, as SQLite tests failing mallocs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from motet.runtime.testing.faults import Fault, FaultKind
from motet.runtime.testing.policies import Policy
from motet.runtime.testing.scheduler import many_runs
from motet.runtime.testing.simulate import MAX_STEPS, Outcome, World, run

__all__ = ["Finding", "SweepReport", "sweep"]


class Finding(msgspec.Struct, frozen=True):
    """A failed run: the seed, choices and fault that repeat it, and the failures."""

    seed: int
    choices: tuple[int, ...]
    fault: Fault | None  # None: without any fault
    broken: tuple[str, ...]
    report: str

    def __str__(self) -> str:
        when = f"{self.fault}" if self.fault is not None else "no fault"
        return f"seed {self.seed}, {when}: {'; '.join(self.broken)}"


class SweepReport(msgspec.Struct, frozen=True):
    """The result of a sweep: ``worlds`` run, ``steps`` in all, faults that ``struck``."""

    worlds: int
    steps: int
    struck: int
    findings: tuple[Finding, ...]

    def check(self) -> None:
        """Raise AssertionError with the first finding's report, if there is any."""
        if self.findings:
            first = self.findings[0]
            raise AssertionError(f"{len(self.findings)} findings, first {first}\n{first.report}")

    def __str__(self) -> str:
        text = f"{self.worlds} worlds, {self.steps} steps, {self.struck} faults struck, "
        return f"{text}{len(self.findings)} findings" + "".join(f"\n{f}" for f in self.findings)


class _Tally:
    """The sums of a sweep."""

    def __init__(self, world: World[Any], policy: Policy | None, max_steps: int) -> None:
        self.world = world
        self.policy = policy
        self.max_steps = max_steps
        self.worlds = 0
        self.steps = 0
        self.struck = 0
        self.findings: list[Finding] = []

    def run(self, seed: int, fault: Fault | None) -> Outcome[Any]:
        outcome = self._ran(seed, fault, traced=False)
        self.worlds += 1
        self.steps += outcome.steps
        self.struck += len(outcome.struck)
        if not outcome.ok:
            broken = [str(violation) for violation in outcome.violations]
            broken += [repr(outcome.error)] if outcome.error is not None else []
            report = self._ran(seed, fault, traced=True).report()
            self.findings.append(Finding(seed, outcome.choices, fault, tuple(broken), report))
        return outcome

    def _ran(self, seed: int, fault: Fault | None, *, traced: bool) -> Outcome[Any]:
        return run(
            self.world,
            seed=seed,
            policy=self.policy,
            faults=() if fault is None else (fault,),
            max_steps=self.max_steps,
            traced=traced,
        )

    def report(self) -> SweepReport:
        return SweepReport(self.worlds, self.steps, self.struck, tuple(self.findings))


def sweep(
    world: World[Any],
    fault: FaultKind,
    *,
    seeds: Iterable[int] = (0,),
    targets: Sequence[str] | None = None,
    policy: Policy | None = None,
    every: int = 1,
    grace: float = 5.0,
    length: int = 20,
    max_findings: int = 1,
    max_steps: int = MAX_STEPS,
) -> SweepReport:
    """For each seed, run ``world`` undisturbed, then with ``fault`` at step 1, 2, 3 and so on.

    It ends when the step is past the end of the run. Each of ``targets`` is hit in runs of its own;
    None means all marks of the undisturbed world: scopes for cancel, paths for crash, kill and
    stop. ``every`` takes only each n-th step. Stops early after ``max_findings``.

    Raises ValueError if there is no target, since such a sweep would prove nothing.
    """
    tally = _Tally(world, policy, max_steps)
    with many_runs():
        for seed in seeds:
            if len(tally.findings) >= max_findings:
                break
            undisturbed = tally.run(seed, None)
            for target in _targets(fault, undisturbed, targets):
                step = 1
                while len(tally.findings) < max_findings:
                    plan = Fault(fault, step, target, grace, length)
                    if tally.run(seed, plan).steps < step:
                        break
                    step += every
    return tally.report()


def _targets(
    fault: FaultKind, undisturbed: Outcome[Any], wanted: Sequence[str] | None
) -> Iterator[str]:
    if fault == "delay":
        yield ""
        return
    marked = [name for name in undisturbed.targets if name.startswith("/") == (fault != "cancel")]
    chosen = marked if wanted is None else list(wanted)
    unknown = [name for name in chosen if name not in marked]
    if undisturbed.ok and (unknown or not chosen):
        how = "sim.may_cancel(name)" if fault == "cancel" else "sim.watch(system, path)"
        raise ValueError(
            f"nothing to {fault}: {unknown or 'no target'}; the world marked {marked}, by {how}"
        )
    yield from chosen
