"""Tools to test agents: simulated hosts, scripted and drawn models, faults, and invariants.

``ALLOW_MODEL_REQUESTS = False`` makes every adapter refuse to send requests: set it on this module,
once for a whole suite; the pytest plugin does. Models without a network are never refused.

Each name is imported on its first use, since the plugin is loaded in every project that has motet.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from motet.actors.models import switch

if TYPE_CHECKING:
    from motet.protocols.evals import Score
    from motet.runtime.testing.guards import NotSimulated
    from motet.runtime.testing.policies import DelayBounded, Holds, Mixed, Pct, Speeds, Uniform
    from motet.runtime.testing.simulation import Stuck
    from motet.testing import invariants
    from motet.testing.checking import check, check_memory, snapshot
    from motet.testing.disk import SimulatedDisk
    from motet.testing.evals import judges
    from motet.testing.evals.cases import Called, EvalCase, Judge, Trial, load_cases
    from motet.testing.evals.evaluation import Evaluation, evaluate, evaluate_async
    from motet.testing.evals.report import EvalReport, EvaluationFailed
    from motet.testing.flaky import Flaw, FuzzPlan, flaky_tool, with_flaws
    from motet.testing.fuzz_model import Drawn, FuzzModel
    from motet.testing.history import History, Ledger
    from motet.testing.host import SimulatedHost, simulated_host
    from motet.testing.invariants.snapshot import Effect, Snapshot, Violation
    from motet.testing.linearized import ActorProgram, NotLinearizable, actor_programs
    from motet.testing.models import FunctionModel, TestModel
    from motet.testing.processes import FakeProgram, UndeclaredProgram, answers
    from motet.testing.reached import NeverReached, assert_reached, sometimes
    from motet.testing.recorded import RecordedModel
    from motet.testing.scripted import (
        Answer,
        Failure,
        ScriptedModel,
        Step,
        call,
        cut,
        fail,
        raw_call,
        say,
        script_source,
        slow,
    )
    from motet.testing.stories.acts import (
        Approve,
        Crash,
        Disconnect,
        Do,
        Mishap,
        Post,
        Resend,
        Reset,
        Resolve,
        Run,
        Send,
        Steer,
        Stop,
        Wait,
    )
    from motet.testing.stories.cases import (
        Case,
        load_case,
        replay_case,
        replay_run,
        run_twice,
        save_case,
    )
    from motet.testing.stories.program import BoundProgram, InvariantBroken, Program
    from motet.testing.stories.references import result_of
    from motet.testing.stories.schedule import Schedule
    from motet.testing.stories.strategy import programs
    from motet.testing.stories.target import Faults
    from motet.testing.stories.vocabulary import Rule, rule
    from motet.testing.sweeps import HostFault, SweepReport, sweep
    from motet.testing.web_services import FakeHttp, HttpAnswer, HttpRequest, fake_http
    from motet.testing.world import Power, power_cut

    ALLOW_MODEL_REQUESTS: bool

_HOMES = {
    "motet.protocols.evals": ("Score",),
    "motet.testing.evals.cases": ("Called", "EvalCase", "Judge", "Trial", "load_cases"),
    "motet.testing.evals.evaluation": ("Evaluation", "evaluate", "evaluate_async"),
    "motet.testing.evals.report": ("EvalReport", "EvaluationFailed"),
    "motet.testing.linearized": ("ActorProgram", "NotLinearizable", "actor_programs"),
    "motet.testing.checking": ("check", "check_memory", "snapshot"),
    "motet.testing.invariants.snapshot": ("Effect", "Snapshot", "Violation"),
    "motet.testing.reached": ("NeverReached", "assert_reached", "sometimes"),
    "motet.testing.stories.acts": (
        "Approve",
        "Crash",
        "Disconnect",
        "Do",
        "Mishap",
        "Post",
        "Resend",
        "Reset",
        "Resolve",
        "Run",
        "Send",
        "Steer",
        "Stop",
        "Wait",
    ),
    "motet.testing.stories.cases": (
        "Case",
        "load_case",
        "replay_case",
        "replay_run",
        "run_twice",
        "save_case",
    ),
    "motet.testing.stories.program": ("BoundProgram", "InvariantBroken", "Program"),
    "motet.testing.stories.references": ("result_of",),
    "motet.testing.stories.schedule": ("Schedule",),
    "motet.testing.stories.strategy": ("programs",),
    "motet.testing.stories.target": ("Faults",),
    "motet.testing.stories.vocabulary": ("Rule", "rule"),
    "motet.testing.recorded": ("RecordedModel",),
    "motet.testing.disk": ("SimulatedDisk",),
    "motet.testing.web_services": ("FakeHttp", "HttpAnswer", "HttpRequest", "fake_http"),
    "motet.testing.flaky": ("Flaw", "FuzzPlan", "flaky_tool", "with_flaws"),
    "motet.runtime.testing.guards": ("NotSimulated",),
    "motet.runtime.testing.policies": (
        "DelayBounded",
        "Holds",
        "Mixed",
        "Pct",
        "Speeds",
        "Uniform",
    ),
    "motet.runtime.testing.simulation": ("Stuck",),
    "motet.testing.history": ("History", "Ledger"),
    "motet.testing.host": ("SimulatedHost", "simulated_host"),
    "motet.testing.fuzz_model": ("Drawn", "FuzzModel"),
    "motet.testing.sweeps": ("HostFault", "SweepReport", "sweep"),
    "motet.testing.models": ("FunctionModel", "TestModel"),
    "motet.testing.processes": ("FakeProgram", "UndeclaredProgram", "answers"),
    "motet.testing.scripted": (
        "Answer",
        "Failure",
        "Step",
        "call",
        "cut",
        "fail",
        "raw_call",
        "say",
        "ScriptedModel",
        "script_source",
        "slow",
    ),
    "motet.testing.world": ("Power", "power_cut"),
}
_MODULES = {"invariants": "motet.testing.invariants", "judges": "motet.testing.evals.judges"}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ALLOW_MODEL_REQUESTS",
    "ActorProgram",
    "Answer",
    "Approve",
    "BoundProgram",
    "Called",
    "Case",
    "Crash",
    "DelayBounded",
    "Disconnect",
    "Do",
    "Drawn",
    "Effect",
    "EvalCase",
    "EvalReport",
    "Evaluation",
    "EvaluationFailed",
    "Failure",
    "FakeHttp",
    "FakeProgram",
    "Faults",
    "Flaw",
    "FunctionModel",
    "FuzzModel",
    "FuzzPlan",
    "History",
    "Holds",
    "HostFault",
    "HttpAnswer",
    "HttpRequest",
    "InvariantBroken",
    "Judge",
    "Ledger",
    "Mishap",
    "Mixed",
    "NeverReached",
    "NotLinearizable",
    "NotSimulated",
    "Pct",
    "Post",
    "Power",
    "Program",
    "RecordedModel",
    "Resend",
    "Reset",
    "Resolve",
    "Rule",
    "Run",
    "Schedule",
    "Score",
    "ScriptedModel",
    "Send",
    "SimulatedDisk",
    "SimulatedHost",
    "Snapshot",
    "Speeds",
    "Steer",
    "Step",
    "Stop",
    "Stuck",
    "SweepReport",
    "TestModel",
    "Trial",
    "UndeclaredProgram",
    "Uniform",
    "Violation",
    "Wait",
    "actor_programs",
    "answers",
    "assert_reached",
    "call",
    "check",
    "check_memory",
    "cut",
    "evaluate",
    "evaluate_async",
    "fail",
    "fake_http",
    "flaky_tool",
    "invariants",
    "judges",
    "load_case",
    "load_cases",
    "power_cut",
    "programs",
    "raw_call",
    "replay_case",
    "replay_run",
    "result_of",
    "rule",
    "run_twice",
    "save_case",
    "say",
    "script_source",
    "simulated_host",
    "slow",
    "snapshot",
    "sometimes",
    "sweep",
    "with_flaws",
]


class _Testing(ModuleType):
    """The class of this module: setting its switch sets the one of the adapters."""

    @property
    def ALLOW_MODEL_REQUESTS(self) -> bool:
        return switch.allowed()

    @ALLOW_MODEL_REQUESTS.setter
    def ALLOW_MODEL_REQUESTS(self, wanted: bool) -> None:
        switch.allow(wanted)


sys.modules[__name__].__class__ = _Testing


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(_MODULES[name])
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'motet.testing' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
