"""The hooks as an actor, so that whoever asks can tell a verdict from silence (G10)."""

from __future__ import annotations

from motet.actors.hooks.chain import Warn, decide, observe
from motet.actors.hooks.hookset import HookSet
from motet.protocols.hooks import AfterTool, BeforeTool, Decision
from motet.protocols.messages import Message, Request
from motet.runtime import Actor, handles

AT_ONCE = 64


class Gate(Request[Decision], frozen=True, tag="hooks.gate"):
    """May this very call run? Answered by the merged verdict of all gates that match."""

    event: BeforeTool


class Observe(Message, frozen=True, tag="hooks.observe"):
    """A call has ended; told to all observers that match."""

    event: AfterTool


class Hooks(Actor[Gate | Observe]):
    """Runs the chains. A slow hook delays its own call only, up to 64 calls at once.

    ``warn`` gets a mark for every hook that failed; it must not block and must not raise.
    """

    def __init__(self, hooks: HookSet, warn: Warn) -> None:
        self._hooks = hooks
        self._warn = warn

    @handles(Gate, concurrent=AT_ONCE)
    async def gate(self, request: Gate) -> Decision:
        event = request.event
        return await decide(self._hooks.gates(event.name), event, self._warn)

    @handles(Observe, concurrent=AT_ONCE)
    async def observe(self, message: Observe) -> None:
        event = message.event
        await observe(self._hooks.observers(event.name), event, self._warn)
