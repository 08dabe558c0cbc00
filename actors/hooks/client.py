"""The asking side of the hooks: no answer is what the strictest of them would say (G10)."""

from __future__ import annotations

from motet.actors.hooks.actor import Gate, Observe
from motet.actors.hooks.chain import HookFault, Warn, refusal
from motet.actors.hooks.hookset import Hook, HookSet
from motet.actors.log import logger
from motet.protocols.hooks import (
    Allow,
    AnyHookEvent,
    BeforeChild,
    BeforeTool,
    Deny,
    Point,
    Verdict,
)
from motet.runtime import ActorRef

SLACK = 1.0
"""Seconds a chain may take beyond the time-outs of its hooks, waiting for its place included."""


log = logger(__name__)


class HooksClient:
    """Asks the :class:`~motet.actors.hooks.actor.Hooks` actor. Without one, gates block.

    ``warn`` gets a mark for each hook that was let pass because it was never asked.
    """

    def __init__(
        self, hooks: HookSet, ref: ActorRef[Gate | Observe] | None, warn: Warn | None = None
    ) -> None:
        self.hooks = hooks
        self._ref = ref
        self._warn = warn

    def any_at(self, *points: Point) -> bool:
        """Whether hooks stand at one of these."""
        return not self.hooks.points.isdisjoint(points)

    def any_blocks_at(self, *points: Point) -> bool:
        """Whether one of the hooks there blocks when it fails."""
        return any(hook.on_error == "block" for point in points for hook in self.hooks.at(point))

    async def ask(self, event: AnyHookEvent) -> Verdict:
        """The merged verdict; Allow at once, without a checkpoint, when no hook matches.

        Cancellation: the chain is cancelled with it, and there is no verdict.
        """
        hooks = self.hooks.of(event)
        if not hooks:
            return Verdict(Allow())
        if self._ref is None:
            return self._silence(hooks, event, "no Hooks actor runs to ask them")
        within = sum(hook.timeout for hook in hooks) + SLACK
        try:
            return await self._ref.ask(Gate(event), timeout=within)
        except Exception as error:  # dead, stopped, overloaded or too slow
            return self._silence(hooks, event, type(error).__name__)

    def notify(self, event: AnyHookEvent) -> None:
        """Tell the hooks without waiting; what they could not be told is logged."""
        if self._ref is None or not self.hooks.of(event):
            return
        try:
            self._ref.tell_nowait(Observe(event))
        except Exception as error:  # an observer that cannot be told changes nothing (fail-open)
            log.warning("hooks not told", run=event.run_id, what=repr(event)[:200], why=str(error))

    def _silence(self, hooks: tuple[Hook, ...], event: AnyHookEvent, why: str) -> Verdict:
        """Calls and children are denied even if all gates fail open: none has failed yet."""
        if isinstance(event, BeforeTool | BeforeChild):
            return Verdict(Deny(f"its gates gave no verdict ({why})"), cause="error")
        for hook in hooks:
            if hook.on_error == "block":
                return Verdict(refusal(event, hook.name), hook.name, "error")
        for hook in hooks:
            fault = HookFault(hook.name, hook.on_error, event, f"it was not asked: {why}")
            log.warning("hook not asked", hook=hook.name, run=event.run_id, why=why)
            if self._warn is not None:
                self._warn(fault)
        return Verdict(Allow())
