"""The messages format: alternating roles, blocks, and the events of its stream."""

import re
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.models.anthropic import RULES, AnthropicReader, wire_messages, wire_tool
from motet.actors.models.dialects import lawful
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelFailure,
    TextPart,
    ThinkingPart,
    Usage,
    UsageReport,
)
from motet.protocols.tools import ToolSpec
from tests.actors.models.builders import request

ID = re.compile(r"[A-Za-z0-9_-]+")


def sent_for(*rows: ChatMessage) -> object:
    """The messages for rows of any content."""
    return wire_messages(lawful(request(*rows), RULES).request.messages)


def events_of(*chunks: object) -> list[ModelEvent]:
    reader = AnthropicReader()
    return [event for item in chunks for event in reader.feed(item)] + list(reader.close())


def block(index: int, **fields: object) -> object:
    return {"type": "content_block_start", "index": index, "content_block": fields}


def delta(index: int, **fields: object) -> object:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def end(reason: str = "end_turn", **usage: int) -> object:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


def test_the_results_of_a_batch_and_the_next_text_are_one_user_message() -> None:
    calls = (Call("c1", "f", '{"x":1}'), Call("c2", "g", "{broken"))
    sent = wire_messages(
        [
            UserMessage("Go."),
            AssistantMessage("I go. ", calls),
            ToolMessage("c1", "f", "one"),
            ToolMessage("c2", "g", "no such tool", outcome="failed"),
            UserMessage("And?", author="ada"),
        ]
    )
    assert sent == [
        {"role": "user", "content": [{"type": "text", "text": "Go."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I go."},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}},
                {
                    "type": "tool_use",
                    "id": "c2",
                    "name": "g",
                    "input": {"invalid_arguments": "{broken"},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "one", "is_error": False},
                {
                    "type": "tool_result",
                    "tool_use_id": "c2",
                    "content": "no such tool",
                    "is_error": True,
                },
                {"type": "text", "text": "ada: And?"},
            ],
        },
    ]


def test_a_blank_text_is_never_sent() -> None:
    blank = (UserMessage(" \n"), AssistantMessage("  "))
    assert sent_for(*blank, UserMessage("x")) == [
        {"role": "user", "content": [{"type": "text", "text": "x"}]}
    ]
    assert sent_for(*blank) == [{"role": "user", "content": [{"type": "text", "text": "(empty)"}]}]


def test_another_providers_ids_are_made_valid_and_unique() -> None:
    rows: list[ChatMessage] = []
    for answer in ("one", "two"):
        rows += [
            UserMessage("Go."),
            AssistantMessage("", (Call("call:1", "f"),)),
            ToolMessage("call:1", "f", answer),
        ]
    sent = str(sent_for(*rows))
    assert re.findall(r"'(?:tool_use_)?id': '([^']*)'", sent) == [
        "call_1",
        "call_1",
        "call_1_2",
        "call_1_2",
    ]


texts = st.text("ab \n", max_size=4)
call_ids = st.sampled_from(["a", "b", "a b", "", "ä"])


@st.composite
def transcripts(draw: st.DrawFn) -> list[ChatMessage]:
    """Transcripts as G7 has them: every call has its result before the next row."""
    rows: list[ChatMessage] = []
    for _ in range(draw(st.integers(0, 4))):
        rows += [UserMessage(draw(texts)) for _ in range(draw(st.integers(0, 2)))]
        ids = draw(st.lists(call_ids, max_size=3, unique=True))
        rows.append(AssistantMessage(draw(texts), tuple(Call(id, "f") for id in ids)))
        rows += [ToolMessage(id, "f", draw(texts)) for id in ids]
    return rows


class SentBlock(msgspec.Struct):
    type: str
    text: str = ""
    id: str = ""
    tool_use_id: str = ""


class Sent(msgspec.Struct):
    role: str
    content: list[SentBlock]


@given(transcripts())
def test_every_transcript_makes_valid_messages(rows: list[ChatMessage]) -> None:
    """Law: roles alternate, no message or text is empty, call ids are fit and unique, and the
    results of a message are those of all calls of the message before, in order and first."""
    sent = msgspec.convert(sent_for(*rows), list[Sent])
    assert all(one.role != other.role for one, other in pairwise(sent))
    used: list[str] = []
    called: list[str] = []
    for message in sent:
        assert message.content
        results = [block.tool_use_id for block in message.content if block.type == "tool_result"]
        assert results == called
        assert {block.type for block in message.content[: len(results)]} <= {"tool_result"}
        called = [block.id for block in message.content if block.type == "tool_use"]
        used += called
        assert all(block.text.strip() for block in message.content if block.type == "text")
    assert len(set(used)) == len(used)
    assert all(ID.fullmatch(id) for id in used)


def test_a_schema_without_a_type_is_an_object() -> None:
    assert wire_tool(ToolSpec("now", "The time.", {})) == {
        "name": "now",
        "description": "The time.",
        "input_schema": {"type": "object", "properties": {}},
    }


def test_blocks_of_all_kinds_become_events() -> None:
    events = events_of(
        {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}},
        block(0, type="thinking", thinking=""),
        delta(0, type="thinking_delta", thinking="hm"),
        delta(0, type="signature_delta", signature="s"),
        block(1, type="text", text=""),
        delta(1, type="text_delta", text="I look."),
        block(2, type="tool_use", id="c1", name="f", input={}),
        delta(2, type="input_json_delta", partial_json=""),
        delta(2, type="input_json_delta", partial_json='{"x":'),
        block(3, type="server_tool_use", id="s1", name="web_search"),
        delta(3, type="input_json_delta", partial_json='{"q":1}'),
        block(4, type="tool_use", id="c2", name="g", input={}),
        delta(2, type="input_json_delta", partial_json="1}"),
        {"type": "content_block_stop", "index": 2},
        {"type": "something_new"},
        end("tool_use", output_tokens=7),
        {"type": "message_stop"},
    )
    assert events == [
        ThinkingPart("hm"),
        TextPart("I look."),
        CallStart(0, "c1", "f"),
        CallArguments(0, '{"x":'),
        CallStart(1, "c2", "g"),
        CallArguments(0, "1}"),
        UsageReport(Usage(5, 7)),
        Finished("tool_calls"),
    ]


def test_cached_tokens_are_part_of_the_input() -> None:
    started = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 300,
    }
    events = events_of({"type": "message_start", "message": {"usage": started}}, end())
    assert events[0] == UsageReport(Usage(330, 0, 300, cache_write_tokens=20))


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "context_exhausted"),
        ("refusal", "content_filter"),
        ("pause_turn", "paused"),
        ("new_reason", "other"),
    ],
)
def test_every_stop_reason_has_a_meaning(said: str, meant: str) -> None:
    assert events_of(end(said))[-1] == Finished(meant)  # type: ignore[arg-type]  # a table


def test_a_refusal_says_why() -> None:
    for details, why in (
        ({"category": "cyber", "explanation": "Not that."}, "Not that."),
        ({"category": "cyber", "explanation": None}, "cyber"),
        (None, ""),
    ):
        said = {"stop_reason": "refusal", "stop_details": details}
        assert events_of({"type": "message_delta", "delta": said})[-1] == Finished(
            "content_filter", why
        )


def test_a_stream_without_a_stop_reason_was_cut() -> None:
    with pytest.raises(ModelFailure) as caught:
        events_of(block(0, type="text", text="Hal"))
    assert caught.value.kind == "cut"
