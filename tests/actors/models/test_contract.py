"""The contract of every adapter, against servers that are scripted byte by byte."""

from contextlib import suppress
from random import Random

import pytest
import trio

from motet.actors.models.provider import Provider
from motet.protocols.chat import JsonObject
from motet.protocols.model_answers import assemble
from motet.protocols.models import (
    Finished,
    Generate,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    NativeOutput,
    OutputSchema,
    Retrying,
    TextPart,
    Usage,
)
from motet.runtime import open_system
from tests.actors.models.builders import (
    STREAM_END,
    STREAM_HEAD,
    Handler,
    events_of,
    http_error,
    raw_server,
    read_request,
    request,
    sse,
)
from tests.actors.models.dialects import DIALECTS, LOST, Dialect
from tests.aimock import SDK_GENERATORS

pytestmark = pytest.mark.usefixtures("sdk_garbage")

DONE = sse(b"[DONE]")


def each(*untidy: str) -> pytest.MarkDecorator:
    """Every dialect; the SDKs of the ``untidy`` ones leave something to the collector."""
    marked = [
        pytest.param(dialect, marks=SDK_GENERATORS if dialect.name in untidy else ())
        for dialect in DIALECTS
    ]
    return pytest.mark.parametrize("dialect", marked, ids=str)


every = each("pydantic_ai")


def sending(*data: bytes) -> Handler:
    """Send this, then close the connection."""

    async def handler(stream: trio.SocketStream) -> None:
        for item in data:
            await stream.send_all(item)

    return handler


def stalling(*data: bytes) -> Handler:
    """Send this, then nothing more."""

    async def handler(stream: trio.SocketStream) -> None:
        await sending(*data)(stream)
        await trio.sleep_forever()

    return handler


def answering(*parts: bytes) -> Handler:
    return sending(STREAM_HEAD, *parts, STREAM_END)


async def events_of_server(dialect: Dialect, handler: Handler) -> list[ModelEvent]:
    async with raw_server(handler) as url:
        model = dialect.make(url)
        events = await events_of(model, request("hi"))
        await model.aclose()
    return events


async def failure_of(dialect: Dialect, handler: Handler, **silences: float) -> ModelFailure:
    async with raw_server(handler) as url:
        model = dialect.make(url, **silences)
        with pytest.raises(ModelFailure) as caught:
            await events_of(model, request("hi"))
        await model.aclose()
    return caught.value


# Answers


@every
async def test_an_answer_streams_its_text_its_usage_and_its_end(dialect: Dialect) -> None:
    handler = answering(dialect.word("One"), dialect.word(" two\u2028three"), dialect.end)
    response = assemble(await events_of_server(dialect, handler))
    assert (response.text, response.stop_reason) == ("One two\u2028three", "stop")
    assert response.usage == Usage(input_tokens=7, output_tokens=2, cached_tokens=3)


@every
async def test_calls_come_in_their_order_with_their_arguments(dialect: Dialect) -> None:
    wanted = [("get_weather", '{"city":"Rome"}'), ("get_time", "{}"), ("get_weather", "{}")]
    handler = answering(dialect.word("I look."), dialect.calls(wanted), dialect.end)
    response = assemble(await events_of_server(dialect, handler))
    assert [(call.name, call.arguments) for call in response.calls] == wanted
    assert len({call.id for call in response.calls}) == 3
    assert (response.text, response.stop_reason) == ("I look.", "tool_calls")


@every
async def test_arguments_that_are_no_json_reach_the_run_as_they_are(dialect: Dialect) -> None:
    handler = answering(dialect.calls([("get_weather", LOST)]), dialect.end)
    if dialect.name == "google":  # whose server reads them, and asks for another attempt
        failure = await failure_of(dialect, handler)
        assert failure.kind == "server"
        return
    response = assemble(await events_of_server(dialect, handler))
    assert response.calls[0].arguments == LOST


@every
async def test_an_output_schema_is_sent_if_the_provider_accepts_it(
    dialect: Dialect,
) -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"severity": {"type": "integer"}},
        "required": ["severity"],
        "additionalProperties": False,
    }
    output, bodies = OutputSchema("Ticket", schema), list[bytes]()

    async def handler(stream: trio.SocketStream) -> None:
        await answering(dialect.word('{"severity":3}'), dialect.end)(stream)

    async with raw_server(handler, bodies) as url:
        model = dialect.make(url)
        takes = isinstance(model, NativeOutput) and model.takes_output(output, tools=False)
        asked = ModelRequest("m", request("hi").messages, output=output if takes else None)
        response = assemble(await events_of(model, asked))
        await model.aclose()
    assert response.text == '{"severity":3}'
    assert takes == (dialect.name != "pydantic_ai")
    assert (b'"severity":{' in bodies[0].replace(b" ", b"")) == takes


# Failures


@every
async def test_a_connection_that_is_lost_in_the_middle_is_a_cut(dialect: Dialect) -> None:
    failure = await failure_of(dialect, sending(STREAM_HEAD, dialect.word("One")))
    assert failure.kind == "cut"


@every
async def test_a_body_that_ends_without_a_reason_is_a_cut(dialect: Dialect) -> None:
    failure = await failure_of(dialect, answering(dialect.word("One")))
    assert failure.kind == "cut"


@every
async def test_an_answer_is_whole_when_the_connection_is_lost_after_its_reason(
    dialect: Dialect,
) -> None:
    handler = sending(STREAM_HEAD, dialect.word("One"), dialect.end.removesuffix(DONE))
    if dialect.name == "pydantic_ai":  # it tells the reason only when the body has ended
        assert (await failure_of(dialect, handler)).kind == "cut"
        return
    response = assemble(await events_of_server(dialect, handler))
    assert (response.text, response.stop_reason) == ("One", "stop")


@every
@pytest.mark.parametrize("head", [b"", STREAM_HEAD], ids=["nothing", "a head"])
async def test_a_server_that_never_answers_is_a_timeout(dialect: Dialect, head: bytes) -> None:
    failure = await failure_of(dialect, stalling(head), first_token=0.05)
    assert str(failure) == "no first token came within 0.05 s"
    assert failure.kind == "timeout"


@every
async def test_a_server_that_stalls_in_the_middle_is_a_timeout(dialect: Dialect) -> None:
    handler = stalling(STREAM_HEAD, dialect.word("One"))
    failure = await failure_of(dialect, handler, between_tokens=0.05)
    assert str(failure) == "no further token came within 0.05 s"
    assert failure.kind == "timeout"


@each("pydantic_ai", "google")
async def test_an_event_that_is_no_json_is_the_servers_failure(dialect: Dialect) -> None:
    failure = await failure_of(dialect, answering(dialect.word("One"), dialect.garbled))
    assert failure.kind == "server"


@every
async def test_an_overload_reported_inside_of_the_stream_is_one(dialect: Dialect) -> None:
    failure = await failure_of(dialect, answering(dialect.word("One"), dialect.overload))
    assert failure.kind == "overloaded"
    assert str(failure).endswith("Overloaded")


@every
async def test_a_rate_limit_is_waited_out_as_asked_and_a_server_error_is_retried(
    dialect: Dialect,
) -> None:
    slow = {"error": {"message": "Slow down.", "type": "rate_limit_error"}}
    broken = {"error": {"message": "Something broke.", "type": "api_error"}}
    answers = iter(
        [
            sending(http_error(429, slow, "retry-after-ms: 20")),
            sending(http_error(500, broken, "retry-after-ms: 10")),
            answering(dialect.word("Mended."), dialect.end),
        ]
    )

    async def handler(stream: trio.SocketStream) -> None:
        await next(answers)(stream)

    async with raw_server(handler) as url, open_system() as system:
        model = dialect.make(url)
        provider = await system.start(lambda: Provider(model, random=Random(1)), name="provider")
        async with provider.stream(Generate(request("hi"))) as stream:
            retries = [item async for item in stream if isinstance(item, Retrying)]
        await model.aclose()
    assert retries == [
        Retrying(1, 0.02, "HTTP 429: Slow down."),
        Retrying(2, 0.01, "HTTP 500: Something broke."),
    ]
    assert stream.result.text == "Mended."


@every
async def test_a_closed_port_is_a_failed_connection(dialect: Dialect) -> None:
    async with raw_server(stalling()) as url:
        pass
    model = dialect.make(url)
    with pytest.raises(ModelFailure) as caught:
        await events_of(model, request("hi"))
    await model.aclose()
    assert caught.value.kind == "connection"


@every
async def test_no_request_goes_out_when_requests_are_switched_off(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motet.testing.ALLOW_MODEL_REQUESTS", False)
    model = dialect.make("http://127.0.0.1:1")
    with pytest.raises(ModelFailure, match=f"{model.name} would be asked for real") as caught:
        await events_of(model, request("hi"))
    assert caught.value.kind == "refused"


# Leaving


@every
@pytest.mark.parametrize("leave", ["cancel", "break", "error"])
async def test_leaving_an_answer_closes_its_connection_at_once(
    dialect: Dialect, leave: str
) -> None:
    gone = trio.Event()

    async def handler(stream: trio.SocketStream) -> None:
        await sending(STREAM_HEAD, dialect.word("One"))(stream)
        assert await stream.receive_some() == b""
        gone.set()

    async with raw_server(handler) as url:
        model = dialect.make(url)
        with trio.CancelScope() as scope, suppress(LookupError):
            async with model.request(request("hi")) as events:
                assert await anext(events) == TextPart("One")
                if leave == "error":
                    raise LookupError("the reader's own")
                if leave == "cancel":
                    scope.cancel()
                    await anext(events)
        with trio.fail_after(60):
            await gone.wait()
        await model.aclose()


@every
async def test_a_request_can_be_cancelled_before_its_answer_begins(dialect: Dialect) -> None:
    asked, gone = trio.Event(), trio.Event()

    async def handler(stream: trio.SocketStream) -> None:
        asked.set()
        assert await stream.receive_some() == b""
        gone.set()

    async with raw_server(handler) as url:
        model = dialect.make(url)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(events_of, model, request("hi"))
            await asked.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            await gone.wait()
        await model.aclose()


@every
async def test_one_connection_serves_one_answer_after_the_other(dialect: Dialect) -> None:
    connections = 0

    async def handler(stream: trio.SocketStream) -> None:
        nonlocal connections
        connections += 1
        while True:
            await answering(dialect.word("One"), dialect.end)(stream)
            if not await read_request(stream):
                return

    async with raw_server(handler) as url:
        model = dialect.make(url)
        for _ in range(3):
            assert (await events_of(model, request("hi")))[-1] == Finished("stop")
        await model.aclose()
    assert connections == 1
