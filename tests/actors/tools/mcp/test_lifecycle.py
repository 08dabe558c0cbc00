"""When a server may be started again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.tools.mcp.server import (
    STABLE,
    TABLE,
    Event,
    Lifecycle,
    State,
)

EVENTS: tuple[Event, ...] = ("wanted", "listed", "idle", "ended")


def failed(times: int) -> Lifecycle:
    at = Lifecycle()
    for _ in range(times):
        at = at.after("wanted", 0).after("ended", 0)
    return at


@given(st.lists(st.sampled_from(EVENTS)))
def test_only_what_the_table_allows_happens(events: list[Event]) -> None:
    """Law: the state follows the table, and what is not in it raises and changes nothing."""
    at = Lifecycle()
    for event in events:
        expected: State | None = TABLE.get((at.state, event))
        if expected is None:
            with pytest.raises(ValueError, match=f"cannot be {event}"):
                at.after(event, 0)
        else:
            at = at.after(event, 0)
            assert at.state == expected


def test_each_failure_in_a_row_makes_it_rest_for_longer() -> None:
    assert [failed(times).wait(0) for times in (0, 1, 2, 3, 20)] == [0, 0.5, 1.0, 2.0, 60.0]
    assert failed(2).wait(0.75) == 0.25


def test_an_end_after_it_was_well_for_long_is_the_first_of_a_new_row() -> None:
    ready = failed(5).after("wanted", 100).after("listed", 100)
    assert ready.after("ended", 100 + STABLE - 1).failures == 6
    assert ready.after("ended", 100 + STABLE).failures == 1


def test_a_stop_because_nobody_uses_it_is_no_failure() -> None:
    idle = failed(3).after("wanted", 9).after("listed", 9).after("idle", 10).after("ended", 11)
    assert idle == Lifecycle()
