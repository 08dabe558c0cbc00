"""Errors as JSON objects, as one line, and their ids."""

from __future__ import annotations

import math
import secrets
import tracemalloc
from datetime import UTC, datetime
from subprocess import CalledProcessError
from typing import NoReturn, cast

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.runtime.describe import (
    ID_LENGTH,
    SUMMARY_LIMIT,
    error_code,
    find_id,
    is_id,
    new_id,
    summarize,
)
from motet.runtime.exceptions import DEPTH_LIMIT, message_of, serialize_error, to_json_types

any_text = st.text(st.characters(exclude_categories=()))
leaves = st.none() | st.booleans() | st.integers() | st.floats() | any_text | st.binary()
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.dictionaries(any_text | st.integers(), inner),
    max_leaves=20,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(values)
def test_every_value_becomes_an_object_that_strict_json_takes(value: object) -> None:
    """Law: the result survives a strict encoder and decoder unchanged."""
    made = serialize_error(value)
    assert msgspec.json.decode(msgspec.json.encode(made)) == made


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_an_object_stays_as_it_is(value: dict[str, object]) -> None:
    """Law: raw_error(x) == x for a JSON object."""
    assert serialize_error(value) == value


@given(any_text.filter(lambda text: not text.lstrip().startswith("{")))
def test_a_text_is_wrapped_once(text: str) -> None:
    """Law: the only key is the message, and it is the text itself, control characters included."""
    made = serialize_error(text)
    assert list(made) == ["message"]
    if text.isascii():
        assert made == {"message": text}


@pytest.mark.parametrize("text", ["nul\0", "vt\x0b", "\x1b[31mred\x1b[0m", '"x"', "", "{not json"])
def test_what_is_no_object_is_a_message(text: str) -> None:
    assert serialize_error(text) == {"message": text}


def test_a_text_that_is_a_json_object_is_that_object() -> None:
    assert serialize_error(' {"code": 7, "message": "boom"}') == {"code": 7, "message": "boom"}
    assert serialize_error('{"n": NaN}') == {"message": '{"n": NaN}'}
    assert serialize_error("{" * 5_000) == {"message": "{" * 5_000}


def test_an_exception_keeps_type_causes_and_traceback() -> None:
    def fail() -> None:
        try:
            raise OSError("disk gone")
        except OSError as error:
            raise ValueError("cannot save") from error

    with pytest.raises(ValueError, match="cannot save") as caught:
        fail()
    made = serialize_error(caught.value, "E7")
    assert made["code"] == "E7"
    assert (made["message"], made["type"]) == ("cannot save", "ValueError")
    assert made["causes"] == [{"message": "disk gone", "type": "OSError"}]
    assert "in fail" in cast("str", made["traceback"])


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_huge_message_is_not_copied_into_the_traceback(letter: str) -> None:
    message = (letter * 79 + "\n") * 12_500
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError(message) from OSError(message)
    tracemalloc.start()
    try:
        made = serialize_error(caught.value)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made["message"] == message
    assert made["causes"] == [{"message": message, "type": "OSError"}]
    assert cast("str", made["traceback"]).endswith("...\n")
    assert kept < 100_000, "the message is the exception's own, and not copied"


def test_a_group_lists_its_errors_and_a_group_of_one_is_opened() -> None:
    two = serialize_error(ExceptionGroup("several", [OSError("a"), ValueError("b")]))
    assert [e["message"] for e in cast("list[dict[str, str]]", two["errors"])] == ["a", "b"]
    assert serialize_error(ExceptionGroup("one", [OSError("a")]))["type"] == "OSError"


def test_a_chain_of_causes_may_be_cyclic() -> None:
    first, second = OSError("first"), OSError("second")
    first.__cause__, second.__cause__ = second, first
    assert serialize_error(first)["causes"] == [{"message": "second", "type": "OSError"}]


def test_what_json_cannot_hold_is_text() -> None:
    class Silent:
        def __str__(self) -> str:
            raise RuntimeError("no")

    made = to_json_types(
        {"nan": math.nan, "bytes": b"\xff!", "big": 1 << 5_000, 3: Silent(), "set": {1}}
    )
    assert made == {
        "nan": "nan",
        "bytes": "\ufffd!",
        "big": "<integer of 5001 bits>",
        "3": f"<{Silent.__module__}.{Silent.__qualname__} without text>",
        "set": [1],
    }


def test_cyclic_and_explosive_values_end() -> None:
    cyclic: list[object] = []
    cyclic.append(cyclic)
    assert "<cut>" in msgspec.json.encode(to_json_types(cyclic)).decode()
    explosive: object = "x"
    for _ in range(DEPTH_LIMIT - 1):
        explosive = [explosive, explosive]
    assert len(msgspec.json.encode(to_json_types(explosive))) < 2_000_000


# The one line a model sees of an error.

CASES: dict[str, tuple[str, str]] = {
    "a hundred characters are not cut": ("a" * 100, "a" * 100),
    "one more is": ("a" * 101, "a" * 97 + "..."),
    "the newline at index 99 is no part of the line": ("a" * 99 + "\nrest", "a" * 99),
    "the limit counts the dots": ("a" * 150 + "\nrest", "a" * 97 + "..."),
    "a leading newline is skipped": ("\nreal message", "real message"),
    "so are blank lines, and spaces": ("\n \n  Traceback start\nmore", "Traceback start"),
    "a bare carriage return ends a line": ("line one\rline two", "line one"),
    "so do the separators of Unicode": ("line one\u2028line two", "line one"),
    "code points count, not bytes": ("é" * 60, "é" * 60),
    "NUL is taken out": ("nul\0 inside\0", "nul inside"),
    "a line of NULs is blank": ("\0\0\nreal", "real"),
    "a lone surrogate is replaced": ("bad \ud800 char", "bad \ufffd char"),
    "a pair of them is one character": ("\ud83d\ude00", "😀"),
    "nothing stays nothing": (" \n\t\r\n", ""),
}


@pytest.mark.parametrize(("text", "line"), CASES.values(), ids=CASES.keys())
def test_a_text_is_summed_up_by_its_first_line(text: str, line: str) -> None:
    assert summarize(text) == line


@given(st.text(st.characters(exclude_categories=())))
def test_a_summary_is_short_and_one_line_and_its_own_summary(text: str) -> None:
    """Law: len <= 100, one line, UTF-8, and summary(summary(x)) == summary(x)."""
    line = summarize(text)
    assert len(line) <= SUMMARY_LIMIT
    assert len(line.splitlines()) <= 1
    assert line.encode().decode() == line.strip() == line
    assert summarize(line) == line


@given(st.text(min_size=1), st.text())
def test_a_summary_with_a_code_obeys_the_same_laws(code: str, text: str) -> None:
    """Law: the prefix counts; whatever the code is, the summary is at most one line of 100."""
    line = summarize({"code": code, "message": text})
    assert len(line) <= SUMMARY_LIMIT
    assert len(line.splitlines()) <= 1
    assert summarize(line) == line


def test_the_code_of_an_error_object_stands_in_front() -> None:
    nested = {"success": False, "error": {"code": "SQL_ERROR", "message": "Syntax error\nQuery"}}
    assert summarize(nested) == "Code SQL_ERROR: Syntax error"
    assert summarize({"code": "SQL_ERROR", "message": "Syntax error"}, "E7").startswith("Code E7: ")
    assert summarize({"code": 42, "message": "m" * 100}) == "Code 42: " + "m" * 88 + "..."


def test_an_object_without_a_message_is_shown_as_json() -> None:
    assert summarize({"reason": "gone", "n": 1}) == '{"reason":"gone","n":1}'
    assert summarize({"error": "no disk"}) == "no disk"
    assert summarize({}) == summarize(None) == ""


def test_an_exception_without_text_is_summed_up_by_its_class() -> None:
    assert summarize(trio.TooSlowError()) == "trio.TooSlowError"
    assert summarize(PermissionError()) == "PermissionError"
    assert summarize(KeyError("name")) == "KeyError: 'name'"


def test_a_group_of_one_is_the_error_in_it_and_a_larger_one_names_all() -> None:
    one = ExceptionGroup("nursery", [ExceptionGroup("inner", [OSError("disk gone\nat 7")])])
    two = ExceptionGroup("nursery", [OSError("disk gone\nat 7"), ValueError("bad")])
    assert summarize(one) == "disk gone"
    assert summarize(two) == "disk gone; bad"


def test_an_exception_that_cannot_be_read_is_summed_up_all_the_same() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert summarize(Unreadable()).startswith(f"<{Unreadable.__module__}.")


@pytest.mark.parametrize("base", [Exception, OSError, KeyError])
@pytest.mark.parametrize("key", [False, True])
def test_an_exception_is_never_asked_for_its_class(base: type[Exception], *, key: bool) -> None:
    """Its ``__class__`` is code of others, which could end the program."""

    def end(_: object) -> NoReturn:
        raise SystemExit(3)

    ending = type("Ending", (base,), {"__class__": property(end)})
    error = ending(type("Key", (), {"__class__": property(end)})()) if key else ending("said")
    assert summarize(serialize_error(error))
    assert message_of(error)


def test_only_texts_and_integers_are_codes() -> None:
    assert error_code({"code": 7}) == "7"
    assert error_code({"code": True}) == error_code({"code": ["x"]}) == error_code("text") == ""


# Ids of stored errors.

ID = "err_20241121_230334_abc123"
NOON = datetime(2024, 11, 21, 23, 3, 34, tzinfo=UTC).timestamp()
times = st.floats(min_value=0, max_value=4e9)
suffixes = st.text("0123456789abcdef", min_size=6, max_size=6)


def test_an_id_is_the_utc_time_and_six_hex_digits() -> None:
    assert new_id(NOON, lambda size: "abc123"[: 2 * size]) == ID
    assert len(ID) == ID_LENGTH == 26


@given(times)
def test_every_new_id_has_the_shape(now: float) -> None:
    """Law: is_id(new_id(t, h)) for every time and every source of hex digits."""
    assert is_id(new_id(now, secrets.token_hex))


@given(times, times, suffixes, suffixes)
def test_ids_sort_as_their_seconds_do(a: float, b: float, x: str, y: str) -> None:
    """Law: an earlier second has the smaller id, whatever the suffixes are."""
    if int(a + 1e-6) < int(b):
        assert new_id(a, lambda _: x) < new_id(b, lambda _: y)


@pytest.mark.parametrize(
    "text",
    ["err_20241121_abc123", "err_20241121_230335_789xyz", f"{ID}\n", f"{ID}0", "", "err_mine"],
)
def test_other_shapes_are_no_ids(text: str) -> None:
    assert not is_id(text)


@given(
    st.sampled_from(["", " ", "[Error ID: ", "`", '"', "error_id=", "(", "see "]),
    st.sampled_from(["", " ", "]", "`", '"', ".", ")", "\nUse"]),
)
def test_an_id_is_found_in_what_a_model_pastes(before: str, after: str) -> None:
    """Law: decoration of any usual kind around an id does not hide it."""
    assert find_id(before + ID + after) == ID


def test_markdown_escapes_do_not_hide_an_id() -> None:
    assert find_id(ID.replace("_", "\\_")) == ID


@pytest.mark.parametrize("text", ["err_20241121_abc123", f"x{ID}", f"{ID}4", "no id at all"])
def test_a_part_of_a_longer_word_is_no_id(text: str) -> None:
    assert find_id(text) is None


def test_a_program_that_failed_says_the_last_line_of_its_standard_error() -> None:
    failed = CalledProcessError(1, ["cat", "nofile"], stderr=b"fine\ncat: nofile: No such file\n")
    assert message_of(failed) == (
        "Command '['cat', 'nofile']' returned non-zero exit status 1: cat: nofile: No such file"
    )
    for silent in (None, b"", " \n", b"\xff\xfe\x00"):
        bare = CalledProcessError(1, ["cat"], stderr=silent)
        assert message_of(bare) == "Command '['cat']' returned non-zero exit status 1."
