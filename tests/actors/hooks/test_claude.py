"""The JSON contract: what a program is given at each point, and what its end means there."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.hooks.points import POINTS
from motet.actors.hooks.programs import NAMES, HookProgramError, decision_of, payload
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
from motet.protocols.models import ModelRequest, ModelResponse, Usage
from motet.protocols.sessions import Principal

BASE = ("run_1", "s", "helper", Principal("alice"))
EVENTS: list[AnyHookEvent] = [
    SessionStart(*BASE, True),
    SessionEnd(*BASE),
    BeforeInput(*BASE, "hi"),
    BeforeModel(*BASE, ModelRequest("m", ()), 1),
    AfterModel(*BASE, ModelResponse("yes"), 1),
    BeforeTool(*BASE, "c0", "shell", {"command": "ls"}),
    AfterTool(*BASE, "c0", "shell", {"command": "ls"}, True, "a.txt", 3.0),
    BeforeOutput(*BASE, "done", 1),
    BeforeChild(*BASE, "worker", "do it"),
    AfterChild(*BASE, "worker", "run_2", "completed", "done", Usage(1, 2)),
    BeforeCompact(*BASE, 40, 150_000),
    AfterCompact(*BASE, 40, "in short"),
    RunEnd(*BASE, "completed", "done", "", Usage(1, 2)),
    RunError(*BASE, "Llm", "it is down"),
    RunWarning(*BASE, "memory", "it is slow"),
]
AT = {point_of(event): event for event in EVENTS}

GIVEN: dict[Point, JsonObject] = {
    "session_start": {"hook_event_name": "SessionStart", "source": "resume"},
    "session_end": {"hook_event_name": "SessionEnd", "reason": "other"},
    "before_input": {"hook_event_name": "UserPromptSubmit", "prompt": "hi"},
    "before_model": {"hook_event_name": "BeforeModel", "iteration": 1},
    "after_model": {"hook_event_name": "AfterModel", "iteration": 1},
    "before_tool": {
        "hook_event_name": "PreToolUse",
        "tool_name": "shell",
        "tool_input": {"command": "ls"},
        "tool_use_id": "c0",
    },
    "after_tool": {
        "hook_event_name": "PostToolUse",
        "tool_name": "shell",
        "tool_input": {"command": "ls"},
        "tool_response": {"output": "a.txt", "success": True, "error_id": None},
    },
    "before_output": {
        "hook_event_name": "Stop",
        "stop_hook_active": True,
        "last_assistant_message": "done",
    },
    "before_child": {"hook_event_name": "SubagentStart", "agent_type": "worker"},
    "after_child": {"hook_event_name": "SubagentStop", "agent_id": "run_2", "status": "completed"},
    "before_compact": {"hook_event_name": "PreCompact", "trigger": "auto", "rows": 40},
    "after_compact": {"hook_event_name": "PostCompact", "compact_summary": "in short"},
    "run_end": {"hook_event_name": "RunEnd", "status": "completed"},
    "error": {"hook_event_name": "StopFailure", "error": "Llm", "message": "it is down"},
    "warning": {"hook_event_name": "Notification", "message": "it is slow"},
}


@pytest.mark.parametrize("point", POINTS)
def test_a_program_is_given_the_fields_of_its_event(point: Point) -> None:
    given = json.loads(payload(AT[point], "/work"))
    common = {"session_id": "s", "cwd": "/work", "agent": "helper", "user": "alice"}
    assert given.items() >= (common | GIVEN[point]).items()


BLOCKED: dict[Point, AnyDecision | None] = {
    "session_start": Abort("why"),
    "session_end": None,
    "before_input": Deny("why"),
    "before_model": Abort("why"),
    "after_model": Abort("why"),
    "before_tool": Deny("why"),
    "after_tool": Replace("a.txt\n\n[A hook objects: why]"),
    "before_output": Continue("why"),
    "before_child": Deny("why"),
    "after_child": None,
    "before_compact": Deny("why"),
    "after_compact": None,
    "run_end": None,
    "error": None,
    "warning": None,
}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("how", ["exit", "decision"])
def test_blocking_means_at_each_point_what_the_point_can_do(point: Point, how: str) -> None:
    code, out = (2, b"") if how == "exit" else (0, b'{"decision": "block", "reason": "why"}')
    expected = BLOCKED[point]
    if expected is None:
        with pytest.raises(HookProgramError, match="nothing is left to be blocked: why"):
            decision_of(AT[point], code, out, "why\n")
    else:
        assert decision_of(AT[point], code, out, "why\n") == expected
        assert isinstance(expected, POINTS[point].decides)


def pre(**fields: object) -> bytes:
    return json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", **fields}}).encode()


ANSWERS: list[tuple[bytes, AnyDecision]] = [
    (b"", Allow()),
    (b" \n", Allow()),
    (b"{}", Allow()),
    (b'{"continue": true, "suppressOutput": true, "systemMessage": "hi"}', Allow()),
    (b'{"decision": "approve"}', Allow()),
    (b'{"decision": null, "reason": null}', Allow()),
    (pre(permissionDecision="allow"), Allow()),
    (pre(permissionDecision="allow", updatedInput={"path": "a"}), Allow({"path": "a"})),
    (pre(updatedInput={"command": "ls -a"}), Allow({"command": "ls -a"})),
    (pre(permissionDecision="deny", permissionDecisionReason="no"), Deny("no")),
    (pre(permissionDecision="deny", updatedInput={"command": "x"}), Deny("blocked by a hook")),
    (pre(permissionDecision="ask", permissionDecisionReason="sure?"), Ask("sure?")),
    (b'{"decision": "deny"}', Deny("blocked by a hook")),
    (b'{"continue": false, "stopReason": "enough"}', Abort("enough")),
    (b'{"continue": false, "decision": "approve"}', Abort("stopped by a hook")),
]


@pytest.mark.parametrize(("stdout", "decision"), ANSWERS)
def test_an_answer_about_a_call(stdout: bytes, decision: AnyDecision) -> None:
    assert decision_of(AT["before_tool"], 0, stdout, "") == decision


def test_context_is_added_to_an_input_and_to_a_result() -> None:
    more = b'{"hookSpecificOutput": {"additionalContext": "It is Monday."}}'
    assert decision_of(AT["before_input"], 0, more, "") == Replace("hi\n\nIt is Monday.")
    assert decision_of(AT["after_tool"], 0, more, "") == Replace("a.txt\n\nIt is Monday.")
    with pytest.raises(HookProgramError, match="takes no additionalContext"):
        decision_of(AT["before_tool"], 0, more, "")


JUNK: list[tuple[Point, int, bytes, str]] = [
    ("before_tool", 1, b"", "exit code 1: oops"),
    ("before_tool", 127, b"{}", "exit code 127"),
    ("before_tool", 137, b"", "exit code 137"),
    ("before_tool", 0, b"looks fine to me", "its standard output is not the JSON of a hook"),
    ("before_tool", 0, b"[]", "its standard output is not the JSON of a hook"),
    ("before_tool", 0, b"\xff\xfe", "its standard output is not the JSON of a hook"),
    ("before_tool", 0, b'{"decison": "block"}', "unknown field `decison`"),
    ("before_tool", 0, b'{"decision": "maybe"}', "Invalid enum value 'maybe'"),
    ("before_tool", 0, b'{"continue": "false"}', "Expected `bool`, got `str`"),
    ("before_tool", 0, pre(permissionDecision="no"), "Invalid enum value 'no'"),
    ("before_tool", 0, pre(permisionDecision="deny"), "unknown field `permisionDecision`"),
    ("before_input", 0, pre(), "it answered 'PreToolUse', and was asked 'UserPromptSubmit'"),
    (
        "before_input",
        0,
        b'{"hookSpecificOutput": {"permissionDecision": "allow"}}',
        "UserPromptSubmit has no permission",
    ),
]


@pytest.mark.parametrize(("point", "code", "stdout", "said"), JUNK)
def test_what_is_not_understood_is_a_failure(
    point: Point, code: int, stdout: bytes, said: str
) -> None:
    with pytest.raises(HookProgramError, match=said.replace("(", r"\(")):
        decision_of(AT[point], code, stdout, "oops" if code == 1 else "")


@given(st.sampled_from(EVENTS), st.integers(0, 255), st.binary(max_size=60), st.text(max_size=20))
def test_whatever_a_program_says_is_a_decision_of_its_point_or_a_failure(
    event: AnyHookEvent, code: int, stdout: bytes, stderr: str
) -> None:
    """Law: total, and never an allow but for exit 0 with an empty or an understood answer."""
    try:
        decision = decision_of(event, code, stdout, stderr)
    except HookProgramError:
        return
    assert isinstance(decision, (*POINTS[point_of(event)].decides, Allow))
    if isinstance(decision, Allow):
        assert code == 0
        assert not stdout.strip() or isinstance(json.loads(stdout), dict)


def test_every_point_has_a_name() -> None:
    assert set(NAMES) == set(POINTS) == set(AT)
