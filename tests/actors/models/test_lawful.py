"""Transcripts of any content are made lawful for each provider, at the edge."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from random import Random

import attrs
import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from motet.actors.models import anthropic, google, openai, pydantic_ai
from motet.actors.models.dialects import (
    BEGINNING,
    EMPTY,
    GO_ON,
    Lawful,
    Rules,
    lawful,
)
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.json_schema import problems
from motet.protocols.model_answers import assemble
from motet.protocols.models import ModelRequest, OutputSchema
from motet.protocols.tool_schemas import fitted, object_schema, with_keys
from motet.protocols.tools import ToolSpec
from tests.actors.models import strict
from tests.actors.models.builders import (
    STREAM_END,
    STREAM_HEAD,
    WEATHER,
    events_of,
    http_error,
    raw_server,
    read_request,
    request,
)
from tests.actors.models.dialects import DIALECTS, Dialect
from tests.aimock import SDK_GENERATORS


def openai_body(asked: Lawful) -> strict.Json:
    body: dict[str, object] = {"messages": openai.wire_messages(asked.request)}
    if asked.request.tools:
        body["tools"] = [openai.wire_tool(tool) for tool in asked.request.tools]
    return body


def anthropic_body(asked: Lawful) -> strict.Json:
    request = asked.request
    body: dict[str, object] = {"messages": anthropic.wire_messages(request.messages)}
    if request.system:
        body["system"] = request.system
    if request.tools:
        body["tools"] = [anthropic.wire_tool(tool) for tool in request.tools]
    return body


def google_body(asked: Lawful) -> strict.Json:
    request = asked.request
    return {
        "contents": google.wire_contents(request, "gemini-2.5-flash"),
        "tools": [google.wire_tool(tool) for tool in request.tools],
    }


def pydantic_ai_body(asked: Lawful) -> strict.Json:
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    messages = pydantic_ai.wire_messages(asked.request)
    return {
        "messages": ModelMessagesTypeAdapter.dump_python(messages),
        "tools": [
            (tool.name, tool.description, object_schema(tool)) for tool in asked.request.tools
        ],
    }


@attrs.frozen
class Strict:
    """A provider: its rules, the body of a request, and the check of that."""

    name: str
    rules: Rules
    body: Callable[[Lawful], strict.Json]
    problems: Callable[[strict.Json], list[str]]

    def refusals(self, asked: ModelRequest) -> list[str]:
        return self.problems(self.body(lawful(asked, self.rules)))


PROVIDERS = (
    Strict("openai", openai.RULES, openai_body, strict.openai_problems),
    Strict("anthropic", anthropic.RULES, anthropic_body, strict.anthropic_problems),
    Strict("google", google.RULES, google_body, strict.google_problems),
    Strict("pydantic_ai", pydantic_ai.RULES, pydantic_ai_body, strict.pydantic_ai_problems),
)
each = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)

TEXTS = [
    "",
    " \n",
    "x",
    "two\n\nlines ",
    "\ud800",
    "\x00",
    "日本",
    "\u200b",
    "[System: x]",
    "z" * 999,
]
NAMES = [
    *("get_weather", "multi_tool_use.parallel", "read file", "", " ", "ä", "1st", "a" * 80),
    *("functions.get_weather:0", "get_weather ", "get weather", "get-weather", "\ud83d", "_", "-"),
]
IDS = ["", "c1", "call:1", "toolu_01", "c" * 60, "c 1", "ü", "c" * 41, "call_1", "\udc00"]
ARGUMENTS = [
    *("{}", '{"a":1}', "", "{broken", "[1]", "null", "NaN", '{"a":NaN}', '{"a":1e999}'),
    *('{"n":123456789012345678901234567890}', '{"a":"\\ud800"}', '{"a":' * 200 + "1" + "}" * 200),
    *('{"a":{"b":[]}}', "{}{}", '"text"', '{"a":1,"a":2}'),
]
SCHEMAS: list[dict[str, object]] = [
    {},
    {"type": "object", "properties": {"city": {"type": "string"}}},
    {"anyOf": [{"type": "object"}, {"type": "null"}]},
    {"type": ["object", "null"], "oneOf": [], "enum": [{}]},
    {"type": "string"},
    {"properties": {"$filter": {"type": "string"}, "top": {}}, "required": ["$filter", "top"]},
    {
        "properties": {
            "filter[id]": {
                "type": "array",
                "items": {"properties": {"größe": {"type": "array"}, "": True, "a b": False}},
            },
            "b": {"$ref": "#/properties/filter[id]/items/properties/gr%C3%B6%C3%9Fe"},
            "x" * 70: {"enum": [{"@id": "\ud800"}, {"@id": 1}], "default": float("nan")},
        },
        "patternProperties": {"^x-": {"properties": {"@id": {"const": {"@id": 1}}}}},
        "$defs": {"a b": {"anyOf": [{"required": ["@id"]}, {"$ref": "#/$defs/a b"}]}},
        "dependentRequired": {"b": ["filter[id]"]},
        "description": "\x00",
    },
]


def garbage_rows(random: Random) -> list[ChatMessage]:
    """Rows in any order: calls without results, results without calls, doubled ids."""
    rows: list[ChatMessage] = []
    for _ in range(random.randrange(12)):
        match random.randrange(6):
            case 0 | 1:
                author = random.choice([None, None, "ada", "b\ud800"])
                note = random.choice(["", "", "hint", "injected", "summary"])
                rows.append(UserMessage(random.choice(TEXTS), author, note))  # type: ignore[arg-type]  # a note
            case 2 | 3:
                calls = [
                    Call(random.choice(IDS), random.choice(NAMES), random.choice(ARGUMENTS))
                    for _ in range(random.choice([0, 0, 1, 1, 2, 4] * 60 + [300]))
                ]
                rows.append(AssistantMessage(random.choice(TEXTS), tuple(calls)))
                rows += [
                    ToolMessage(call.id, call.name, random.choice(TEXTS), "failed")
                    for call in calls
                    if random.random() < 0.8
                ]
            case 4:
                rows.append(ToolMessage(random.choice(IDS), random.choice(NAMES), "lost"))
            case _:
                rows.append(AssistantMessage("[Stopped by user]", note="stopped"))
    return rows


def garbage_request(random: Random) -> ModelRequest:
    names = random.sample(NAMES, random.choice([0, 0, 1, 3, 6]))
    if random.random() < 0.004:
        names += [f"tool {number}" for number in range(600)]
    texts = [*TEXTS[:3], "z" * 1_024, "ä\ud800" * 900]
    tools = tuple(ToolSpec(name, random.choice(texts), random.choice(SCHEMAS)) for name in names)
    system = random.choice(["", " ", "Be brief.", "\ud800"])
    return ModelRequest("m", tuple(garbage_rows(random)), system, tools)


def refused_requests(seeds: range) -> list[str]:
    found: list[str] = []
    for seed in seeds:
        asked = garbage_request(Random(seed))
        for provider in PROVIDERS:
            found += [f"{seed} {provider.name}: {why}" for why in provider.refusals(asked)]
    return found


def test_no_provider_refuses_a_garbage_transcript() -> None:
    """Law: whatever the rows, a strict check of each provider's published rules finds nothing."""
    assert refused_requests(range(300)) == []


@pytest.mark.sweep
def test_no_provider_refuses_any_of_10000_garbage_transcripts() -> None:
    """Law: whatever the rows, a strict check of each provider's published rules finds nothing."""
    assert refused_requests(range(10_000)) == []


@each
def test_the_check_finds_each_broken_rule(provider: Strict) -> None:
    """The rows as they are, without the stage: most are refused."""
    refused = 0
    for seed in range(100):
        asked = Lawful(garbage_request(Random(seed)), {})
        try:
            refused += bool(provider.problems(provider.body(asked)))
        except (ValueError, RecursionError):
            refused += 1
    assert refused > 90


@each
def test_a_lawful_request_stays_as_it_is(provider: Strict) -> None:
    rows = (
        UserMessage("weather?"),
        AssistantMessage("I look.", (Call("abcdefgh1", "get_weather", '{"city":"Rome"}'),)),
        ToolMessage("abcdefgh1", "get_weather", "sun"),
        AssistantMessage("Sunny."),
        UserMessage("and tomorrow?"),
    )
    asked = ModelRequest("m", rows, "Be brief.", (WEATHER,))
    assert lawful(asked, provider.rules) == Lawful(asked, {})


@each
@given(st.lists(st.sampled_from(NAMES) | st.text(max_size=70), unique=True, max_size=8))
def test_a_call_comes_back_under_the_tools_own_name(provider: Strict, names: list[str]) -> None:
    """Law: the names in a request are different, and each leads back to its tool."""
    asked = ModelRequest("m", (UserMessage("x"),), "", tuple(ToolSpec(n, "d", {}) for n in names))
    made = lawful(asked, provider.rules)
    wire = [tool.name for tool in made.request.tools]
    assert len(set(wire)) == len(names)
    assert [made.names.get(name, name) for name in wire] == names


def test_a_hallucinated_name_never_takes_that_of_a_real_tool() -> None:
    call = Call("c1", "get weather")
    rows = (UserMessage("x"), AssistantMessage("", (call,)), ToolMessage("c1", "get weather", "no"))
    sent = lawful(
        ModelRequest("m", rows, "", (WEATHER, ToolSpec("get_weather_2", "", {}))), Rules()
    )
    row = sent.request.messages[1]
    assert isinstance(row, AssistantMessage)
    assert row.calls[0].name == "get_weather_3"


@pytest.mark.parametrize("name", ["Result[int]", "", "x" * 90, "Ticket"])
def test_the_name_of_an_output_fits_too(name: str) -> None:
    asked = msgspec.structs.replace(request("x"), output=OutputSchema(name, {"type": "object"}))
    for provider in PROVIDERS:
        output = lawful(asked, provider.rules).request.output
        assert output is not None
        assert strict.LETTER_FIRST.fullmatch(output.name)


def test_a_property_with_a_name_that_is_refused_has_another_at_every_depth() -> None:
    schema: strict.Json = {
        "properties": {
            "$filter": {"type": "string", "description": "Which."},
            "top": {"items": {"properties": {"$filter": {}}, "required": ["$filter"]}},
        },
        "required": ["$filter"],
        "additionalProperties": False,
    }
    rows = ("x", AssistantMessage("", (Call("c1", "find", '{"$filter": "$filter"}'),)))
    asked = request(*rows, tools=[ToolSpec("find", "Finds.", schema)])
    sent = lawful(asked, Rules())
    (tool,) = sent.request.tools
    ((wire, own),) = sent.properties["find"].items()
    assert (own, wire[:8]) == ("$filter", "_filter_")
    assert tool.parameters == {
        "properties": {
            wire: {"type": "string", "description": 'Which. (named "$filter")'},
            "top": {
                "items": {
                    "properties": {wire: {"description": '(named "$filter")'}},
                    "required": [wire],
                }
            },
        },
        "required": [wire],
        "additionalProperties": False,
    }
    called = sent.request.messages[1]
    assert isinstance(called, AssistantMessage)
    assert called.calls[0].arguments == f'{{"{wire}": "$filter"}}'


WORDS = ["a", "b", "$filter", "filter[id]", "größe", "", " ", "x" * 70, "_filter", "1", "a.b"]
KEYS = [*WORDS, "\ud800"]


@st.composite
def schema_and_value(draw: st.DrawFn, depth: int = 0) -> tuple[strict.Json, strict.Json]:
    """A schema, and a value that fits it."""
    kind = draw(st.sampled_from(["object", "object", "array", "text", "data", "choice"]))
    if depth > 3 or kind == "text":
        return {"type": "string"}, draw(st.text(max_size=5) | st.sampled_from(WORDS))
    if kind == "data":
        value = {draw(st.sampled_from(WORDS)): draw(st.sampled_from(WORDS))}
        return {"enum": [value, 1]}, value
    part, value = draw(schema_and_value(depth + 1))
    if kind == "array":
        return {"type": "array", "items": part}, [value]
    if kind == "choice":
        return {"anyOf": [{"type": "null"}, part]}, draw(st.sampled_from([None, value]))
    name, other = draw(st.lists(st.sampled_from(KEYS), min_size=2, max_size=2, unique=True))
    made: strict.Json = {"type": "object", "properties": {name: part, other: {"type": "string"}}}
    made |= {"required": [name], "additionalProperties": False}
    return made, {name: value}


@each
@given(drawn=schema_and_value())
def test_arguments_fit_the_schema_that_is_sent_and_come_back_unchanged(
    provider: Strict, drawn: tuple[strict.Json, strict.Json]
) -> None:
    """Law: what fits the own schema fits the one that is sent under its names, and comes back as it
    was, character by character."""
    schema, value = drawn
    whole: strict.Json = {"type": "object", "properties": {"$": schema}, "required": ["$"]}
    asked = ModelRequest("m", (UserMessage("x"),), "", (ToolSpec("f", "d", whole),))
    assert provider.refusals(asked) == []
    sent, names = fitted(whole, provider.rules.property)
    written = json.dumps({"$": value})
    given = with_keys(written, names)
    assert with_keys(given, {wire: name for name, wire in names.items()}) == written
    assert problems(json.loads(given), sent) == ()


def test_more_tools_than_a_provider_takes_are_left_out_and_long_descriptions_go_on() -> None:
    tools = [ToolSpec(f"t{number}", "d" * 1_500, {}) for number in range(200)]
    sent = lawful(request("x", tools=tools), openai.RULES).request
    assert [tool.name for tool in sent.tools] == [f"t{number}" for number in range(128)]
    assert {len(tool.description) for tool in sent.tools} == {1_024}
    assert f"More about the tool t0: …{'d' * 477}\n" in sent.system
    assert len(lawful(request("x", tools=tools), anthropic.RULES).request.tools) == 200


def test_many_calls_of_one_answer_become_several_messages() -> None:
    calls = tuple(Call(f"c{number}", "f") for number in range(300))
    results = [ToolMessage(call.id, "f", "ok") for call in calls]
    sent = lawful(request("x", AssistantMessage("look", calls), *results), openai.RULES).request
    answers = [row for row in sent.messages if isinstance(row, AssistantMessage)]
    assert [(row.text, len(row.calls)) for row in answers] == [("look", 128), ("", 128), ("", 44)]
    assert sum(isinstance(row, ToolMessage) for row in sent.messages) == 300


def test_a_hint_is_a_part_of_the_users_message() -> None:
    sent = lawful(request("go", UserMessage("[Hint: last turn]", note="hint")), Rules())
    assert [row.text for row in sent.request.messages] == ["go\n\n[Hint: last turn]"]


def test_a_conversation_begins_and_ends_with_the_user() -> None:
    sent = lawful(request(AssistantMessage("hello")), Rules())
    assert [row.text for row in sent.request.messages] == [BEGINNING, "hello", GO_ON]
    assert [row.text for row in lawful(request(), Rules()).request.messages] == [BEGINNING]
    assert [row.text for row in lawful(request(" "), Rules()).request.messages] == [EMPTY]


def test_withdrawn_tools_are_declared_where_the_transcript_has_calls() -> None:
    rows = ("x", AssistantMessage("", (Call("c1", "f"),)), ToolMessage("c1", "f", "ok"))
    asked = lawful(request(*rows), anthropic.RULES)
    assert ([tool.name for tool in asked.request.tools], asked.withdrawn) == (["f"], True)
    assert lawful(request(*rows), openai.RULES).request.tools == ()
    assert not lawful(request("x"), anthropic.RULES).withdrawn


def problems_over_http(name: str, body: Mapping[str, object]) -> list[str]:
    if name == "anthropic":
        return strict.anthropic_problems(body)
    if name == "google":
        return strict.google_problems(snake(body))
    return strict.openai_problems(body)


def snake(body: Mapping[str, object]) -> strict.Json:
    """A body of Google's REST API under the names of its SDK."""
    names = {
        "functionCall": "function_call",
        "functionResponse": "function_response",
        "functionDeclarations": "function_declarations",
        "parametersJsonSchema": "parameters_json_schema",
    }
    text = msgspec.json.encode(body).decode()
    for camel, name in names.items():
        text = text.replace(f'"{camel}"', f'"{name}"')
    found = msgspec.json.decode(text)
    lists = [tool["function_declarations"] for tool in found.get("tools", [])]
    return found | {"tools": [tool for tools in lists for tool in tools]}


@pytest.mark.usefixtures("sdk_garbage")
@pytest.mark.parametrize(
    "dialect",
    [pytest.param(dialect, marks=SDK_GENERATORS) for dialect in DIALECTS],
    ids=str,
)
async def test_a_strict_server_answers_every_garbage_transcript(dialect: Dialect) -> None:
    """Law, through the SDK and a connection: no request is refused."""
    found: list[str] = []

    async def handler(stream: trio.SocketStream) -> None:
        while body := bodies.pop(0) if bodies else await read_request(stream):
            problems = problems_over_http(dialect.name, msgspec.json.decode(body))
            found.extend(problems)
            if problems:
                await stream.send_all(http_error(400, {"error": {"message": problems[0]}}))
            else:
                parts = (STREAM_HEAD, dialect.word("Fine."), dialect.end, STREAM_END)
                await stream.send_all(b"".join(parts))

    bodies: list[bytes] = []
    async with raw_server(handler, bodies) as url:
        model = dialect.make(url)
        for seed in range(25):
            asked = garbage_request(Random(seed))
            assert assemble(await events_of(model, asked)).text == "Fine."
        await model.aclose()
    assert found == []


@pytest.mark.usefixtures("sdk_garbage")
@pytest.mark.parametrize(
    "dialect",
    [pytest.param(dialect, marks=SDK_GENERATORS) for dialect in DIALECTS],
    ids=str,
)
async def test_arguments_come_back_under_the_own_names_of_properties(dialect: Dialect) -> None:
    """Through the SDK and a connection; in the middle of other calls, and with every digit."""
    schema: strict.Json = {"type": "object", "properties": {"filter[id]": {"type": "integer"}}}
    tools = (ToolSpec("find things", "Finds.", schema), WEATHER)
    own = '{"filter[id]":90071992547409931234,"x":{"filter[id]":null}}'

    async def handler(stream: trio.SocketStream) -> None:
        body = bodies.pop(0)
        name, key = re.findall(rb"find_things|filter_id__[0-9a-f]{8}", body)[:2]
        wire = own.replace("filter[id]", key.decode())
        if dialect.name in ("google", "pydantic_ai"):
            wire = wire.replace("90071992547409931234", "7")
        calls = [(name.decode(), wire), ("get_weather", '{"city":"Rome"}')]
        await stream.send_all(STREAM_HEAD + dialect.calls(calls) + dialect.end + STREAM_END)

    bodies: list[bytes] = []
    async with raw_server(handler, bodies) as url:
        model = dialect.make(url)
        with trio.fail_after(10):
            answer = assemble(await events_of(model, request("x", tools=tools)))
        await model.aclose()
    found, weather = answer.calls
    assert (found.name, weather.name) == ("find things", "get_weather")
    assert json.loads(found.arguments) == json.loads(own) or json.loads(found.arguments) == (
        json.loads(own.replace("90071992547409931234", "7"))
    )
    assert json.loads(weather.arguments) == {"city": "Rome"}


@pytest.mark.usefixtures("sdk_garbage")
@pytest.mark.parametrize(
    "dialect",
    [pytest.param(one, marks=SDK_GENERATORS) for one in DIALECTS if one.name != "pydantic_ai"],
    ids=str,
)
async def test_an_answer_comes_back_under_the_own_names_of_its_form(dialect: Dialect) -> None:
    """The same for a form that the provider holds the answer to, at every depth, in parts."""
    inner: strict.Json = {"type": "object", "properties": {"ü b": {"type": "integer"}}}
    schema: strict.Json = {
        "type": "object",
        "properties": {"filter[id]": {"type": "array", "items": inner}, "plain": {}},
        "required": ["filter[id]"],
    }
    own = '{"filter[id]": [{"ü b": 90071992547409931234}], "plain": "filter[id]: x"}'
    asked = replace(request("x"), output=OutputSchema("form of it", schema))
    seen: list[bytes] = []

    async def handler(stream: trio.SocketStream) -> None:
        seen.append(body := bodies.pop(0))
        (outer,) = set(re.findall(rb"filter_id__[0-9a-f]{8}", body))
        (below,) = set(re.findall(rb"_?__b_[0-9a-f]{8}", body))
        wire = own.replace('"filter[id]":', f'"{outer.decode()}":')
        wire = wire.replace("ü b", below.decode())
        parts = [dialect.word(part) for part in (wire[:20], wire[20:])]
        await stream.send_all(b"".join((STREAM_HEAD, *parts, dialect.end, STREAM_END)))

    bodies: list[bytes] = []
    async with raw_server(handler, bodies) as url:
        model = dialect.make(url)
        with trio.fail_after(60):
            answer = assemble(await events_of(model, asked))
        await model.aclose()
    assert json.loads(answer.text) == json.loads(own)
    assert b'"filter[id]":' not in seen[0]
