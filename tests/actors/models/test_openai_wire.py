"""The chat completions format: what is sent, and what real servers send back."""

import msgspec
import pytest

from motet.actors.models.openai import OpenAIReader, wire_messages, wire_tool
from motet.protocols.chat import AssistantMessage, Call, ToolMessage, UserMessage
from motet.protocols.model_answers import assemble
from motet.protocols.models import (
    Finished,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    Usage,
    UsageReport,
)
from tests.actors.models.builders import NOTHING, WEATHER


def chunk(delta: object = None, finish: str | None = None, **more: object) -> object:
    return {"choices": [{"index": 0, "delta": delta or NOTHING, "finish_reason": finish}], **more}


def call(index: int | None = 0, **fields: object) -> object:
    function = {name: fields.pop(name) for name in ("name", "arguments") if name in fields}
    place = {} if index is None else {"index": index}
    return chunk({"tool_calls": [{**place, **fields, "function": function}]})


def events_of(*chunks: object) -> list[ModelEvent]:
    reader = OpenAIReader()
    return [event for item in chunks for event in reader.feed(item)] + list(reader.close())


def response_of(*chunks: object) -> ModelResponse:
    return assemble(events_of(*chunks, chunk(finish="tool_calls")))


def test_a_transcript_is_sent_in_the_roles_of_the_api() -> None:
    sent = wire_messages(
        ModelRequest(
            model="m",
            system="Be brief.",
            messages=(
                UserMessage("Weather?", author="ada"),
                AssistantMessage("", (Call("c1", "get_weather", '{"city":"Rome"}'),)),
                ToolMessage("c1", "get_weather", "sunny"),
                AssistantMessage("It is sunny."),
            ),
        )
    )
    function = {"name": "get_weather", "arguments": '{"city":"Rome"}'}
    assert sent == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "ada: Weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "assistant", "content": "It is sunny."},
    ]


@pytest.mark.parametrize("arguments", ["{broken", "[1]", "", "\ud800"])
def test_arguments_that_are_no_object_are_sent_as_one(arguments: str) -> None:
    row = AssistantMessage("", (Call("c1", "f", arguments),))
    asked = ModelRequest(model="m", messages=(row,))
    (sent,) = msgspec.to_builtins(wire_messages(asked))
    text = sent["tool_calls"][0]["function"]["arguments"]
    assert list(msgspec.json.decode(text)) == ["invalid_arguments"]


def test_a_tool_is_sent_as_a_function_with_its_schema() -> None:
    assert wire_tool(WEATHER) == {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": WEATHER.parameters,
        },
    }


def test_usage_follows_the_reason_but_comes_before_the_end() -> None:
    usage = {
        "prompt_tokens": 12,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    events = events_of(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hi"}),
        chunk(finish="stop"),
        {"choices": [], "usage": usage},
    )
    assert events == [TextPart("Hi"), UsageReport(Usage(12, 3, 8)), Finished("stop")]


@pytest.mark.parametrize(
    "odd", [{}, {"choices": None}, {"choices": []}, {"choices": [{"delta": None}]}, chunk()]
)
def test_chunks_without_content_give_no_event(odd: object) -> None:
    assert events_of(odd, chunk(finish="stop")) == [Finished("stop")]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_thinking_under_either_name(name: str) -> None:
    events = events_of(chunk({name: "hm"}), chunk({"content": "A"}, "stop"))
    assert events == [ThinkingPart("hm"), TextPart("A"), Finished("stop")]


def test_choices_after_the_first_are_ignored() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    assert events_of(other, chunk({"content": "yes"}, "stop"))[0] == TextPart("yes")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("function_call", "tool_calls"),
        ("content_filter", "content_filter"),
        ("eos", "other"),
    ],
)
def test_every_finish_reason_has_a_meaning(said: str, meant: str) -> None:
    assert events_of(chunk(finish=said)) == [Finished(meant)]  # type: ignore[arg-type]  # a table


def test_a_refusal_of_the_model_is_text_that_ends_as_a_content_filter() -> None:
    parts = (chunk({"refusal": "I "}), chunk({"refusal": "cannot."}))
    assert events_of(*parts, chunk(finish="stop")) == [
        TextPart("I "),
        TextPart("cannot."),
        Finished("content_filter", "I cannot."),
    ]
    assert response_of(chunk({"refusal": "No."})).stop_reason == "content_filter"


def test_a_stream_without_a_finish_reason_was_cut() -> None:
    with pytest.raises(ModelFailure) as caught:
        events_of(chunk({"content": "Hal"}))
    assert caught.value.kind == "cut"


AB = (Call("a", "f", '{"x":1}'), Call("b", "g", "{}"))


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param(
            [
                call(0, id="a", name="f", arguments=""),
                call(1, id="b", name="g"),
                call(0, arguments='{"x"'),
                call(1, arguments="{}"),
                call(0, arguments=":1}"),
            ],
            id="as in the reference, interleaved",
        ),
        pytest.param(
            [
                call(0, id="a", name="f", arguments='{"x"'),
                call(0, id="a", name="f", arguments=":1}"),
                call(1, id="b", name="g", arguments="{}"),
            ],
            id="id and name on every delta",
        ),
        pytest.param(
            [
                call(None, id="a", name="f", arguments='{"x"'),
                call(None, arguments=":1}"),
                call(None, id="b", name="g", arguments="{}"),
            ],
            id="no index",
        ),
        pytest.param(
            [
                call(0, id="a", name="f", arguments='{"x":1}'),
                call(0, id="b", name="g", arguments="{}"),
            ],
            id="index 0 for all",
        ),
        pytest.param(
            [
                call(1, id="b", name="g", arguments="{}"),
                call(0, id="a", name="f", arguments='{"x":1}'),
            ],
            id="the second call first",
        ),
        pytest.param(
            [
                call(0, id="a"),
                call(0, name="f", arguments='{"x":1}'),
                call(1, name="g", arguments="{}"),
                call(1, id="b"),
            ],
            id="names and ids that come late",
        ),
    ],
)
def test_parallel_calls_are_separated_by_any_numbering(deltas: list[object]) -> None:
    assert response_of(*deltas).calls == AB


def test_calls_without_index_and_id_are_separated_by_their_names() -> None:
    deltas = [
        call(None, name="f", arguments='{"x":1}'),
        call(None, name="g", arguments="{}"),
    ]
    assert response_of(*deltas).calls == (
        Call("call_1", "f", '{"x":1}'),
        Call("call_2", "g", "{}"),
    )


def test_one_id_for_two_indexes_makes_two_calls() -> None:
    calls = response_of(call(0, id="a", name="f"), call(1, id="a", name="f")).calls
    assert calls == (Call("a", "f"), Call("a_2", "f"))


def test_content_of_a_wrong_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        events_of(chunk({"content": 5}))
