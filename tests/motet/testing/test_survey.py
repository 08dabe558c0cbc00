"""A search says what it has not tested, and fails when that is nearly all."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.protocols import events
from motet.protocols.events import EventRecord
from motet.protocols.models import ModelRequest
from motet.testing.invariants.snapshot import Asked, Happened, Ran, Snapshot
from motet.testing.survey import ENOUGH, Survey, Vacuous


def told(*happened: events.AnyEvent, stream: str = "session:s") -> tuple[Happened, ...]:
    return tuple(
        Happened(at, EventRecord(stream, event, 0.0, at, "r"))
        for at, event in enumerate(happened, 1)
    )


def counted(past: Snapshot, *unused: str, room: str = "", times: int = ENOUGH) -> Survey:
    survey = Survey()
    for number in range(times):
        survey.add(
            past,
            tools=["pay", "look"],
            room=room,
            steps=["send"],
            verdicts={("before_tool guard", "deny"): 2},
            faults={"tool late": 1},
            schedule=number % 3,
            unused=unused,
        )
    return survey


pytest_plugins = ["pytester"]

REQUEST = Asked(1, "r", "s", "ann", "bank", ModelRequest("m", ()))
ASKED = Snapshot(asked=(REQUEST,))
DENIED = told(
    events.ToolCall("c1", "pay", {}),
    events.ToolResult("c1", "pay", False, "denied", "", 0.0),
    events.ApprovalRequested("a", "c1", "pay", {}, "", "", 0.0),
    events.ApprovalResolved("a", "deny", "ann"),
)


def reasons(survey: Survey) -> str:
    with pytest.raises(Vacuous) as raised:
        survey.check()
    return "\n".join(raised.value.reasons)


def test_a_tool_that_never_ran_is_named_with_the_ends_of_its_calls() -> None:
    survey = counted(Snapshot(asked=(REQUEST,), events=DENIED))
    found = reasons(survey)
    assert "'look' never ran: no model called it" in found
    assert "'pay' never ran: all 30 calls of it ended before its function (30 denied)" in found
    assert "30 approvals were asked for, and none was allowed" in found


def test_what_a_test_does_not_mean_to_reach_is_no_failure() -> None:
    past = Snapshot(asked=(REQUEST,), events=DENIED)
    counted(past, "pay", "look", "approvals").check()
    counted(Snapshot(), "model").check()
    counted(Snapshot(), "room", "model", room="den").check()


def test_a_room_in_which_nobody_spoke_and_programs_without_a_request_are_vacuous() -> None:
    assert "no agent has spoken in the room 'den'" in reasons(counted(Snapshot(), room="den"))
    assert "no model was asked in 30 programs" in reasons(counted(Snapshot()))
    spoken = told(events.MessageAdded("assistant", "bot", "hi"), stream="room:den")
    past = Snapshot(
        asked=(REQUEST,),
        events=spoken,
        ran=tuple(Ran(1, "r", "c", tool, "s", "ann") for tool in ("pay", "look")),
    )
    counted(past, room="den").check()


def test_a_few_programs_prove_nothing() -> None:
    counted(Snapshot(), room="den", times=ENOUGH - 1).check()


def test_the_table_has_all_that_was_counted() -> None:
    table = counted(Snapshot(asked=(REQUEST,), events=DENIED), room="den").table()
    for line in (
        "programs    30, 30 with a model request",
        "tools       pay never ran · look never ran",
        "hooks       before_tool guard → deny 60",
        "approvals   asked 30 · deny 30",
        "rooms       den nobody spoke",
        "schedules   3 distinct",
        "faults      tool late 30",
        "new ones in 1 programs",
    ):
        assert line in table


SEARCH = """
from hypothesis import given, settings
import motet
from motet import testing as mt

bank = motet.Agent("bank")

@bank.tool
async def refund(order: str) -> str:
    "Pay back."
    return "done"

def deny(host):
    @host.on("before_tool")
    async def gate(event):
        return motet.Deny("never")

@settings(max_examples=31, deadline=None, database=None)
@given(mt.programs(bank, max_steps=2, faults=mt.Faults.NONE{unused}))
def test_refunds(program):
    with mt.simulated_host(seed=program.seed, setup=deny) as host:
        program.execute(host)
"""


@pytest.mark.extended
def test_pytest_prints_the_table_and_fails_a_vacuous_search(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_vacuous=SEARCH.format(unused=""),
        test_meant=SEARCH.format(unused=", unused=['refund']"),
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*vacuous: this search proves less than it seems*",
            "*the tool 'refund' never ran: all * calls of it ended before its function (* denied)*",
            "*motet: what was searched*",
            "test_meant.py::test_refunds",
            "programs    31, *",
        ]
    )
    assert not Path(pytester.path, ".motet").exists()
