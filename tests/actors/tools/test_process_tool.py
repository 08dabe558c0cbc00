"""A tool in a process of its own: data in, data out, and nothing left when it is ended (G1, G2)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from secrets import randbelow

import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.tools import process_tool as module
from motet.actors.tools.context import Context
from motet.actors.tools.process_tool import process_tool
from motet.protocols.chat import JsonObject
from motet.protocols.tools import ToolDenied, ToolFailure, ToolRetry
from motet.runtime.processes import Child, open_child
from tests import forks
from tests.actors.tools import in_process
from tests.actors.tools.stage import CONTEXT
from tests.processes import alive, wait_alive
from tests.scripted import Scripted, call, say


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter of a call has imported motet already. Only a real one can be ended."""

    def opened(words: list[str]) -> AbstractAsyncContextManager[Child]:
        assert words[:2] == [sys.executable, "-P"]
        return open_child([*forks.in_a_shell(), *words[2:]])

    monkeypatch.setattr(module, "open_child", opened)


def marked() -> str:
    return f"1000.{randbelow(10**9):09}"


async def called(fn: Callable[..., object], **args: object) -> object:
    made = process_tool(fn)
    return await made.run(CONTEXT, made.accepts.check(args))


async def test_arguments_and_result_cross_as_data() -> None:
    args = in_process.move.accepts.parse('{"point": {"x": 1, "day": "2026-11-21"}, "by": "2"}')
    result = await in_process.move.run(CONTEXT, args)
    assert result == {"x": 3, "day": "2026-11-21"}
    assert (in_process.move.name, in_process.move.effects) == ("moved", "write")
    assert in_process.move.description == "Move a point."


async def test_it_runs_elsewhere_in_the_hosts_folder(forked: None) -> None:
    result = await called(in_process.where)
    assert isinstance(result, dict)
    assert result["pid"] != os.getpid()
    assert (result["folder"], result["data"]) == (str(Path.cwd()), b"\0\1")


async def test_a_coroutine_function_has_a_loop_of_its_own(forked: None) -> None:
    assert await called(in_process.later, text="hi") == "HI"


async def test_a_thread_left_behind_does_not_keep_the_process(forked: None) -> None:
    with trio.fail_after(20):
        assert await called(in_process.linger) == "done"


async def test_exceptions_of_the_function_are_raised(forked: None) -> None:
    with pytest.raises(ToolRetry, match="try list_units"):
        await called(in_process.fail, how="retry")
    with pytest.raises(ToolDenied, match="not you"):
        await called(in_process.fail, how="denied")


@pytest.mark.parametrize(
    ("how", "message", "kind", "detail"),
    [
        ("failure", "broken", "auth", {"part": 7}),
        ("missing", "/no/such/file", "not_found", {"type": "FileNotFoundError"}),
        ("exit", "3", "unknown", {"type": "SystemExit"}),
        ("killed", "was killed by signal 9", "exit", {"exit_code": 137}),
        ("vanish", "ended with exit code 7", "exit", {"exit_code": 7}),
        ("strange", "it returned a object with no JSON form: give text or data", "validation", {}),
        ("cycle", "it returned a list with no JSON form: give text or data", "validation", {}),
        ("half", "it returned a str with no JSON form", "validation", {}),
        ("large", "numbers of at most 64 bits", "validation", {"type": "OverflowError"}),
        ("garbled", "a\ufffdb", "", {}),
        ("no", "it raised ToolNegative with a object with no JSON form", "validation", {}),
    ],
)
async def test_a_failure_keeps_its_type_its_traceback_and_its_output(
    how: str, message: str, kind: str, detail: JsonObject, forked: None
) -> None:
    with pytest.raises(ToolFailure) as caught:
        await called(in_process.fail, how=how)
    assert message in str(caught.value)
    assert caught.value.kind == kind
    whole = caught.value.detail
    assert whole is not None
    assert detail.items() <= whole.items()
    if how not in ("killed", "vanish"):
        assert whole["output"] == "said before\n"
    if how == "missing":
        assert "in fail" in str(whole["traceback"])


async def test_an_endless_result_is_refused(monkeypatch: pytest.MonkeyPatch, forked: None) -> None:
    monkeypatch.setattr(module, "MAX_REPLY", 1 << 20)
    with pytest.raises(ToolFailure, match="more than 1 MiB"):
        await called(in_process.fail, how=str(3 << 20))


def closure() -> Callable[..., object]:
    def inner() -> None: ...

    return inner


def with_context(ctx: Context[None], x: int) -> None: ...


def of_the_program() -> None: ...


of_the_program.__module__ = "__main__"


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (closure(), "no closure, lambda, method"),
        (lambda: None, "no closure, lambda, method"),
        (partial(in_process.where), "no closure, lambda, method"),
        (of_the_program, "move it into a module of its own"),
        (with_context, "a Context does not reach another process"),
    ],
)
def test_a_function_that_a_process_could_not_find_or_call_is_refused(
    fn: Callable[..., object], said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        process_tool(fn)


@pytest.mark.parametrize("ending", ["cancel", "timeout", "stop"])
async def test_ending_a_call_ends_its_process_and_all_below(
    ending: str, mock_clock: MockClock
) -> None:
    """G2: its descendants too, one of which has left the session."""
    mock_clock.rate = 1
    mark = marked()
    model = Scripted(call(("sleep", {"mark": mark})), say("back"))
    tool = process_tool(in_process.sleep, timeout=60)
    agent = motet.Agent("a", model=model, tools=[tool])
    async with motet.open_host() as host, host.stream(agent, "go", session="s") as run:
        await wait_alive(mark, 2)
        match ending:
            case "cancel":
                run.cancel()
            case "stop":
                assert (await host.stop(session="s")).still_running == []
            case _:
                mock_clock.jump(60)
        result = await run.wait()
        assert alive(mark) == []
        assert [error.kind for error in result.errors] == (
            ["timeout"] if ending == "timeout" else []
        )


HOST = """
import sys
import motet, trio
from motet.actors.tools.process_tool import process_tool
from tests.actors.tools import in_process
from tests.scripted import Scripted, call

model = Scripted(call(("sleep", {"mark": sys.argv[1]})))
agent = motet.Agent("a", model=model, tools=[process_tool(in_process.sleep)])
agent.run_sync("go")
"""


async def test_a_killed_host_leaves_no_server() -> None:
    mark = marked()
    host = subprocess.Popen([sys.executable, "-c", HOST, mark])
    try:
        await wait_alive(mark, 3)  # the host carries the mark too
        host.kill()
        with trio.fail_after(10):
            while alive(mark):
                await trio.sleep(0.01)
    finally:
        host.kill()
        host.wait()
        for pid in alive(mark):
            os.kill(pid, signal.SIGKILL)
