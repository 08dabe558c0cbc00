"""The life of an input and of its run: a table that no sequence of events gets out of."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import motet
from motet.actors.runs.run import Input, Run
from motet.protocols.limits import Limits
from motet.protocols.run_states import (
    NEVER_STARTS,
    NOT_BEGUN,
    OUT_OF_QUEUE,
    OVER,
    RUNNING,
    TRANSITIONS,
    LifecycleError,
    LifeEvent,
    RunState,
    is_over,
    next_state,
)
from motet.protocols.sessions import LOCAL

STATES: tuple[RunState, ...] = get_args(RunState)
EVENTS: tuple[LifeEvent, ...] = get_args(LifeEvent)
ALL_EVENTS = st.lists(st.sampled_from(EVENTS), max_size=30)


def a_run() -> Run:
    agent = motet.Agent("a")
    return Run(Input("run_1", "s", LOCAL, "hello"), agent, Limits())


@given(ALL_EVENTS)
def test_no_sequence_of_events_reaches_a_state_that_is_not_in_the_table(
    events: list[LifeEvent],
) -> None:
    """An event either leads to a state of the table, or raises and changes nothing."""
    run = a_run()
    for event in events:
        before = run.state
        if event in TRANSITIONS[before]:
            run.move(event)
            assert run.state == TRANSITIONS[before][event]
        else:
            with pytest.raises(LifecycleError) as raised:
                run.move(event)
            assert (raised.value.state, raised.value.event) == (before, event)
            assert run.state == before


def test_every_state_is_reachable_and_every_event_happens_somewhere() -> None:
    reached: set[RunState] = {"new"}
    for _ in STATES:
        reached |= {to for one in reached for to in TRANSITIONS[one].values()}
    assert reached == set(STATES) == set(TRANSITIONS)
    assert {event for row in TRANSITIONS.values() for event in row} == set(EVENTS)


@pytest.mark.parametrize("event", EVENTS)
def test_ended_is_absorbing(event: LifeEvent) -> None:
    with pytest.raises(
        LifecycleError, match=f"run run_1: '{event}' cannot happen in state 'ended'"
    ):
        next_state("ended", event, "run_1")


@given(ALL_EVENTS)
def test_a_run_that_was_dropped_or_overtaken_never_starts(events: list[LifeEvent]) -> None:
    run = a_run()
    doomed = False
    for event in events:
        if event in TRANSITIONS[run.state]:
            run.move(event)
        doomed = doomed or run.state in NEVER_STARTS
        assert not (doomed and run.is_running)


def test_every_live_state_ends() -> None:
    """The host may close at any moment, and nobody waits for ever."""
    assert all("end" in TRANSITIONS[state] for state in STATES if not is_over(state))
    assert all("stop" in TRANSITIONS[state] for state in STATES if not is_over(state))


def test_the_groups_of_states_divide_the_table() -> None:
    assert NOT_BEGUN | RUNNING | OVER | {"entered"} == set(STATES)
    assert len(NOT_BEGUN) + len(RUNNING) + len(OVER) + 1 == len(STATES)
    assert NEVER_STARTS <= OUT_OF_QUEUE
    assert {"queued"} == {s for s in STATES if "drop" in TRANSITIONS[s]} - {"dropped"}


def test_a_stop_ends_what_runs_and_leaves_what_is_queued_to_its_queue() -> None:
    queued, running = a_run(), a_run()
    for run in (queued, running):
        run.move("register")
        run.move("store")
    running.move("start")
    assert queued.cancel("enough")
    assert running.cancel("enough")
    assert (queued.state, running.state) == ("queued", "stopping")
    assert not running.cancel("again")
    queued.drop("enough")
    assert queued.never_starts
    assert queued.stop_reason == "enough"


def test_of_two_results_the_first_one_counts() -> None:
    run = a_run()
    run.end(run.ends_as("completed", ""))
    run.end(run.ends_as("cancelled", "too late"))
    assert run.result is not None
    assert run.result.status == "completed"
    assert not run.cancel("too late")
