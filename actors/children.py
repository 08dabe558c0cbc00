"""Runs under runs: an agent that does a part of another's work.

Invariants: a child is in the block of the call that asked for it, so that a stop of its parent ends
it and waits (G1); what it spends its parents spend too; its gate is asked before anything of it is
stored. Source: agent loop specification, section 12.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from motet.actors.agent.budget import Budget, OverBudget
from motet.actors.hooks.client import HooksClient
from motet.actors.sessions.keys import sub_agent_key
from motet.actors.sessions.table import Run, RunTable
from motet.actors.tools.tool import ToolDenied, ToolRetry
from motet.protocols.hooks import Abort, AfterChild, BeforeChild, Deny

if TYPE_CHECKING:
    from motet.actors.agent.definition import AnyAgent
    from motet.actors.intake import Intake
    from motet.actors.result import RunResult
    from motet.actors.tools.context import Context


class Children:
    """Starts the children of a host's runs. ``intake`` is there when the host is."""

    def __init__(self, table: RunTable, hooks: HooksClient) -> None:
        self.intake: Intake | None = None
        self._table = table
        self._hooks = hooks

    async def run(self, ctx: Context[object], agent: AnyAgent, text: str) -> RunResult[Any]:
        """The result of a child run, however it ended. Cancelling ends the run and waits (G1).

        Raises ``ToolDenied`` when a gate is against it, ``ToolRetry`` when the limits of its
        parents do not allow it, and what :meth:`motet.Host.run` raises of an input.
        """
        intake, parent = self.intake, self._table.runs[ctx.run_id]
        assert intake is not None
        assert parent.budget is not None
        await self._allowed(ctx, agent.name, text)
        run = await intake.new_run(agent, text, None, ctx.deps, None, ctx.principal, None)
        run.session = sub_agent_key(agent.name, run.id)
        run.caller = (ctx.run_id, ctx.call_id)
        run.budget = _budget(parent.budget, run)
        try:
            async with parent.places, intake.owned(run):
                await run.ended.wait()
        finally:
            run.budget.close()
        assert run.result is not None
        self._tell_end(ctx, run.result)
        return run.result

    async def _allowed(self, ctx: Context[object], child: str, text: str) -> None:
        if not self._hooks.any_at("before_child"):
            return
        base = (ctx.run_id, ctx.session, ctx.agent, ctx.principal)
        verdict = await self._hooks.ask(BeforeChild(*base, child, text))
        if isinstance(verdict.decision, Abort | Deny):
            raise ToolDenied(verdict.decision.reason)

    def _tell_end(self, ctx: Context[object], result: RunResult[Any]) -> None:
        base = (ctx.run_id, ctx.session, ctx.agent, ctx.principal)
        ended = AfterChild(
            *base, result.agent, result.run_id, result.status, result.text, result.usage
        )
        self._hooks.notify(ended)


def _budget(parent: Budget, run: Run) -> Budget:
    try:
        return parent.child(run.limits, started=trio.current_time())
    except OverBudget as over:
        raise ToolRetry(
            f"No agent can be started here: the limit {over.limit!r} of this run does not allow "
            "it. Do the work yourself, or wait for the others."
        ) from None
