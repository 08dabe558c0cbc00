"""The life cycle is a table: complete, closed, and strict."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.runtime.lifecycle import OVER, TRANSITIONS, LifeEvent, LifeState, next_state

STATES: tuple[LifeState, ...] = get_args(LifeState)
EVENTS: tuple[LifeEvent, ...] = get_args(LifeEvent)


def test_every_state_has_a_row_and_every_transition_leads_to_a_state() -> None:
    assert set(TRANSITIONS) == set(STATES)
    for row in TRANSITIONS.values():
        assert set(row) <= set(EVENTS)
        assert set(row.values()) <= set(STATES)


@given(st.lists(st.sampled_from(EVENTS), max_size=30))
def test_death_is_final_and_mail_once_refused_is_never_accepted_again(
    events: list[LifeEvent],
) -> None:
    """Law: along every path, dead stays dead, and refused mail is never accepted again."""
    state: LifeState = "new"
    for event in events:
        before = state
        if event in TRANSITIONS[state]:
            state = next_state(state, event, "x")
        if before == "dead":
            assert state == "dead"
        if before in OVER:
            assert state in OVER


def test_an_impossible_transition_names_the_actor_its_state_and_the_possible_events() -> None:
    with pytest.raises(RuntimeError, match=r"/s/a: 'ready' cannot happen in state 'new'.*begin"):
        next_state("new", "ready", "/s/a")
