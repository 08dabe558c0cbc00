"""Programs as hooks, with the protocol of Claude Code's hooks.

A program gets the event as JSON on its standard input. Exit code 0 allows, unless the JSON object
on its standard output says otherwise; 2 blocks, with standard error as the reason. Everything else
is a failure of the hook: an answer that cannot be read allows nothing.

Invariants: when :func:`run_program` has ended, by return, error or cancellation, every process that
the program started is dead and reaped, unless the kernel could not end it (G2); no file that a hook
is started with lies in the workspace, where tools could change it and so permit themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Unpack

import attrs
import msgspec

from motet.actors.hooks.points import rule_of
from motet.actors.hooks.registry import HookOptions, HookSet
from motet.protocols import hooks
from motet.protocols.chat import JsonObject
from motet.protocols.config import HookConfig
from motet.protocols.errors import ConfigError
from motet.protocols.hooks import AnyDecision, AnyHookEvent, Point, point_of
from motet.runtime.processes import HeadTail, environment, open_child

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
MAX_STDOUT = 1 << 18
"""Bytes of an answer; a longer one is a failure."""
MAX_STDERR = 4_000


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


@attrs.define
class Ended:
    """The end of a program. ``code``: 128 plus the signal, if a signal killed it."""

    code: int
    stdout: bytes
    stderr: str


async def run_program(
    argv: Sequence[str], event: bytes, *, cwd: str, env: Mapping[str, str]
) -> Ended:
    """Run ``argv`` with ``event`` on its stdin until it ends.

    Cancellation ends it, all of its descendants included, and waits until they are gone. Raises
    ``OSError`` if it could not be started, ``HookProgramError`` for a longer answer than allowed.
    """
    stderr = HeadTail(MAX_STDERR)
    async with open_child(argv, cwd=cwd, env=env) as child:
        answer = await child.answer(event, room=MAX_STDOUT, words=stderr)
        if answer is None:
            raise HookProgramError(f"its standard output is longer than {MAX_STDOUT:,} bytes")
        return Ended(await child.wait(), answer, stderr.text())
    raise AssertionError("leaving the block of a child swallows nothing")


@attrs.frozen
class CommandHook:
    """Asks a program about each event: a new process each time.

    Its environment has ``PATH``, ``HOME``, ``CLAUDE_PROJECT_DIR`` (the workspace) and the variables
    that ``env`` names.
    """

    argv: tuple[str, ...]
    workspace: str
    cwd: str
    env: tuple[str, ...] = ()

    async def __call__(self, event: AnyHookEvent) -> AnyDecision:
        """Raises ``OSError`` and ``HookProgramError``, failures of the hook."""
        asked = payload(event, self.workspace)
        ended = await run_program(self.argv, asked, cwd=self.cwd, env=self._environment())
        return decision_of(event, ended.code, ended.stdout, ended.stderr)

    def _environment(self) -> Mapping[str, str]:
        named = {name: os.environ[name] for name in self.env if name in os.environ}
        return {**environment(), "CLAUDE_PROJECT_DIR": self.workspace, **named}


def add_command(
    hooks: HookSet,
    point: Point,
    argv: Sequence[str],
    *,
    workspace: Path,
    cwd: str | None = None,
    env: Sequence[str] = (),
    **options: Unpack[HookOptions],
) -> None:
    """Register a program. ``cwd``: its working directory; None: the current one.

    Raises ``ConfigError`` for one that could never work, or that tools could change.
    """
    rule_of(point)
    name = options.get("name") or " ".join(map(str, argv))
    folder = Path(cwd or ".").absolute()
    _refuse(argv, name, folder, workspace)
    hook = CommandHook(tuple(argv), str(workspace), str(folder), tuple(env))
    options["name"] = name
    hooks.add(point, hook, **options)


def add_configured(hooks: HookSet, configured: Iterable[HookConfig], workspace: Path) -> None:
    """Register the programs of a configuration. Raises ``ConfigError``."""
    for index, hook in enumerate(configured):
        try:
            add_command(
                hooks,
                hook.point,
                hook.command,
                workspace=workspace,
                cwd=hook.cwd,
                env=hook.env,
                match=hook.match,
                on_error=hook.on_error,
                fail_open=hook.fail_open,
                timeout=hook.timeout,
                priority=hook.priority,
                name=hook.name,
            )
        except ConfigError as error:
            raise ConfigError(f"hooks[{index}]: {error}") from None


def _refuse(argv: Sequence[str], name: str, folder: Path, workspace: Path) -> None:
    if isinstance(argv, str) or not argv or not argv[0] or any("\0" in word for word in argv):
        raise ConfigError(f"hook {name!r}: give a program and its arguments, such as ['./check']")
    if sys.platform != "linux":
        raise ConfigError(f"hook {name!r}: programs as hooks need Linux")
    for word in argv:
        file = (folder / word).resolve()
        if file.is_file() and file.is_relative_to(workspace.resolve()):
            raise ConfigError(
                f"hook {name!r}: {file} is inside the workspace {workspace}, where tools could "
                "change it: keep hooks elsewhere, or choose another workspace"
            )
