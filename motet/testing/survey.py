"""The survey of a search: what its programs reached, and what they never did.

A search that reaches nothing finds nothing, and looks like one that has found no bug. So each one
counts what happened, prints it as a table, and fails as vacuous when a tool never ran, when nobody
spoke in a room, when no model was asked, or when no approval was ever allowed. A test that means
that says so: ``mt.programs(agent, unused=["refund"])``. The counts do not steer the generation:
with Hypothesis' ``target`` on the number of behaviours, 100 programs had 28 to 32 distinct orders
of tasks in place of 51 to 60, and 36 behaviours in place of 38 to 41.

Invariant: a survey counts what outsiders see (events, requests, calls that reach their function),
each program once, and changes nothing in it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs

from motet.protocols import events
from motet.testing.invariants.snapshot import Snapshot

__all__ = [
    "ENOUGH",
    "Survey",
    "Vacuous",
    "current_survey",
    "features",
    "in_search",
    "survey_of",
]

ENOUGH = 30
"""Programs after which a thing that never happened is no accident."""
LISTED = 8

ROOM, MODEL, APPROVALS = "room", "model", "approvals"
"""What ``unused=`` may name besides tools."""


class Vacuous(AssertionError):
    """A search that could not have found much; ``reasons`` say what never happened."""

    def __init__(self, reasons: Sequence[str], table: str) -> None:
        lines = "\n".join(f"  {reason}" for reason in reasons)
        super().__init__(f"vacuous: this search proves less than it seems\n{lines}\n\n{table}")
        self.reasons = tuple(reasons)


@attrs.define(eq=False)
class Survey:
    """The counts of one search.

    Attributes:
        programs: the executed ones; ``asked`` of them asked a model.
        tools: calls that have reached each tool, known tools with 0.
        called: calls of tools by models, and ``refusals`` of those by tool and outcome.
        verdicts: decisions of hooks. approvals: by outcome. spoke: messages of agents in rooms.
        schedules: the distinct orders of tasks, by their hashes.
        faults: the planned faults that have struck.
        steps: the steps of users, by kind.
        unused: what the test does not mean to reach.
        seen: all features so far, and ``fresh`` the programs that had a new one.
    """

    programs: int = 0
    asked: int = 0
    tools: Counter[str] = attrs.field(factory=Counter[str])
    called: Counter[str] = attrs.field(factory=Counter[str])
    refusals: Counter[tuple[str, str]] = attrs.field(factory=Counter[tuple[str, str]])
    verdicts: Counter[tuple[str, str]] = attrs.field(factory=Counter[tuple[str, str]])
    approvals: Counter[str] = attrs.field(factory=Counter[str])
    spoke: Counter[str] = attrs.field(factory=Counter[str])
    schedules: set[int] = attrs.field(factory=set[int])
    faults: Counter[str] = attrs.field(factory=Counter[str])
    steps: Counter[str] = attrs.field(factory=Counter[str])
    unused: set[str] = attrs.field(factory=set[str])
    seen: set[str] = attrs.field(factory=set[str])
    fresh: int = 0

    def add(
        self,
        past: Snapshot,
        *,
        tools: Sequence[str],
        room: str,
        steps: Sequence[str],
        verdicts: Mapping[tuple[str, str], int],
        faults: Mapping[str, int],
        schedule: int,
        unused: Sequence[str],
    ) -> int:
        """Count one program; returns the number of features that no earlier program had."""
        self.programs += 1
        self.asked += bool(past.asked)
        self.unused.update(unused)
        self.tools.update(dict.fromkeys(tools, 0))
        self.tools.update(call.tool for call in past.ran)
        self.steps.update(steps)
        self.verdicts.update(verdicts)
        self.faults.update(faults)
        self.schedules.add(schedule)
        if room:
            self.spoke.update({room: 0})
        for happened in past.events:
            self._count(happened.record.event, happened.record.stream)
        found = set(features(past, verdicts, faults))
        new = found - self.seen
        self.seen |= found
        self.fresh += bool(new)
        return len(new)

    def _count(self, event: object, stream: str) -> None:
        match event:
            case events.ToolCall(name=name):
                self.called[name] += not stream.startswith("room:")
            case events.ToolResult(name=name, outcome=outcome) if outcome != "done":
                self.refusals[name, outcome] += not stream.startswith("room:")
            case events.ApprovalRequested():
                self.approvals["asked"] += not stream.startswith("room:")
            case events.ApprovalResolved(decision=decision):
                self.approvals[decision] += not stream.startswith("room:")
            case events.MessageAdded(role="assistant") if stream.startswith("room:"):
                self.spoke[stream.removeprefix("room:")] += 1
            case _:
                pass

    def check(self) -> None:
        """Raise :class:`Vacuous` when a thing never happened in ``ENOUGH`` programs."""
        reasons = list(self._missing()) if self.programs >= ENOUGH else []
        if reasons:
            raise Vacuous(reasons, self.table())

    def _missing(self) -> Iterator[str]:
        many = f"in {self.programs} programs"
        silent = [room for room, count in self.spoke.items() if not count]
        if silent and ROOM not in self.unused:
            yield (
                f"no agent has spoken in the room {silent[0]!r} {many}: posts mention members, so "
                "look at its `speakers`, `activation` and `until`, and at gates and budgets that "
                f"end each turn; or say that it is meant: unused=[{ROOM!r}]"
            )
        elif not self.asked and MODEL not in self.unused:
            yield (
                f"no model was asked {many}: every input was refused or answered before; look at "
                "`receive`, at before_input and before_model hooks, and at limits; or say that it "
                f"is meant: unused=[{MODEL!r}]"
            )
        if self.asked:
            for name, count in self.tools.items():
                if not count and name not in self.unused:
                    yield f"{self._never(name)}; or say that it is meant: unused=[{name!r}]"
        asked = self.approvals["asked"]
        if asked and not self.approvals["allow"] and APPROVALS not in self.unused:
            yield (
                f"{asked} approvals were asked for, and none was allowed: people allow them in "
                "half of the programs, so a hook, a policy or an expiry settles them before; or "
                f"say that it is meant: unused=[{APPROVALS!r}]"
            )

    def _never(self, name: str) -> str:
        calls = self.called[name]
        if not calls:
            return (
                f"the tool {name!r} never ran: no model called it in {self.programs} programs; "
                "with model='own' the agents' own models decide, and a policy may hide it from them"
            )
        ends = [f"{n} {end}" for (tool, end), n in self.refusals.most_common() if tool == name]
        why = f" ({', '.join(ends[:3])})" if ends else ""
        return (
            f"the tool {name!r} never ran: all {calls} calls of it ended before its function{why}; "
            "give valid values by arguments=, or look at its gates and policies"
        )

    def table(self) -> str:
        """What was searched, one row for each kind of thing."""
        rows = [
            ("programs", f"{self.programs}, {self.asked} with a model request"),
            ("steps", _listed(self.steps)),
            ("tools", _listed(self.tools, zero="never ran")),
            (
                "hooks",
                _listed({f"{hook} → {what}": n for (hook, what), n in self.verdicts.items()}),
            ),
            ("approvals", _listed(self.approvals)),
            ("rooms", _listed(self.spoke, zero="nobody spoke")),
            ("schedules", f"{len(self.schedules)} distinct"),
            ("faults", _listed(self.faults)),
            ("behaviours", f"{len(self.seen)}, new ones in {self.fresh} programs"),
        ]
        return "\n".join(f"{name:<11} {what}" for name, what in rows if what)


def features(
    past: Snapshot, verdicts: Mapping[tuple[str, str], int], faults: Mapping[str, int]
) -> Iterator[str]:
    """The distinct behaviours of one program: pairs of a kind of thing and how it ended."""
    before = ""
    for call in past.ran:
        yield f"ran {call.tool}"
        yield f"ran {call.tool} after {before}"
        before = call.tool
    for happened in past.events:
        event = happened.record.event
        kind = str(event.__struct_config__.tag)
        yield f"event {kind} {getattr(event, 'outcome', '') or getattr(event, 'decision', '')}"
        if isinstance(event, events.ToolResult):
            yield f"{event.name} ended {event.outcome}"
    yield from (f"{hook} {decision}" for hook, decision in verdicts)
    yield from (f"fault {fault}" for fault in faults)


def _listed(counts: Mapping[str, int], zero: str = "") -> str:
    """Counts in words, the most frequent first; those at 0 first of all, if they mean something."""
    none = [f"{name} {zero}" for name, count in counts.items() if not count and zero]
    some = [f"{name} {n}" for name, n in sorted(counts.items(), key=lambda item: -item[1]) if n]
    shown = [*none, *some[:LISTED]]
    more = len(some) - LISTED
    return " · ".join([*shown, *([f"{more} more"] if more > 0 else [])])


def in_search() -> bool:
    """True inside of a test of Hypothesis, which draws programs."""
    hypothesis = sys.modules.get("hypothesis")
    return hypothesis is not None and bool(hypothesis.currently_in_test_context())


_open: list[Survey] = [Survey()]


def current_survey() -> Survey:
    """The survey of the innermost search."""
    return _open[-1]


@contextmanager
def survey_of() -> Generator[Survey]:
    """Count the programs of the block in a new survey."""
    survey = Survey()
    _open.append(survey)
    try:
        yield survey
    finally:
        _open.remove(survey)
