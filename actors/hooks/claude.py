"""The words of Claude Code's hooks: an event as a program reads it, what its answer means; pure.

Exit 0 goes on, unless the JSON object on stdout says otherwise; exit 2 blocks, with stderr as the
reason. Everything else is a failure of the hook: an answer that is not understood allows nothing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.hooks import (
    Abort,
    AfterChild,
    AfterCompact,
    AfterModel,
    AfterTool,
    Allow,
    AnyDecision,
    AnyHookEvent,
    Ask,
    BeforeChild,
    BeforeCompact,
    BeforeInput,
    BeforeModel,
    BeforeOutput,
    BeforeTool,
    Continue,
    Deny,
    Point,
    Replace,
    RunEnd,
    RunError,
    RunWarning,
    SessionEnd,
    SessionStart,
    point_of,
)

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
"""``hook_event_name`` at each point; the points that Claude Code has not have names of our own."""

BLOCKED = 2
"""The exit code that blocks."""


class HookProgramError(Exception):
    """A hook's program failed, or answered what nobody understands."""


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
        case SessionStart():
            return {"source": "resume" if event.resumed else "startup"}
        case SessionEnd():
            return {"reason": "other"}
        case BeforeInput():
            return {"prompt": event.text}
        case BeforeModel():
            return {"request": event.request, "iteration": event.iteration}
        case AfterModel():
            return {"response": event.response, "iteration": event.iteration}
        case BeforeTool():
            return _call(event)
        case AfterTool():
            response = {"output": event.text, "success": event.ok, "error_id": event.error_id}
            return {**_call(event), "tool_response": response, "duration_ms": event.duration_ms}
        case BeforeOutput():
            return {
                "stop_hook_active": event.continued > 0,
                "last_assistant_message": event.text,
            }
        case BeforeChild():
            return {"agent_type": event.child, "prompt": event.text}
        case AfterChild():
            return {
                "agent_type": event.child,
                "agent_id": event.child_run,
                "status": event.status,
                "last_assistant_message": event.output,
                "usage": event.usage,
            }
        case BeforeCompact():
            return {"trigger": "auto", "rows": event.rows, "tokens": event.tokens}
        case AfterCompact():
            return {"trigger": "auto", "rows": event.rows, "compact_summary": event.summary}
        case RunEnd():
            return {
                "status": event.status,
                "last_assistant_message": event.output,
                "detail": event.detail,
                "usage": event.usage,
            }
        case RunError():
            return {"error": event.kind, "message": event.message, "error_id": event.error_id}
        case RunWarning():
            return {"notification_type": event.source, "message": event.message}


def _call(event: BeforeTool | AfterTool) -> JsonObject:
    return {"tool_name": event.name, "tool_input": event.args, "tool_use_id": event.call_id}


def decision_of(event: AnyHookEvent, code: int, stdout: bytes, stderr: str) -> AnyDecision:
    """What a program that ended so has decided. Raises :class:`HookProgramError`."""
    said = stderr.strip()
    if code == BLOCKED:
        return _blocked(event, said or "blocked by a hook")
    if code:
        raise HookProgramError(f"exit code {code}" + (f": {said[-500:]}" if said else ""))
    if not stdout.strip():
        return Allow()
    try:
        answer = msgspec.json.decode(stdout, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HookProgramError(
            f"its standard output is not the JSON of a hook: {error}; "
            "write other words to standard error"
        ) from None
    return _meant(event, answer)


def _meant(event: AnyHookEvent, answer: _Answer) -> AnyDecision:
    """The strongest of what one answer says."""
    more = answer.hook_specific_output
    _refuse_misplaced(event, more)
    if not answer.go_on:
        return Abort(answer.stop_reason or answer.reason or "stopped by a hook")
    if more.permission_decision == "deny" or answer.decision in ("block", "deny"):
        reason = more.permission_decision_reason or answer.reason or "blocked by a hook"
        return _blocked(event, reason)
    if more.permission_decision == "ask":
        return Ask(more.permission_decision_reason or answer.reason or "a hook asks")
    if isinstance(event, BeforeInput | AfterTool) and more.additional_context:
        return Replace(f"{event.text}\n\n{more.additional_context}")
    return Allow(more.updated_input)


def _refuse_misplaced(event: AnyHookEvent, more: _Specific) -> None:
    name = NAMES[point_of(event)]
    if more.hook_event_name not in (None, name):
        raise HookProgramError(f"it answered {more.hook_event_name!r}, and was asked {name!r}")
    decides = more.permission_decision or more.updated_input is not None
    if decides and not isinstance(event, BeforeTool):
        raise HookProgramError(f"{name} has no permission and no input to decide on")
    if more.additional_context and not isinstance(event, BeforeInput | AfterTool):
        raise HookProgramError(f"{name} takes no additionalContext")


def _blocked(event: AnyHookEvent, reason: str) -> AnyDecision:
    """What blocking means at each point, as in Claude Code where it has that point."""
    match event:
        case BeforeTool() | BeforeInput() | BeforeChild() | BeforeCompact():
            return Deny(reason)
        case BeforeOutput():
            return Continue(reason)
        case AfterTool():
            return Replace(f"{event.text}\n\n[A hook objects: {reason}]")
        case BeforeModel() | AfterModel() | SessionStart():
            return Abort(reason)
        case _:
            raise HookProgramError(f"nothing is left to be blocked: {reason}")
