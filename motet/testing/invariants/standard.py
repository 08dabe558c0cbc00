"""The list of what holds for every host, with the guarantee that each belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from motet.testing.invariants import calls, runs, users
from motet.testing.invariants.snapshot import Invariant, Snapshot, Violation, name_of

__all__ = ["CHEAP", "STANDARD", "broken"]

CHEAP: Mapping[Invariant, str] = {
    calls.one_result_per_call: "G7",
    calls.requests_are_valid: "G7",
    calls.no_work_after_the_end: "G1",
    calls.effects_at_most_once: "G15",
    calls.hooks_do_not_fail: "",
    calls.code_behaves: "G1",
    runs.stops_are_total: "G2",
    runs.keys_start_one_run: "G15",
}
"""Invariants on the history alone, which are checked after each step of a program."""

STANDARD: Mapping[Invariant, str] = {
    **CHEAP,
    calls.transcripts_are_valid: "G7",
    calls.gates_hold: "G10",
    runs.budgets_hold: "",
    runs.counters_agree: "G4",
    runs.nothing_is_left: "G1",
    runs.one_terminal_event: "",
    runs.streams_have_no_gaps: "",
    runs.inputs_are_answered_once: "G15",
    runs.work_comes_to_rest: "",
    users.users_are_apart: "G16",
    users.errors_stay_inside: "G16",
}


def broken(snapshot: Snapshot, invariants: Iterable[Invariant]) -> tuple[Violation, ...]:
    """All violations, in the order of the invariants."""
    return tuple(
        Violation(name_of(invariant), sentence, STANDARD.get(invariant, ""))
        for invariant in invariants
        for sentence in invariant(snapshot)
    )
