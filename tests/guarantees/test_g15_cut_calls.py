"""A call that the model did not finish never runs, whenever its host is killed (G7, G15).

An answer that was cut off at its greatest length has calls that are whole and calls that may not
be. Some are repeated after a kill, some wait for a person, some come before and some behind others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.transcript.grammar import violations
from motet.actors.transcript.guards import CUT_CALL
from motet.protocols.chat import AssistantMessage, ToolMessage
from motet.protocols.models import CallArguments, CallStart, Finished, ModelEvent, ModelRequest
from motet.protocols.tools import Effects
from tests.guarantees.test_g15_begun import DECISIONS, Calls, Decision, everywhere

TOOLS = {"put": False, "look": False, "free": False, "asks": True}
"""The tools, and which of them ask a person; ``put`` and ``look`` may be repeated."""
HALF = ('{"n": 4', '{"n": 1} x', "", "{}")
"""Arguments as a cut may leave them. Empty ones are in doubt in the last call."""
PLANS: tuple[tuple[str, ...], ...] = (
    ("look", "put half"),
    ("put", "look", "put half"),
    ("put half", "put"),
    ("asks half", "asks", "put half"),
    ("put", "free half", "look", "free half"),
    ("put half",),
    ("free", "put half"),
)


@attrs.define(eq=False)
class CutCalls(Calls):
    """The first answer has the calls of the plan and is cut off; the second has its whole calls."""

    wrong: list[str] = attrs.field(factory=list[str])

    def agent(self, name: str = "clerk") -> motet.Agent[None, str]:
        agent = motet.Agent(name, model=mt.FunctionModel(self.parts, name="cut"))
        for tool, asks in TOOLS.items():
            again = tool in ("put", "look")
            effects: Effects = "read" if tool == "look" else "write"
            agent.tool(effects=effects, idempotent=again, approval=asks, name=tool)(self.begin)
        self.host.know(agent)
        return agent

    def parts(self, request: ModelRequest) -> Iterator[ModelEvent | str]:
        before = [row for row in request.messages if isinstance(row, AssistantMessage)]
        first = not any(row.calls for row in before)
        second = not first and not any(call.id.endswith("again") for call in before[-1].calls)
        if not first and not second:
            yield "done"
            return
        for at, planned in enumerate(self.plan):
            name, _, half = planned.partition(" ")
            if first or not half:
                is_last = at == len(self.plan) - 1
                cut = HALF[(self.host.seed + at) % (4 if is_last else 2)]
                yield CallStart(at, f"{planned} {at} {'' if first else 'again'}", name)
                yield CallArguments(at, cut if half else '{"n": 4}')
        yield Finished("length" if first else "tool_calls")

    async def begin(self, ctx: motet.Context[None], n: int = 0) -> str:
        if n != 4 and not self.host.ledger.cut_off:
            self.wrong.append(f"{ctx.call_id} ran, whose arguments were cut")
        return await self.work(ctx)

    def problems(self) -> list[str]:
        found = self.wrong
        for info in self.host.call(Host.runs):
            rows = [item.row for item in self.host.call(Host.history, info.session)]
            found += violations(rows)
            repeatable = not any(
                name.startswith("free") for name in self.plan if "half" not in name
            )
            if repeatable and info.status not in ("completed", "cancelled", "dropped"):
                found.append(f"{info.status}: {info.detail}")
            cut = [row for row in rows if isinstance(row, ToolMessage) and "half" in row.call_id]
            told = {(row.outcome, row.text) for row in cut} - {("denied", CUT_CALL)}
            found += [f"a call that was cut is {outcome}: {text}" for outcome, text in told]
        return found


OWN: dict[str, Any] = {"make": CutCalls, "setup": None}


@pytest.mark.parametrize("plan", PLANS, ids="-".join)
def test_a_call_that_was_cut_off_never_runs_whenever_its_host_is_killed(
    plan: tuple[str, ...],
) -> None:
    """Law: a call whose arguments may be cut off never runs, and its result says so, wherever the
    host is killed; it keeps no run from going on."""
    number = PLANS.index(plan)
    everywhere(plan, DECISIONS[number % 3], gaps=(449, 53), seeds=1, first=number, **OWN)


@pytest.mark.sweep
@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("plan", PLANS, ids="-".join)
def test_a_call_that_was_cut_off_never_runs_at_whichever_step_its_host_is_killed(
    plan: tuple[str, ...], decision: Decision
) -> None:
    everywhere(plan, decision, gaps=(3, 1), seeds=4, **OWN)
