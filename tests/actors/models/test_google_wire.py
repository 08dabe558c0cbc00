"""Requests to Gemini, and the reading of its answers."""

import pytest

from motet.actors.models.dialects import EMPTY, lawful
from motet.actors.models.google import RULES, UNSIGNED, GoogleReader, wire_config, wire_contents
from motet.protocols.chat import AssistantMessage, Call, ToolMessage, UserMessage, json_object
from motet.protocols.model_answers import assemble
from motet.protocols.models import ModelFailure, ModelRequest, ModelResponse, Usage
from tests.actors.models.builders import WEATHER, request

TALK = request(
    UserMessage("weather?", author="alice"),
    AssistantMessage(
        "I look.", (Call("1", "get_weather", '{"city":"Rome"}'), Call("2", "get_weather", "{no"))
    ),
    ToolMessage("1", "get_weather", "sun"),
    ToolMessage("2", "get_weather", "bad arguments", "failed"),
)


def test_adjacent_rows_of_one_role_are_one_content() -> None:
    assert wire_contents(TALK, "gemini-2.5-flash") == [
        {"role": "user", "parts": [{"text": "alice: weather?"}]},
        {
            "role": "model",
            "parts": [
                {"text": "I look."},
                {"function_call": {"name": "get_weather", "args": {"city": "Rome"}}},
                {"function_call": {"name": "get_weather", "args": {"invalid_arguments": "{no"}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"function_response": {"name": "get_weather", "response": {"output": "sun"}}},
                {
                    "function_response": {
                        "name": "get_weather",
                        "response": {"error": "bad arguments"},
                    }
                },
            ],
        },
    ]


@pytest.mark.parametrize(
    ("model", "signed"),
    [("gemini-2.5-flash", [False, False]), ("gemini-3-pro-preview", [True, False])],
)
def test_the_first_call_of_an_answer_is_signed_for_models_that_want_it(
    model: str, signed: list[bool]
) -> None:
    parts = wire_contents(TALK, model)[1].get("parts") or []
    calls = [part for part in parts if "function_call" in part]
    assert [part.get("thought_signature") == UNSIGNED for part in calls] == signed


def test_a_row_without_text_is_no_empty_part() -> None:
    for rows, text in ((("", AssistantMessage(""), "go on"), "go on"), (("",), EMPTY)):
        sent = lawful(request(*rows), RULES).request
        assert wire_contents(sent, "m") == [{"role": "user", "parts": [{"text": text}]}]


def test_unset_options_are_not_sent() -> None:
    assert set(wire_config(request("hi"))) == {
        "automatic_function_calling",
        "automatic_continuation",
    }
    whole = ModelRequest("m", (), "Be brief.", (WEATHER,), 99, 0.5)
    config = json_object(wire_config(whole))
    assert (config["system_instruction"], config["max_output_tokens"]) == ("Be brief.", 99)
    assert config["temperature"] == 0.5


def read(*chunks: object) -> ModelResponse:
    reader = GoogleReader()
    events = [event for chunk in chunks for event in reader.feed(chunk)]
    return assemble([*events, *reader.close()])


def candidate(*parts: object, reason: str | None = None) -> object:
    return {"candidates": [{"content": {"parts": list(parts)}, "finish_reason": reason}]}


def test_thoughts_are_separate_from_text_and_billed_as_output() -> None:
    usage = {"prompt_token_count": 5, "candidates_token_count": 2, "thoughts_token_count": 40}
    response = read(
        candidate({"text": "Hm.", "thought": True}, {"text": "Four."}, reason="STOP"),
        {"usage_metadata": usage},
    )
    assert (response.thinking, response.text) == ("Hm.", "Four.")
    assert response.usage == Usage(5, 42)


def test_calls_without_ids_get_different_ones() -> None:
    call = {"function_call": {"name": "t", "args": None}}
    response = read(candidate(call), candidate(call, reason="STOP"))
    assert response.calls == (Call("call_1", "t"), Call("call_2", "t"))


def test_a_refused_prompt_ends_as_a_content_filter() -> None:
    refused = read({"prompt_feedback": {"block_reason": "SAFETY"}})
    assert (refused.stop_reason, refused.refusal) == ("content_filter", "SAFETY")


@pytest.mark.parametrize(
    ("reason", "meant"),
    [
        ("MAX_TOKENS", "length"),
        ("NEW_REASON", "other"),
        *((reason, "content_filter") for reason in ("RECITATION", "SAFETY", "PROHIBITED_CONTENT")),
    ],
)
def test_the_reason_of_an_end_is_translated(reason: str, meant: str) -> None:
    assert read(candidate({"text": "x"}, reason=reason)).stop_reason == meant


def test_a_malformed_call_at_google_is_a_retryable_failure() -> None:
    with pytest.raises(ModelFailure) as caught:
        read(candidate(reason="MALFORMED_FUNCTION_CALL"))
    assert caught.value.kind == "server"


def test_a_stream_without_a_reason_was_cut() -> None:
    with pytest.raises(ModelFailure) as caught:
        read(candidate({"text": "half"}))
    assert caught.value.kind == "cut"
