"""Ask a chain of hooks and merge what they say (G10).

Invariants: a gate that failed never counts as an allow unless it was declared ``continue``; a
verdict that restricts (Abort, Deny, Ask) counts whatever else is wrong with the hook. A hook is
shown its own copy of the arguments: only a returned ``Allow(args=...)`` replaces them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import trio
from msgspec.structs import replace

from motet.actors.hooks.hookset import E, Hook, HookFn, HookSet
from motet.protocols.chat import JsonObject
from motet.protocols.hooks import (
    Abort,
    AfterTool,
    Allow,
    Ask,
    BeforeTool,
    Decision,
    Deny,
    OnError,
    Respond,
)

__all__ = ["HookFault", "HookFn", "HookSet", "Warn", "decide", "merge", "observe"]


class HookFault(msgspec.Struct, frozen=True):
    """A hook failed; the mark for the event log. ``on_error`` says what that meant."""

    hook: str
    on_error: OnError
    tool: str
    run_id: str
    session: str
    message: str


Warn: TypeAlias = Callable[[HookFault], None]

_STRONGEST_FIRST: tuple[type[Decision], ...] = (Abort, Deny, Ask, Respond)


def merge(decisions: Sequence[Decision]) -> Decision:
    """The strongest, the first of equals; if all allow, the last replacement of the arguments."""
    for kind in _STRONGEST_FIRST:
        for decision in decisions:
            if isinstance(decision, kind):
                return decision
    replaced = [decision.args for decision in decisions if isinstance(decision, Allow)]
    return Allow(next((args for args in reversed(replaced) if args is not None), None))


async def decide(gates: Sequence[Hook[BeforeTool]], event: BeforeTool, warn: Warn) -> Decision:
    """Ask every gate in order; each sees the arguments the one before left. Abort ends it."""
    decisions: list[Decision] = []
    for gate in gates:
        decision = await _consult(gate, event, warn)
        decisions.append(decision)
        if isinstance(decision, Abort):
            break
        if isinstance(decision, Allow) and decision.args is not None:
            event = replace(event, args=decision.args)
    return merge(decisions)


async def observe(observers: Sequence[Hook[AfterTool]], event: AfterTool, warn: Warn) -> None:
    """Show every observer the event, in order. What they raise is marked and changes nothing."""
    for observer in observers:
        try:
            _, late = await _call(observer, event)
        except Exception as error:
            warn(_fault(observer, event, _said(error)))
        else:
            if late:
                warn(_fault(observer, event, _time_out(observer)))


async def _consult(gate: Hook[BeforeTool], event: BeforeTool, warn: Warn) -> Decision:
    try:
        value, late = await _call(gate, event)
        if (restriction := _restriction(value)) is not None:
            return restriction
        if not late:
            return _permission(value)
        problem = _time_out(gate)
    except Exception as error:
        problem = _said(error)
    warn(_fault(gate, event, problem))
    return Allow() if gate.on_error == "continue" else Deny(f"the gate {gate.name!r} failed")


async def _call(hook: Hook[E], event: E) -> tuple[object, bool]:
    """What the hook returned, and whether its time was over by then."""
    value: object = None
    with trio.move_on_after(hook.timeout) as scope:
        value = await hook.fn(replace(event, args=_copied(event.args)))
    return value, trio.current_time() >= scope.deadline


def _restriction(value: object) -> Abort | Deny | Ask | None:
    match value:
        case Abort(reason=reason):
            return Abort(_text(reason))
        case Deny(reason=reason):
            return Deny(_text(reason))
        case Ask(reason=reason):
            return Ask(_text(reason))
        case _:
            return None


def _text(reason: object) -> str:
    return reason if isinstance(reason, str) else f"<{type(reason).__name__}>"


def _permission(value: object) -> Allow | Respond:
    """A verdict that lets something happen must be whole, else ``TypeError``, ``ValueError``."""
    match value:
        case Allow(args=None):
            return Allow()
        case Allow(args=args):
            return msgspec.convert({"args": _copied(args)}, Allow)
        case Respond(text=text):
            return msgspec.convert({"text": text}, Respond)
        case _:
            raise TypeError(f"a gate returns a Decision, not {type(value).__name__}")


def _copied(args: JsonObject | None) -> JsonObject:
    """Nobody keeps a hold on what is decided upon. Raises ``TypeError`` for what is not JSON."""
    copy: JsonObject = msgspec.to_builtins(args)
    return copy


def _fault(hook: Hook[E], event: E, message: str) -> HookFault:
    return HookFault(hook.name, hook.on_error, event.name, event.run_id, event.session, message)


def _time_out(hook: Hook[E]) -> str:
    return f"no answer within {hook.timeout:g} s"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
