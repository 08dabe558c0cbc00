"""Both adapters against a server that does what the mock server can't: scripted byte by byte."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import pytest
import trio

from motet.actors.models.anthropic import AnthropicModel
from motet.actors.models.assemble import assemble
from motet.actors.models.openai import OpenAIModel
from motet.actors.models.sdk import Deadlines
from motet.protocols.models import Finished, ModelFailure, TextPart, Usage, UsageReport
from tests.actors.models.builders import (
    NOTHING,
    STREAM_END,
    STREAM_HEAD,
    Handler,
    events_of,
    http_error,
    raw_server,
    request,
    sse,
)
from tests.aimock import SDK_GENERATORS

pytestmark = [SDK_GENERATORS, pytest.mark.usefixtures("sdk_garbage")]

MakeModel: TypeAlias = Callable[..., OpenAIModel | AnthropicModel]


def openai(url: str, **silences: float) -> OpenAIModel:
    return OpenAIModel("m", base_url=url, api_key="key", deadlines=Deadlines(**silences))


def anthropic(url: str, **silences: float) -> AnthropicModel:
    return AnthropicModel("m", base_url=url, api_key="key", deadlines=Deadlines(**silences))


FIRST_WORD: dict[MakeModel, bytes] = {
    openai: sse({"choices": [{"index": 0, "delta": {"content": "One"}}]}),
    anthropic: sse(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        event="content_block_start",
    )
    + sse(
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "One"},
        },
        event="content_block_delta",
    ),
}
REASON: dict[MakeModel, bytes] = {
    openai: sse({"choices": [{"index": 0, "delta": NOTHING, "finish_reason": "stop"}]}),
    anthropic: sse(
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        event="message_delta",
    ),
}

both = pytest.mark.parametrize("make", [openai, anthropic], ids=["openai", "anthropic"])


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


async def failure_of(make: MakeModel, handler: Handler, **silences: float) -> ModelFailure:
    async with raw_server(handler) as url:
        model = make(url, **silences)
        with pytest.raises(ModelFailure) as caught:
            await events_of(model, request("hi"))
        await model.aclose()
    return caught.value


@both
async def test_a_connection_that_is_lost_in_the_middle_is_a_cut(make: MakeModel) -> None:
    failure = await failure_of(make, sending(STREAM_HEAD, FIRST_WORD[make]))
    assert failure.kind == "cut"


@both
async def test_a_body_that_ends_without_a_reason_is_a_cut(make: MakeModel) -> None:
    failure = await failure_of(make, sending(STREAM_HEAD, FIRST_WORD[make], STREAM_END))
    assert failure.kind == "cut"


@both
async def test_an_answer_is_whole_when_the_connection_is_lost_after_its_reason(
    make: MakeModel,
) -> None:
    async with raw_server(sending(STREAM_HEAD, FIRST_WORD[make], REASON[make])) as url:
        model = make(url)
        response = assemble(await events_of(model, request("hi")))
        await model.aclose()
    assert (response.text, response.stop_reason) == ("One", "stop")


@both
async def test_a_server_that_never_answers_is_a_timeout(make: MakeModel) -> None:
    failure = await failure_of(make, stalling(), first_token=0.05)
    assert failure.kind == "timeout"


@both
async def test_a_server_that_stalls_before_the_first_token_is_a_timeout(make: MakeModel) -> None:
    failure = await failure_of(make, stalling(STREAM_HEAD), first_token=0.05)
    assert failure.kind == "timeout"


@both
async def test_a_server_that_stalls_in_the_middle_is_a_timeout(make: MakeModel) -> None:
    handler = stalling(STREAM_HEAD, FIRST_WORD[make])
    failure = await failure_of(make, handler, between_tokens=0.05)
    assert str(failure) == "no further token came within 0.05 s"


@both
async def test_an_event_that_is_no_json_is_the_servers_failure(make: MakeModel) -> None:
    garbled = sse(b"{broken", event="message_start")
    failure = await failure_of(make, sending(STREAM_HEAD, FIRST_WORD[make], garbled, STREAM_END))
    assert failure.kind == "server"


@both
async def test_the_time_to_wait_is_read_from_the_headers(make: MakeModel) -> None:
    body = {"error": {"message": "Slow down.", "type": "rate_limit_error"}}
    failure = await failure_of(make, sending(http_error(429, body, "retry-after-ms: 1500")))
    assert (failure.kind, failure.status, failure.retry_after) == ("rate_limit", 429, 1.5)


@both
async def test_nobody_listening_is_a_failed_connection(make: MakeModel) -> None:
    async with raw_server(stalling()) as url:
        pass
    with pytest.raises(ModelFailure) as caught:
        await events_of(make(url), request("hi"))
    assert caught.value.kind == "connection"


async def test_an_overload_reported_inside_the_stream_is_one() -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    handler = sending(STREAM_HEAD, FIRST_WORD[anthropic], sse(body, event="error"), STREAM_END)
    failure = await failure_of(anthropic, handler)
    assert (failure.kind, failure.status, str(failure)) == ("overloaded", None, "Overloaded")


async def test_an_error_reported_inside_the_stream_of_a_gateway_is_one() -> None:
    body = {"error": {"message": "Upstream is overloaded", "code": "server_overloaded"}}
    failure = await failure_of(openai, sending(STREAM_HEAD, FIRST_WORD[openai], sse(body)))
    assert (failure.kind, str(failure)) == ("overloaded", "Upstream is overloaded")


async def test_usage_after_the_reason_and_the_end_mark_are_read() -> None:
    usage = {"usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    parts = [FIRST_WORD[openai], REASON[openai], sse(usage), sse(b"[DONE]")]
    async with raw_server(sending(STREAM_HEAD, *parts, STREAM_END)) as url:
        model = openai(url)
        events = await events_of(model, request("hi"))
        await model.aclose()
    assert events == [TextPart("One"), UsageReport(Usage(7, 2)), Finished("stop")]


@both
@pytest.mark.parametrize("leave", ["cancel", "break", "error"])
async def test_leaving_an_answer_closes_its_connection_at_once(make: MakeModel, leave: str) -> None:
    gone = trio.Event()

    async def handler(stream: trio.SocketStream) -> None:
        await sending(STREAM_HEAD, FIRST_WORD[make])(stream)
        assert await stream.receive_some() == b""
        gone.set()

    async with raw_server(handler) as url:
        model = make(url)
        with trio.CancelScope() as scope, suppress(LookupError):
            async with model.request(request("hi")) as events:
                assert await anext(events) == TextPart("One")
                if leave == "error":
                    raise LookupError("the reader's own")
                if leave == "cancel":
                    scope.cancel()
                    await anext(events)
        with trio.fail_after(5):
            await gone.wait()
        await model.aclose()


@both
async def test_a_request_can_be_cancelled_before_its_answer_begins(make: MakeModel) -> None:
    asked, gone = trio.Event(), trio.Event()

    async def handler(stream: trio.SocketStream) -> None:
        asked.set()
        assert await stream.receive_some() == b""
        gone.set()

    async with raw_server(handler) as url, trio.open_nursery() as nursery:
        model = make(url)
        nursery.start_soon(events_of, model, request("hi"))
        await asked.wait()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(5):
            await gone.wait()
