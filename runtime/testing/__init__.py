"""Deterministic simulation of actors and of anything else on Trio: schedules, faults, laws, replay.

Reading order: ``simulate`` (run a world), ``simulation`` (the object a world gets), ``policies``
and ``scheduler`` (the choice of the next task), ``invariants`` (the laws), ``faults`` and
``sweep``, ``trace`` and ``replay``, ``guards``; ``strategies`` for Hypothesis.
"""

from motet.runtime.testing.faults import Fault, FaultKind, InjectedCrash
from motet.runtime.testing.guards import Guard, NotSimulated
from motet.runtime.testing.invariants import Violation
from motet.runtime.testing.policies import (
    DelayBounded,
    Holds,
    Mixed,
    Pct,
    Places,
    Policy,
    Speeds,
    Uniform,
)
from motet.runtime.testing.replay import ReplayDiverged, replay, save
from motet.runtime.testing.simulate import (
    GuaranteeBroken,
    Outcome,
    SimulationError,
    World,
    explore,
    run,
)
from motet.runtime.testing.simulation import Simulation, Stuck
from motet.runtime.testing.sweep import Finding, SweepReport, sweep
from motet.runtime.testing.trace import Event, Trace

__all__ = [
    "DelayBounded",
    "Event",
    "Fault",
    "FaultKind",
    "Finding",
    "GuaranteeBroken",
    "Guard",
    "Holds",
    "InjectedCrash",
    "Mixed",
    "NotSimulated",
    "Outcome",
    "Pct",
    "Places",
    "Policy",
    "ReplayDiverged",
    "Simulation",
    "SimulationError",
    "Speeds",
    "Stuck",
    "SweepReport",
    "Trace",
    "Uniform",
    "Violation",
    "World",
    "explore",
    "replay",
    "run",
    "save",
    "sweep",
]
