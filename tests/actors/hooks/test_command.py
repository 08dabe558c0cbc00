"""Programs as hooks: real processes, their failures, their end, and what they get to know."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import trio

import motet
from motet.actors.hooks.chain import HookFault, decide
from motet.actors.hooks.programs import add_command
from motet.actors.hooks.registry import HookSet
from motet.actors.hosting.config import load_config
from motet.protocols.chat import JsonObject, ToolMessage
from motet.protocols.errors import ConfigError
from motet.protocols.hooks import Allow, AnyDecision, BeforeTool, Deny, OnError, Point
from motet.protocols.sessions import LOCAL
from tests.processes import alive, wait_alive
from tests.scripted import Scripted, call, say

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


async def test_a_flood_of_words_is_cut_and_costs_no_memory(write: Write) -> None:
    flood = write("/bin/sh", "head -c 20000000 /dev/zero | tr '\\0' x >&2; exit 2")
    decision, _ = await ask([flood])
    assert isinstance(decision, Deny)
    assert len(decision.reason) < 5_000


async def test_a_program_gets_to_know_no_secret_that_is_not_declared(
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


async def test_a_hook_within_the_reach_of_tools_is_refused(write: Write, tmp_path: Path) -> None:
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
