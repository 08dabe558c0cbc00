"""Rows as messages of pydantic-ai, and its events as ours."""

from typing import TYPE_CHECKING

import attrs
import pytest

from motet.actors.models.pydantic_ai import (
    End,
    PydanticAIModel,
    PydanticAIReader,
    wire_messages,
    wire_parameters,
    wire_settings,
)
from motet.protocols import models
from motet.protocols.chat import AssistantMessage, Call, ToolMessage
from motet.protocols.errors import ConfigError
from motet.protocols.model_answers import assemble
from motet.protocols.models import ModelFailure, Usage
from tests.actors.models.builders import WEATHER, events_of, request
from tests.late import Late

if TYPE_CHECKING:
    from pydantic_ai import messages as sdk
else:
    sdk = Late("pydantic_ai.messages")


def test_rows_become_requests_and_responses_in_turn() -> None:
    rows = request(
        "weather?",
        AssistantMessage("I look.", (Call("1", "get_weather", '{"city":"Rome"}'),)),
        ToolMessage("1", "get_weather", "no such city", "failed"),
        "try Oslo",
    )
    asked = models.ModelRequest("m", rows.messages, system="Be brief.")
    first, answer, second = wire_messages(asked)
    assert isinstance(first, sdk.ModelRequest)
    assert [type(part) for part in first.parts] == [sdk.SystemPromptPart, sdk.UserPromptPart]
    assert isinstance(answer, sdk.ModelResponse)
    assert answer.parts == [
        sdk.TextPart("I look."),
        sdk.ToolCallPart("get_weather", {"city": "Rome"}, "1"),
    ]
    assert isinstance(second, sdk.ModelRequest)
    result, text = second.parts
    assert isinstance(result, sdk.ToolReturnPart)
    assert (result.content, result.outcome) == ("no such city", "failed")
    assert isinstance(text, sdk.UserPromptPart)


def test_a_system_prompt_comes_first_also_before_an_answer() -> None:
    asked = models.ModelRequest("m", (AssistantMessage("hi"),), system="Be brief.")
    first, _ = wire_messages(asked)
    assert first.parts == [first.parts[0]]
    assert isinstance(first.parts[0], sdk.SystemPromptPart)


def test_the_sdks_make_no_retries_of_their_own() -> None:
    assert wire_settings(request("hi")) == {"max_retries": 0}
    (tool,) = wire_parameters(request("hi", tools=[WEATHER])).function_tools
    assert (tool.name, tool.parameters_json_schema["required"]) == ("get_weather", ["city"])


def test_events_of_a_stream_become_one_answer() -> None:
    reader = PydanticAIReader()
    chunks = [
        sdk.PartStartEvent(index=0, part=sdk.ThinkingPart("Hm.")),
        sdk.PartStartEvent(index=1, part=sdk.TextPart("I ")),
        sdk.PartDeltaEvent(index=1, delta=sdk.TextPartDelta("look.")),
        sdk.PartStartEvent(index=2, part=sdk.ToolCallPart("a", None, "1")),
        sdk.PartDeltaEvent(index=2, delta=sdk.ToolCallPartDelta(args_delta='{"x":')),
        sdk.PartDeltaEvent(index=2, delta=sdk.ToolCallPartDelta(args_delta="1}")),
        sdk.PartStartEvent(index=3, part=sdk.ToolCallPart("b", {"y": 2}, "2")),
        End("tool_call", Usage(7, 2)),
    ]
    events = [event for chunk in chunks for event in reader.feed(chunk)]
    response = assemble([*events, *reader.close()])
    assert (response.thinking, response.text) == ("Hm.", "I look.")
    assert response.calls == (Call("1", "a", '{"x":1}'), Call("2", "b", '{"y":2}'))
    assert (response.stop_reason, response.usage) == ("tool_calls", Usage(7, 2))


@pytest.mark.parametrize("end", [(), (End(None, Usage()),)], ids=["no end", "no reason"])
def test_a_stream_without_a_reason_was_cut(end: tuple[End, ...]) -> None:
    reader = PydanticAIReader()
    for chunk in end:
        list(reader.feed(chunk))
    with pytest.raises(ModelFailure, match="in the middle of the answer"):
        list(reader.close())


@pytest.mark.parametrize("name", ["groq", "groq:", ":llama"])
def test_a_name_has_a_provider_and_a_model(name: str) -> None:
    with pytest.raises(ConfigError, match="write pydantic_ai:<provider>:<model>"):
        PydanticAIModel(name)


@attrs.frozen
class Refusal:
    model: str
    says: str
    error: type[Exception]


REFUSALS = [
    Refusal("nobody:m", "nobody", ModelFailure),
    Refusal("mistral:m", "mistral", ConfigError),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.model)
async def test_an_unknown_provider_and_a_missing_package_are_named(refusal: Refusal) -> None:
    model = PydanticAIModel(refusal.model, api_key="key")
    with pytest.raises(refusal.error, match=refusal.says):
        await events_of(model, request("hi"))
    await model.aclose()


async def test_a_missing_key_is_the_providers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ModelFailure, match="OPENAI_API_KEY") as caught:
        await events_of(PydanticAIModel("openai-chat:m"), request("hi"))
    assert caught.value.kind == "auth"
