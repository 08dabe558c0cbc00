"""The official test suite of JSON Schema 2020-12: no crash, no wrong verdict outside ``format``."""

from __future__ import annotations

import json
import lzma
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypedDict

import msgspec
import pytest

from motet.actors.tools.arguments import ArgumentError, ForeignArguments
from motet.protocols.chat import JsonObject
from motet.protocols.errors import SchemaError
from motet.protocols.json_schema import JsonSchema, compiled
from motet.protocols.schema_dialects import ANTHROPIC, OPENAI, translated
from motet.protocols.schema_values import filled

SUITE = Path(__file__).parent / "suite" / "draft2020-12.json.xz"
REMOTE = ("leads to nothing in it", "its dialect is not known")


class Case(TypedDict):
    description: str
    data: object
    valid: bool


class Group(TypedDict):
    description: str
    schema: JsonObject | bool
    tests: list[Case]


@cache
def suite() -> dict[str, list[Group]]:
    return msgspec.json.decode(lzma.decompress(SUITE.read_bytes()), type=dict[str, list[Group]])


@cache
def checks() -> list[tuple[str, Group, JsonSchema]]:
    """The groups whose schemas are complete. The others need a document from elsewhere."""
    found: list[tuple[str, Group, JsonSchema]] = []
    refused: list[tuple[object, str]] = []
    for name, groups in suite().items():
        for group in groups:
            try:
                check = compiled(group["schema"])
            except SchemaError as error:
                refused.append((group["schema"], str(error)))
            else:
                found.append((name, group, check))
    for schema, why in refused:
        assert "localhost:1234" in json.dumps(schema)
        assert any(text in why for text in REMOTE)
    assert len(refused) < 30
    return found


def test_no_case_is_judged_wrongly() -> None:
    """Law: a value has no problems if and only if the suite calls it valid."""
    wrong: list[str] = []
    cases = 0
    for name, group, check in checks():
        for case in group["tests"]:
            cases += 1
            problems = check.problems(case["data"])
            is_annotation = name == "format" or (
                name.startswith("optional/format") and not problems
            )
            if (not problems) != case["valid"] and not is_annotation:
                wrong.append(f"{name}: {group['description']}: {case['description']}: {problems}")
    assert not wrong
    assert cases > 1_800


def test_a_valid_format_is_never_refused() -> None:
    for name, group, check in checks():
        for case in group["tests"] if name.startswith("optional/format") else ():
            assert not (case["valid"] and check.problems(case["data"])), (name, case)


def test_what_fits_is_the_same_object_and_its_problems_are_single_lines() -> None:
    """Law: reading a value never changes it; a valid one is returned itself."""
    for name, group, check in checks():
        for case in group["tests"]:
            before = json.dumps(case["data"])
            value, problems = check.read(case["data"])
            assert json.dumps(case["data"]) == before
            if case["valid"] and name != "format":
                assert value is case["data"]
            assert all(line and "\n" not in line for line in problems)


def test_each_schema_can_be_a_parameter_of_a_tool() -> None:
    """Law: its arguments are accepted or refused, and accepted ones are not changed again."""
    for _, group, _ in checks():
        schema: JsonObject = {"type": "object", "properties": {"value": group["schema"]}}
        try:
            arguments = ForeignArguments(schema)
            arguments.check({})
        except SchemaError:
            continue  # it refers to its own root, which is another one now
        for case in group["tests"]:
            sent = {"value": case["data"]}
            with suppress(ArgumentError):
                read = arguments.parse(json.dumps(sent))
                assert arguments.check(read, strict=True) is read


def test_each_schema_is_translated_for_providers_or_left_alone() -> None:
    """Law: no schema that can be checked makes a request, or a demo's call, fail."""
    for _, group, _ in checks():
        schema: JsonObject = {"type": "object", "properties": {"value": group["schema"]}}
        merged: JsonObject = {"type": "object", "allOf": [group["schema"]]}
        for one in (schema, merged):
            for dialect in (OPENAI, ANTHROPIC):
                json.dumps(translated(one, dialect))
            json.dumps(filled(one, "text", lambda _: 0))


@pytest.mark.parametrize("keyword", ["properties", "items", "not", "anyOf", "if", "$defs"])
@pytest.mark.parametrize("boolean", [True, False])
def test_a_boolean_stands_wherever_a_schema_may(keyword: str, boolean: bool) -> None:
    inner: dict[str, object] = {
        "properties": {"x": boolean},
        "anyOf": [boolean],
        "$defs": {"a": boolean},
    }
    check = compiled({keyword: inner.get(keyword, boolean)})
    assert all(isinstance(line, str) for line in check.problems({"x": [1]}))
