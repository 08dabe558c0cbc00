"""Every event of a run as AG-UI's own models take it."""

from __future__ import annotations

import msgspec
import pytest
from ag_ui.core import Event
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from motet.protocols import agui_wire as wire
from motet.protocols import events as ev
from motet.protocols.agui_events import Translation, interrupt, last
from motet.protocols.approvals import ApprovalInfo
from motet.protocols.models import Usage

EVENTS: TypeAdapter[Event] = TypeAdapter(Event)
USED = Usage(10, 5, 3)
ALL: list[ev.AnyEvent] = [
    ev.RunStarted("a", "m"),
    ev.ThinkingDelta(0, 0, "hm"),
    ev.TextDelta(0, 0, "Hel"),
    ev.TextDelta(0, 3, "lo"),
    ev.MessageAdded("assistant", "a", "Hello", 0),
    ev.MessageAdded("user", "u", "hi", 1),
    ev.ToolCall("c1", "clock", {"zone": "UTC"}),
    ev.ToolResult("c1", "clock", True, "done", "12:00", 1.0),
    ev.ChildStarted("run_2", "s", "b", "task"),
    ev.ChildEnded("run_2", "b", "completed", USED),
    ev.ChildEnded("run_3", "b", "failed", USED),
    ev.RunRetrying(1, 10, "busy", 2, withdrawn=True),
    ev.RunResumed(1),
    ev.AgentChanged("b", "m", "a"),
    ev.Warned("x", "y"),
    ev.RunWaiting(("apr_1",)),
    ev.Activity("tool"),
]
ENDS: list[tuple[ev.AnyEvent, str]] = [
    (ev.RunCompleted(USED), "RUN_FINISHED"),
    (ev.RunCancelled(USED, "stopped"), "RUN_FINISHED"),
    (ev.RunFailed(USED, "model", "no"), "RUN_ERROR"),
    (ev.RunLimited(USED, "turns"), "RUN_ERROR"),
    (ev.RunRefused(USED, "SAFETY"), "RUN_ERROR"),
    (ev.RunEscalated(USED, "too many", "clock", "esc_1"), "RUN_ERROR"),
    (ev.RunInterrupted("killed"), "RUN_ERROR"),
    (ev.InputDropped("stopped"), "RUN_ERROR"),
    (ev.InputSteered("run_2"), "RUN_ERROR"),
]


def read(event: wire.Event) -> Event:
    return EVENTS.validate_json(msgspec.json.encode(event))


@given(st.lists(st.sampled_from(ALL), max_size=12))
@settings(max_examples=60)
def test_whatever_the_order_every_message_that_is_started_is_ended(
    given_events: list[ev.AnyEvent],
) -> None:
    """Law: what a client gets is of the protocol, and what starts ends before the next of it."""
    translation = Translation("run_1")
    told = [read(one) for event in given_events for one in translation.events(event)]
    told += [read(one) for one in translation.close()]
    names = [one.type.value for one in told]
    for kind in ("TEXT_MESSAGE", "REASONING", "REASONING_MESSAGE"):
        ends = [name for name in names if name in (f"{kind}_START", f"{kind}_END")]
        assert ends == [f"{kind}_START", f"{kind}_END"] * (len(ends) // 2)


@pytest.mark.parametrize(("event", "name"), ENDS)
def test_each_end_of_a_run_is_an_end_of_ag_ui(event: ev.AnyEvent, name: str) -> None:
    end = last(event, "t", "r")
    assert end is not None
    assert read(end).type.value == name


def test_other_events_are_no_end() -> None:
    assert [last(event, "t", "r") for event in ALL] == [None] * len(ALL)


def test_an_interrupt_shows_the_call_to_decide_on() -> None:
    info = ApprovalInfo(
        "apr_1",
        "s",
        "run_1",
        "c1",
        "a",
        "u",
        "pay",
        {"euros": 5},
        "hash",
        "why",
        ("tool",),
        1.0,
        2.0,
    )
    end = wire.RunFinished("t", "r", wire.Interrupted((interrupt(info),)))
    plain = read(end).model_dump(by_alias=True)["outcome"]["interrupts"][0]
    assert (plain["id"], plain["toolCallId"]) == ("apr_1", "c1")
    assert plain["metadata"] == {"tool": "pay", "args": {"euros": 5}}
    assert plain["expiresAt"] == "1970-01-01T00:00:02+00:00"
