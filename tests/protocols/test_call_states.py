"""The life of a call is a table: complete, strict, and the same for a live and a resumed run."""

from __future__ import annotations

from typing import get_args

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.approvals import Resumption, SuspendedState, TurnState
from motet.protocols.chat import Call, ToolMessage
from motet.protocols.limits import Limits
from motet.protocols.run_states import (
    CALL_TRANSITIONS,
    OPEN,
    PENDING,
    CallEvent,
    CallState,
    CallStates,
    next_call_state,
    resumed_state,
)

STATES: tuple[CallState, ...] = get_args(CallState)
EVENTS: tuple[CallEvent, ...] = get_args(CallEvent)
CALL = Call("c", "act", "{}")

histories = st.lists(st.sampled_from(EVENTS), max_size=30)


@attrs.define
class World:
    """What everybody else knows of one call: published events, the tool's runs, the stored row."""

    announced: int = 0
    reported: int = 0
    ran: int = 0
    answers: int = 0
    state: CallState = "new"

    def happen(self, event: CallEvent) -> None:
        if event not in CALL_TRANSITIONS[self.state]:
            with pytest.raises(RuntimeError):
                next_call_state(self.state, event, "c")
            return
        self.state = next_call_state(self.state, event, "c")
        self.announced += event == "announce"
        self.reported += event == "report"
        self.ran += event == "begin"

    def resume(self) -> None:
        """The host ends, and its run resumes with what is on disk of the call."""
        reported = self.reported > 0
        self.state = resumed_state(
            announced=self.announced > 0, reported=reported, has_result=reported
        )


def test_every_state_has_a_row_and_every_row_leads_to_a_state() -> None:
    assert set(CALL_TRANSITIONS) == set(STATES)
    for row in CALL_TRANSITIONS.values():
        assert set(row) <= set(EVENTS)
        assert set(row.values()) <= set(STATES)


@given(histories)
def test_a_call_is_announced_before_anything_else_and_reported_at_most_once(
    history: list[CallEvent],
) -> None:
    """Law (G7, G8): a tool.result follows a tool.call, once; after it nothing happens."""
    world = World()
    for event in history:
        world.happen(event)
        assert world.reported <= world.announced <= 1
        assert (world.state == "done") == (world.reported == 1)
        assert (world.state in OPEN) == (world.announced - world.reported == 1)


@given(histories)
def test_no_tool_begins_while_a_person_is_asked_or_after_the_call_was_suspended(
    history: list[CallEvent],
) -> None:
    """Law (G10): from a state in which a person's answer is pending, no event begins the tool."""
    world = World()
    for event in history:
        before, ran = world.state, world.ran
        world.happen(event)
        if before in PENDING:
            assert world.ran == ran


@given(st.lists(st.sampled_from([*EVENTS, "kill"]), max_size=40))
def test_a_call_that_is_done_stays_done_whichever_host_goes_on(
    history: list[CallEvent | str],
) -> None:
    """Law: a kill at any moment announces nothing twice, and repeats no reported call."""
    world = World()
    for event in history:
        done = world.state == "done"
        if event == "kill":
            world.resume()
        elif event == "announce" and world.announced:
            pass  # a step publishes it once
        else:
            world.happen(next(one for one in EVENTS if one == event))
        assert world.announced <= 1
        assert world.reported <= 1
        if done:
            assert world.state == "done"


@given(st.booleans(), st.booleans(), st.booleans())
def test_a_resumed_call_is_open_exactly_when_its_begin_and_not_its_end_was_published(
    announced: bool, reported: bool, has_result: bool
) -> None:
    state = resumed_state(announced=announced, reported=reported, has_result=has_result)
    assert (state in OPEN) == (announced and not reported)
    assert (state == "done") == (reported and has_result)


def test_the_states_of_a_resumed_step_come_from_what_is_stored() -> None:
    calls = [Call(name, "act", "{}") for name in ("new", "announced", "lost", "done", "untold")]
    left = Resumption(
        SuspendedState((), 0, 5, "operator", Limits(), TurnState()),
        results=tuple(ToolMessage(name, "act", "ok") for name in ("done", "untold")),
        announced=frozenset({"announced", "lost", "done"}),
        reported=frozenset({"lost", "done"}),
    )
    states = CallStates(calls, left)
    assert {call.id: states[call.id] for call in calls} == {
        "new": "new",
        "announced": "announced",
        "lost": "new",
        "done": "done",
        "untold": "new",
    }


def test_an_impossible_change_names_the_call_its_state_and_what_may_happen() -> None:
    states = CallStates([CALL])
    with pytest.raises(RuntimeError, match=r"call c: 'report' cannot happen in state 'new'.*annou"):
        states.move("c", "report")
    assert states["c"] == "new"
