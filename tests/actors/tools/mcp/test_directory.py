"""Names of servers' tools: valid, different, and independent of the order of the list."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.tools.mcp.directory import tool_names
from motet.protocols.mcp import is_server_name

VALID = re.compile(r"[A-Za-z0-9_-]{1,64}")
SERVERS = st.from_regex(r"[a-z0-9]{1,5}([_-][a-z0-9]{1,5}){0,2}", fullmatch=True)
TOOLS = st.lists(st.text(alphabet="ab._/-é ", max_size=90), unique=True, max_size=12)


@given(SERVERS, TOOLS, st.randoms(use_true_random=False))
def test_names_are_valid_and_different_and_do_not_depend_on_the_order(
    server: str, tools: list[str], chance: random.Random
) -> None:
    """Law: a name is valid, no two tools share one, and no order changes it."""
    names = tool_names(server, tools)
    assert list(names) == tools
    assert all(VALID.fullmatch(name) for name in names.values())
    assert len(set(names.values())) == len(tools)
    chance.shuffle(tools)
    assert tool_names(server, tools) == names


@given(SERVERS, SERVERS, TOOLS, TOOLS)
def test_tools_of_two_servers_never_share_a_name(
    one: str, other: str, tools: list[str], others: list[str]
) -> None:
    """Law: different servers, different names."""
    if one != other:
        first, second = tool_names(one, tools).values(), tool_names(other, others).values()
        assert not set(first) & set(second)


def test_a_name_that_fits_stays_as_it_is() -> None:
    assert tool_names("git", ["status", "fs.read"]) == {
        "status": "mcp__git__status",
        "fs.read": "mcp__git__fs_read",
    }


def test_of_tools_that_share_a_name_the_one_with_that_own_name_keeps_it() -> None:
    names = tool_names("x", ["a_b", "a.b", "a/b"])
    assert names["a_b"] == "mcp__x__a_b"
    assert names["a.b"].startswith("mcp__x__a_b_")
    assert names["a/b"].startswith("mcp__x__a_b_")


@pytest.mark.parametrize("name", ["", "a__b", "_a", "a_", "-", "a b", "ä", "x" * 25])
def test_a_server_cannot_be_called(name: str) -> None:
    assert not is_server_name(name)
