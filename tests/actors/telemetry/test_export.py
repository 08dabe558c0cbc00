"""Export to OpenTelemetry: what a collector gets, and that no failure of it reaches a run."""

from __future__ import annotations

import logging
from importlib import import_module

import pytest
import trio
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from trio.testing import MockClock

import motet
from motet.actors.telemetry import exporter as export
from motet.actors.telemetry.exporter import (
    Collector,
    Exporter,
    ExportFailed,
    Outbox,
    SendTraces,
)
from motet.protocols import otlp
from motet.protocols.config import TracingConfig
from motet.protocols.models import Usage
from motet.protocols.otlp import attributes, body, endpoint, portions
from motet.protocols.traces import FlushTraces, Span, Trace, TraceInfo, trace_identity
from motet.runtime import open_system
from tests.actors.telemetry.collector import OK, Reply, open_collector, parsed, values
from tests.actors.telemetry.stage import START
from tests.scripted import Scripted, call, say

ROOT = Span("a1" * 8, "agent", "helper", START, ended=START + 2, status="ok", output="hi")
MODEL = Span(
    id="b2" * 8,
    kind="model",
    name="gpt-5.2",
    started=START,
    parent=ROOT.id,
    ended=START + 1.25,
    status="ok",
    provider="openai",
    iteration=1,
    stop_reason="stop",
    usage=Usage(10, 5, 3, 0.25),
    first_token=0.5,
)
TOOL = Span(
    id="c3" * 8,
    kind="tool",
    name="look",
    started=START,
    parent=ROOT.id,
    ended=START,
    status="error",
    call_id="c0",
    outcome="failed",
    error="timeout",
    error_id="err_1",
)
STORE = Span(
    id="d4" * 8,
    kind="store",
    name="error_store.store",
    started=START,
    parent=TOOL.id,
    ended=START,
    status="ok",
    tool="look",
    error_id="err_1",
)
INFO = TraceInfo("run_1", trace_identity("run_1")[0], "s", "helper", "alice", "completed", START)
BAD: Reply = (400, {}, b"bad span")
PARTLY: Reply = (
    200,
    {},
    b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}',
)
TRACE = Trace(INFO, (ROOT, MODEL, TOOL, STORE))


def test_spans_are_what_the_official_protobufs_say() -> None:
    root, model, tool, store = parsed(body([TRACE]))
    assert root.trace_id.hex() == model.trace_id.hex() == INFO.trace_id
    assert (root.name, root.parent_span_id) == ("invoke_agent helper", b"")
    assert (model.name, model.kind) == ("chat gpt-5.2", ProtoSpan.SPAN_KIND_CLIENT)
    assert model.parent_span_id.hex() == ROOT.id
    assert model.end_time_unix_nano - model.start_time_unix_nano == 1_250_000_000
    assert (root.status.code, tool.status.code) == (Status.STATUS_CODE_OK, Status.STATUS_CODE_ERROR)
    assert tool.status.message == "timeout"
    assert values(model) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5.2",
        "gen_ai.conversation.id": "s",
        "gen_ai.agent.name": "helper",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 0.5,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "motet.attempts": 1,
        "motet.cost_usd": 0.25,
        "motet.iteration": 1,
        "motet.run_id": "run_1",
        "motet.status": "ok",
    }
    told = values(store)
    assert (told["error_id"], told["tool_name"], told["session_id"]) == ("err_1", "look", "s")


def test_every_name_of_the_conventions_is_one_of_theirs() -> None:
    # By its name, since the package ships no types.
    names = vars(import_module("opentelemetry.semconv._incubating.attributes.gen_ai_attributes"))
    used = {name for span in TRACE.spans for name in attributes(INFO, span) if name[:6] == "gen_ai"}
    assert len(used) >= 12
    assert used <= {name for name in names.values() if isinstance(name, str)}


def test_a_long_trace_goes_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "SPANS_AT_ONCE", 3)
    sent = [[len(trace.spans) for trace in portion] for portion in portions([TRACE, TRACE])]
    assert sent == [[3], [1, 2], [2]]
    monkeypatch.setattr(otlp, "TEXT_AT_ONCE", 1)
    assert [len(parsed(body(portion))) for portion in portions([TRACE])] == [1, 3]


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("http://h:4318/", "http://h:4318/v1/traces"),
        ("https://h/api/otel/v1/traces", "https://h/api/otel/v1/traces"),
    ],
)
def test_a_base_address_gets_the_standard_path(url: str, where: str) -> None:
    assert endpoint(url) == where


async def test_a_collector_gets_spans_and_the_configured_headers() -> None:
    async with open_collector() as collector:
        assert await Collector(collector.url, {"Authorization": "Basic x"}).send([TRACE]) == 4
    (request,) = collector.requests
    headers = dict(request.headers)
    assert (request.method, request.target) == (b"POST", b"/v1/traces")
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"authorization"] == b"Basic x"
    assert len(collector.spans) == 4


async def test_a_busy_collector_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(trio, "sleep", sleep)
    busy: list[Reply | None] = [(503, {}, b""), (429, {"retry-after": "7"}, b""), None]
    async with open_collector(*busy) as collector:
        assert await Collector(collector.url).send([TRACE]) == 4
    assert len(collector.bodies) == 4
    assert waits == [1.0, 7.0, 4.0]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (BAD, "answered 400: bad span"),
        (PARTLY, "2 spans: too old"),
    ],
)
async def test_what_a_collector_refuses_is_not_sent_again(reply: Reply, why: str) -> None:
    async with open_collector(reply) as collector:
        with pytest.raises(ExportFailed, match=why):
            await Collector(collector.url).send([TRACE])
    assert len(collector.bodies) == 1


async def test_an_outbox_without_room_drops_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "ROOM", 10)
    outbox = Outbox()
    for _ in range(3):
        outbox.put([TRACE])
    assert (len(outbox.take()), outbox.meters.lost_exports, outbox.spans) == (2, 4, 0)


async def test_what_an_absent_collector_did_not_get_is_counted_and_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    outbox, exporters = Outbox(), list[Exporter]()

    def made() -> Exporter:
        exporters.append(Exporter(Collector("http://127.0.0.1:9"), outbox))
        return exporters[-1]

    async with open_system() as system:
        ref = await system.start(made, name="exporter")
        outbox.put([TRACE])
        with pytest.raises(ExportFailed, match="cannot be reached"):
            await ref.ask(SendTraces())
        outbox.put([TRACE])
        await trio.sleep(60)
    statistics = exporters[0].statistics()
    assert (statistics.sent, statistics.lost) == (0, 8)
    assert [record.msg for record in caplog.records] == ["traces_not_exported"]


async def test_a_send_that_is_cut_off_is_made_up_for_at_the_end() -> None:
    async with open_collector() as collector:
        outbox = Outbox()
        async with open_system() as system:
            ref = await system.start(
                lambda: Exporter(Collector(collector.url), outbox), name="exporter"
            )
            outbox.put([TRACE])
            with trio.CancelScope() as scope:
                scope.cancel()
                await ref.ask(SendTraces())
        assert len(collector.spans) == 4


async def test_a_host_exports_its_runs_when_they_have_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)

    async def look() -> str:
        return "fine"

    agent = motet.Agent("helper", model=Scripted(call(("look", {})), say("done")), tools=[look])
    async with open_collector(OK) as collector:
        config = motet.HostConfig(tracing=TracingConfig(otlp=collector.url))
        async with motet.open_host(config=config, agents=[agent]) as host:
            await host.run(agent, "go", session="s")
            store = host.system.find("/host/traces")
            assert store is not None
            await store.ask(FlushTraces())
        names = [span.name for span in collector.spans]
    assert names == [
        "invoke_agent helper", "chat scripted", "execute_tool look", "chat scripted",
    ]  # fmt: skip
    assert not caplog.records


async def test_a_host_runs_as_well_without_its_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export, "FAREWELL", 0.1)
    config = motet.HostConfig(tracing=TracingConfig(otlp="http://127.0.0.1:9"))
    async with motet.open_host(config=config) as host:
        agent = motet.Agent("helper", model="demo")
        assert (await host.run(agent, "hi")).status == "completed"
