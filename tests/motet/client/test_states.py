"""The tables of a client's states are whole, and refuse what they do not have."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from motet.client.states import CONNECTION, REQUEST, STREAM, next_state

TABLES: list[tuple[Mapping[str, Mapping[str, str]], str]] = [
    ({state: dict(row) for state, row in CONNECTION.items()}, "offline"),
    ({state: dict(row) for state, row in REQUEST.items()}, "waiting"),
    ({state: dict(row) for state, row in STREAM.items()}, "idle"),
]


@pytest.mark.parametrize(("table", "first"), TABLES)
def test_every_state_is_in_the_table_and_can_be_reached(
    table: Mapping[str, Mapping[str, str]], first: str
) -> None:
    reached, new = {first}, {first}
    while new:
        new = {after for state in new for after in table[state].values()} - reached
        reached |= new
    assert reached == set(table)


def test_an_impossible_change_names_the_possible_ones() -> None:
    with pytest.raises(RuntimeError, match=r"s: 'answer' cannot happen in state 'held' \(only: dr"):
        next_state(STREAM, "held", "answer", "s")


def test_a_failed_stream_and_a_settled_request_stay_so() -> None:
    assert set(STREAM["failed"].values()) == {"failed"}
    assert set(CONNECTION["closed"].values()) == {"closed"}
    assert REQUEST["done"] == {}
