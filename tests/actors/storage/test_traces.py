"""The trace store: what is written, found again, closed after a crash, forgotten, and never lost
silently."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from motet.actors.storage import traces as rows
from motet.actors.storage.connection import Connection
from motet.actors.storage.location import Location
from motet.actors.telemetry import tracer as recorder
from motet.protocols.models import ModelRequest, Usage
from motet.protocols.otlp import attributes
from motet.protocols.sessions import RunInfo
from motet.protocols.storage import Statement
from motet.protocols.traces import CloseTraces, GetTrace, ListTraces, TraceBatch, root_span_id
from tests.actors.telemetry.stage import (
    START,
    Clock,
    answer,
    begun,
    call,
    named,
    open_traces,
    result,
    tracer,
)
from tests.protocols.redaction.builders import alike


@pytest.fixture
def memory() -> Generator[Location]:
    with Location.memory() as location:
        yield location


async def test_a_trace_comes_back_as_it_was_recorded(memory: Location) -> None:
    clock = Clock()
    async with open_traces(memory, tracer(clock)) as opened:
        trace = begun(opened.tracer)
        with trace.model("openai:gpt-5.2", iteration=1) as span:
            clock.at = 1.0
            span.answered(answer("x" * 600))
        with trace.tool(call()) as span:
            span.returned(result())
        trace.finish("completed", "done")
        found = await opened.trace()
        assert (found.info.status, found.info.usage) == ("completed", Usage(10, 5, cost=0.25))
        assert (found.info.started, found.info.ended) == (START, START + 1)
        root, model, tool = found.spans
        assert (root.name, root.output, model.output) == ("helper", "done", "x" * 500)
        assert (model.usage, tool.outcome) == (Usage(10, 5, cost=0.25), "done")
        assert await opened.ref.ask(GetTrace("run_2")) is None


async def test_an_operation_outside_of_runs_is_one_span_stored_and_exported(
    memory: Location,
) -> None:
    async with open_traces(memory) as opened:
        begun(opened.tracer).finish("completed")
        with opened.tracer.operation("list", session="s", tool="t"):
            pass
        with (
            pytest.raises(OSError, match="gone"),
            opened.tracer.operation("get", error_id="err_1"),
        ):
            raise OSError("gone")
        await opened.flush()
        assert not opened.tracer.live
        runs = await opened.ref.ask(ListTraces())
        others = await opened.ref.ask(ListTraces(agent=""))
    assert [info.run_id for info in runs] == ["run_1"]
    assert {(info.status, info.spans) for info in others} == {("failed", 1), ("completed", 1)}
    _, listed, got = opened.exported
    assert attributes(listed.info, *listed.spans) == {
        "gen_ai.conversation.id": "s",
        "motet.run_id": listed.info.run_id,
        "motet.status": "ok",
        "tool_name": "t",
        "session_id": "s",
    }
    (span,) = got.spans
    assert (span.name, span.status, span.error) == ("error_store.get", "error", "OSError")
    assert attributes(got.info, span)["error_id"] == "err_1"


async def test_a_live_run_is_listed_with_its_open_spans(memory: Location) -> None:
    async with open_traces(memory) as opened:
        trace = begun(opened.tracer)
        span = trace.tool(call())
        found = await opened.trace()
        assert (found.info.status, found.info.ended) == ("running", None)
        assert [(s.name, s.status) for s in found.spans] == [
            *(("helper", "running"), ("look", "running")),
        ]
        span.end()
        trace.finish("completed")
        assert {s.status for s in (await opened.trace()).spans} == {"ok"}


async def test_news_is_written_within_a_second_or_two(
    memory: Location, autojump_clock: MockClock
) -> None:
    async with open_traces(memory) as opened:
        await trio.sleep(5)
        begun(opened.tracer)
        await trio.sleep(1.5)
        assert await opened.execute("SELECT run_id, status FROM traces") == (("run_1", "running"),)


async def test_spans_written_before_a_cancellation_are_cancelled_too(memory: Location) -> None:
    async with open_traces(memory) as opened:
        trace = begun(opened.tracer)
        with trace.model("demo") as span:
            span.answered(answer())
        assert named((await opened.trace()).spans, "demo").status == "ok"
        trace.tool(call())
        trace.finish("cancelled")
        assert {span.status for span in (await opened.trace()).spans} == {"cancelled"}
        assert len(opened.exported[0].spans) == 3, "also those of an earlier group"


async def test_a_trace_includes_the_spans_of_called_runs(memory: Location) -> None:
    async with open_traces(memory) as opened:
        above = begun(opened.tracer, "run_1")
        with above.tool(call("c1")) as span, above.tool(call("c2")):
            below = opened.tracer.begin(
                "run_2", session="s2", agent="scout", user="alice", caller=("run_1", "c1")
            )
            with below.model("demo") as asked:
                asked.answered(answer())
            below.finish("completed")
        above.finish("completed")
        begun(opened.tracer, "run_3").finish("completed")
        spans = (await opened.trace("run_1")).spans
        assert len(spans) == 5
        assert named(spans, "scout").parent == span.id
        assert named(spans, "demo").parent == named(spans, "scout").id
        assert [s.name for s in (await opened.trace("run_2")).spans] == ["scout", "demo"]


async def test_lists_are_newest_first_and_filtered(memory: Location) -> None:
    clock = Clock()
    async with open_traces(memory, tracer(clock)) as opened:
        for number, session in enumerate(("a", "b", "a")):
            clock.at = 0
            opened.tracer.wall = partial(float, START + number)
            begun(opened.tracer, f"run_{number}", session).finish(
                "failed" if number == 1 else "completed"
            )

        async def ids(request: ListTraces) -> list[str]:
            return [info.run_id for info in await opened.ref.ask(request)]

        assert await ids(ListTraces()) == ["run_2", "run_1", "run_0"]
        assert await ids(ListTraces(limit=1)) == ["run_2"]
        assert await ids(ListTraces(session="a")) == ["run_2", "run_0"]
        assert await ids(ListTraces(status="failed")) == ["run_1"]
        assert await ids(ListTraces(since=START + 1, until=START + 2)) == ["run_1"]
        assert await ids(ListTraces(user="bob")) == []
        assert await ids(ListTraces(agent="helper", user="alice")) == ["run_2", "run_1", "run_0"]


async def test_open_traces_of_the_last_host_become_interrupted(memory: Location) -> None:
    async with open_traces(memory) as opened:
        trace = begun(opened.tracer)
        with trace.model("demo") as span:
            span.answered(answer())
        trace.tool(call())
        await opened.flush()
        # Another host begins, and knows nothing of what the first one had in memory.
        opened.tracer.live.clear()
        lost = RunInfo("run_2", "s", "helper", "alice", "interrupted", "hi", START - 5, START)
        begun(opened.tracer, "run_3")
        await opened.flush()
        assert await opened.ref.ask(CloseTraces((lost,))) == 2
        found = await opened.trace()
        assert found.info.status == "interrupted"
        assert {s.name: s.status for s in found.spans} == {
            "helper": "interrupted",
            "demo": "ok",
            "look": "interrupted",
        }
        assert all(s.ended is not None for s in found.spans)
        unseen = await opened.trace("run_2")
        assert [(s.id, s.status) for s in unseen.spans] == [(root_span_id("run_2"), "interrupted")]
        assert (await opened.trace("run_3")).info.status == "running"
        assert await opened.ref.ask(CloseTraces((lost,))) == 0
        assert {trace.info.run_id for trace in opened.exported} == {"run_1", "run_2"}


async def test_stored_traces_hold_no_secret(memory: Location) -> None:
    key = "sk-proj-" + "a1B2c3D4e5F6g7H8i9J0k1L2"
    traces = tracer(verbose=True)
    async with open_traces(memory, traces) as opened:
        trace = traces.begin("run_1", session="s", agent="helper", user="u", text=f"use {key}")
        with trace.model(
            "demo", ModelRequest("demo", (), system=f'{{"api_key": "{key}"}}')
        ) as span:
            span.answered(answer("x" * 490 + f" {key} " + "y" * 4_000))
        with trace.tool(call(name=key)) as span:
            span.returned(result(text=f"token={key}"))
        with trace.store("get", error_id=key, tool=key):
            pass
        trace.finish("completed", key)
        await opened.flush()
        everything = repr(await opened.execute("SELECT * FROM spans"))
        assert key[:14] not in everything
        assert str(alike(everything)).count("[REDACTED]") >= 7


async def test_whole_inputs_are_cut(memory: Location) -> None:
    async with open_traces(memory, tracer(verbose=True)) as opened:
        trace = begun(opened.tracer)
        with trace.model("demo", ModelRequest("demo", (), system="word " * 20_000)):
            pass
        trace.finish("completed")
        (_, model) = (await opened.trace()).spans
        assert len(model.input) == 50_000
        assert model.input.startswith('{"model":"demo"')


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Another program holds the write lock."""
    other = Connection(str(folder / "motet.db"))
    other.run("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.run("ROLLBACK")
        other.close()


async def test_a_locked_database_keeps_traces_waiting_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motet.actors.storage.location.BUSY_TIMEOUT", 0.01)
    with Location.directory(tmp_path) as location:
        async with open_traces(location) as opened:
            with locked(tmp_path):
                for number in range(3):
                    begun(opened.tracer, f"run_{number}").finish("completed")
                    await opened.flush()
            assert [r.msg for r in caplog.records].count("traces_wait_to_be_stored") == 1
            assert (await opened.flush()).written == 3
            assert (await opened.trace("run_0")).info.status == "completed"


async def test_a_full_disk_loses_the_oldest_traces_and_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "WAITING_LIMIT", 5)
    monkeypatch.setattr("motet.actors.storage.traces.GROUP_LIMIT", 2)
    with Location.directory(tmp_path) as location:
        async with open_traces(location) as opened:
            ((size,),) = await opened.execute("PRAGMA page_count")
            await opened.execute(f"PRAGMA max_page_count = {size}")
            for number in range(60):
                trace = begun(opened.tracer, f"run_{number:02}")
                trace.finish("completed", "x" * 500)
            await opened.flush()
            for number in range(60, 80):
                begun(opened.tracer, f"run_{number}").finish("completed", "x" * 500)
                await opened.flush()
            lost = (await opened.flush()).lost
            assert lost > 55
            await opened.execute("PRAGMA max_page_count = 100000")
            written = (await opened.flush()).written
            assert written + lost == 80


async def test_a_trace_that_cannot_be_written_does_not_keep_others_from_it(
    memory: Location, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put = rows.put_statements

    def broken(batches: Sequence[TraceBatch], now: float) -> list[Statement]:
        bad = Statement("INSERT INTO nowhere VALUES (1)")
        is_bad = any(batch.info.run_id == "run_1" for batch in batches)
        return [*put(batches, now), *([bad] if is_bad else [])]

    monkeypatch.setattr(rows, "put_statements", broken)
    async with open_traces(memory) as opened:
        for number in range(3):
            begun(opened.tracer, f"run_{number}").finish("completed")
        statistics = await opened.flush()
        assert (statistics.written, statistics.lost) == (2, 1)
        assert [i.run_id for i in await opened.ref.ask(ListTraces())] == ["run_2", "run_0"]
        assert "trace_not_stored" in caplog.text


async def test_nothing_is_lost_when_the_host_stops(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_traces(location) as opened:
            begun(opened.tracer).finish("completed")
        async with open_traces(location) as opened:
            assert (await opened.trace()).info.status == "completed"
