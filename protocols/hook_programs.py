"""The protocol of Claude Code's hooks, which programs as hooks speak.

A program gets the event as JSON on its standard input. Exit code 0 allows, unless the JSON object
on its standard output says otherwise; 2 blocks, with standard error as the reason. Everything else
is a failure of the hook: an answer that cannot be read allows nothing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from motet.protocols import hooks
from motet.protocols.chat import JsonObject
from motet.protocols.hooks import AnyDecision, AnyHookEvent, Point, point_of

NAMES: dict[Point, str] = {
    "session_start": "SessionStart",
    "session_end": "SessionEnd",
    "before_input": "UserPromptSubmit",
    "before_model": "BeforeModel",
    "after_model": "AfterModel",
    "before_tool": "PreToolUse",
    "after_tool": "PostToolUse",
    "before_output": "Stop",
    "before_child": "SubagentStart",
    "after_child": "SubagentStop",
    "before_compact": "PreCompact",
    "after_compact": "PostCompact",
    "run_end": "RunEnd",
    "error": "StopFailure",
    "warning": "Notification",
}
"""``hook_event_name`` at each point; points that Claude Code lacks have names of our own."""

BLOCKED = 2
"""The exit code that blocks."""


class HookProgramError(Exception):
    """A hook's program failed, or gave an answer that cannot be read."""


class _Specific(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    hook_event_name: str | None = None
    permission_decision: Literal["allow", "deny", "ask"] | None = None
    permission_decision_reason: str | None = None
    updated_input: JsonObject | None = None
    additional_context: str | None = None


class _Answer(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """An unknown key is an error: a misspelt refusal must not pass for silence."""

    go_on: bool = msgspec.field(default=True, name="continue")
    stop_reason: str | None = None
    suppress_output: bool | None = None
    system_message: str | None = None
    decision: Literal["approve", "allow", "block", "deny"] | None = None
    reason: str | None = None
    hook_specific_output: _Specific = _Specific()


def payload(event: AnyHookEvent, cwd: str) -> bytes:
    """The event as JSON. ``cwd`` is where the tools work."""
    common: JsonObject = {
        "hook_event_name": NAMES[point_of(event)],
        "session_id": event.session,
        "cwd": cwd,
        "run_id": event.run_id,
        "agent": event.agent,
        "user": event.principal.user,
    }
    return msgspec.json.encode(common | _fields(event))


def _fields(event: AnyHookEvent) -> JsonObject:
    match event:
        case hooks.SessionStart():
            return {"source": "resume" if event.resumed else "startup"}
        case hooks.SessionEnd():
            return {"reason": "other"}
        case hooks.BeforeInput():
            return {"prompt": event.text}
        case hooks.BeforeModel():
            return {"request": event.request, "iteration": event.iteration}
        case hooks.AfterModel():
            return {"response": event.response, "iteration": event.iteration}
        case hooks.BeforeTool():
            return _call(event)
        case hooks.AfterTool():
            response = {"output": event.text, "success": event.ok, "error_id": event.error_id}
            return {**_call(event), "tool_response": response, "duration_ms": event.duration_ms}
        case hooks.BeforeOutput():
            return {
                "stop_hook_active": event.continued > 0,
                "last_assistant_message": event.text,
            }
        case hooks.BeforeChild():
            return {"agent_type": event.child, "prompt": event.text}
        case hooks.AfterChild():
            return {
                "agent_type": event.child,
                "agent_id": event.child_run,
                "status": event.status,
                "last_assistant_message": event.output,
                "usage": event.usage,
            }
        case hooks.BeforeCompact():
            return {"trigger": "auto", "rows": event.rows, "tokens": event.tokens}
        case hooks.AfterCompact():
            return {"trigger": "auto", "rows": event.rows, "compact_summary": event.summary}
        case hooks.RunEnd():
            return {
                "status": event.status,
                "last_assistant_message": event.output,
                "detail": event.detail,
                "usage": event.usage,
            }
        case hooks.RunError():
            return {"error": event.kind, "message": event.message, "error_id": event.error_id}
        case hooks.RunWarning():
            return {"notification_type": event.source, "message": event.message}


def _call(event: hooks.BeforeTool | hooks.AfterTool) -> JsonObject:
    return {"tool_name": event.name, "tool_input": event.args, "tool_use_id": event.call_id}


def decision_of(event: AnyHookEvent, code: int, stdout: bytes, stderr: str) -> AnyDecision:
    """The decision of a program that ended like this. Raises :class:`HookProgramError`."""
    said = stderr.strip()
    if code == BLOCKED:
        return _blocked(event, said or "blocked by a hook")
    if code:
        raise HookProgramError(f"exit code {code}" + (f": {said[-500:]}" if said else ""))
    if not stdout.strip():
        return hooks.Allow()
    try:
        answer = msgspec.json.decode(stdout, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HookProgramError(
            f"its standard output is not the JSON of a hook: {error}; "
            "write other words to standard error"
        ) from None
    return _strongest(event, answer)


def _strongest(event: AnyHookEvent, answer: _Answer) -> AnyDecision:
    """The strongest decision in one answer."""
    more = answer.hook_specific_output
    _refuse_misplaced(event, more)
    if not answer.go_on:
        return hooks.Abort(answer.stop_reason or answer.reason or "stopped by a hook")
    if more.permission_decision == "deny" or answer.decision in ("block", "deny"):
        reason = more.permission_decision_reason or answer.reason or "blocked by a hook"
        return _blocked(event, reason)
    if more.permission_decision == "ask":
        return hooks.Ask(more.permission_decision_reason or answer.reason or "a hook asks")
    if isinstance(event, hooks.BeforeInput | hooks.AfterTool) and more.additional_context:
        return hooks.Replace(f"{event.text}\n\n{more.additional_context}")
    return hooks.Allow(more.updated_input)


def _refuse_misplaced(event: AnyHookEvent, more: _Specific) -> None:
    name = NAMES[point_of(event)]
    if more.hook_event_name not in (None, name):
        raise HookProgramError(f"it answered {more.hook_event_name!r}, and was asked {name!r}")
    decides = more.permission_decision or more.updated_input is not None
    if decides and not isinstance(event, hooks.BeforeTool):
        raise HookProgramError(f"{name} has no permission and no input to decide on")
    if more.additional_context and not isinstance(event, hooks.BeforeInput | hooks.AfterTool):
        raise HookProgramError(f"{name} takes no additionalContext")


def _blocked(event: AnyHookEvent, reason: str) -> AnyDecision:
    """The effect of blocking at each point, as in Claude Code where it has that point."""
    match event:
        case hooks.BeforeTool() | hooks.BeforeInput() | hooks.BeforeChild() | hooks.BeforeCompact():
            return hooks.Deny(reason)
        case hooks.BeforeOutput():
            return hooks.Continue(reason)
        case hooks.AfterTool():
            return hooks.Replace(f"{event.text}\n\n[A hook objects: {reason}]")
        case hooks.BeforeModel() | hooks.AfterModel() | hooks.SessionStart():
            return hooks.Abort(reason)
        case _:
            raise HookProgramError(f"nothing is left to be blocked: {reason}")
