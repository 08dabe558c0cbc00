"""The asking side of the gates: no answer is a denial, whatever the reason (G10)."""

from __future__ import annotations

from motet.actors.hooks.actor import Gate, Observe
from motet.actors.hooks.hookset import HookSet
from motet.actors.log import logger
from motet.protocols.hooks import AfterTool, Allow, Ask, BeforeTool, Decision, Deny
from motet.runtime import ActorRef

SLACK = 1.0
"""Seconds a chain may take beyond the time-outs of its hooks, waiting for its place included."""


log = logger(__name__)


class HooksClient:
    """Asks the :class:`~motet.actors.hooks.actor.Hooks` actor. Without one, gates deny."""

    def __init__(self, hooks: HookSet, ref: ActorRef[Gate | Observe] | None) -> None:
        self._hooks = hooks
        self._ref = ref

    async def verdict(self, event: BeforeTool) -> Decision:
        """The verdict on one call; Allow at once when no gate matches the tool.

        Cancellation: the chain is cancelled with it, and there is no verdict.
        """
        gates = self._hooks.gates(event.name)
        if not gates:
            return Allow()
        if self._ref is None:
            return Deny("gates are declared for this tool, but no Hooks actor runs to ask them")
        within = sum(gate.timeout for gate in gates) + SLACK
        try:
            decision = await self._ref.ask(Gate(event), timeout=within)
        except Exception as error:  # dead, stopped, overloaded or too slow: all of them are no
            return Deny(f"its gates gave no verdict ({type(error).__name__})")
        if isinstance(decision, Ask):
            return Deny(f"a person has to decide, and there is nobody to ask: {decision.reason}")
        return decision

    def notify(self, event: AfterTool) -> None:
        """Tell the observers without waiting; what they could not be told is logged."""
        if self._ref is None or not self._hooks.observers(event.name):
            return
        try:
            self._ref.tell_nowait(Observe(event))
        except Exception as error:  # an observer that cannot be told changes nothing (fail-open)
            log.warning("observers not told", run=event.run_id, tool=event.name, why=str(error))
