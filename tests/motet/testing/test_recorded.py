"""A recorded model: what it knows a request by, what it writes down, and what it says otherwise."""

from pathlib import Path

import pytest

from motet.actors.models.catalog import Billed
from motet.protocols.chat import AssistantMessage, Call, ToolMessage, UserMessage
from motet.protocols.errors import ConfigError
from motet.protocols.model_answers import assemble
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    TextPart,
)
from motet.testing import RecordedModel, ScriptedModel, call, fail, say
from motet.testing.cassette import decoded, merged, normalized
from tests.actors.models.builders import WEATHER, events_of, request

SECRET = "sk-proj-" + "a1B2" * 8


async def text_of(model: RecordedModel, asked: ModelRequest) -> str:
    return assemble(await events_of(model, asked)).text


async def recorded(cassette: Path, *texts: str) -> ScriptedModel:
    """A cassette in which each text was asked and answered by itself in capitals."""
    script = ScriptedModel([say(text.upper()) for text in texts], name="openai:some-model")
    model = RecordedModel(cassette, script, mode="record")
    for text in texts:
        await events_of(model, request(text))
    return script


def conversation(id: str, day: str, folder: str) -> ModelRequest:
    return ModelRequest(
        "m",
        (
            UserMessage("weather?"),
            AssistantMessage("", (Call(id, "get_weather", '{"city":"Rome"}'),)),
            ToolMessage(id, "get_weather", f"sun, see {folder}/sky.txt"),
        ),
        system=f"Be brief. Today is {day}.",
        tools=(WEATHER,),
    )


def test_a_request_is_found_despite_text_that_varies() -> None:
    then = conversation("call_7f", "2026-11-21", "/tmp/pytest-1")
    now = conversation("run_9_1_0", "2027-01-02", "/tmp/pytest-of-me/pytest-2/a")
    other = conversation("call_7f", "2026-11-21", "/srv/data")
    assert normalized(then).fingerprint == normalized(now).fingerprint
    assert normalized(then).fingerprint != normalized(other).fingerprint


async def test_a_recording_is_played_without_the_model(tmp_path: Path) -> None:
    cassette = tmp_path / "talk.jsonl"
    await recorded(cassette, "hello", "bye")
    model = RecordedModel(cassette)
    assert model.name == "openai:some-model"
    assert await text_of(model, request("bye")) == "BYE"
    assert await text_of(model, request("hello")) == "HELLO"
    assert await text_of(model, request("hello")) == "HELLO"


async def test_a_recording_has_the_server_and_so_the_price_of_its_model(
    tmp_path: Path,
) -> None:
    cassette = tmp_path / "talk.jsonl"

    class Elsewhere(ScriptedModel):
        base_url = "http://gpu.lan/v1"

    model = RecordedModel(cassette, Elsewhere([say("hi")]), mode="record")
    await events_of(model, request("hello"))
    assert isinstance(model, Billed)
    assert RecordedModel(cassette).base_url == model.base_url == "http://gpu.lan/v1"


async def test_an_unknown_request_fails_and_shows_the_nearest(tmp_path: Path) -> None:
    cassette = tmp_path / "talk.jsonl"
    await recorded(cassette, "what is the weather in Rome today", "bye")
    with pytest.raises(ModelFailure) as caught:
        await events_of(RecordedModel(cassette), request("what is the weather in Oslo today"))
    assert caught.value.kind == "not_recorded"
    assert "-user: what is the weather in Rome today\n" in str(caught.value)
    assert "+user: what is the weather in Oslo today\n" in str(caught.value)


async def test_a_missing_request_is_sent_once(tmp_path: Path) -> None:
    cassette = tmp_path / "talk.jsonl"
    await recorded(cassette, "hello")
    script = ScriptedModel([say("BYE")], name="openai:some-model")
    model = RecordedModel(cassette, script, mode="missing")
    assert [await text_of(model, request(text)) for text in ("hello", "bye", "bye")] == [
        "HELLO",
        "BYE",
        "BYE",
    ]
    script.assert_complete()
    assert await text_of(RecordedModel(cassette), request("bye")) == "BYE"


async def test_answers_to_equal_requests_keep_their_order_also_when_they_fail(
    tmp_path: Path,
) -> None:
    cassette = tmp_path / "talk.jsonl"
    script = ScriptedModel([fail(429, retry_after=7), say("one"), say("two")])
    model = RecordedModel(cassette, script, mode="record")
    with pytest.raises(ModelFailure):
        await events_of(model, request("hi"))
    for _ in range(2):
        await events_of(model, request("hi"))
    player = RecordedModel(cassette)
    with pytest.raises(ModelFailure) as caught:
        await events_of(player, request("hi"))
    assert (caught.value.kind, caught.value.status, caught.value.retry_after) == (
        "rate_limit",
        429,
        7,
    )
    assert [await text_of(player, request("hi")) for _ in range(3)] == ["one", "two", "two"]


async def test_no_secret_is_written_even_if_it_comes_in_parts(tmp_path: Path) -> None:
    cassette = tmp_path / "talk.jsonl"
    script = ScriptedModel([say(f"your key is {SECRET}") + call("login", token=SECRET)])
    model = RecordedModel(cassette, script, mode="record")
    await events_of(model, request(f"my key is {SECRET}"))
    assert "[secret:openai]" in cassette.read_text()
    assert SECRET not in cassette.read_text()
    parts = [TextPart(SECRET[:12]), TextPart(SECRET[12:])]
    assert SECRET not in str(list(merged(parts)))


async def test_parts_of_one_text_are_one_event_of_the_recording() -> None:
    events: list[ModelEvent] = [
        TextPart("a"),
        TextPart("b"),
        CallStart(0, "c", "t"),
        CallArguments(0, "{"),
        CallArguments(0, "}"),
        CallArguments(1, "{}"),
        Finished("stop"),
    ]
    assert list(merged(events)) == [
        TextPart("ab"),
        CallStart(0, "c", "t"),
        CallArguments(0, "{}"),
        CallArguments(1, "{}"),
        Finished("stop"),
    ]


async def test_an_answer_that_was_left_is_not_recorded(tmp_path: Path) -> None:
    cassette = tmp_path / "talk.jsonl"
    model = RecordedModel(cassette, ScriptedModel([say("long")]), mode="record")
    async with model.request(request("hi")) as events:
        await anext(events)
    assert not cassette.exists()


async def test_recording_begins_the_cassette_anew(tmp_path: Path) -> None:
    cassette = tmp_path / "below" / "talk.jsonl"
    await recorded(cassette, "hello", "bye")
    await recorded(cassette, "hello")
    _, entries = decoded(cassette.read_bytes(), "talk")
    assert len(entries) == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"{}\n", "line 1, is no line of a cassette"),
        (b'{"line":"cassette","model":"m","version":2}\n', "of version 2"),
        (b'{"line":"entry","fingerprint":"f","asked":{}}\n', "its first line alone is a header"),
    ],
)
def test_a_file_that_is_no_cassette_is_named(tmp_path: Path, data: bytes, says: str) -> None:
    cassette = tmp_path / "talk.jsonl"
    cassette.write_bytes(data)
    with pytest.raises(ConfigError, match=says):
        RecordedModel(cassette)


def test_a_cassette_that_is_not_there_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="record it with mode='missing' and a model"):
        RecordedModel(tmp_path / "talk.jsonl")
    with pytest.raises(ConfigError, match="say which one"):
        RecordedModel(tmp_path / "talk.jsonl", mode="missing")
