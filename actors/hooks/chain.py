"""Ask a chain of hooks and merge what they say (G10).

Invariants: a gate that failed never counts as an allow unless it was declared ``continue``; a
verdict that restricts (Abort, Deny, Ask) counts whatever else is wrong with the hook. A hook is
shown its own copy of what is decided upon: only what it returns changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import trio
from msgspec.structs import replace

from motet.actors.hooks.decisions import allowance, own_copy, replaced, restriction
from motet.actors.hooks.hookset import Hook, HookFn, HookSet
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
    Replace,
    Respond,
    Verdict,
    point_of,
)

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
