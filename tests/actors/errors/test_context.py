"""A model sees the open errors, the newest in full."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.errors.classify import error_block
from motet.actors.errors.tracker import ErrorContext
from motet.protocols.errors import CompactError
from tests.vectors.error_forms import render, without


def error(message: str, tool: str = "t") -> CompactError:
    return CompactError(tool, "unknown", message)


def context(*messages: str) -> ErrorContext:
    made = ErrorContext()
    for message in messages:
        made = made.failed(error(message))
    return made


def test_the_last_three_are_shown_and_the_others_counted() -> None:
    assert render(context("m1", "m2", "m3", "m4")) == (
        "<error_summary>\n1 older errors hidden\n</error_summary>\n\n"
        "<error>\ntool: t\ntype: unknown\nmessage: m2\n</error>\n\n"
        "<error>\ntool: t\ntype: unknown\nmessage: m3\n</error>\n\n"
        "<error>\ntool: t\ntype: unknown\nmessage: m4\n</error>"
    )


def test_nothing_open_is_nothing_to_show() -> None:
    assert render(ErrorContext()) == ""
    assert render(context("a", "b").succeeded("t")) == ""


def test_a_limit_of_none_shows_only_their_number() -> None:
    only_number = "<error_summary>\n2 older errors hidden\n</error_summary>"
    assert render(context("a", "b"), 0) == render(context("a", "b"), -1) == only_number


def test_a_success_resolves_its_own_tools_errors() -> None:
    both = ErrorContext().failed(error("x", "a")).failed(error("y", "b"), "err_1")
    assert render(both.succeeded("a")) == error_block(error("y", "b"), "err_1")


def test_equal_errors_are_resolved_one_by_one() -> None:
    twice = context("same", "same")
    assert render(without(twice, {twice.open[0].number})) == error_block(error("same"))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab")), max_size=30), st.integers(-2, 6))
def test_what_is_shown_and_what_is_hidden_are_all_open_errors(
    ops: list[tuple[bool, str]], shown: int
) -> None:
    """Law: blocks and the hidden number add up to the open errors; numbers never come again."""
    state, expected, numbers = ErrorContext(), list[str](), set[int]()
    for ok, tool in ops:
        if ok:
            state, expected = state.succeeded(tool), [t for t in expected if t != tool]
        else:
            state, expected = state.failed(error("m", tool)), [*expected, tool]
            assert state.last not in numbers
            numbers.add(state.last)
    assert [e.error.tool_name for e in state.open] == expected
    text = render(state, shown)
    blocks = text.count("<error>\n")
    assert blocks == min(max(shown, 0), len(expected))
    hidden = int(text.split("\n")[1].split(" ")[0]) if text.startswith("<error_summary>") else 0
    assert blocks + hidden == len(expected)
    assert text == render(state, shown)
