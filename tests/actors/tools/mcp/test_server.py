"""The actor of an MCP server, and the table of its states."""

from __future__ import annotations

import json
import logging
import os
import random
import sys
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.tools.arguments import ForeignArguments
from motet.actors.tools.mcp import stdio as wire
from motet.actors.tools.mcp.directory import tools_of
from motet.actors.tools.mcp.server import (
    STABLE,
    TABLE,
    Event,
    Lifecycle,
    State,
)
from motet.actors.tools.mcp.stdio import LINES, StderrLog
from motet.cli.tools import probe
from motet.protocols.chat import JsonObject
from motet.protocols.mcp import (
    CallMcpTool,
    GetMcpStatus,
    ListMcpTools,
    McpAnswer,
    McpFailed,
    McpServer,
)
from tests.actors.tools.mcp.server import ODD, TOOLS, UNLAWFUL
from tests.actors.tools.mcp.stage import Stage, acting, children, faulty, open_files
from tests.processes import alive, wait_alive
from tests.protocols.redaction.builders import key

EVENTS: tuple[Event, ...] = ("wanted", "listed", "idle", "ended")


def failed(times: int) -> Lifecycle:
    at = Lifecycle()
    for _ in range(times):
        at = at.after("wanted", 0).after("ended", 0)
    return at


@given(st.lists(st.sampled_from(EVENTS)))
def test_only_what_the_table_allows_happens(events: list[Event]) -> None:
    """Law: the state follows the table; an event off the table raises and changes nothing."""
    at = Lifecycle()
    for event in events:
        expected: State | None = TABLE.get((at.state, event))
        if expected is None:
            with pytest.raises(ValueError, match=f"cannot be {event}"):
                at.after(event, 0)
        else:
            at = at.after(event, 0)
            assert at.state == expected


def test_each_failure_in_a_row_doubles_the_back_off() -> None:
    assert [failed(times).wait(0) for times in (0, 1, 2, 3, 20)] == [0, 0.5, 1.0, 2.0, 60.0]
    assert failed(2).wait(0.75) == 0.25


def test_an_end_after_stable_service_is_counted_as_the_first() -> None:
    ready = failed(5).after("wanted", 100).after("listed", 100)
    assert ready.after("ended", 100 + STABLE - 1).failures == 6
    assert ready.after("ended", 100 + STABLE).failures == 1


def test_an_idle_stop_is_no_failure() -> None:
    idle = failed(3).after("wanted", 9).after("listed", 9).after("idle", 10).after("ended", 11)
    assert idle == Lifecycle()


async def fails(stage: Stage, tool: str = "echo", **arguments: object) -> McpFailed:
    with pytest.raises(McpFailed) as caught:
        await stage.call(tool, **arguments)
    return caught.value


async def test_the_first_call_starts_the_server_and_the_end_of_the_actor_ends_it() -> None:
    before = children(), open_files()
    async with acting(faulty()) as stage:
        assert children() == before[0]
        assert await stage.call("echo", text="hi") == "hi"
        assert await stage.call("echo", text="again") == "again"
        assert len(children()) == len(before[0]) + 1
    assert (children(), open_files()) == before


async def test_all_pages_of_the_list_are_offered() -> None:
    async with acting(faulty()) as stage:
        listed = await stage.ref.ask(ListMcpTools())
        assert [tool.name for tool in listed] == list(TOOLS)
        assert stage.lists == [listed]
    echo, *_, orphan = listed
    assert (echo.description, echo.read_only) == ("The tool echo.", True)
    assert echo.parameters["properties"] == {"text": {"type": "string"}}
    assert not orphan.read_only


async def test_a_list_that_a_call_has_changed_is_published_before_its_answer() -> None:
    async with acting(faulty()) as stage:
        await stage.call("grow", name="fresh")
        assert stage.lists[-1][-1].name == "fresh"
        assert await stage.call("fresh") == "this is fresh"


async def test_a_server_that_dies_at_its_start_is_reported_and_backs_off() -> None:
    async with acting(faulty("dies")) as stage:
        failed = await fails(stage)
        assert failed.kind == "unavailable"
        assert "exit code 4" in str(failed)
        assert "cannot find my settings" in str(failed)

        await fails(stage)  # it had to rest for half a second
        resting = await fails(stage)  # it rests for a second, so that nobody waits
        assert "it is started again in" in str(resting)
        assert (await stage.ref.ask(GetMcpStatus())).problem in str(resting)
    assert not children()


async def test_a_missing_program_is_named() -> None:
    async with acting(McpServer(command=["/no/such/program"])) as stage:
        assert "/no/such/program" in str(await fails(stage))


async def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.client.session", None)
    async with acting(faulty()) as stage:
        assert "pip install 'motet[mcp]'" in str(await fails(stage))


async def test_a_server_that_dies_in_a_call_fails_that_call_and_serves_the_next() -> None:
    async with acting(faulty()) as stage:
        failed = await fails(stage, "die")
        assert failed.kind == "unavailable"
        assert "ended during the call" in str(failed)
        assert "exit code 3" in str(failed)
        assert "I have had enough" in str(failed)
        assert await stage.call("echo", text="back") == "back"


async def test_an_error_of_the_protocol_fails_its_call_and_the_server_goes_on() -> None:
    async with acting(faulty()) as stage:
        failed = await fails(stage, "busy")
        assert (failed.kind, str(failed)) == (
            "refused",
            "MCP server 'it': it refused: too busy (code -32000)",
        )
        assert len(children()) == 1


async def until_journalled(journal: Path, line: str, times: int = 1) -> None:
    with trio.fail_after(60):
        while journal.read_text().count(line) < times:
            await trio.sleep(0.01)


async def test_calls_beside_one_that_kills_the_server_fail_without_a_hang(tmp_path: Path) -> None:
    ended, journal = list[str](), tmp_path / "journal"

    async def slow(stage: Stage) -> None:
        ended.append((await fails(stage, "slow", seconds=60)).kind)

    async with acting(faulty(journal=journal)) as stage:
        await stage.call("echo", text="up")
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(slow, stage)
            await until_journalled(journal, "call slow", 3)
            await fails(stage, "die")
    assert ended == ["unavailable"] * 3


async def test_a_server_that_never_answers_is_killed_after_its_start_timeout() -> None:
    async with acting(attrs.evolve(faulty("silent"), start_timeout=0.2)) as stage:
        assert "did not start within 0.2 s" in str(await fails(stage))
        assert not children()


async def test_a_server_that_prints_a_banner_is_understood() -> None:
    async with acting(faulty("greets")) as stage:
        assert await stage.call("echo", text="hi") == "hi"


async def test_a_server_without_messages_is_given_up() -> None:
    async with acting(faulty("babbles")) as stage:
        assert "lines that are not messages" in str(await fails(stage))


async def test_a_server_that_floods_stderr_serves_and_the_log_stays_small(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "motet")
    async with acting(faulty("floods")) as stage:
        assert await stage.call("echo", text="hi") == "hi"
    assert LINES <= len(caplog.records) <= LINES + 5


async def test_a_server_of_another_protocol_version_is_refused_by_name() -> None:
    async with acting(faulty("old")) as stage:
        failed = await fails(stage)
        assert "1999-01-01" in str(failed)


async def test_a_server_with_only_the_newer_protocol_is_used() -> None:
    async with acting(faulty("modern")) as stage:
        assert await stage.call("echo", text="hi") == "hi"


async def test_a_server_that_will_not_end_is_killed_with_all_descendants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "EXIT_BUDGET", 0.2)
    mark = f"orphan-{os.getpid()}"
    async with acting(faulty("stubborn")) as stage:
        await stage.call("orphan", mark=mark)
        await wait_alive(mark, 1)
        with trio.fail_after(wire.EXIT_BUDGET + wire.GRACE + 3):
            await stage.ref.stop()
    assert not children()
    assert not alive(mark)


async def test_the_server_is_told_to_stop_a_cancelled_call_before_its_caller_goes_on(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "journal"
    async with acting(faulty(journal=journal)) as stage:
        await stage.call("echo", text="up")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(stage.call, "slow", seconds=60))
            await until_journalled(journal, "call slow")
            nursery.cancel_scope.cancel()
        # What is sent is read in order: the answer to this comes after the notice.
        assert await stage.call("echo", text="next") == "next"
        assert journal.read_text().split("\n")[1:-1] == [
            "call echo",
            "call slow",
            "cancelled",
            "call echo",
        ]


async def test_the_server_is_told_to_stop_a_call_that_times_out(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with acting(attrs.evolve(faulty(journal=journal), timeout=0.1)) as stage:
        failed = await fails(stage, "slow", seconds=60)
        assert failed.kind == "timeout"
        await until_journalled(journal, "cancelled")


async def test_a_server_that_ignores_its_pipe_during_a_cancellation_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "STUCK", 0.2)
    async with acting(faulty("deaf")) as stage:
        await stage.ref.ask(ListMcpTools())
        with trio.move_on_after(0.1):
            await stage.call("echo", text="x" * 1_000_000)
        with trio.fail_after(60):
            while children():
                await trio.sleep(0.01)


async def test_a_message_that_is_too_long_ends_the_server_and_not_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "LONGEST", 1 << 20)
    async with acting(faulty()) as stage:
        assert len(str(await stage.call("big", size=900_000))) > 800_000
        assert "more than 1 MB" in str(await fails(stage, "big", size=2_000_000))
        assert await stage.call("echo", text="back") == "back"


async def test_an_idle_server_is_stopped_and_restarted_by_the_next_call() -> None:
    async with acting(faulty(idle_stop=0.1)) as stage:
        await stage.call("slow", seconds=0.4)  # in use, it does not count as idle
        assert children()
        with trio.fail_after(60):
            while children():
                await trio.sleep(0.01)
        assert (await stage.ref.ask(GetMcpStatus())).problem == ""
        assert await stage.call("echo", text="hi") == "hi"
        assert len(stage.lists) == 1


async def test_an_eager_server_starts_before_the_first_call() -> None:
    async with acting(attrs.evolve(faulty(), start="eager")) as stage:
        with trio.fail_after(60):
            while not stage.lists:
                await trio.sleep(0.01)
        assert (await stage.ref.ask(GetMcpStatus())).state == "ready"


async def test_an_eager_server_that_ends_is_restarted(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with acting(attrs.evolve(faulty(journal=journal), start="eager")) as stage:
        await fails(stage, "die")
        await until_journalled(journal, "start", 2)


async def test_the_environment_of_the_host_is_not_the_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-host")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    program = "import os, sys; print(sorted(os.environ), file=sys.stderr); sys.exit(1)"
    server = McpServer(command=("/usr/bin/env", "python3", "-c", program), env={"MINE": "1"})
    async with acting(server) as stage:
        said = str(await fails(stage))
    assert "MINE" in said
    assert "OPENAI_API_KEY" not in said


async def test_endless_output_takes_no_memory_and_few_log_lines() -> None:
    log = StderrLog("it")
    send, receive = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.follow, receive, "stderr")
        for _ in range(100):
            await send.send_all(b"x" * 100_000)
        await send.aclose()
    assert len(log.last()) <= 500


async def test_a_key_on_standard_error_is_masked_before_its_lines_are_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    log = StderrLog("it")
    secret = key("RSA PRIVATE KEY", random.Random(3))
    send, receive = trio.testing.memory_stream_pair()
    text = f"starting\n{'x ' * 245}token=ghp_{'a1B2' * 9}\n{secret}\nready\n".encode()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.follow, receive, "stderr")
        for at in range(0, len(text), 37):
            await send.send_all(text[at : at + 37])
        await send.aclose()
    shown = caplog.text + repr([vars(record) for record in caplog.records])
    assert log.last() == "ready"
    assert not [line for line in secret.splitlines()[1:-1] if line in shown]
    assert "ghp_a1" not in shown
    assert "[secret:private-key:" in shown


async def test_tools_that_cannot_be_called_plainly_are_not_offered_and_say_why() -> None:
    async with acting(faulty("odd")) as stage:
        listed = {tool.name: tool.problem for tool in await stage.ref.ask(ListMcpTools())}
        status = await stage.ref.ask(GetMcpStatus())
    assert {name for name, problem in listed.items() if not problem} == {
        "raw",
        "loop",
        "older",
        "may_be_task",
        "half_pair",
    }
    assert status.tools == ("raw", "loop", "older", "may_be_task", "half_pair")
    assert "taskSupport" in listed["task"]
    assert "visibility" in listed["page"]
    assert listed["remote"].endswith("leads to nothing in it; nothing is fetched")
    assert "at properties.x.type" in listed["invalid"]


async def test_a_tool_whose_declaration_is_unlawful_is_left_out_alone_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with acting(faulty("odd")) as stage:
        listed = {tool.name: tool.problem for tool in await stage.ref.ask(ListMcpTools())}
        assert await stage.call("raw", x=1) == '{"x": 1}'
    nameless = {"nameless", "numbered"}
    for name in UNLAWFUL.keys() - nameless:
        assert listed[name].startswith("its declaration is not lawful: "), name
        assert name in {getattr(record, "tool", "") for record in caplog.records}
    assert sum(name.startswith("(tool ") for name in listed) == len(nameless)
    probed = await probe("it", faulty("odd"), 20)
    assert (probed.problem, len(probed.tools)) == ("", len(ODD))
    tools = tools_of("it", faulty(), probed.tools, no_answer)
    assert {tool.name for tool in tools} == {
        f"mcp__it__{name}" for name in ("raw", "loop", "older", "may_be_task", "half_pair")
    }


async def no_answer(_: CallMcpTool) -> McpAnswer:
    raise AssertionError


async def test_arguments_reach_the_server_with_every_digit() -> None:
    sent: JsonObject = {
        "z": 12345678901234567890,
        "big": 10**40,
        "float": 5.0,
        "tiny": 1e-320,
        "a": {"é\u2028": [1, 1.0, True, None, ""]},
    }
    async with acting(faulty("odd")) as stage:
        (tool,) = (one for one in await stage.ref.ask(ListMcpTools()) if one.name == "raw")
        arguments = ForeignArguments(tool.parameters).parse(json.dumps(sent))
        assert await stage.call("raw", **arguments) == json.dumps(sent)
