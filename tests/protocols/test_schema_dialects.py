"""Schemas of answers as providers take them, and as they go over the wire."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.agents.output import form_of
from motet.actors.models.anthropic import AnthropicModel
from motet.actors.models.openai import OpenAIModel
from motet.protocols.chat import JsonObject
from motet.protocols.models import ModelFailure, ModelRequest, NativeOutput, OutputSchema
from motet.protocols.schema_dialects import ANTHROPIC, OPENAI, Dialect, translated
from tests.actors.models.builders import events_of, http_error, raw_server, request


class Bug(msgspec.Struct, tag="bug"):
    title: Annotated[str, msgspec.Meta(min_length=3, description="in short")]
    severity: Annotated[int, msgspec.Meta(ge=1, le=5)]


class Wish(msgspec.Struct, tag="wish"):
    due: str | None = None


class Tree(msgspec.Struct):
    name: str
    parts: list[Tree]


class Page(msgspec.Struct):
    limit: int = 50


def schema_of(kind: object) -> JsonObject:
    form = form_of(kind)
    assert form is not None
    return form.schema


def test_openai_takes_every_property_as_required_and_no_others() -> None:
    assert translated(schema_of(Bug), OPENAI) == {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["bug"]},
            "title": {"type": "string", "description": "in short (minLength: 3)"},
            "severity": {"type": "integer", "minimum": 1, "maximum": 5},
        },
        "required": ["type", "title", "severity"],
        "additionalProperties": False,
    }


def test_anthropic_gets_unenforced_bounds_in_the_description() -> None:
    made = translated(schema_of(Bug), ANTHROPIC)
    assert made is not None
    properties = cast("dict[str, JsonObject]", made["properties"])
    assert properties["severity"] == {
        "type": "integer",
        "description": "(minimum: 1, maximum: 5)",
    }


@pytest.mark.parametrize(
    ("kind", "openai", "anthropic"),
    [
        (Bug, True, True),
        (Wish, True, True),  # what may be absent may be null as well
        (list[Bug | Wish], True, True),
        (Literal["a", 1, None], True, True),
        (Page, False, True),  # a model that has to give a limit would have to invent one
        (Tree, True, False),
        (dict[str, int], False, False),
        (tuple[int, str], False, False),
        (list[object], False, False),
    ],
)
def test_a_schema_that_would_mean_something_else_is_not_translated(
    kind: object, openai: bool, anthropic: bool
) -> None:
    assert (translated(schema_of(kind), OPENAI) is not None) == openai
    assert (translated(schema_of(kind), ANTHROPIC) is not None) == anthropic


SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {"type": "string", "minLength": 1},
            {"type": "integer", "minimum": 0, "default": 3},
            {"type": "string", "format": "date"},
            {"type": "string", "format": "color"},
            {"enum": ["a", 2]},
            {"type": "null"},
            {"type": "object", "additionalProperties": {"type": "string"}},
            {},
        ]
    ),
    lambda inner: st.one_of(
        inner.map(lambda items: {"type": "array", "items": items, "maxItems": 3}),
        st.lists(inner, min_size=1, max_size=3).map(lambda many: {"anyOf": many}),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).flatmap(
            lambda properties: st.lists(st.sampled_from(sorted(properties)), unique=True).map(
                lambda required: {
                    "type": "object",
                    "properties": properties,
                    "required": required,
                }
            )
        ),
    ),
    max_leaves=6,
)


@given(SCHEMAS, st.sampled_from([OPENAI, ANTHROPIC]))
def test_a_translation_has_only_keywords_of_its_dialect(
    schema: JsonObject, dialect: Dialect
) -> None:
    """Law: every place has a type or a choice; every object is closed, and complete if need be."""
    made = translated(schema, dialect)
    if made is not None:
        check(made, dialect)


def check(node: JsonObject, dialect: Dialect) -> None:
    structure = {"type", "anyOf", "enum", "description", "properties", "items", "required"}
    assert set(node) <= structure | {"additionalProperties"} | dialect.keywords
    assert "type" in node or "anyOf" in node
    for part in cast("list[JsonObject]", node.get("anyOf", [])):
        check(part, dialect)
    if node.get("type") == "array":
        check(cast(JsonObject, node["items"]), dialect)
    if node.get("type") == "object":
        properties = cast("dict[str, JsonObject]", node["properties"])
        assert properties
        assert node["additionalProperties"] is False
        assert not dialect.all_required or node["required"] == list(properties)
        for part in properties.values():
            check(part, dialect)


# Over the wire


ASKED = OutputSchema("Bug", schema_of(Bug))


async def sent(model: OpenAIModel | AnthropicModel, bodies: list[bytes]) -> JsonObject:
    asked = ModelRequest("m", request("hi").messages, output=ASKED)
    with pytest.raises(ModelFailure):
        await events_of(model, asked)
    await model.aclose()
    return msgspec.json.decode(bodies[0], type=JsonObject)


async def refuse(stream: trio.SocketStream) -> None:
    await stream.send_all(http_error(400, {"error": {"message": "no"}}))


async def test_openai_gets_it_as_a_strict_response_format() -> None:
    bodies: list[bytes] = []
    async with raw_server(refuse, bodies) as url:
        body = await sent(OpenAIModel("gpt-x", base_url=url, api_key="k"), bodies)
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {
            "name": "Bug",
            "schema": translated(ASKED.schema, OPENAI),
            "strict": True,
        },
    }


async def test_anthropic_gets_it_as_the_format_of_its_output() -> None:
    bodies: list[bytes] = []
    async with raw_server(refuse, bodies) as url:
        body = await sent(AnthropicModel("claude-x", base_url=url, api_key="k"), bodies)
    schema = translated(ASKED.schema, ANTHROPIC)
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": schema}}


@pytest.mark.parametrize(
    ("model", "takes"),
    [
        (OpenAIModel("gpt-5.2"), True),
        (OpenAIModel("gpt-4.1-mini"), True),
        (OpenAIModel("gpt-4-turbo"), False),
        (OpenAIModel("gpt-3.5-turbo"), False),
        (OpenAIModel("llama", base_url="http://localhost:8000/v1"), False),
        (OpenAIModel("llama", base_url="http://localhost:8000/v1", native_output=True), True),
        (OpenAIModel("gpt-5.2", base_url="https://api.openai.com/v1"), True),
        (AnthropicModel("claude-sonnet-4-5"), True),
        (AnthropicModel("claude-sonnet-4-20250514"), False),
        (AnthropicModel("claude-3-5-haiku-latest"), False),
        (AnthropicModel("claude-sonnet-4-5", native_output=False), False),
    ],
)
def test_a_schema_is_sent_only_to_models_that_support_it(
    model: NativeOutput, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    assert model.takes_output(ASKED, tools=True) == takes
