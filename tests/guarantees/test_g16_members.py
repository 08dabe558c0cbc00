"""The session of a room's member is deleted, whatever it does just then, and the room goes on
(G7, G10, G15, G16).

Its turn runs, waits for a person, in memory or suspended, or for a sub-agent; a message is on its
way to it; its host is killed or restarted meanwhile, or its room is stopped.
"""

# It looks whether a room is idle.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from random import Random

import attrs
import pytest

import motet
from motet import testing as mt
from motet.protocols.queueing import QueueMode
from tests.guarantees.test_g10_authority import ASKS, World, config, deleting, gates

ACTS = (
    *("post", "post", "post", "delete member", "delete member", "delete child", "answer", "answer"),
    *("answer and delete", "wait", "wait", "steps", "steps", "crash", "power", "restart"),
    *("stop room", "expire", "reload"),
)
SAID = (*ASKS, "plain", "delegate", "cond")
SESSIONS = "SELECT session FROM sessions WHERE session LIKE ? AND session NOT IN ('a', 'b')"


@attrs.define(eq=False)
class MembersWorld(World):
    def agent(self, name: str = "ops") -> motet.Agent[None, str]:
        agent = super().agent(name)
        if name == "ops":
            self.room = motet.Room("hall", members=[agent], mode=self.room_mode)
        return agent

    @property
    def room_mode(self) -> QueueMode:
        assert self.room is not None
        return self.room.mode

    def act(self, act: str) -> None:
        match act:
            case "post":
                self.post(self.chance.choice(SAID), self.chance.randrange(99))
            case "delete member":
                self.delete("%hall%")
            case "delete child":
                self.delete("%subagent%")
            case "answer and delete":
                job = self.begin(self._answer)
                self.host.steps(self.chance.randrange(12))
                self.delete("%hall%")
                self.wait(job)
            case "stop room":
                self.stop(room="hall")
            case _:
                super().act(act)

    def delete(self, like: str) -> None:
        if found := self.read(SESSIONS, like):
            job = self.begin(deleting(self.chance.choice(found)[0]))
            self.host.steps(self.chance.choice((0, 3, 30)))
            if self.chance.randrange(3):
                self.wait(job)

    def check_room(self) -> None:
        """It answers, once, what is said to it now."""
        assert self.room is not None
        before = self.read("SELECT count(*) FROM room_messages WHERE author = 'ops'")
        self.host.post(self.room, "are you there?", user="ann")
        self.host.settle()
        after = self.read("SELECT count(*) FROM room_messages WHERE author = 'ops'")
        if after[0][0] != before[0][0] + 1:
            self.wrong.append(f"the room said {before} before and {after} after")


def told(seed: int) -> tuple[World, list[str]]:
    """The world after a random story, and the story."""
    chance = Random(seed)
    acts = [chance.choice(ACTS) for _ in range(chance.randrange(5, 20))]
    hold = (0.0, 0.4, 8.0)[seed % 3]
    with mt.simulated_host(seed, config=config("none", hold), setup=gates) as host:
        world = MembersWorld(host, chance, hold=hold)
        world.agent()
        assert world.room is not None
        host.room(world.room)
        for act in acts:
            world.act(act)
        world.finish()
        world.check_room()
        world.check_end()
        return world, acts


@pytest.mark.parametrize("part", range(3))
def test_a_room_goes_on_when_the_session_of_a_member_is_deleted(part: int) -> None:
    """Law: no effect comes without its run, or without an approval that it needs; each call says
    what became of it; in the end nothing lives or waits, and the room answers as before."""
    for seed in range(part * 3, part * 3 + 3):
        world, acts = told(seed)
        assert world.wrong == [], (seed, acts)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(20))
def test_in_many_worlds_a_room_goes_on_when_the_session_of_a_member_is_deleted(part: int) -> None:
    for seed in range(1_000 + part * 50, 1_050 + part * 50):
        world, acts = told(seed)
        assert world.wrong == [], (seed, acts)
