"""G15 where steering, approvals, queues, kills and shutdowns meet: a text has one owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.protocols.approvals import ApprovalInfo, ApprovalsConfig
from motet.protocols.chat import ToolMessage, UserMessage
from motet.protocols.models import ModelRequest
from motet.protocols.sessions import Ack, RunInfo, RunStatus, SessionInfo
from tests.guarantees.worlds.texts import ACTS, Act, told

Worlds = st.tuples(
    st.integers(0, 1_000),
    st.lists(st.builds(Act, st.sampled_from(ACTS), st.integers(0, 999)), max_size=14),
)


@settings(max_examples=12, deadline=None)
@given(Worlds)
def test_at_every_step_each_text_has_one_owner(world: tuple[int, list[Act]]) -> None:
    """Law: on every image of the disk a text is an input that has not begun, is in the rows of one
    run, or was dropped; in the end each was answered once, its effects have happened once, and the
    events tell all of it, with the end that the runs have on record."""
    seed, acts = world
    assert told(seed, acts) == []


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(20))
def test_at_every_step_of_many_worlds_each_text_has_one_owner(part: int) -> None:
    for seed in range(part * 100, part * 100 + 100):
        chance = Random(seed)
        acts = [
            Act(chance.choice(ACTS), chance.randrange(1_000))
            for _ in range(chance.randrange(3, 25))
        ]
        assert told(seed, acts) == [], seed


# ---------------------------------------------------------------------- single worlds

CONFIG = motet.HostConfig(approvals=ApprovalsConfig(hold=0.5))


def worker(ran: list[str]) -> motet.Agent[None, str]:
    """It thinks, asks for one call, which a person approves, and is done."""
    model = mt.ScriptedModel([mt.slow(mt.call("act"), seconds=1), *[mt.say("done")] * 5])
    agent = motet.Agent("a", model=model)

    @agent.tool(approval=True, effects="write")
    async def act() -> str:
        ran.append("act")
        return "acted"

    return agent


async def approve(host: Host) -> None:
    for info in await host.approvals(state="pending"):
        await host.approve(info.id, "allow-once")


async def drain(host: Host) -> None:
    await host.drain(0)


async def statuses(host: Host) -> dict[str, RunStatus]:
    return {run.text: run.status for run in await host.runs(session="main")}


async def sessions(host: Host) -> tuple[SessionInfo, ...]:
    return await host.sessions(limit=10)


async def runs_of(host: Host, session: str) -> tuple[RunInfo, ...]:
    return await host.runs(session=session)


async def users(host: Host, session: str) -> list[str]:
    return [row.text for row in await said_in(host, session)]


async def texts(host: Host, session: str = "main") -> Counter[str]:
    rows = await host.history(session, limit=100)
    return Counter(line for item in rows for line in item.row.text.split("\n"))


@pytest.mark.parametrize("end", ["crash", "restart", "none"])
@pytest.mark.parametrize("parked", [True, False])
def test_a_text_offered_to_a_turn_that_then_waits_for_a_person_is_answered_once(
    end: str, parked: bool
) -> None:
    """It comes while the model thinks; the answer has a call that a person has to approve."""
    ran = list[str]()
    with mt.simulated_host(1, agents=[worker(ran)], config=CONFIG) as host:
        host.start(None, "first", key="1")
        host.advance(0.5)
        host.send("main", "second", key="2")
        host.advance(3 if parked else 1.2)
        if end == "crash":
            host.crash()
        elif end == "restart":
            host.restart()
        host.call(approve)
        host.advance(10)

        assert host.call(statuses) == {"first": "completed", "second": "steered"}
        assert host.call(texts)["second"] == 1
        assert ran == ["act"]


def test_a_dropped_text_is_not_in_a_turn_that_waits_for_a_person() -> None:
    with mt.simulated_host(1, agents=[worker([])], config=CONFIG) as host:
        host.start(None, "first", key="1")
        host.advance(0.5)
        ack = host.send("main", "second", key="2")
        host.advance(3)
        host.stop(run_id=ack.run_id)
        host.call(approve)
        host.advance(10)

        assert host.call(statuses) == {"first": "completed", "second": "dropped"}
        assert host.call(texts)["second"] == 0


def test_a_text_that_was_sent_to_a_run_which_its_host_leaves_is_kept_for_the_next_host() -> None:
    """A shutdown is no stop: what steers the run goes on with it."""
    agent = motet.Agent("a", model=mt.ScriptedModel([mt.slow(mt.say("one"), seconds=9)] * 3))
    with mt.simulated_host(1, agents=[agent], config=CONFIG) as host:
        host.start(None, "first", key="1")
        host.advance(1)
        host.send("main", "second", key="2")
        host.restart(0)
        host.settle()

        assert host.call(statuses) == {"first": "completed", "second": "steered"}
        assert host.call(texts)["second"] == 1


def test_a_run_that_is_answered_while_its_host_shuts_down_goes_on_in_the_next() -> None:
    ran = list[str]()
    with mt.simulated_host(1, agents=[worker(ran)], config=CONFIG) as host:
        host.start(None, "first", key="1")
        host.advance(3)
        host.call(drain)
        host.call(approve)
        host.advance(1)
        assert ran == []
        host.restart(0)
        host.advance(10)

        assert host.call(statuses) == {"first": "completed"}
        assert ran == ["act"]


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_a_message_of_a_room_that_has_entered_no_turn_is_in_the_room_only(end: str) -> None:
    """It is on disk as an input of a member's session, whose turn waits for a person."""
    with mt.simulated_host(1, config=CONFIG) as host:
        host.room(motet.Room("hall", members=[worker([])], mode="steer", max_turns=2))
        host.post("hall", "first", user="ann", key="1")
        host.advance(0.5)
        host.post("hall", "second", user="ann", key="2")
        host.advance(0.6)
        if end == "crash":
            host.crash()
        else:
            host.restart(0)
        host.call(approve)
        host.advance(10)

        (session,) = [info.session for info in host.call(sessions)]
        status = {run.text: run.status for run in host.call(runs_of, session)}
        asked = host.call(users, session)
        assert status["[#2 person ann] second"] == "dropped"
        assert asked[0] == "[#1 person ann] first"
        assert sum("second" in text for text in asked) <= 1


# ------------------------------------------------------------------- runs that are parked

PLACE = "agent:a:tcp:group:den"
"""A group: others may start beside a run that is parked."""


async def to_run(host: Host) -> Ack:
    (parked,) = await host.runs(status="waiting")
    return await host.send("second", run_id=parked.run_id, key="2")


async def to_session(host: Host) -> Ack:
    return await host.send("second", session="main", key="2")


async def as_steering(host: Host) -> Ack:
    return await host.submit("second", session="main", mode="steer", key="2")


async def in_a_group(host: Host) -> Ack:
    return await host.submit("second", session=PLACE, mode="steer", sender="ann", debounce=0.0)


Send = Callable[[Host], Awaitable[Ack]]


@pytest.mark.parametrize(
    ("send", "before", "end"),
    [
        (to_run, True, "none"),
        (to_run, False, "restart"),
        (to_session, True, "restart"),
        (to_session, False, "none"),
        (as_steering, True, "crash"),
        (in_a_group, True, "none"),
        (in_a_group, False, "crash"),
    ],
)
def test_a_text_that_is_sent_to_a_parked_run_enters_it(send: Send, before: bool, end: str) -> None:
    """``before``: no other host has parked it."""
    ran = list[str]()
    place = PLACE if send is in_a_group else "main"
    with mt.simulated_host(1, agents=[worker(ran)], config=CONFIG) as host:
        host.call(begin, place, "ann" if place == PLACE else "")
        host.advance(3)
        if not before:
            host.crash()
            host.advance(1)
        ack = host.call(send)
        assert ack.status == "steered"
        host.advance(1)
        host.crash() if end == "crash" else host.restart() if end == "restart" else None
        second = "[ann] second" if place == PLACE else "second"
        assert host.call(texts, place)[second] == 0
        host.call(approve)
        host.advance(10)

        status = {run.text.removeprefix("[ann] "): run.status for run in host.call(runs_of, place)}
        assert status == {"first": "completed", "second": "steered"}
        assert host.call(texts, place)[second] == 1
        assert ran == ["act"]


@pytest.mark.parametrize("kill", [0.5, 1.5, 3.0])
def test_one_person_of_a_group_has_one_run_at_a_time_in_the_next_host_too(kill: float) -> None:
    """Killed before or behind its first answer, or parked: it is still its sender's run."""

    def answer(request: ModelRequest) -> mt.Step:
        (row,) = [row for row in request.messages if isinstance(row, UserMessage)][-1:]
        calls = ["look", "act"] if "first" in row.text else []
        made = sum(isinstance(one, ToolMessage) for one in request.messages)
        return mt.slow(mt.call(calls[made]) if made < len(calls) else mt.say("done"), seconds=1)

    agent = motet.Agent("a", model=mt.FunctionModel(answer))

    @agent.tool(approval=True, effects="write")
    async def act() -> str:
        await trio.sleep(1)
        return "acted"

    @agent.tool(effects="read")
    async def look() -> str:
        return "looked"

    with mt.simulated_host(1, agents=[agent], config=CONFIG) as host:
        host.call(begin, PLACE, "ann")
        host.call(in_a_group_too)
        host.advance(kill)
        host.crash()
        host.advance(3)
        host.call(approve)
        host.advance(0.5)
        assert {run.text: run.status for run in host.call(runs_of, PLACE)} == {
            "[ann] first": "running",
            "[ann] second": "queued",
        }
        host.advance(10)
        assert [run.status for run in host.call(runs_of, PLACE)] == ["completed"] * 2
        senders = [row.sender for row in host.call(said_in, PLACE)]
        assert senders == ["ann", "ann"]


async def in_a_group_too(host: Host) -> Ack:
    return await host.submit("second", session=PLACE, mode="followup", sender="ann", debounce=0.0)


async def said_in(host: Host, session: str) -> list[UserMessage]:
    rows = [item.row for item in await host.history(session, limit=100)]
    return [row for row in rows if isinstance(row, UserMessage)]


@pytest.mark.parametrize("end", ["none", "restart", "crash"])
@pytest.mark.parametrize("before", [True, False])
def test_an_input_that_interrupts_ends_a_parked_run_and_is_answered(before: bool, end: str) -> None:
    ran = list[str]()
    with mt.simulated_host(1, agents=[worker(ran)], config=CONFIG) as host:
        host.call(begin)
        host.advance(3)
        host.call(as_steering)
        if not before:
            host.crash()
            host.advance(1)
        host.call(interrupt)
        host.crash() if end == "crash" else host.restart() if end == "restart" else None
        host.advance(10)

        assert host.call(statuses) == {
            "first": "cancelled",
            "second": "dropped",
            "third": "completed",
        }
        assert host.call(open_approvals) == ()
        assert ran == []


async def interrupt(host: Host) -> Ack:
    return await host.submit("third", session="main", mode="interrupt", key="3")


async def open_approvals(host: Host) -> tuple[ApprovalInfo, ...]:
    return await host.approvals(state="pending")


async def begin(host: Host, session: str = "main", sender: str = "") -> Ack:
    return await host.submit(
        "first", session=session, agent="a", key="1", sender=sender, debounce=0.0
    )


@pytest.mark.parametrize("steps", range(0, 20, 4))
@pytest.mark.parametrize("cut", ["interrupt", "stop"])
def test_a_started_run_that_others_have_joined_ends_as_cancelled_in_the_next_host(
    cut: str, steps: int
) -> None:
    """It was killed before its first answer, and in the next host it ends before it starts anew."""

    def answer(request: ModelRequest) -> mt.Step:
        return mt.slow(mt.say("done"), seconds=1e6 if "joins" in request.messages[-1].text else 1)

    model = mt.FunctionModel(answer)
    with mt.simulated_host(1, agents=[motet.Agent("a", model=model)]) as host:
        host.call(begin)
        host.advance(0.1)
        for text in ("second", "joins"):
            host.call(collected, text)
        host.advance(2)
        if cut == "interrupt":
            host.call(interrupt)
            host.steps(steps)
            host.crash()
        else:
            host.crash()
            host.steps(steps)
            host.stop(session="main", grace=1.0)
        host.advance(60)

        ends = host.call(statuses)
        assert ends.pop("third", "completed") == "completed"
        assert ends == {"first": "completed", "second\njoins": "cancelled", "joins": "steered"}
        assert host.call(texts)["joins"] == 1


async def collected(host: Host, text: str) -> Ack:
    return await host.submit(
        text, session="main", agent="a", key=text, mode="collect", debounce=0.0
    )
