"""Every adapter against an independent server of all the APIs, over real connections."""

from collections.abc import AsyncIterator
from random import Random

import pytest
import trio

from motet.actors.models.provider import Provider
from motet.protocols.chat import AssistantMessage, Call, ToolMessage, UserMessage
from motet.protocols.errors import Llm
from motet.protocols.model_answers import assemble
from motet.protocols.models import (
    Generate,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    ModelResponse,
    Notice,
    Retrying,
    TextPart,
)
from motet.runtime import open_system
from tests.actors.models.builders import WEATHER, events_of, request
from tests.actors.models.dialects import DIALECTS, Adapter, Dialect
from tests.aimock import SDK_GENERATORS, Aimock

pytestmark = [
    SDK_GENERATORS,
    pytest.mark.filterwarnings("ignore:FUNCTION_CALL is not a valid FinishReason:UserWarning"),
    pytest.mark.usefixtures("sdk_garbage"),
]

CITIES = ["Rome", "Oslo", "Lima", "Cairo"]


@pytest.fixture(params=DIALECTS, ids=str)
async def model(request: pytest.FixtureRequest, aimock: Aimock) -> AsyncIterator[Adapter]:
    dialect: Dialect = request.param
    made = dialect.make(aimock.url + dialect.path)
    yield made
    await made.aclose()


async def answer_of(model: Adapter, asked: ModelRequest) -> ModelResponse:
    return assemble(await events_of(model, asked))


async def failure_of(model: Adapter, text: str) -> ModelFailure:
    with pytest.raises(ModelFailure) as caught:
        await events_of(model, request(text))
    return caught.value


async def asked_through_a_provider(
    model: Adapter, text: str
) -> tuple[list[ModelEvent | Notice], ModelResponse]:
    async with open_system() as system:
        provider = await system.start(lambda: Provider(model, random=Random(1)), name="provider")
        async with provider.stream(Generate(request(text))) as stream:
            items = [item async for item in stream]
        return items, stream.result


async def test_a_plain_answer(model: Adapter) -> None:
    response = await answer_of(model, request("say hello"))
    assert (response.text, response.stop_reason) == ("Hello there.", "stop")


async def test_an_answer_streams_in_parts(model: Adapter) -> None:
    events = await events_of(model, request("tell a story"))
    parts = [event.text for event in events if isinstance(event, TextPart)]
    assert len(parts) > 4
    assert "".join(parts) == "Once upon a time four voices sang one motet, each its own line."


async def test_thinking_is_separate_from_the_answer(model: Adapter) -> None:
    response = await answer_of(model, request("think first"))
    assert (response.thinking, response.text) == ("Two and two.", "Four.")


async def test_one_tool_and_back_with_its_result(model: Adapter) -> None:
    asked = UserMessage("weather in Rome")
    first = await answer_of(model, request(asked, tools=[WEATHER]))
    call = Call("call_rome", "get_weather", '{"city":"Rome"}')
    assert (first.calls, first.stop_reason) == ((call,), "tool_calls")

    rows = (
        asked,
        AssistantMessage(first.text, first.calls),
        ToolMessage(call.id, call.name, "sun"),
    )
    second = await answer_of(model, request(*rows, tools=[WEATHER]))
    assert (second.text, second.calls) == ("It is sunny in Rome.", ())


async def test_four_parallel_tools_come_in_their_order(
    model: Adapter,
) -> None:
    response = await answer_of(model, request("weather in four cities", tools=[WEATHER]))
    assert response.text == "I look."
    assert [call.id for call in response.calls] == ["call_1", "call_2", "call_3", "call_4"]
    assert [call.arguments for call in response.calls] == [f'{{"city":"{c}"}}' for c in CITIES]


async def test_the_request_is_sent_as_given(model: Adapter, aimock: Aimock) -> None:
    text = f"say hello to the journal, {model.name}"
    asked = ModelRequest(
        model="other-model",
        messages=(UserMessage(text),),
        system="Be brief.",
        tools=(WEATHER,),
        max_output_tokens=99,
        temperature=0.5,
    )
    await events_of(model, asked)
    (sent,) = aimock.journal(text)
    assert sent["model"] == "other-model"
    assert 99 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))
    assert sent["temperature"] == 0.5
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": text},
    ]


async def test_a_stream_that_is_cut_is_no_answer(model: Adapter) -> None:
    events: list[ModelEvent] = []

    async def read() -> None:
        async with model.request(request("cut me off")) as stream:
            async for event in stream:
                events.append(event)

    with pytest.raises(ModelFailure) as caught:
        await read()
    assert caught.value.kind == "cut"
    assert isinstance(events[0], TextPart)


@pytest.mark.parametrize(
    ("text", "kind", "status"),
    [
        ("wrong key", "auth", 401),
        ("no credit", "quota", 429),
        ("too long", "context_exhausted", 400),
        ("hang up", "connection", None),
    ],
)
async def test_a_refusal_has_its_kind(model: Adapter, text: str, kind: str, status: int) -> None:
    failure = await failure_of(model, text)
    assert (failure.kind, failure.status) == (kind, status)


async def test_an_unreadable_body_is_a_failure(model: Adapter) -> None:
    assert (await failure_of(model, "speak gibberish")).kind in ("cut", "server")


async def test_a_cut_answer_is_withdrawn_and_asked_for_again(
    model: Adapter,
) -> None:
    items, response = await asked_through_a_provider(
        model, f"cut once, {model.name.partition(':')[0]}"
    )
    kinds = [type(item) for item in items]
    assert kinds.index(Retrying) > kinds.index(TextPart)
    assert response.text == "Whole."


async def test_a_wrong_key_ends_it_at_once(model: Adapter) -> None:
    with pytest.raises(Llm) as caught:
        await asked_through_a_provider(model, "wrong key")
    assert str(caught.value) == (
        f"{model.name} failed: HTTP 401: Incorrect API key.; check the key and its permissions"
    )


async def test_one_client_serves_many_requests_at_once(
    model: Adapter,
) -> None:
    responses: list[ModelResponse] = []

    async def ask() -> None:
        responses.append(await answer_of(model, request("say hello")))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
    assert {response.text for response in responses} == {"Hello there."}


async def test_a_client_can_be_used_after_a_cancelled_request(
    model: Adapter,
) -> None:
    async with model.request(request("speak slowly")) as stream:
        await anext(stream)
    assert (await answer_of(model, request("say hello"))).text == "Hello there."
