"""Stored errors as a model reads them: folded, in pages, and searched."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.chat import JsonObject
from motet.protocols.error_pages import MATCHES, PAGE_BYTES, error_page, folded
from motet.protocols.room_copies import corrected_json
from motet.runtime.exceptions import serialize_error

texts = st.text(max_size=200) | st.sampled_from(
    ["\n", '"\\' * 300, "é🙂\x00" * 900, "a b\n" * 3_000]
)
messages = st.lists(texts, max_size=6).map("".join)


def data_of(message: str, **more: object) -> JsonObject:
    return {"error_id": "err_1", "short_summary": "boom", "raw_error": {"message": message, **more}}


def data(answer: JsonObject) -> JsonObject:
    assert answer["success"] is True, answer
    return cast("JsonObject", answer["data"])


def pages(message: str, part: str) -> list[JsonObject]:
    """All pages from one end."""
    found: list[JsonObject] = []
    offset = 0
    while True:
        page = data(error_page(data_of(message + "!" * PAGE_BYTES), part, "", offset))
        found.append(page)
        assert len(found) < 500
        if page.get("end"):
            return found
        assert cast("int", page["next_offset"]) > offset
        offset = cast("int", page["next_offset"])


@given(messages)
def test_the_pages_from_either_end_are_the_whole_text(message: str) -> None:
    """Law: each page is bounded, only the last one has an end mark, and none leaves a gap."""
    heads, tails = pages(message, "head"), pages(message, "tail")
    whole = "".join(str(page["text"]) for page in heads)
    assert whole == "".join(str(page["text"]) for page in reversed(tails))
    assert message in whole
    for page in (*heads, *tails):
        assert len(json.dumps(page["text"], ensure_ascii=False).encode()) <= PAGE_BYTES
        assert page["total"] == len(whole)
        assert ("end" in page) != ("next_offset" in page)


@given(
    st.lists(st.sampled_from(["Needle here", "hay", "x" * 900, "two needles: NEEDLE"]), max_size=60)
)
def test_a_search_finds_every_line_with_the_words(lines: list[str]) -> None:
    """Law: the matches are those of a search line by line, whatever their number."""
    offset, found = 0, list[JsonObject]()
    message = "\n".join(lines)
    while True:
        page = data(error_page(data_of(message), "search", "needle", offset))
        matches = cast("list[JsonObject]", page["matches"])
        assert len(matches) <= MATCHES
        found += matches
        if page.get("end"):
            break
        offset = cast("int", page["next_offset"])
    assert len(found) == sum("needle" in line.lower() for line in lines)
    assert all("needle" in str(one["text"]).lower() for one in found)


def test_a_match_can_be_read_from_its_offset_on() -> None:
    message = "x" * 20_000 + "\nthe needle\n" + "y" * 20_000
    (match,) = cast(
        "list[JsonObject]", data(error_page(data_of(message), "search", "NEEDLE"))["matches"]
    )
    page = data(error_page(data_of(message), "head", "", cast("int", match["offset"])))
    assert str(page["text"]).startswith("the needle\ny")


@pytest.mark.parametrize(
    ("part", "query", "offset", "says"),
    [
        ("middle", "", 0, "part must be"),
        ("search", "", 0, "needs a query"),
        ("search", " ", 0, "needs a query"),
        ("search", "x" * 201, 0, "200 at most"),
        ("head", "x", 0, "query is for"),
        ("head", "", -1, "offset must be from 0 to"),
        ("tail", "", 10**9, "offset must be from 0 to"),
        ("search", "x", 10**9, "offset must be from 0 to"),
    ],
)
def test_a_wrong_argument_is_told(part: str, query: str, offset: int, says: str) -> None:
    answer = error_page(data_of("boom"), part, query, offset)
    assert answer["success"] is False
    error = cast("dict[str, str]", answer["error"])
    assert error["code"] == "INVALID_INPUT"
    assert says in error["message"]


def test_a_short_error_is_whole_and_says_nothing_twice() -> None:
    answer = data(error_page(data_of("boom\nat once", code="E1"), "head"))
    raw = {"code": "E1", "message": "boom\nat once"}
    assert answer == {"error_id": "err_1", "raw_error": raw, "end": True}
    other: JsonObject = {**data_of("boom"), "short_summary": "it broke"}
    assert data(error_page(other, "head"))["short_summary"] == "it broke"


# Tracebacks


def fold(raises: Callable[[], object]) -> tuple[JsonObject, str]:
    try:
        raises()
    except Exception as error:
        made = folded(serialize_error(error))
        return made, str(made["traceback"])
    raise AssertionError("it has not failed")


def test_frames_of_the_user_come_first_and_those_of_libraries_are_one_line() -> None:
    made, text = fold(lambda: json.loads("{bad"))
    *own, library = text.splitlines()
    assert own
    assert all("test_error_pages.py:" in line for line in own)
    assert own[-1].endswith('json.loads("{bad"))')
    assert "library frames, the last " in library
    assert made["type"] == "json.decoder.JSONDecodeError"
    assert "Expecting property name" not in text


def recursing(depth: int = 0) -> int:
    return other(depth + 1)


def other(depth: int) -> int:
    if depth > 500:
        raise ValueError("too deep")
    return recursing(depth)


def test_a_recursion_is_told_once() -> None:
    _, text = fold(recursing)
    assert text.count(" in recursing: ") == text.count(" in other: ") == 1
    assert "times)" in text


def chained() -> None:
    try:
        int("x")
    except ValueError as error:
        try:
            raise KeyError("none")  # for the context of the next one
        except KeyError:
            raise RuntimeError(str(error)) from error


def test_causes_are_told_with_their_frames_and_no_message_twice() -> None:
    made, text = fold(chained)
    assert "causes" not in made
    assert str(made["message"]).startswith("invalid literal")
    assert "caused by ValueError, with the message above" in text
    assert json.dumps(made).count("invalid literal") == 1
    assert text.count("in chained: int(") == 1


def in_context() -> None:
    try:
        int("x")
    except ValueError:
        raise RuntimeError("worse")  # noqa: B904  # the context is what is tested


def test_an_error_of_a_handler_names_the_one_that_it_handled() -> None:
    _, text = fold(in_context)
    assert "\nwhile handling ValueError: invalid literal for int()" in text


def grouped() -> None:
    errors: list[Exception] = []
    for raises in (chained, lambda: json.loads("[")):
        try:
            raises()
        except Exception as error:
            errors.append(error)
    raise ExceptionGroup("two", errors)


def test_each_member_of_a_group_is_told_once() -> None:
    made, text = fold(grouped)
    assert "errors" not in made
    assert text.count("\n1. ") == text.count("\n2. ") == 1
    assert "2. json.decoder.JSONDecodeError: Expecting value" in text
    assert json.dumps(made).count("invalid literal") == 1


@given(messages, messages)
def test_folding_never_fails_and_never_makes_longer(message: str, cause: str) -> None:
    """Law: whatever messages say, frames and links in their words included."""
    words = message + '\nTraceback (most recent call last):\n  File "x", line 1, in y\n    z\n'
    try:
        try:
            raise ValueError(cause)  # the cause of the next one
        except ValueError as error:
            raise RuntimeError(words) from error
    except RuntimeError as error:
        raw = serialize_error(error)
    made = folded(raw)
    assert made["message"] == raw["message"]
    assert len(json.dumps(made)) <= len(json.dumps(raw))


@pytest.mark.parametrize("raw", [{}, {"message": "m", "traceback": 7}, {"traceback": ""}])
def test_other_errors_stay_as_they_are(raw: JsonObject) -> None:
    assert folded(raw) == {key: value for key, value in raw.items() if value != ""}


@given(
    st.integers(0, 60),
    st.sampled_from(["cannot read:\n", "", "[#1 person ada] a\nb\n", "x" * 4_000 + "\n"]),
    st.sampled_from(["eve", "eve " * 200]),
)
def test_a_part_that_begins_within_a_message_is_corrected_with_it(
    lines: int, front: str, name: str
) -> None:
    """Law: no part of the error has the words of a message that is withdrawn afterwards."""
    about = data_of(f"{front}[#2 person {name}] SECRET\n" + "SECRET\n" * lines + "[end]")
    for part, query, offset in (
        ("head", "", 0),
        ("head", "", len(front) + len(name) + 40),
        ("tail", "", 0),
        ("tail", "", 20),
        ("search", "secret", 0),
        ("search", "secret", len(front) + len(name) + 40),
    ):
        answer = error_page(about, part, query, offset)
        assert len(json.dumps(answer, ensure_ascii=False).encode()) <= 2 * PAGE_BYTES
        after = corrected_json(json.dumps(answer), "2", "[#2 withdrawn person eve]")
        assert "SECRET" not in after
        assert ("[end]" in json.dumps(answer)) == ("[end]" in after)
