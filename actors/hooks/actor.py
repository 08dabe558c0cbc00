"""The hooks as an actor, so that whoever asks can tell a verdict from silence (G10)."""

from __future__ import annotations

from contextlib import suppress

from motet.actors.hooks.chain import HookFault, Warn, decide
from motet.actors.hooks.hookset import HookSet
from motet.actors.log import logger
from motet.protocols.hooks import AnyHookEvent, RunWarning, Verdict
from motet.protocols.messages import Message, Request
from motet.runtime import Actor, MailboxFull, handles

AT_ONCE = 64

log = logger(__name__)


class Gate(Request[Verdict], frozen=True, tag="hooks.gate"):
    """May this very thing happen? Answered by the merged verdict of all hooks that match."""

    event: AnyHookEvent


class Observe(Message, frozen=True, tag="hooks.observe"):
    """Something has happened; told to all hooks that match, whose verdict changes nothing."""

    event: AnyHookEvent


class Hooks(Actor[Gate | Observe]):
    """Runs the chains. A slow hook delays its own event only, up to 64 events at once.

    ``warn`` gets a mark for every hook that failed; it must not block and must not raise.
    """

    def __init__(self, hooks: HookSet, warn: Warn) -> None:
        self._hooks = hooks
        self._warn = warn

    @handles(Gate, concurrent=AT_ONCE)
    async def gate(self, request: Gate) -> Verdict:
        return await decide(self._hooks.of(request.event), request.event, self._mark)

    @handles(Observe, concurrent=AT_ONCE)
    async def observe(self, message: Observe) -> None:
        await decide(self._hooks.of(message.event), message.event, self._mark)

    def _mark(self, fault: HookFault) -> None:
        """A hook that failed is a warning too, but for those that failed at a warning."""
        event = fault.event
        log.warning(str(fault), run=event.run_id, session=event.session)
        self._warn(fault)
        if isinstance(event, RunWarning) or not self._hooks.at("warning"):
            return
        text = f"hook {fault.hook!r} failed: {fault.message}"
        base = (event.run_id, event.session, event.agent, event.principal)
        with suppress(MailboxFull):
            self.ref.tell_nowait(Observe(RunWarning(*base, "hook", text)))
