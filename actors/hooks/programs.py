"""The words of Claude Code's hooks: an event as a program reads it, what its answer means; pure.

Exit 0 goes on, unless the JSON object on stdout says otherwise; exit 2 blocks, with stderr as the
reason. Everything else is a failure of the hook: an answer that is not understood allows nothing.
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
from motet.protocols.chat import JsonObject
from motet.protocols.config import HookConfig
from motet.protocols.errors import ConfigError
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


# Run a hook's program: an event on its stdin, bounded output, nothing left behind (G2).
#
# Invariant: when :func:`run_program` has ended, by return, error or cancellation, every process
# that the program started is dead and reaped, unless the kernel could not end it.


MAX_STDOUT = 1 << 18
"""Bytes of an answer; one that is longer is a failure."""

MAX_STDERR = 4_000


@attrs.define
class Ended:
    """How a program ended. ``code`` is 128 and the signal for one that a signal killed."""

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
    words = HeadTail(MAX_STDERR)
    async with open_child(argv, cwd=cwd, env=env) as child:
        answer = await child.answer(event, room=MAX_STDOUT, words=words)
        if answer is None:
            raise HookProgramError(f"its standard output is longer than {MAX_STDOUT:,} bytes")
        return Ended(await child.wait(), answer, words.text())
    raise AssertionError("leaving the block of a child swallows nothing")


# Hooks that are programs: registered with what they may know, and kept out of the tools' reach.
#
# Invariant: no file that such a hook is started with lies in the workspace, where tools could write
# their own permission.


@attrs.frozen
class CommandHook:
    """Asks a program about each event: a new process each time.

    It knows ``PATH``, ``HOME``, ``CLAUDE_PROJECT_DIR`` (the workspace) and the variables that
    ``env`` names, nothing else of the host's environment.
    """

    argv: tuple[str, ...]
    workspace: str
    cwd: str
    env: tuple[str, ...] = ()

    async def __call__(self, event: AnyHookEvent) -> AnyDecision:
        """Raises ``OSError`` and ``HookProgramError``, each a failure of the hook."""
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
    """Register a program. ``cwd``: where it runs, None the current directory.

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
