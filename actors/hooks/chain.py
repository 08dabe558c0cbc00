"""The hooks of a host: a chain is asked in order, and its verdicts are merged into one (G10).

Invariants: a gate that failed never counts as an allow unless it was declared ``continue``; a
verdict that restricts (Abort, Deny, Ask) counts even if it is late or malformed. A hook gets
its own copy of the event: only its return value changes anything.

Hooks run in an actor (:class:`Hooks`), so that :class:`HooksClient` can tell a verdict from
silence: without an answer, it decides as the strictest of the hooks would.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

import attrs
import trio
from msgspec.structs import replace

from motet.actors.errors.log import logger
from motet.actors.hooks.points import allowance, own_copy, replaced, restriction
from motet.actors.hooks.registry import Hook, HookSet
from motet.protocols import hooks
from motet.protocols.hooks import AnyDecision, AnyHookEvent, OnError, Verdict, point_of
from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorRef, MailboxFull, UnderWay, handles
from motet.runtime.exceptions import safe_text, sole
from motet.runtime.outside import foreign_code

log = logger(__name__)

AT_ONCE = 64
SLACK = 1.0
"""Seconds a chain may take beyond the time-outs of its hooks, the wait in the mailbox included."""


@attrs.frozen
class HookFault:
    """The failure of a hook, for the event log.

    ``on_error``: its policy, block or continue. ``error_id``: of what it raised, if that is stored.
    """

    hook: str
    on_error: OnError
    event: AnyHookEvent
    message: str
    error_id: str | None = None

    def __str__(self) -> str:
        where, what = f"at {point_of(self.event)}", "the run"
        if self.tool:
            after = isinstance(self.event, hooks.AfterTool)
            where, what = f"on tool {self.tool!r}", "the result" if after else "the call"
        elif isinstance(self.event, hooks.BeforeChild):
            where, what = f"on child {self.event.child!r}", "the child"
        refused = {"the result": "was withheld", "the run": "ended"}.get(what, "was denied")
        meant = f"{what} {refused}" if self.on_error == "block" else f"{what} went on"
        found = f" [Error ID: {self.error_id}]" if self.error_id else ""
        return f"hook {self.hook!r} failed {where}, {meant}: {self.message}{found}"

    @property
    def tool(self) -> str:
        """The tool of the call that the event is about; empty for other events."""
        return self.event.name if isinstance(self.event, hooks.BeforeTool | hooks.AfterTool) else ""


Warn: TypeAlias = Callable[[HookFault], None]
OnVerdict: TypeAlias = Callable[[Hook, Verdict, float], None]
"""Gets each hook's own verdict, and the seconds it took."""
Keep: TypeAlias = Callable[[AnyHookEvent, str, Exception], Awaitable[str | None]]
"""Stores the error that a hook has raised, by the hook's name; gives its id. Raises nothing."""

_STRONGEST_FIRST: tuple[type[AnyDecision], ...] = (
    hooks.Abort,
    hooks.Deny,
    hooks.Ask,
    hooks.Continue,
    hooks.Respond,
)


def merge(verdicts: Sequence[Verdict]) -> Verdict:
    """The strongest verdict, the first of equals; if all allow, the last replacement."""
    for kind in _STRONGEST_FIRST:
        for verdict in verdicts:
            if isinstance(verdict.decision, kind):
                return verdict
    for verdict in reversed(verdicts):
        if isinstance(verdict.decision, hooks.Replace):
            return verdict
    changed = [
        v for v in verdicts if isinstance(v.decision, hooks.Allow) and v.decision.args is not None
    ]
    return changed[-1] if changed else Verdict(hooks.Allow())


async def decide(
    chain: Sequence[Hook],
    event: AnyHookEvent,
    warn: Warn,
    on_verdict: OnVerdict | None = None,
    keep: Keep | None = None,
) -> Verdict:
    """Ask every hook in order; each sees the event as the one before left it. Abort ends it."""
    verdicts: list[Verdict] = []
    for hook in chain:
        began = trio.current_time()
        verdict = await _consult(hook, event, warn, keep)
        if on_verdict is not None:
            on_verdict(hook, verdict, trio.current_time() - began)
        verdicts.append(verdict)
        if isinstance(verdict.decision, hooks.Abort):
            break
        event = replaced(event, verdict.decision)
    verdict = merge(verdicts)
    if not isinstance(verdict.decision, hooks.Ask):
        return verdict
    # The person who decides sees every hook's question, and the arguments that the call would run
    # with: those that the hooks which allow it have left.
    asked = [(v.hook, v.decision.reason) for v in verdicts if isinstance(v.decision, hooks.Ask)]
    args = event.args if isinstance(event, hooks.BeforeTool) else None
    return replace(verdict, args=args, asked=tuple(asked))


async def _consult(hook: Hook, event: AnyHookEvent, warn: Warn, keep: Keep | None) -> Verdict:
    error_id: str | None = None
    try:
        with foreign_code:  # also the object that the hook has returned
            value, late = await _call(hook, event)
            if (restricted := restriction(event, value)) is not None:
                return Verdict(restricted, hook.name)
            if not late:
                return Verdict(allowance(event, value), hook.name)
        problem = f"no answer within {hook.timeout:g} s"
    except Exception as error:
        cause = sole(error)
        problem = f"{type(cause).__name__}: {safe_text(cause)}"
        error_id = await keep(event, hook.name, error) if keep is not None else None
    warn(HookFault(hook.name, hook.on_error, event, problem, error_id))
    if hook.on_error == "continue":
        return Verdict(hooks.Allow(), hook.name, "error")
    return Verdict(refusal(event, hook.name), hook.name, "error")


async def _call(hook: Hook, event: AnyHookEvent) -> tuple[object, bool]:
    """The return value of the hook, and whether it came too late."""
    value: object = None
    with trio.move_on_after(hook.timeout) as scope, UnderWay(event.run_id, f"hook {hook.name!r}"):
        value = await hook.fn(own_copy(event))
    return value, trio.current_time() >= scope.deadline


def refusal(event: AnyHookEvent, hook: str) -> AnyDecision:
    """The decision of a gate that failed closed."""
    if isinstance(event, hooks.BeforeTool):
        return hooks.Deny(f"the gate {hook!r} failed")
    return hooks.Abort("it failed, and is declared to block when it does")


class Gate(Request[Verdict], frozen=True, tag="hooks.gate"):
    """Whether this event may happen: the merged verdict of all hooks that match."""

    event: AnyHookEvent


class Observe(Message, frozen=True, tag="hooks.observe"):
    """Tell all hooks that match of an event; their verdicts are ignored."""

    event: AnyHookEvent


class Hooks(Actor[Gate | Observe]):
    """Runs the chains. A slow hook delays its own event only, up to 64 events at once.

    ``warn`` gets the fault of every hook that failed; it must not block and must not raise.
    """

    def __init__(self, hooks: HookSet, warn: Warn, keep: Keep | None = None) -> None:
        self._hooks = hooks
        self._warn = warn
        self._keep = keep

    @handles(Gate, concurrent=AT_ONCE)
    async def gate(self, request: Gate) -> Verdict:
        return await self._decided(request.event)

    @handles(Observe, concurrent=AT_ONCE)
    async def observe(self, message: Observe) -> None:
        await self._decided(message.event)

    async def _decided(self, event: AnyHookEvent) -> Verdict:
        return await decide(self._hooks.of(event), event, self._report, keep=self._keep)

    def _report(self, fault: HookFault) -> None:
        """Report a fault, also to the hooks at ``warning``, unless one of those has failed."""
        event = fault.event
        log.warning(str(fault), run=event.run_id, session=event.session)
        self._warn(fault)
        if isinstance(event, hooks.RunWarning) or not self._hooks.at("warning"):
            return
        text = f"hook {fault.hook!r} failed: {fault.message}"
        base = (event.run_id, event.session, event.agent, event.principal)
        with suppress(MailboxFull):
            self.ref.tell_nowait(Observe(hooks.RunWarning(*base, "hook", text)))


class HooksClient:
    """Asks the :class:`Hooks` actor. Without one, gates block.

    ``warn`` gets a fault for each hook that could not be asked and whose policy is ``continue``.
    """

    def __init__(
        self, hooks: HookSet, ref: ActorRef[Gate | Observe] | None, warn: Warn | None = None
    ) -> None:
        self.hooks = hooks
        self._ref = ref
        self._warn = warn

    async def ask(self, event: AnyHookEvent) -> Verdict:
        """The merged verdict; Allow at once, without a checkpoint, when no hook matches.

        Cancellation: the chain is cancelled with it, and there is no verdict.
        """
        chain = self.hooks.of(event)
        if not chain:
            return Verdict(hooks.Allow())
        if self._ref is None:
            return self._silence(chain, event, "no Hooks actor runs to ask them")
        within = sum(hook.timeout for hook in chain) + SLACK
        try:
            return await self._ref.ask(Gate(event), timeout=within)
        except Exception as error:  # dead, stopped, overloaded or too slow
            return self._silence(chain, event, type(error).__name__)

    def notify(self, event: AnyHookEvent) -> None:
        """Tell the hooks without waiting; a message that cannot be delivered is logged."""
        if self._ref is None or not self.hooks.of(event):
            return
        try:
            self._ref.tell_nowait(Observe(event))
        except Exception as error:  # a lost observation changes nothing (fail-open)
            log.warning("hooks not told", run=event.run_id, what=repr(event)[:200], why=str(error))

    def _silence(self, chain: tuple[Hook, ...], event: AnyHookEvent, why: str) -> Verdict:
        """The verdict when no hook has answered.

        Calls and children are denied even if all gates fail open: none has failed yet.
        """
        if isinstance(event, hooks.BeforeTool | hooks.BeforeChild):
            return Verdict(hooks.Deny(f"its gates gave no verdict ({why})"), cause="error")
        for hook in chain:
            if hook.on_error == "block":
                return Verdict(refusal(event, hook.name), hook.name, "error")
        for hook in chain:
            fault = HookFault(hook.name, hook.on_error, event, f"it was not asked: {why}")
            log.warning("hook not asked", hook=hook.name, run=event.run_id, why=why)
            if self._warn is not None:
                self._warn(fault)
        return Verdict(hooks.Allow())
