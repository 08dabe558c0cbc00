"""The tables of a client's states are whole, and refuse what they do not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, TypeVar

import pytest

from motet.client.states import CONNECTION, REQUEST, STREAM, next_state

S = TypeVar("S", bound=str)
E = TypeVar("E", bound=str)
Table: TypeAlias = dict[str, set[str]]


def after(table: Mapping[S, Mapping[E, S]]) -> Table:
    """The states that can follow each one."""
    return {str(state): {str(one) for one in row.values()} for state, row in table.items()}


@pytest.mark.parametrize(
    ("table", "first"),
    [(after(CONNECTION), "offline"), (after(REQUEST), "waiting"), (after(STREAM), "idle")],
)
def test_every_state_is_in_the_table_and_can_be_reached(table: Table, first: str) -> None:
    reached, new = {first}, {first}
    while new:
        new = {one for state in new for one in table[state]} - reached
        reached |= new
    assert reached == set(table)


def test_an_impossible_change_names_the_possible_ones() -> None:
    with pytest.raises(RuntimeError, match=r"s: 'answer' cannot happen in state 'held' \(only: dr"):
        next_state(STREAM, "held", "answer", "s")


def test_a_failed_stream_and_a_settled_request_stay_so() -> None:
    assert set(STREAM["failed"].values()) == {"failed"}
    assert set(CONNECTION["closed"].values()) == {"closed"}
    assert REQUEST["done"] == {}
