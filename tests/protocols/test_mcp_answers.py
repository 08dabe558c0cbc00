"""A server's answer, before the rule for results."""

from __future__ import annotations

import pytest

from motet.protocols.chat import JsonObject
from motet.protocols.mcp import McpServer, answer_of, too_much

IMAGE: JsonObject = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


def text(words: str) -> JsonObject:
    return {"type": "text", "text": words}


def test_texts_alone_are_one_text() -> None:
    assert answer_of({"content": [text("a"), text("b")]}).value == "a\n\nb"
    assert answer_of({"content": []}).value == ""


def test_an_image_stays_in_a_field_where_binary_is_found() -> None:
    image: JsonObject = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    answer = answer_of({"content": [text("see"), {**image, "annotations": {"priority": 1}}]})
    assert answer.value == ["see", image]


def test_a_resource_is_its_text_under_its_address_or_its_bytes_with_their_type() -> None:
    words: JsonObject = {"uri": "file:///a", "text": "hello"}
    assert answer_of({"content": [{"type": "resource", "resource": words}]}).value == (
        "[file:///a]\nhello"
    )
    blob: JsonObject = {"uri": "file:///b", "blob": "aGk="}
    assert answer_of({"content": [{"type": "resource", "resource": blob}]}).value == {
        "mimeType": "application/octet-stream",
        "uri": "file:///b",
        "blob": "aGk=",
    }


def test_a_link_keeps_its_fields() -> None:
    link: JsonObject = {"type": "resource_link", "uri": "file:///a", "name": "a"}
    assert answer_of({"content": [link]}).value == link


def test_structured_content_is_not_repeated() -> None:
    structured: JsonObject = {"a": [1, 2]}
    assert answer_of({"content": [text('{"a":[1,2]}')], "structuredContent": structured}).value == (
        '{"a":[1,2]}'
    )
    assert answer_of({"content": [text("5")], "structuredContent": {"result": 5}}).value == "5"
    assert answer_of({"content": [text("x")], "structuredContent": {"result": "x"}}).value == "x"
    assert answer_of({"content": [], "structuredContent": structured}).value == structured
    assert answer_of({"content": [text("two")], "structuredContent": structured}).value == [
        "two",
        structured,
    ]


@pytest.mark.parametrize(
    ("content", "structured"),
    [
        (
            [text("line 1\nline 2")],
            {"content": "line 1\nline 2"},
        ),  # a read of the filesystem server
        ([text("a: x\n"), text("b: y")], {"content": "a: x\n\nb: y"}),
        ([text("a"), text("b")], {"lines": ["a", "b"]}),
        ([text("1"), text("2")], {"result": [1, 2]}),
        ([text('{"b": 1, "a": [1.5]}')], {"a": [1.5], "b": 1}),
        ([text('[\n  {"name": "x"}\n]')], {"entities": [{"name": "x"}]}),
        ([text("true")], {"result": True}),
        ([text("")], {"content": ""}),
        ([IMAGE], {"content": [IMAGE]}),
        ([text("[]")], []),
    ],
)
def test_a_value_that_is_there_twice_is_told_once(
    content: list[JsonObject], structured: object
) -> None:
    once = answer_of({"content": content}).value
    assert answer_of({"content": content, "structuredContent": structured}).value == once


@pytest.mark.parametrize(
    ("content", "structured"),
    [
        ([], {"matches": []}),
        ([text("Found 2 files.")], {"content": ["a", "b"]}),
        ([text("1")], {"result": True}),
        ([text("x")], {"content": "x", "size": 1}),
        ([text("x")], {"content": "xy"}),
    ],
)
def test_a_value_that_adds_something_is_told(content: list[JsonObject], structured: object) -> None:
    value = answer_of({"content": content, "structuredContent": structured}).value
    assert value == structured or (isinstance(value, list) and value[-1] == structured)


def test_a_failure_is_reported() -> None:
    assert answer_of({"content": [text("no")], "isError": True}).failed


def test_an_answer_is_weighed_before_it_is_parsed() -> None:
    """Only its size and the values of its JSON count, not the signs within texts."""
    limits = McpServer(command=("x",), answer_mb=0.001, answer_values=100)
    assert too_much(b" " * 1_001, limits) == "it is longer than 0.001 MB"
    assert too_much(b"[" + b"1," * 102 + b"1]", limits) == "it has more than 100 values"
    assert too_much(b"[" + b"1," * 98 + b"1]", limits) == ""
    assert too_much(b'["' + b",[{" * 99 + b'"]', limits) == ""
    assert too_much(b'["' + rb",\"," * 99 + b'"]', limits) == ""
    assert too_much(b'["\\\\",' + b"{}," * 99 + b'"]', limits) != ""
    assert too_much(b'["open' + b",[" * 99, limits) != ""
