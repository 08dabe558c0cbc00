"""All laws and all planted defects, of the kernel and of hosts, for the tests and the report."""

from __future__ import annotations

from tests.guarantees.law import SEARCH, Law, Mutant, first_finding, planted
from tests.guarantees.mutants import (
    asks,
    fan_out,
    gates,
    here,
    inputs,
    mail,
    poison,
    principals,
    stops,
    supervision,
    transcripts,
    waits,
)
from tests.guarantees.worlds.beside import BESIDE
from tests.guarantees.worlds.call_graph import CANCELLATION_CLOSURE, ONE_OUTCOME
from tests.guarantees.worlds.control import CONTROL_OVERTAKES
from tests.guarantees.worlds.crowd import BOUNDED_MEMORY
from tests.guarantees.worlds.cycles import NO_SILENT_DEADLOCK
from tests.guarantees.worlds.fan_out import ORDERED_FAN_OUT
from tests.guarantees.worlds.gates import GATES
from tests.guarantees.worlds.here import AS_A_MAILBOX
from tests.guarantees.worlds.inputs import DURABLE_INPUT
from tests.guarantees.worlds.linked import LINKED
from tests.guarantees.worlds.mail import CONSERVATION
from tests.guarantees.worlds.poison import CONTAINMENT
from tests.guarantees.worlds.principals import ISOLATION
from tests.guarantees.worlds.regroup import REGROUPING
from tests.guarantees.worlds.replays import REPLAY
from tests.guarantees.worlds.stopping import STOP_IS_BOUNDED
from tests.guarantees.worlds.supervision import SUPERVISION
from tests.guarantees.worlds.transcripts import VALID_TRANSCRIPT
from tests.guarantees.worlds.turns import TURN_ISOLATION
from tests.guarantees.worlds.waits import EVERY_WAIT

__all__ = [
    "GUARANTEES",
    "LAWS",
    "MUTANTS",
    "OF_HOSTS",
    "holds",
    "holds_on",
    "is_found",
    "mutants_of",
]

GUARANTEES = tuple(f"G{number}" for number in range(1, 17))
OF_HOSTS = frozenset({"G7", "G14", "G15", "G16"})
"""Whose worlds are whole hosts: ten times as long as those of the kernel."""

LAWS: dict[str, Law] = {
    law.guarantee: law
    for law in (
        CANCELLATION_CLOSURE,
        STOP_IS_BOUNDED,
        ONE_OUTCOME,
        CONSERVATION,
        BESIDE,
        TURN_ISOLATION,
        CONTROL_OVERTAKES,
        VALID_TRANSCRIPT,
        ORDERED_FAN_OUT,
        SUPERVISION,
        REGROUPING,
        LINKED,
        GATES,
        NO_SILENT_DEADLOCK,
        EVERY_WAIT,
        REPLAY,
        BOUNDED_MEMORY,
        CONTAINMENT,
        DURABLE_INPUT,
        ISOLATION,
        AS_A_MAILBOX,
    )
}

MUTANTS: dict[str, Mutant] = {
    f"{mutant.guarantee}: {mutant.name}": mutant
    for mutant in (
        *asks.MUTANTS,
        *here.MUTANTS,
        *mail.MUTANTS,
        *stops.MUTANTS,
        *fan_out.MUTANTS,
        *supervision.MUTANTS,
        *waits.MUTANTS,
        *transcripts.MUTANTS,
        *gates.MUTANTS,
        *poison.MUTANTS,
        *inputs.MUTANTS,
        *principals.MUTANTS,
    )
}


def mutants_of(guarantee: str) -> list[str]:
    """The names of the defects that break ``guarantee``."""
    return [name for name, mutant in MUTANTS.items() if mutant.guarantee == guarantee]


def holds(guarantee: str, schedules: int) -> None:
    """Fail with the first of so many schedules that breaks the law."""
    found = first_finding(LAWS[guarantee], range(schedules))
    assert found is None, f"schedule {found.schedule}: {found.how}"


def holds_on(guarantee: str, *schedules: int) -> None:
    """Fail with the first of these schedules, each of which has found a defect before."""
    found = first_finding(LAWS[guarantee], schedules)
    assert found is None, f"schedule {found.schedule}: {found.how}"


def is_found(name: str) -> None:
    """Fail if the law does not find the planted defect."""
    mutant = MUTANTS[name]
    with planted(mutant):
        found = first_finding(LAWS[mutant.guarantee], range(SEARCH))
    assert found is not None, f"{SEARCH} schedules did not find {name}"
