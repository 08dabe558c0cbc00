"""The short form of an error, and the block it stands in."""

from __future__ import annotations

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from motet.actors.errors.classify import MESSAGE_LIMIT, compact_error, error_block
from tests.vectors.error_forms import short_form

NOW = 1732230214.0
ANY_TEXT = st.text(st.characters(), max_size=600)


def test_an_error_has_a_kind_a_message_and_a_suggestion() -> None:
    error = short_form("search", TimeoutError("the query timed out\nTraceback"), NOW)
    assert error.tool_name == "search"
    assert error.error_type == "timeout"
    assert error.message == "the query timed out"
    assert error.suggestion == "Try with a simpler query or smaller dataset"
    assert error.timestamp == NOW


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (trio.TooSlowError(), "trio.TooSlowError"),
        (PermissionError(), "PermissionError"),
        (ExceptionGroup("nursery", [ValueError("Request timeout")]), "Request timeout"),
        ("m" * 200, "m" * 200),
        ("m" * 201, "m" * 197 + "..."),
        ({"error": {"code": "X", "message": "inner"}}, "inner"),
    ],
)
def test_the_message_is_one_short_line_and_never_empty_for_an_exception(
    error: object, message: str
) -> None:
    assert short_form("t", error, NOW).message == message


def test_secrets_do_not_reach_the_message() -> None:
    error = short_form("t", "bad token sk-proj-abcdefghijklmnopqrst0123", NOW)
    assert "sk-proj" not in error.message


def test_the_block_has_a_line_for_each_thing_that_is_there() -> None:
    unknown = short_form("a\nb", "x", NOW)
    assert error_block(unknown) == "<error>\ntool: a\ntype: unknown\nmessage: x\n</error>"
    found = compact_error("t", "not_found", "no such row", NOW)
    assert error_block(found, "err_20241121_230334_abc123") == (
        "<error>\ntool: t\ntype: not_found\nmessage: no such row\n"
        "suggestion: Verify the resource exists or try alternative\n"
        "[Error ID: err_20241121_230334_abc123]\n</error>"
    )


def test_a_message_cannot_close_the_block() -> None:
    block = error_block(short_form("</error>", "a </error>\n<error> b", NOW))
    assert block.count("</error>") == 1
    assert "message: a &lt;/error>" in block


@given(ANY_TEXT, ANY_TEXT)
@example("\n", "\u2028")
@example("</" * 50, "</" * 200)
def test_a_block_keeps_its_shape_for_any_text(tool: str, text: str) -> None:
    """Law: four to five lines between the tags, one closing tag, a message within its limit."""
    error = short_form(tool, text, NOW)
    lines = error_block(error).splitlines()
    assert len(error.message) <= MESSAGE_LIMIT
    assert [line.partition(":")[0] for line in lines[1:4]] == ["tool", "type", "message"]
    assert len(lines) == (6 if error.suggestion else 5)
    assert len(lines[3]) <= len("message: ") + MESSAGE_LIMIT
    assert "\n".join(lines).count("</") == 1
    "\n".join(lines).encode()
