"""Traces of whole hosts: what a run leaves, whatever becomes of it and of the host."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

import pytest
import trio

import motet
from motet.actors.storage.connection import Connection
from motet.actors.storage.location import DATABASE_FILE
from motet.protocols.errors import NotFound
from motet.protocols.models import ModelFailure, Usage
from motet.protocols.sessions import Principal
from motet.protocols.storage import Statement, StorageError, Transact
from motet.protocols.traces import Span, Trace
from tests import forks
from tests.actors.telemetry.stage import named
from tests.scripted import Scripted, call, say


def below(trace: Trace, span: Span) -> list[str]:
    return [part.name for part in trace.spans if part.parent == span.id]


async def test_a_run_leaves_its_agent_models_tools_and_stored_errors() -> None:
    async def look(n: int) -> int:
        return n

    async def fail() -> None:
        raise OSError("the door is shut")

    calls = call(("look", {"n": 1}), ("look", {"n": 2}), ("look", {"n": 3}), ("fail", {}))
    agent = motet.Agent("helper", model=Scripted(calls, say("done")), tools=[look, fail])
    async with motet.open_host(agents=[agent]) as host:
        run = await host.run(agent, "go", session="s")
        trace = await host.trace(run.run_id)
        assert [info.run_id for info in await host.traces(session="s")] == [run.run_id]
    root, *parts = trace.spans
    failed = named(parts, "fail")
    assert below(trace, root) == ["scripted", "look", "look", "look", "fail", "scripted"]
    assert below(trace, failed) == ["error_store.store"]
    (stored,) = (span for span in parts if span.kind == "store")
    assert stored.error_id == failed.error_id == run.errors[0].error_id
    assert (stored.tool, failed.status) == ("fail", "error")
    assert [span.iteration for span in parts if span.kind == "model"] == [1, 2]
    assert (root.output, root.status) == ("done", "ok")
    assert sum((s.usage for s in parts if s.usage), Usage()) == trace.info.usage == run.usage


async def test_a_looked_up_error_is_a_part_of_the_call_that_looked() -> None:
    async def fail() -> None:
        raise OSError("the door is shut")

    model = Scripted(call(("fail", {})))
    agent = motet.Agent("helper", model=model, tools=[fail])
    async with motet.open_host(agents=[agent]) as host:

        @host.on("after_tool")
        async def ask_for_it(event: motet.AfterTool) -> None:
            if event.error_id:
                model.then(call(("get_error_detail", {"error_id": event.error_id})), say("so"))

        run = await host.run(agent, "go", check=False)
        trace = await host.trace(run.run_id)
    (found,) = (span for span in trace.spans if span.name == "error_store.get")
    looked = named(trace.spans, "get_error_detail")
    assert (found.parent, found.error_id) == (looked.id, run.errors[0].error_id)


async def of_the_host(host: motet.Host) -> list[tuple[str, Span]]:
    """The spans outside of runs, oldest first, each with the session that its trace names."""
    infos = reversed(await host.traces(agent=""))
    traces = [await host.trace(info.run_id) for info in infos]
    return [(trace.info.session, span) for trace in traces for span in trace.spans]


async def test_every_operation_of_the_error_store_leaves_one_span(tmp_path: Path) -> None:
    """In a run or outside of one, whether it succeeds or fails; runs are listed without them."""

    async def fail() -> None:
        raise OSError("the door is shut")

    model = Scripted(call(("fail", {})), say("oh"))
    agent = motet.Agent("helper", model=model, tools=[fail, "get_error_detail"])
    async with motet.open_host(tmp_path, agents=[agent]) as host:
        run = await host.run(agent, "go", session="s", check=False)
        error_id = str(run.errors[0].error_id)
        await host.errors(session="s", tool="fail")
        await host.errors()
        await host.error(error_id)
        with pytest.raises(NotFound):
            await host.error("err_20200101_000000_ffffff")

        await drop_errors(host)
        with pytest.raises(StorageError):
            await host.errors(session="s")
        with pytest.raises(StorageError):
            await host.error(error_id)
        model.then(call(("fail", {}), ("get_error_detail", {"error_id": error_id})), say("so"))
        broken = await host.run(agent, "again", session="s", check=False)

        spans = await of_the_host(host)
        in_runs = [await host.trace(one.run_id) for one in (run, broken)]
        assert {info.agent for info in await host.traces()} == {"helper"}
    assert [attributes_of(session, span) for session, span in spans] == [
        ("error_store.list", "ok", "s", "fail", None),
        ("error_store.list", "ok", "", "", None),
        ("error_store.get", "ok", "s", "fail", error_id),
        ("error_store.get", "ok", "", "", "err_20200101_000000_ffffff"),
        ("error_store.list", "error", "s", "", None),
        ("error_store.get", "error", "", "", error_id),
    ]
    first, second = ([span for span in t.spans if span.kind == "store"] for t in in_runs)
    assert [attributes_of("s", span) for span in first] == [
        ("error_store.store", "ok", "s", "fail", error_id)
    ]
    assert sorted(attributes_of("s", span)[:4] for span in second) == [
        ("error_store.get", "error", "s", ""),
        ("error_store.store", "ok", "s", "fail"),  # in the spill file
    ]


def attributes_of(session: str, span: Span) -> tuple[str, str, str, str, str | None]:
    assert span.ended is not None
    return span.name, span.status, session, span.tool, span.error_id


async def drop_errors(host: motet.Host) -> None:
    """What a damaged file is to the error store: it fails, and all else goes on."""
    database = host.system.find("/host/database")
    assert database is not None
    await database.ask(Transact((Statement("DROP TABLE agent_errors"),)))


async def test_every_span_of_a_stopped_run_is_cancelled(tmp_path: Path) -> None:
    started = trio.Event()

    async def quick() -> str:
        return "ok"

    async def slow() -> None:
        started.set()
        await trio.sleep_forever()

    script = Scripted(call(("quick", {})), call(("slow", {}), ("quick", {})))
    agent = motet.Agent("helper", model=script, tools=[quick, slow])
    async with (
        motet.open_host(tmp_path, agents=[agent]) as host,
        host.stream(agent, "go", session="s") as run,
    ):
        await started.wait()
        (open_now,) = await host.traces()
        assert open_now.status == "running"
        await host.stop(session="s")
        trace = await host.trace(run.result.run_id)
    assert trace.info.status == "cancelled"
    assert {span.status for span in trace.spans} == {"cancelled"}
    assert len(trace.spans) == 6


async def test_a_run_that_fails_says_with_what() -> None:
    agent = motet.Agent("helper", model=Scripted(ModelFailure("no key", kind="auth")))
    async with motet.open_host(agents=[agent]) as host:
        run = await host.run(agent, "go", check=False)
        root, model = (await host.trace(run.run_id)).spans
    assert (root.status, root.error, model.status, model.error) == ("error", "Llm", "error", "Llm")


async def test_a_foreign_trace_is_not_found() -> None:
    agent = motet.Agent("helper", model="demo")
    async with motet.open_host(agents=[agent]) as host:
        run = await host.run(agent, "hi", principal=Principal("alice"))
        assert (await host.trace(run.run_id, principal=Principal("alice"))).info.user == "alice"
        assert await host.traces(principal=Principal("bob")) == ()
        with pytest.raises(NotFound):
            await host.trace(run.run_id, principal=Principal("bob"))


async def test_a_run_goes_on_when_its_trace_cannot_be_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent = motet.Agent("helper", model=Scripted(say("one"), say("two")))
    async with motet.open_host(tmp_path, agents=[agent]) as host:
        with closing(Connection(str(tmp_path / DATABASE_FILE))) as other:
            other.set_busy_timeout(5_000)
            other.run("ALTER TABLE spans RENAME TO elsewhere")
            run = await host.run(agent, "hi")
            assert run.output == "one"
            assert await host.traces() == ()
            other.run("ALTER TABLE elsewhere RENAME TO spans")
        assert (await host.run(agent, "hi")).output == "two"
        assert [info.run_id != run.run_id for info in await host.traces()] == [True]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("value", ["1", "0"])
async def test_the_environment_asks_for_whole_inputs(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTET_TRACE_VERBOSE", value)
    agent = motet.Agent("helper", model="demo", instructions="Be kind.")
    async with motet.open_host(agents=[agent]) as host:
        run = await host.run(agent, "hi there")
        root, model = (await host.trace(run.run_id)).spans
    assert (root.input == "hi there") is ("Be kind." in model.input) is (value == "1")


# Is at a tool call for longer than a second, says so, and waits to be killed.
HOST = """
import sys, trio, motet
from tests.scripted import Scripted, call, say

async def main():
    async def hang():
        await trio.sleep_forever()
    agents = [
        motet.Agent("slow", model=Scripted(call(("hang", {}))), tools=[hang]),
        motet.Agent("fresh", model=Scripted(None, name="fresh")),
    ]
    async with motet.open_host(sys.argv[1], agents=agents) as host, trio.open_nursery() as nursery:
        nursery.start_soon(host.run, agents[0], "go")
        while not await host.traces():
            await trio.sleep(0.01)
        while len((await host.trace((await host.traces())[0].run_id)).spans) < 3:
            await trio.sleep(0.01)
        nursery.start_soon(host.run, agents[1], "go")
        await agents[1].model.asked.wait()
        print("at work", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.slow
async def test_spans_of_a_killed_host_are_interrupted_at_the_next_start(tmp_path: Path) -> None:
    with forks.started("-c", HOST, str(tmp_path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"at work\n"
        process.kill()
    async with motet.open_host(tmp_path) as host:
        assert {run.agent for run in host.interrupted} == {"slow", "fresh"}
        found = {info.agent: await host.trace(info.run_id) for info in await host.traces()}
    slow, fresh = found["slow"], found["fresh"]
    assert slow.info.status == fresh.info.status == "interrupted"
    assert [(span.name, span.status) for span in slow.spans] == [
        *(("slow", "interrupted"), ("scripted", "ok"), ("hang", "interrupted")),
    ]
    assert slow.info.usage == Usage(10, 5)
    assert all(span.ended is not None for span in slow.spans)
    # It was killed before a second had passed: what is known is that it had begun.
    assert fresh.spans[0].status == "interrupted"


@pytest.mark.slow
async def test_a_run_that_waits_for_its_agent_after_a_kill_is_not_said_to_be_running(
    tmp_path: Path,
) -> None:
    kept = HOST.replace(
        'host.run, agents[0], "go"', "partial(host.submit, 'go', session='s', agent='slow')"
    )
    assert kept != HOST
    with forks.started("-c", f"from functools import partial\n{kept}", str(tmp_path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"at work\n"
        process.kill()
    async with motet.open_host(tmp_path) as host:
        (run,) = [run for run in await host.runs() if run.agent == "slow"]
        assert run.status == "running"  # as soon as there is its agent
        trace = (await host.trace(run.run_id)).info
        assert (trace.status, trace.ended is not None) == ("interrupted", True)
        await host.stop(run_id=run.run_id)
        assert (await host.trace(run.run_id)).info.status != "running"
