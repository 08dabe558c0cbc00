"""Programs as hooks: the protocol and the processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import motet
from motet.actors.hooks.chain import decide
from motet.actors.hooks.programs import add_command
from motet.actors.hooks.registry import HookSet
from motet.actors.hosting.config import load_config
from motet.protocols.chat import JsonObject, ToolMessage
from motet.protocols.errors import ConfigError
from motet.protocols.hook_programs import NAMES, HookProgramError, decision_of, payload
from motet.protocols.hook_rules import POINTS, HookFault
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
    OnError,
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
from motet.protocols.sessions import LOCAL, Principal
from tests.processes import alive, wait_alive
from tests.scripted import Scripted, call, say

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
def test_blocking_at_each_point_is_a_decision_of_that_point(point: Point, how: str) -> None:
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
def test_an_unreadable_answer_is_a_failure(
    point: Point, code: int, stdout: bytes, said: str
) -> None:
    with pytest.raises(HookProgramError, match=said.replace("(", r"\(")):
        decision_of(AT[point], code, stdout, "oops" if code == 1 else "")


@given(st.sampled_from(EVENTS), st.integers(0, 255), st.binary(max_size=60), st.text(max_size=20))
def test_any_answer_of_a_program_is_a_decision_of_its_point_or_a_failure(
    event: AnyHookEvent, code: int, stdout: bytes, stderr: str
) -> None:
    """Law: total; an allow only for exit code 0 with an empty or a valid answer."""
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


BEFORE = BeforeTool("run", "s", "helper", LOCAL, "c0", "shell", {"command": "rm -rf /"})
Write = Callable[[str, str], str]

CHECK = """
import json, sys
call = json.load(sys.stdin)
if "rm -rf" in call["tool_input"].get("command", ""):
    print("it deletes files", file=sys.stderr)
    sys.exit(2)
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes an executable script and returns its path."""

    def script(interpreter: str, text: str) -> str:
        file = tmp_path / f"hook{len(list(tmp_path.iterdir()))}"
        file.write_text(f"#!{interpreter}\n{text}")
        file.chmod(0o755)
        return str(file)

    return script


async def ask(
    argv: list[str],
    event: BeforeTool = BEFORE,
    *,
    on_error: OnError = "block",
    timeout: float = 20.0,
    env: tuple[str, ...] = (),
) -> tuple[AnyDecision, list[str]]:
    hooks, faults = HookSet(), list[HookFault]()
    elsewhere = Path("/nonexistent")
    add_command(
        hooks,
        "before_tool",
        argv,
        workspace=elsewhere,
        env=env,
        on_error=on_error,
        timeout=timeout,
        name="h",
    )
    verdict = await decide(hooks.of(event), event, faults.append)
    return verdict.decision, [fault.message for fault in faults]


async def test_a_program_reads_the_call_and_denies_it_with_its_reason(write: Write) -> None:
    check = write(sys.executable, CHECK)
    assert await ask([check]) == (Deny("it deletes files"), [])
    harmless = BeforeTool("run", "s", "helper", LOCAL, "c0", "shell", {"command": "ls"})
    assert await ask([check], harmless) == (Allow(), [])


async def test_a_program_replaces_the_arguments(write: Write) -> None:
    answer = '{"hookSpecificOutput": {"updatedInput": {"command": "ls"}}}'
    decision, faults = await ask([write("/bin/sh", f"cat >/dev/null; echo '{answer}'")])
    assert (decision, faults) == (Allow({"command": "ls"}), [])


async def test_an_event_of_any_size_reaches_a_program_that_may_not_read_it(write: Write) -> None:
    big = BeforeTool("run", "s", "h", LOCAL, "c0", "shell", {"command": "x" * 3_000_000})
    counted = write("/bin/sh", "[ $(wc -c) -gt 3000000 ] || exit 1")
    assert await ask([counted], big) == (Allow(), [])
    assert await ask(["/bin/true"], big) == (Allow(), [])


FAULTS = {
    "other exit": ("exit 3", "HookProgramError: exit code 3"),
    "words": ("echo fine", "HookProgramError: its standard output is not the JSON of a hook"),
    "killed": ("kill -9 $$", "HookProgramError: exit code 137"),
    "too much": ("head -c 9000000 /dev/zero", "HookProgramError: its standard output is longer"),
    "hangs": ("trap '' TERM; while :; do sleep 1; done", "no answer within 0.7 s"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_program_that_fails_denies_unless_declared_otherwise(
    fault: str, write: Write
) -> None:
    script, message = FAULTS[fault]
    argv = [write("/bin/sh", script)]
    timeout = 0.7 if fault == "hangs" else 20.0
    decision, faults = await ask(argv, timeout=timeout)
    assert decision == Deny("the gate 'h' failed")
    assert [said[: len(message)] for said in faults] == [message]
    assert (await ask(argv, on_error="continue", timeout=timeout))[0] == Allow()


@pytest.mark.parametrize("path", ["/nonexistent/check", "/etc/passwd"])
async def test_a_program_that_cannot_be_started_denies(path: str) -> None:
    decision, (fault,) = await ask([path])
    assert decision == Deny("the gate 'h' failed")
    assert f"there is no program {path!r} that can be run" in fault


async def test_a_flood_of_output_is_cut_and_takes_no_memory(write: Write) -> None:
    flood = write("/bin/sh", "head -c 20000000 /dev/zero | tr '\\0' x >&2; exit 2")
    decision, _ = await ask([flood])
    assert isinstance(decision, Deny)
    assert len(decision.reason) < 5_000


async def test_a_program_gets_declared_variables_only(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    monkeypatch.setenv("DECLARED", "yes")
    show = write("/bin/sh", "env >&2; exit 2")
    decision, _ = await ask([show], env=("DECLARED", "NOT_SET"))
    assert isinstance(decision, Deny)
    known = dict(line.split("=", 1) for line in decision.reason.splitlines())
    assert known["DECLARED"] == "yes"
    assert known["CLAUDE_PROJECT_DIR"] == "/nonexistent"
    assert not {"SECRET_KEY", "NOT_SET"} & set(known)


LEAVES_CHILDREN = "setsid sleep {0} & (sleep {0} &) ; trap '' TERM; sleep {0} & wait"


async def test_a_cancelled_hook_leaves_no_process(write: Write) -> None:
    mark = "54321.75"
    argv = [write("/bin/sh", LEAVES_CHILDREN.format(mark))]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, argv)
        await wait_alive(f"sleep {mark}", 3)
        nursery.cancel_scope.cancel()
    assert alive(mark) == []


async def test_a_hook_that_is_out_of_time_leaves_no_process(write: Write) -> None:
    mark = "54322.75"
    decision, _ = await ask([write("/bin/sh", LEAVES_CHILDREN.format(mark))], timeout=0.7)
    assert isinstance(decision, Deny)
    assert alive(mark) == []


async def test_a_background_process_does_not_outlive_its_hook(write: Write) -> None:
    mark = "54323.75"
    assert await ask([write("/bin/sh", f"sleep {mark} & exit 0")]) == (Allow(), [])
    assert alive(mark) == []


# On a host

NOTED: list[Point] = ["session_start", "before_input", "before_output", "run_end", "session_end"]


async def test_programs_gate_a_run_from_its_input_to_its_answer(
    write: Write, tmp_path: Path
) -> None:
    deny = write(sys.executable, CHECK)
    note = write("/bin/sh", f"cat >>{tmp_path}/seen; echo >>{tmp_path}/seen")
    model = Scripted(call(("act", {"command": "rm -rf /"})), say("ok"))
    agent = motet.Agent("a", model=model)

    @agent.tool
    def act(command: str) -> str:
        raise AssertionError(command)

    async with motet.open_host(workspace=tmp_path / "work") as host:
        host.on_command("before_tool", [deny], match="act", timeout=20)
        for point in NOTED:
            host.on_command(point, [note], timeout=20)
        result = await host.run(agent, "go", session="s")
    assert result.output == "ok"
    told = model.requests[1].messages[-1]
    assert isinstance(told, ToolMessage)
    assert told.text == "Permission denied: it deletes files"
    seen = (tmp_path / "seen").read_text()
    names = ["SessionStart", "UserPromptSubmit", "Stop", "RunEnd", "SessionEnd"]
    assert [seen.count(f'"hook_event_name":"{name}"') for name in names] == [1] * 5


async def test_a_stop_ends_the_hook_that_a_run_waits_for(write: Write, tmp_path: Path) -> None:
    mark = "54324.75"
    agent = motet.Agent("a", model=Scripted())
    async with motet.open_host(workspace=tmp_path / "work") as host:
        host.on_command("before_input", [write("/bin/sh", f"sleep {mark}")], timeout=60)
        async with host.stream(agent, "go") as run:
            await wait_alive(f"sleep {mark}", 1)
            run.cancel()
            assert (await run.wait()).status == "cancelled"
            assert alive(mark) == []


async def test_a_hook_inside_the_workspace_is_refused(write: Write, tmp_path: Path) -> None:
    script = Path(write("/bin/sh", "exit 0"))
    async with motet.open_host(workspace=tmp_path) as host:
        for argv in ([str(script)], ["/bin/sh", str(script)]):
            with pytest.raises(ConfigError, match="inside the workspace"):
                host.on_command("before_tool", argv)


@pytest.mark.parametrize("argv", [[], [""], ["a\0b"]])
def test_a_command_that_could_never_work_is_refused(argv: list[str]) -> None:
    with pytest.raises(ConfigError, match="give a program and its arguments"):
        add_command(HookSet(), "before_tool", argv, workspace=Path("/nonexistent"))
    with pytest.raises(ConfigError, match="no such point"):
        add_command(HookSet(), cast(Point, "before_lunch"), ["x"], workspace=Path("/w"))


# From a file

FILE = """
workspace = "work"
[[hooks]]
point = "before_tool"
command = ["./check", "--strict"]
match = "shell|write_*"
env = ["POLICY"]
[[hooks]]
point = "after_tool"
command = ["/bin/true"]
fail_open = false
timeout = 1
"""


def test_hooks_of_a_file_run_in_its_directory(tmp_path: Path) -> None:
    file = tmp_path / "motet.toml"
    file.write_text(FILE)
    first, second = load_config(file).hooks
    assert (first.command, first.env) == (("./check", "--strict"), ("POLICY",))
    assert (first.cwd, second.fail_open, second.timeout) == (str(tmp_path), False, 1.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('point = "before_lunch"\ncommand = ["x"]', "point: expected one of"),
        ('point = "before_tool"', "command: is missing"),
        ('point = "before_tool"\ncommand = []', "command: must be a program and its arguments"),
        ('point = "before_tool"\ncommand = ["x"]\nmach = "*"', "unknown key; did you mean 'match'"),
    ],
)
def test_a_wrong_hook_of_a_file_is_named(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "motet.toml"
    file.write_text(f"[[hooks]]\n{text}")
    with pytest.raises(ConfigError, match=said):
        load_config(file)


async def test_a_host_refuses_a_configured_hook_that_could_never_work(tmp_path: Path) -> None:
    file = tmp_path / "motet.toml"
    file.write_text('[[hooks]]\npoint = "run_end"\ncommand = ["x"]\non_error = "block"')
    with pytest.raises(ConfigError, match=r"hooks\[0\]: hook 'x': an observer"):
        async with motet.open_host(config=load_config(file), workspace=tmp_path / "work"):
            raise AssertionError


async def test_configured_hooks_gate_the_runs_of_their_host(tmp_path: Path) -> None:
    (tmp_path / "check").write_text(f"#!{sys.executable}\n{CHECK}")
    (tmp_path / "check").chmod(0o755)
    file = tmp_path / "motet.toml"
    file.write_text('workspace = "work"\n[[hooks]]\npoint = "before_tool"\ncommand = ["./check"]\n')
    args: JsonObject = {"command": "rm -rf /"}
    agent = motet.Agent("a", model=Scripted(call(("act", args)), say("ok")))

    @agent.tool
    def act(command: str) -> str:
        raise AssertionError(command)

    async with motet.open_host(config=load_config(file)) as host:
        result = await host.run(agent, "go")
    assert [r.text for r in result.rows if isinstance(r, ToolMessage)] == [
        "Permission denied: it deletes files"
    ]
