"""All laws of the kernel and all planted defects, for the tests and for the report."""

from __future__ import annotations

from tests.guarantees.law import Law, Mutant
from tests.guarantees.mutants import asks, mail, stops, supervision, waits
from tests.guarantees.worlds.call_graph import CANCELLATION_CLOSURE, ONE_OUTCOME
from tests.guarantees.worlds.control import CONTROL_OVERTAKES
from tests.guarantees.worlds.crowd import BOUNDED_MEMORY
from tests.guarantees.worlds.cycles import NO_SILENT_DEADLOCK
from tests.guarantees.worlds.mail import CONSERVATION
from tests.guarantees.worlds.replays import REPLAY
from tests.guarantees.worlds.stopping import STOP_IS_BOUNDED
from tests.guarantees.worlds.supervision import SUPERVISION
from tests.guarantees.worlds.turns import TURN_ISOLATION

__all__ = ["LAWS", "MUTANTS", "mutants_of"]

LAWS: dict[str, Law] = {
    law.guarantee: law
    for law in (
        CANCELLATION_CLOSURE,
        STOP_IS_BOUNDED,
        ONE_OUTCOME,
        CONSERVATION,
        TURN_ISOLATION,
        CONTROL_OVERTAKES,
        SUPERVISION,
        NO_SILENT_DEADLOCK,
        REPLAY,
        BOUNDED_MEMORY,
    )
}

MUTANTS: dict[str, Mutant] = {
    f"{mutant.guarantee}: {mutant.name}": mutant
    for mutant in (
        *asks.MUTANTS,
        *mail.MUTANTS,
        *stops.MUTANTS,
        *supervision.MUTANTS,
        *waits.MUTANTS,
    )
}


def mutants_of(guarantee: str) -> list[str]:
    """The names of the defects that break ``guarantee``."""
    return [name for name, mutant in MUTANTS.items() if mutant.guarantee == guarantee]
