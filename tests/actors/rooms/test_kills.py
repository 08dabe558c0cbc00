"""Messages that people post while agents speak are answered once, whenever the host is killed.

The member says which messages it has heard, so that each answer names those that it goes back to.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from random import Random
from typing import Literal, TypeAlias

import attrs
import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.rooms.definition import member_session
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.events import RoomIdle, Warned
from motet.protocols.models import ModelRequest
from tests.slow_commits import slow_commits

Kind: TypeAlias = Literal["listens", "acts", "is allowed"]
KINDS: tuple[Kind, ...] = ("listens", "acts", "is allowed")
NUMBER = re.compile(r"words (\d)")
SAID = ("1", "2", "3")
CONFIG = motet.HostConfig(approvals=motet.ApprovalsConfig(hold=0.5, expires=20))
NAMES = ("dot", "eli")
STREAM = "room:den"
ACTED: list[str] = []
"""Members that have used their tools, in the story that is played."""


def member(name: str, kind: Kind) -> motet.Agent[None, str]:
    """It calls its tool first, unless it only listens."""

    def answer(request: ModelRequest) -> mt.Step:
        rows = request.messages
        own = [at for at, row in enumerate(rows) if isinstance(row, UserMessage) and not row.note]
        turn = rows[own[-1] :]
        called = any(isinstance(row, AssistantMessage) and row.calls for row in turn)
        if kind != "listens" and not called:
            return mt.slow(mt.call("act"), seconds=0.2)
        heard = [row.text for row in turn if isinstance(row, UserMessage)]
        return mt.slow(mt.say(f"heard {' '.join(NUMBER.findall(' '.join(heard)))}"), seconds=1)

    agent = motet.Agent(name, model=mt.FunctionModel(answer, name=f"model of {name}"))

    @agent.tool(effects="write", approval=kind == "is allowed")
    async def act() -> str:
        ACTED.append(name)
        return "done"

    return agent


def den(kind: Kind, members: int) -> motet.Room:
    return motet.Room(
        "den",
        members=[member(name, kind) for name in NAMES[:members]],
        mode="steer",
        speakers=motet.mentions(),
        max_turns=9,
        concurrency=members,
    )


def talk(kind: Kind, members: int, host: mt.SimulatedHost) -> None:
    """A person says three things, the last two of them while the members speak."""
    room = den(kind, members)
    for number in SAID:
        host.post(room, f"@all words {number}", user="dora", key=number)
        host.advance(0.1)
        host.call(allow)
        host.advance(0.3)
    host.advance(3)


async def allow(host: Host) -> None:
    for one in await host.approvals(state="pending"):
        await host.approve(one.id, "allow-once")


async def heard(host: Host) -> Counter[tuple[str, str]]:
    """How often each member has answered each message."""
    room = await host.open_room("den")
    return Counter(
        (one.author, number)
        for one in await room.history()
        if one.kind == "agent"
        for number in re.findall(r"\d", one.text)
    )


async def recorded(host: Host) -> int:
    """The calls that the turns of the first member have on record."""
    session = member_session("den", NAMES[0])
    rows = (one.row for one in await host.history(session))
    return sum(len(row.calls) for row in rows if isinstance(row, AssistantMessage))


def answered_once(kind: Kind, members: int, host: mt.SimulatedHost) -> None:
    room = den(kind, members)
    for number in SAID:  # again, if it was not acknowledged
        host.post(room, f"@all words {number}", user="dora", key=number)
    for _ in range(12):
        host.call(allow)
        host.advance(1)
    host.settle()
    found = host.call(heard)
    wrong = {which: times for which, times in found.items() if times > 1}
    if kind == "listens":
        all_of_it = [(name, number) for name in NAMES[:members] for number in SAID]
        wrong |= {which: 0 for which in all_of_it if not found[which]}
    assert not wrong, f"how often it was answered: {wrong}"


def kill(fault: mt.HostFault, kind: Kind, members: int, every: int) -> mt.SweepReport:
    """Kill the host at each so many-th step, or change of its disk."""
    check = partial(answered_once, kind, members)
    return mt.sweep(partial(talk, kind, members), fault, every=every, config=CONFIG, check=check)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind", "members", "every"),
    [
        ("power", "listens", 1, 61),
        ("crash", "listens", 2, 127),
        ("power", "acts", 2, 101),
        ("crash", "is allowed", 1, 79),
    ],
)
def test_what_is_said_into_a_turn_is_answered_once_after_a_kill_at_some_moment(
    fault: mt.HostFault, kind: Kind, members: int, every: int
) -> None:
    """Law: no member answers a message twice; one that only listens answers all of them."""
    kill(fault, kind, members, every).check()


@pytest.mark.sweep
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["crash", "power"])
def test_what_is_said_into_a_turn_is_answered_once_after_a_kill_at_any_moment(
    fault: mt.HostFault, kind: Kind, members: int
) -> None:
    kill(fault, kind, members, 1).check()


@pytest.mark.slow
@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.sweep)])
def test_a_turn_that_had_not_begun_is_repeated_whatever_the_one_before_it_has_done(
    every: int,
) -> None:
    """Law: a call is given up for a tool only if its own turn has one on record, whose effect may
    have happened. The host dies at some moments of two turns, between the floor and the stored
    input of the second one, too: these are 19 changes of the disk apart, so that every ninth
    strikes there twice."""

    def story(host: mt.SimulatedHost) -> None:
        ACTED.clear()
        ask_twice(host)

    def check(host: mt.SimulatedHost) -> None:
        ask_twice(host)  # again, if it was not acknowledged
        host.advance(12)
        host.settle()
        found = host.call(heard)
        assert set(found.values()) <= {1}, found
        calls = host.call(recorded)
        assert found["dot", "2"] or calls == 2, (found, calls)

    mt.sweep(story, "power", every=every, config=CONFIG, check=check).check()


def ask_twice(host: mt.SimulatedHost) -> None:
    """A person calls a member, and calls it again when it has answered."""
    room = den("acts", 1)
    for number in SAID[:2]:
        host.post(room, f"@dot words {number}", user="dora", key=number)
        host.advance(2)


@pytest.mark.parametrize(
    ("fault", "every"),
    [
        ("crash", 47),
        pytest.param("crash", 1, marks=pytest.mark.sweep),
        pytest.param("power", 1, marks=pytest.mark.sweep),
    ],
)
def test_a_notice_of_a_turn_that_was_cut_off_is_told_once(fault: mt.HostFault, every: int) -> None:
    """Law: a turn that its host cut off within a tool ends in one answer, or in one notice, also
    when hosts die while they recover it.
    """

    def story(host: mt.SimulatedHost) -> None:
        host.post(den("acts", 1), "@dot words 1", user="dora", key="1")
        host.advance(0.6)
        host.crash()
        host.post(den("acts", 1), "@dot words 1", user="dora", key="1")
        host.advance(2)

    def check(host: mt.SimulatedHost) -> None:
        host.post(den("acts", 1), "@dot words 1", user="dora", key="1")
        host.advance(12)
        host.settle()
        assert len(host.call(answers)) + len(host.call(notices)) == 1

    mt.sweep(story, fault, every=every, config=CONFIG, check=check).check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "every"),
    [
        ("crash", 53),
        pytest.param("crash", 1, marks=pytest.mark.sweep),
        pytest.param("power", 1, marks=pytest.mark.sweep),
    ],
)
def test_a_change_that_a_member_was_told_of_is_in_no_later_turn(
    fault: mt.HostFault, every: int
) -> None:
    """Law: a member is told of each change in one turn, wherever its host dies: also in that turn,
    which had an effect already. A turn that is repeated reads the same again.
    """

    async def change(host: Host) -> None:
        room = await host.open_room(changing)
        for number, sign in enumerate("+-", 1):
            if number <= len(await room.history()):
                await room.react(number, sign, user="dora")

    changing = attrs.evolve(den("acts", 1), reactions=True)

    def story(host: mt.SimulatedHost) -> None:
        for number in SAID:
            host.post(changing, f"@dot words {number}", user="dora", key=number)
            host.advance(0.4)  # the turn that is told may be within its tool, or before its answer
            host.call(change)
            host.advance(1)

    def check(host: mt.SimulatedHost) -> None:
        story(host)
        host.settle()
        read = Counter(re.findall(r"reacts to #\d", "\n".join({*host.call(told)})))
        assert set(read.values()) == {1}, read

    mt.sweep(story, fault, every=every, config=CONFIG, check=check).check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "fault", "every"),
    [
        (1, "crash", 11),
        pytest.param(1, "crash", 1, marks=pytest.mark.sweep),
        pytest.param(7, "crash", 1, marks=pytest.mark.sweep),
        pytest.param(59, "power", 1, marks=pytest.mark.sweep),
    ],
)
def test_a_message_that_is_withdrawn_while_a_turn_begins_leaves_no_copy(
    seed: int, fault: mt.HostFault, every: int
) -> None:
    """Law: a withdrawn text is in no stored event or row, wherever its host dies. With these seeds
    it is withdrawn when the turn that reads it has the floor, and no run yet.
    """
    room = den("listens", 1)

    async def withdraw(host: Host, after: float) -> None:
        await trio.sleep(after)
        opened = await host.open_room(room)
        for one in await opened.history():
            if "words 2" in one.text:
                await opened.delete(one.seq, user="dora")

    def story(host: mt.SimulatedHost) -> None:
        slow.seconds = float
        host.post(room, "@dot words 1", user="dora", key="1")
        host.advance(2)
        chance = Random(seed)
        slow.seconds = lambda: chance.choice((0, 0.001, 0.004, 0.02))
        host.post(room, "@dot words 2", user="dora", key="2")
        host.call(withdraw, Random(seed).choice((0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.03)))
        host.advance(2)

    def check(host: mt.SimulatedHost) -> None:
        slow.seconds = float
        for number in SAID[:2]:
            host.post(room, f"@dot words {number}", user="dora", key=number)
        host.call(withdraw, 0)
        host.advance(5)
        host.settle()
        assert [one for one in host.call(kept) if "words 2" in one] == []

    with slow_commits() as slow:
        mt.sweep(story, fault, seeds=(seed,), every=every, config=CONFIG, check=check).check()


@pytest.mark.parametrize(
    ("fault", "every"), [("crash", 1), pytest.param("power", 1, marks=pytest.mark.sweep)]
)
def test_the_end_of_a_room_that_is_stopped_before_its_first_round_is_told(
    fault: mt.HostFault, every: int
) -> None:
    """Law: all that people say is followed by the end of a round in the stream, wherever the host
    dies: also if a stop came before any round, and the kill between its state and its event.
    """
    room = den("listens", 1)

    async def stop(host: Host) -> None:
        await trio.sleep(0.01)  # the message is on its way to the disk
        await host.stop(room="den")

    def story(host: mt.SimulatedHost) -> None:
        host.call(lambda host: host.open_room(room))
        slow.seconds = lambda: 0.02
        host.begin(post)
        host.call(stop)
        host.advance(1)

    async def post(host: Host) -> None:
        opened = await host.open_room(room)
        await opened.post("@dot words 1", user="dora", key="1")

    def check(host: mt.SimulatedHost) -> None:
        slow.seconds = float
        host.call(post)
        host.advance(5)
        host.settle()
        found = [type(one.event) for one in host.call(lambda host: host.events.read(STREAM, 0, 99))]
        assert found[-1] is RoomIdle, found
        assert found.count(RoomIdle) == 1, found

    with slow_commits() as slow:
        mt.sweep(story, fault, every=every, config=CONFIG, check=check).check()


async def kept(host: Host) -> list[str]:
    """The events of the room and of its first member, and what that has read."""
    streams = (STREAM, "session:agent:dot:room:group:den")
    found = [one for stream in streams for one in await host.events.read(stream, 0, 500)]
    return [*(str(one.event) for one in found), *await told(host)]


async def told(host: Host) -> list[str]:
    """What the first member has read."""
    found = await host.history("agent:dot:room:group:den", limit=500)
    return [one.row.text for one in found if isinstance(one.row, UserMessage)]


async def answers(host: Host) -> list[str]:
    room = await host.open_room("den")
    return [one.text for one in await room.history() if one.kind == "agent"]


async def notices(host: Host) -> list[str]:
    """The stored warnings of the room."""
    found = await host.events.read(STREAM, 0, 500)
    return [one.event.message for one in found if isinstance(one.event, Warned)]
