"""Ask a chain of hooks and merge what they say (G10).

Invariants: a gate that failed never counts as an allow unless it was declared ``continue``; a
verdict that restricts (Abort, Deny, Ask) counts whatever else is wrong with the hook. A hook is
shown its own copy of what is decided upon: only what it returns changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

import attrs
import trio
from msgspec.structs import replace

from motet.actors.errors.log import logger
from motet.actors.hooks.points import allowance, own_copy, replaced, restriction
from motet.actors.hooks.registry import Hook, HookFn, HookSet
from motet.protocols.hooks import (
    Abort,
    AfterTool,
    Allow,
    AnyDecision,
    AnyHookEvent,
    Ask,
    BeforeChild,
    BeforeTool,
    Continue,
    Deny,
    OnError,
    Point,
    Replace,
    Respond,
    RunWarning,
    Verdict,
    point_of,
)
from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorRef, MailboxFull, handles

__all__ = ["Heard", "HookFault", "HookFn", "HookSet", "Warn", "decide", "merge"]


@attrs.frozen
class HookFault:
    """A hook failed; the mark for the event log. ``on_error`` says what that meant."""

    hook: str
    on_error: OnError
    event: AnyHookEvent
    message: str

    def __str__(self) -> str:
        where, what = f"at {point_of(self.event)}", "the run"
        if self.tool:
            after = isinstance(self.event, AfterTool)
            where, what = f"on tool {self.tool!r}", "the result" if after else "the call"
        elif isinstance(self.event, BeforeChild):
            where, what = f"on child {self.event.child!r}", "the child"
        refused = {"the result": "was withheld", "the run": "ended"}.get(what, "was denied")
        meant = f"{what} {refused}" if self.on_error == "block" else f"{what} went on"
        return f"hook {self.hook!r} failed {where}, {meant}: {self.message}"

    @property
    def tool(self) -> str:
        """Of the call that it was about, if it was about one."""
        return self.event.name if isinstance(self.event, BeforeTool | AfterTool) else ""


Warn: TypeAlias = Callable[[HookFault], None]
Heard: TypeAlias = Callable[[Hook, Verdict, float], None]
"""Told each hook's own verdict, and the seconds it took."""

_STRONGEST_FIRST: tuple[type[AnyDecision], ...] = (Abort, Deny, Ask, Continue, Respond)


def merge(verdicts: Sequence[Verdict]) -> Verdict:
    """The strongest, the first of equals; if all allow, the last replacement."""
    for kind in _STRONGEST_FIRST:
        for verdict in verdicts:
            if isinstance(verdict.decision, kind):
                return verdict
    for verdict in reversed(verdicts):
        match verdict.decision:
            case Replace():
                return verdict
            case _:
                pass
    changed = [v for v in verdicts if isinstance(v.decision, Allow) and v.decision.args is not None]
    return changed[-1] if changed else Verdict(Allow())


def _unheard(_hook: Hook, _verdict: Verdict, _seconds: float) -> None:
    pass


async def decide(
    hooks: Sequence[Hook], event: AnyHookEvent, warn: Warn, heard: Heard = _unheard
) -> Verdict:
    """Ask every hook in order; each sees what the one before left. Abort ends it."""
    verdicts: list[Verdict] = []
    for hook in hooks:
        began = trio.current_time()
        verdict = await _consult(hook, event, warn)
        heard(hook, verdict, trio.current_time() - began)
        verdicts.append(verdict)
        if isinstance(verdict.decision, Abort):
            break
        event = replaced(event, verdict.decision)
    verdict = merge(verdicts)
    return _asking(verdict, verdicts, event) if isinstance(verdict.decision, Ask) else verdict


def _asking(verdict: Verdict, verdicts: Sequence[Verdict], event: AnyHookEvent) -> Verdict:
    """Who decides has to know all that is asked, and decides on what would be done."""
    asked = [(v.hook, v.decision.reason) for v in verdicts if isinstance(v.decision, Ask)]
    args = event.args if isinstance(event, BeforeTool) else None
    return replace(verdict, args=args, asked=tuple(asked))


async def _consult(hook: Hook, event: AnyHookEvent, warn: Warn) -> Verdict:
    try:
        value, late = await _call(hook, event)
        if (restricted := restriction(event, value)) is not None:
            return Verdict(restricted, hook.name)
        if not late:
            return Verdict(allowance(event, value), hook.name)
        problem = f"no answer within {hook.timeout:g} s"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    warn(HookFault(hook.name, hook.on_error, event, problem))
    if hook.on_error == "continue":
        return Verdict(Allow(), hook.name, "error")
    return Verdict(refusal(event, hook.name), hook.name, "error")


async def _call(hook: Hook, event: AnyHookEvent) -> tuple[object, bool]:
    """What the hook returned, and whether its time was over by then."""
    value: object = None
    with trio.move_on_after(hook.timeout) as scope:
        value = await hook.fn(own_copy(event))
    return value, trio.current_time() >= scope.deadline


def refusal(event: AnyHookEvent, hook: str) -> AnyDecision:
    """What a gate that failed closed decides."""
    if isinstance(event, BeforeTool):
        return Deny(f"the gate {hook!r} failed")
    return Abort("it failed, and is declared to block when it does")


# The hooks as an actor, so that whoever asks can tell a verdict from silence (G10).


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


# The asking side of the hooks: no answer is what the strictest of them would say (G10).


SLACK = 1.0
"""Seconds a chain may take beyond the time-outs of its hooks, waiting for its place included."""


log_of_client = logger(__name__)


class HooksClient:
    """Asks the :class:`~motet.actors.hooks.chain.Hooks` actor. Without one, gates block.

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
            log_of_client.warning(
                "hooks not told", run=event.run_id, what=repr(event)[:200], why=str(error)
            )

    def _silence(self, hooks: tuple[Hook, ...], event: AnyHookEvent, why: str) -> Verdict:
        """Calls and children are denied even if all gates fail open: none has failed yet."""
        if isinstance(event, BeforeTool | BeforeChild):
            return Verdict(Deny(f"its gates gave no verdict ({why})"), cause="error")
        for hook in hooks:
            if hook.on_error == "block":
                return Verdict(refusal(event, hook.name), hook.name, "error")
        for hook in hooks:
            fault = HookFault(hook.name, hook.on_error, event, f"it was not asked: {why}")
            log_of_client.warning("hook not asked", hook=hook.name, run=event.run_id, why=why)
            if self._warn is not None:
                self._warn(fault)
        return Verdict(Allow())
