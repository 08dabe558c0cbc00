"""The wall clock may be put back or forward at any time: only what is shown as a time changes.

The same story is told twice, with and without jumps of the clock, also between two hosts: the runs
end in the same way, in the same order, with the same events and effects (G10, G15).
"""

# It looks whether a room is idle.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from contextlib import suppress
from itertools import pairwise
from math import inf
from random import Random
from typing import Any

import attrs
import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.hosting.retention import INTERVAL
from motet.protocols.chat import ToolMessage, UserMessage
from motet.protocols.config import ErrorsConfig, RetentionConfig
from motet.protocols.errors import Forbidden
from motet.protocols.models import ModelRequest
from motet.protocols.room_acts import AddPerson, MutePerson, RateRoom, SlowRoom
from motet.protocols.room_people import SlowDown
from motet.protocols.sessions import Principal
from motet.runtime import outside
from tests.guarantees.test_g10_authority import ACTS, World, config, gates

HOUR = 3600.0
JUMPS = (-1.0, -61.0, -HOUR, -400 * 24 * HOUR, 61.0, HOUR, 30 * HOUR, 400 * 24 * HOUR)
LITTLE = 100.0
STORY = (*(act for act in ACTS if act not in ("full", "locked")), *["jump"] * 6)
OUTCOME = (
    "SELECT run_id, session, status, text FROM runs ORDER BY rowid",
    "SELECT id, state, decision, used IS NULL FROM approvals ORDER BY rowid",
    "SELECT session, pos, run_id, role FROM messages ORDER BY session, pos",
    "SELECT stream, seq, event, run_id, json_extract(data, '$.id') FROM events "
    "ORDER BY stream, seq",
)
"""What is compared: inputs and approvals in the order in which they came, rows and events in
that of their session or stream. Ids are drawn by the simulator, in both worlds alike, so that a
request too many shows too. Not compared: times, which jump, and the place of events of different
streams among each other, which nobody is promised.
"""
FOR_EVER = RetentionConfig(events_days=inf, runs_days=inf, messages_days=inf, sessions_days=inf)
"""Retention goes by the wall clock: what was stored while it was 400 days behind is old."""
FOUND = (1_003, 1_066, 1_086, 1_148, 1_178, 1_183)
"""Stories in which the clock has once changed something: the order in which inputs were told after
a kill; the turn of a room that a kill cut off, which was not found by its time; slow mode."""


@attrs.define(eq=False)
class JumpingWorld(World):
    jumps: bool = True

    def act(self, act: str) -> None:
        if act == "jump":
            seconds = self.chance.choice(JUMPS)
            if self.jumps and self.may_jump(seconds):
                self.host.jump_clock(seconds)
        else:
            super().act(act)

    def may_jump(self, seconds: float) -> bool:
        """Back at any time. Forward it looks as if time had passed, while nobody counted it: a
        person who is asked is shown a time by the wall clock, which is over then; and the next host
        does not resume what is older than its ``resume_within``.
        """
        pending = self.read("SELECT 1 FROM approvals WHERE state = 'pending'")
        live = self.read("SELECT 1 FROM runs WHERE status IN ('queued', 'running')")
        rooms = self.host.host._parts.room_table.rooms.values()
        busy = live or not all(one.control.idle.is_set() for one in rooms)
        return seconds < 0 or not (pending or (busy and seconds > LITTLE))


def told(seed: int, *, jumps: bool) -> tuple[list[Any], list[str], list[str]]:
    """What came of a random story; what is wrong with it; and the story."""
    chance = Random(seed)
    acts = [chance.choice(STORY) for _ in range(chance.randrange(5, 25))]
    kept = attrs.evolve(config("none"), retention=FOR_EVER)
    with mt.simulated_host(seed, config=kept, setup=gates) as host:
        world = JumpingWorld(host, chance, jumps=jumps)
        world.agent()
        assert world.room is not None
        host.room(world.room)
        for act in acts:
            world.act(act)
        world.finish()
        world.check_end()
        return [world.read(sql) for sql in OUTCOME], world.wrong, acts


def differ(seed: int) -> None:
    still, wrong, acts = told(seed, jumps=False)
    assert wrong == [], (seed, acts)
    moved, wrong, acts = told(seed, jumps=True)
    assert wrong == [], (seed, acts)
    for before, after in zip(still, moved, strict=True):
        assert before == after, (seed, acts)


@pytest.mark.parametrize("part", range(2))
def test_a_jump_of_the_clock_changes_nothing(part: int) -> None:
    """Law: the same story with and without jumps has the same runs, approvals, rows and events, in
    the same order. No key is forgotten, no limit reached, no input answered before an older one."""
    for seed in range(part * 2, part * 2 + 2):
        differ(seed)


@pytest.mark.parametrize("seed", FOUND)
def test_stories_in_which_the_clock_has_changed_something(seed: int) -> None:
    differ(seed)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(10))
def test_in_many_worlds_a_jump_of_the_clock_changes_nothing(part: int) -> None:
    for seed in range(1_000 + part * 50, 1_050 + part * 50):
        differ(seed)


@pytest.mark.parametrize("end", ["restart", "crash"])
@pytest.mark.parametrize("back", [HOUR, 400 * 24 * HOUR])
def test_an_approval_waits_no_longer_than_its_life_in_a_host_whose_clock_was_put_back(
    end: str, back: float
) -> None:
    with mt.simulated_host(1, config=config("none"), setup=gates) as host:
        world = World(host, Random(1))
        world.agent()
        host.start(None, "!pay 1", session="a")
        host.advance(1)
        host.jump_clock(-back)
        world.end_host(end)
        host.advance(31)
        assert world.read("SELECT state FROM approvals") == [("expired",)]
        assert world.read("SELECT status FROM runs") == [("completed",)]


@pytest.mark.parametrize("seconds", [HOUR, -HOUR, -400 * 24 * HOUR])
@pytest.mark.parametrize("end", ["", "restart", "crash"])
def test_slow_mode_waits_for_its_seconds_and_not_for_those_that_the_clock_is_put_back(
    seconds: float, end: str
) -> None:
    """Law: within a host slow mode lasts its seconds, whatever the clock does, and never longer.
    The next host can only tell by the wall clock how long ago somebody has spoken."""
    hall = motet.Room("hall", members=[motet.Agent("ann", model=mt.ScriptedModel([mt.say("a")]))])
    with mt.simulated_host(1) as host:
        room = host.room(hall)
        host.call(lambda one: one.rooms.manage(SlowRoom(room="hall", seconds=20)))
        host.call(lambda _: room.post("first", user="ben"))
        host.jump_clock(seconds)
        if end:
            World(host, Random(1)).end_host(end)
            room = host.room(hall)
        if not (end and seconds > 0):
            with pytest.raises(SlowDown) as refused:
                host.call(lambda _: room.post("at once", user="ben"))
            assert 0 < refused.value.retry_after <= 20
        host.advance(21)
        host.call(lambda _: room.post("later", user="ben"))
        said = World(host, Random(1)).read("SELECT text FROM room_messages WHERE author = 'ben'")
        assert said == [("first",), ("later",)]


@pytest.mark.parametrize("seconds", [HOUR, -HOUR, -400 * 24 * HOUR, 400 * 24 * HOUR])
def test_a_mute_and_an_invite_last_their_seconds_whatever_the_clock_does(seconds: float) -> None:
    """Law: within a host they end when their seconds have passed, neither sooner nor later."""
    hall = motet.Room(
        "hall", members=[motet.Agent("ann", model=mt.ScriptedModel([]))], people=("ben",)
    )
    with mt.simulated_host(1) as host:
        room = host.room(hall)
        mute = MutePerson(room="hall", user="ben", seconds=600)
        host.call(lambda one: one.rooms.manage(mute))

        async def invite(one: Host) -> str:
            ends = outside.wall_time() + 600
            return (await one.rooms.invite("hall", expires=ends)).token

        async def come(one: Host, user: str) -> None:
            await one.rooms.join(token, principal=Principal(user))

        token = host.call(invite)
        host.jump_clock(seconds)
        # Another change of the people begins no mute anew.
        host.call(lambda one: one.rooms.manage(AddPerson(room="hall", user="cy")))
        for passed in (1, 300, 290):
            host.advance(passed)
            with pytest.raises(Forbidden, match="muted"):
                host.call(lambda _: room.post("let me", user="ben"))
            host.call(come, f"dan{passed}")
        host.advance(10)
        host.call(lambda _: room.post("at last", user="ben"))
        with pytest.raises(motet.NotFound):
            host.call(come, "late")


@pytest.mark.parametrize("seed", range(3))
def test_slow_mode_and_the_rate_count_a_room_and_its_threads_together(seed: int) -> None:
    """Law: however somebody spreads messages over a room and its threads, several at once too, they
    say no more in any span of time than the terms allow. One that is refused costs nothing."""
    chance = Random(seed)
    slow, most = chance.choice(((20, 0), (0, 3), (5, 4)))
    hall = motet.Room("hall", members=[motet.Agent("ann", model=mt.ScriptedModel([]))])
    taken: list[float] = []
    with mt.simulated_host(seed) as host:
        room = host.room(hall)
        host.call(lambda one: one.rooms.manage(SlowRoom(room="hall", seconds=slow)))
        host.call(lambda one: one.rooms.manage(RateRoom(room="hall", messages=most)))
        for _ in range(3):
            host.call(lambda _: room.post("a thing", user="ada", role="admin"))

        async def say(one: Host, place: str) -> None:
            with suppress(SlowDown):
                await one.rooms.post(place, "and I say", principal=Principal("ben"))
                taken.append(trio.current_time())

        host.call(lambda one: one.rooms.manage(AddPerson(room="hall", user="ben")))
        for _ in range(40):
            for _ in range(chance.choice((1, 1, 3))):
                host.begin(say, chance.choice(("hall", "hall/1", "hall/2", "hall/3")))
            host.advance(chance.choice((0.5, 4, 21)))
        assert len(taken) > 5
        assert all(later - before >= slow - 0.5 for before, later in pairwise(taken))
        if most:
            spans = zip(taken, taken[most:], strict=False)
            assert all(later - before >= 59.5 for before, later in spans)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_the_time_of_a_round_is_the_time_that_has_passed(seconds: float) -> None:
    """Neither a jump nor the time in which a person was asked counts against its limits."""
    model = mt.ScriptedModel([mt.call("pay"), mt.slow(mt.say("paid"), seconds=1)])
    ann = motet.Agent("ann", model=model)

    @ann.tool(effects="write", approval=True)
    def pay() -> str:
        return "done"

    limits = motet.Limits(wall=20)
    hall = motet.Room("hall", members=[ann], limits=limits, until=motet.Elapsed(20))
    with mt.simulated_host(1, config=config("none", 0.4)) as host:
        world, room = World(host, Random(1)), host.room(hall)
        host.call(lambda _: room.post("go", user="ben"))
        host.jump_clock(seconds)
        host.advance(25)
        host.jump_clock(-seconds / 2)
        world.do(world.allow)
        host.jump_clock(seconds)
        host.settle()
        host.advance(1)
        assert world.read("SELECT text FROM room_messages WHERE author = 'ann'") == [("paid",)]
        assert world.read("SELECT status FROM runs") == [("completed",)]
        assert world.read("SELECT count(*) FROM events WHERE event = 'warning'") == [(0,)]
        (idle,) = world.read(
            "SELECT json_extract(data, '$.reason') FROM events WHERE event = 'room.idle'"
        )
        assert "20 s" not in idle[0]
        assert "wall" not in idle[0]


def test_nothing_is_too_old_because_the_clock_was_put_forward() -> None:
    """Results and errors are kept for a time that passes, not for one that is skipped."""
    found = list[str]()

    def answer(request: ModelRequest) -> mt.Step:
        rows = [row for row in request.messages if isinstance(row, ToolMessage)]
        found.extend(row.text for row in rows[2:] if row.name == "get_tool_result")
        if len(rows) == 2 and isinstance(request.messages[-1], UserMessage):
            (result_id,) = re.findall(r"res_\w+", rows[0].text)[:1]
            return mt.call("get_tool_result", result_id=result_id)
        return mt.say("done") if rows else mt.call("long") + mt.call("broken")

    agent = motet.Agent("ops", model=mt.FunctionModel(answer))

    @agent.tool(effects="read")
    def long() -> str:
        return "a line\n" * 20_000

    @agent.tool(effects="read")
    def broken() -> str:
        raise RuntimeError("out of order")

    keep = motet.HostConfig(errors=ErrorsConfig(keep_days=1.0))
    with mt.simulated_host(1, agents=[agent], config=keep) as host:
        host.run(agent, "go", session="s")
        host.jump_clock(400 * 24 * HOUR)
        host.run(agent, "and again", session="s")
        assert found
        assert found[0].count("a line") > 1
        host.advance(2 * INTERVAL)
        assert len(host.call(Host.errors)) == 1
