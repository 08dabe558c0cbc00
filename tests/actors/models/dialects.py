"""The servers of all adapters, byte by byte: one dialect for each adapter."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import attrs
import msgspec

from motet.actors.models.anthropic import AnthropicModel
from motet.actors.models.google import GoogleModel
from motet.actors.models.openai import OllamaModel, OpenAIModel
from motet.actors.models.pydantic_ai import PydanticAIModel
from motet.actors.models.sdk import Deadlines
from motet.protocols.chat import JsonObject
from motet.protocols.models import Model
from tests.actors.models.builders import NOTHING, sse

LOST = "city': Rome"
"""Arguments that are no JSON."""


class Adapter(Model, Protocol):
    """What all adapters have."""

    async def aclose(self) -> None: ...


@attrs.frozen
class Dialect:
    """The parts of an answer as one kind of server sends them.

    Attributes:
        name: of the adapter.
        make: from the address of the server and the silences it may keep to a model.
        word: from a text to the bytes of a part of the answer.
        calls: from names and arguments to the bytes of calls.
        end: the rest of a whole answer: 7 tokens in, 3 of them from a cache, 2 out.
        garbled: an event that is no JSON.
        overload: an event that reports one.
        path: below the address of a server of all APIs.
    """

    name: str
    make: Callable[..., Adapter]
    word: Callable[[str], bytes]
    calls: Callable[[Sequence[tuple[str, str]]], bytes]
    end: bytes
    garbled: bytes
    overload: bytes
    path: str = ""

    def __str__(self) -> str:
        return self.name


# OpenAI, Ollama, and pydantic-ai in front of OpenAI

CHUNK: JsonObject = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def openai_chunk(delta: object, reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return sse({**CHUNK, "choices": [choice]})


def openai_word(text: str) -> bytes:
    return openai_chunk({"content": text})


def openai_calls(calls: Sequence[tuple[str, str]]) -> bytes:
    return b"".join(
        openai_chunk(
            {
                "tool_calls": [
                    {
                        "index": place,
                        "id": f"call_{place}",
                        "type": "function",
                        "function": {"name": name, "arguments": arguments},
                    }
                ]
            }
        )
        for place, (name, arguments) in enumerate(calls)
    )


OPENAI_USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 2,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 3},
}
OPENAI_END = (
    openai_chunk(NOTHING, "stop")
    + sse({**CHUNK, "choices": [], "usage": OPENAI_USAGE})
    + sse(b"[DONE]")
)


# Anthropic


def anthropic_events(*events: tuple[str, JsonObject]) -> bytes:
    return b"".join(sse({"type": type, **event}, event=type) for type, event in events)


def anthropic_block(place: int, block: JsonObject, delta: JsonObject) -> bytes:
    return anthropic_events(
        ("content_block_start", {"index": place, "content_block": block}),
        ("content_block_delta", {"index": place, "delta": delta}),
        ("content_block_stop", {"index": place}),
    )


def anthropic_word(text: str) -> bytes:
    return anthropic_block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": text})


def anthropic_calls(calls: Sequence[tuple[str, str]]) -> bytes:
    return b"".join(
        anthropic_block(
            place,
            {"type": "tool_use", "id": f"call_{place}", "name": name, "input": NOTHING},
            {"type": "input_json_delta", "partial_json": arguments},
        )
        for place, (name, arguments) in enumerate(calls)
    )


ANTHROPIC_USAGE: JsonObject = {"input_tokens": 4, "cache_read_input_tokens": 3, "output_tokens": 2}
ANTHROPIC_END = anthropic_events(
    ("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": ANTHROPIC_USAGE}),
    ("message_stop", {}),
)


# Google


def google_chunk(parts: Sequence[JsonObject], **more: object) -> bytes:
    candidate = {"index": 0, "content": {"role": "model", "parts": parts}, **more}
    return sse({"candidates": [candidate]})


def google_word(text: str) -> bytes:
    return google_chunk([{"text": text}])


def google_calls(calls: Sequence[tuple[str, str]]) -> bytes:
    """Calls come as objects; of arguments that it cannot read this API says so."""
    if any(arguments == LOST for _, arguments in calls):
        return google_chunk([], finishReason="MALFORMED_FUNCTION_CALL")
    return google_chunk(
        [
            {
                "functionCall": {
                    "id": f"call_{place}",
                    "name": name,
                    "args": msgspec.json.decode(arguments),
                }
            }
            for place, (name, arguments) in enumerate(calls)
        ]
    )


GOOGLE_END = sse(
    {
        "candidates": [{"index": 0, "content": NOTHING, "finishReason": "STOP"}],
        "usageMetadata": {
            "promptTokenCount": 7,
            "candidatesTokenCount": 2,
            "cachedContentTokenCount": 3,
        },
    }
)


def made(adapter: Callable[..., Adapter], name: str, url: str, **silences: float) -> Adapter:
    return adapter(name, base_url=url, api_key="key", deadlines=Deadlines(**silences))


OVERLOAD = {"message": "Overloaded", "type": "overloaded_error"}
GOOGLE_OVERLOAD = {"message": "Overloaded", "code": 503, "status": "UNAVAILABLE"}
GARBLED = sse(b"{broken", event="message_start")

of_openai = partial(
    Dialect,
    word=openai_word,
    calls=openai_calls,
    end=OPENAI_END,
    garbled=GARBLED,
    overload=sse({"error": OVERLOAD}),
    path="/v1",
)
DIALECTS = (
    of_openai("openai", partial(made, partial(OpenAIModel, native_output=True), "gpt-test")),
    of_openai("ollama", partial(made, OllamaModel, "llama-test")),
    of_openai("pydantic_ai", partial(made, PydanticAIModel, "openai-chat:gpt-test")),
    Dialect(
        "anthropic",
        partial(made, partial(AnthropicModel, native_output=True), "claude-test"),
        anthropic_word,
        anthropic_calls,
        ANTHROPIC_END,
        GARBLED,
        anthropic_events(("error", {"error": OVERLOAD})),
    ),
    Dialect(
        "google",
        # The mock server knows this version of the API only.
        partial(made, partial(GoogleModel, api_version="v1beta"), "gemini-test"),
        google_word,
        google_calls,
        GOOGLE_END,
        GARBLED,
        sse({"error": GOOGLE_OVERLOAD}),
    ),
)
