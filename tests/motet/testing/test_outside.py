"""The outside of a simulated host: programs, threads, and their mistakes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.tools.process_tool import process_tool
from motet.protocols.chat import ToolMessage
from tests.actors.tools import in_process

HERE = Path(__file__).name


async def head() -> str:
    """The commit that is checked out."""
    done = await trio.run_process(["git", "rev-parse", "HEAD"], capture_stdout=True)
    return done.stdout.decode()


def thread() -> str:
    """The name of its thread."""
    return threading.current_thread().name


def naps() -> str:
    """Really sleep."""
    time.sleep(60)
    return "rested"


def told(
    host: mt.SimulatedHost,
    *calls: mt.Answer,
    tools: Sequence[motet.Tool | str | Callable[..., object]],
) -> list[str]:
    """What a model that makes these calls, one after the other, is told."""
    model = mt.ScriptedModel([*calls, mt.say("done")])
    host.run(motet.Agent("clerk", model=model, tools=tools), "go")
    return [m.text for m in model.requests[-1].messages if isinstance(m, ToolMessage)]


def test_the_shell_and_tools_of_users_start_the_programs_of_the_test() -> None:
    with mt.simulated_host() as host:
        host.processes.program("git", mt.answers("abc\n", after=20))
        calls = (mt.call("shell", command="git log -1"), mt.call("head"))
        assert told(host, *calls, tools=["shell", head]) == ["abc\n", "abc\n"]
        assert host.now() == 40.0
        assert [program.argv[1] for program in host.processes.started] == ["log", "rev-parse"]


@pytest.mark.parametrize("tool", ["shell", "head"])
def test_an_undeclared_program_fails_the_test(tool: str) -> None:
    call = mt.call("head") if tool == "head" else mt.call("shell", command="git log")
    with mt.simulated_host() as host, pytest.raises(mt.UndeclaredProgram) as refused:
        told(host, call, tools=["shell", head])
    assert "declare it with" in str(refused.value)
    assert HERE in refused.value.line


def test_plain_functions_and_process_tools_run_where_they_are() -> None:
    later = process_tool(in_process.later)
    with mt.simulated_host() as host:
        calls = (mt.call("thread"), mt.call("later", text="hi"))
        assert told(host, *calls, tools=[thread, later]) == [threading.main_thread().name, "HI"]


def test_a_function_that_really_sleeps_is_refused_with_its_line() -> None:
    line = naps.__code__.co_firstlineno + 2
    with mt.simulated_host() as host, pytest.raises(mt.NotSimulated, match=f"{HERE}:{line} "):
        told(host, mt.call("naps"), tools=[naps])


def test_a_crash_ends_the_programs_of_a_host() -> None:
    async def make(program: mt.FakeProgram) -> None:
        await trio.sleep_forever()

    with mt.simulated_host() as host:
        host.processes.program("make", make)
        model = mt.ScriptedModel([mt.call("shell", command="make"), mt.say("done")])
        host.start(motet.Agent("clerk", model=model, tools=["shell"]), "go")
        while not host.processes.running:
            host.steps(1)
        host.crash()
        assert not host.processes.running
        host.settle()
        assert host.processes.left == []
