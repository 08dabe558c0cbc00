"""A room goes on while its disk, its policies or its own actor fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet.actors.rooms import table
from motet.actors.rooms.history import RoomHistory
from motet.protocols.events import RoomIdle, RoomTurn
from motet.protocols.room_conditions import Condition
from motet.protocols.room_speakers import AskModel, Speakers
from motet.protocols.rooms import FAILED, NOBODY, STOPPED, RoomView
from motet.protocols.sessions import ShuttingDown
from motet.protocols.storage import StorageError
from tests.actors.rooms.talk import (
    agent,
    behind_the_host,
    model_of,
    said,
    turns,
    until_idle,
    warnings,
)


def disk(state: Path, *, works: bool) -> None:
    """Have the real disk refuse what a room says, or take it again."""
    old, new = ("away", "room_messages") if works else ("room_messages", "away")
    behind_the_host(state, f"ALTER TABLE {old} RENAME TO {new}")


async def held(one: motet.Agent[None]) -> None:
    with trio.fail_after(5):
        while not model_of(one).requests:
            await trio.sleep(0.001)


def let_go(one: motet.Agent[None]) -> None:
    gate, model_of(one).gate = model_of(one).gate, None
    assert gate is not None
    gate.set()


def alone(one: motet.Agent[None], name: str = "r") -> motet.Room:
    return motet.Room(name, members=[one], speakers=motet.mentions())


async def test_a_message_of_an_agent_is_stored_when_the_disk_works_again(tmp_path: Path) -> None:
    ann = agent("ann", "here I am")
    model_of(ann).gate = trio.Event()
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(alone(ann))
        async with opened.subscribe() as events:
            await opened.post("@ann hello", user="alice")
            await held(ann)
            disk(tmp_path, works=False)
            let_go(ann)
            async for event in events:
                if warnings([event]):
                    break
            with pytest.raises(StorageError):
                await opened.post("are you there?", user="bob")
            assert not opened.idle
            disk(tmp_path, works=True)
            seen = await until_idle(events)
        assert said(seen)[0] == ("ann", "here I am")
        assert [one.text for one in await opened.history()][:2] == ["@ann hello", "here I am"]


async def test_a_stop_does_not_wait_for_a_failing_disk(tmp_path: Path) -> None:
    ann = agent("ann", "here I am")
    model_of(ann).gate = trio.Event()
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(alone(ann))
        async with opened.subscribe() as events:
            await opened.post("@ann hello", user="alice")
            await held(ann)
            disk(tmp_path, works=False)
            let_go(ann)
            async for event in events:
                if warnings([event]):
                    break
            assert (await opened.stop()).still_running == []
            seen = await until_idle(events)
            assert "a message of ann is lost: it could not be stored" in warnings(seen)
            assert seen[-1] == RoomIdle(STOPPED)
            disk(tmp_path, works=True)
            await opened.post("@ann again", user="alice")
            assert ("ann", "here I am") in said(await until_idle(events))


class Broken(Condition):
    def met(self, view: RoomView) -> str:
        raise RuntimeError("secret detail")


class Careless(Speakers):
    """Picks members, and somebody else."""

    async def pick(self, view: RoomView, ask: AskModel) -> list[str]:
        return ["the intern"]


def raises(_: RoomView) -> str:
    raise RuntimeError("secret detail")


def somebody(_: RoomView) -> str:
    return "the intern"


async def test_a_condition_that_raises_ends_its_round_and_not_the_room() -> None:
    room = motet.Room("r", members=[agent("ann", "yes")], until=Broken())
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        for _ in range(2):
            async with opened.subscribe() as events:
                await opened.post("@ann hello", user="alice")
                seen = await until_idle(events)
            assert seen[-1] == RoomIdle(FAILED)
            assert warnings(seen) == ["the round has failed: RuntimeError; see the log"]


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (Careless(), "nobody here is called 'the intern': ann"),
        (somebody, "nobody here is called 'the intern': ann"),
        (raises, "nobody could be chosen: RuntimeError; see the log"),
    ],
)
async def test_a_policy_that_raises_chooses_nobody(
    policy: Speakers | Callable[[RoomView], str], told: str
) -> None:
    async with motet.open_host() as host:
        room = motet.Room("r", members=[agent("ann", "yes")], speakers=policy)
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("hello", user="alice")
            seen = await until_idle(events)
        assert seen[-1] == RoomIdle(NOBODY)
        assert warnings(seen) == [told]


async def test_a_host_that_ends_cuts_a_round_off() -> None:
    ann = agent("ann", "never")
    model_of(ann).gate = trio.Event()
    with trio.fail_after(5):
        async with motet.open_host() as host:
            opened = await host.open_room(alone(ann))
            await opened.post("@ann hello", user="alice")
            await held(ann)
        assert opened.idle


async def test_a_host_that_shuts_down_leaves_the_rest_of_a_round_to_the_next(
    tmp_path: Path,
) -> None:
    ann, ben = agent("ann", "@ben yours"), agent("ben", "thanks")
    room = motet.Room("r", members=[ann, ben], speakers=motet.mentions())
    model_of(ann).gate = trio.Event()
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room)
        await opened.post("@ann hello", user="alice")
        await held(ann)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.drain, 5.0)
            await host.closing()
            with pytest.raises(ShuttingDown):
                await opened.post("@ann more", user="alice")
            let_go(ann)  # it may end its turn
        assert not model_of(ben).requests
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room)
        await opened.wait()
        assert [one.author for one in await opened.history()] == ["alice", "ann", "ben"]


async def test_a_turn_that_a_shutdown_cuts_off_is_repeated(tmp_path: Path) -> None:
    ann = agent("ann", "here")
    model_of(ann).gate = trio.Event()
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(alone(ann))
        await opened.post("@ann hello", user="alice")
        await held(ann)
        assert len(await host.drain(0.0)) == 1
    model_of(ann).gate = None
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(alone(ann))
        await opened.wait()
        assert [one.text for one in await opened.history()] == ["@ann hello", "here"]


class Stumbles(Condition):
    """Fails once."""

    failed = False

    def met(self, view: RoomView) -> str:
        if not self.failed:
            self.failed = True
            raise RuntimeError
        return ""


@pytest.mark.parametrize("most", [0, table.MOST])
async def test_a_room_goes_on_after_a_crash_of_its_actor(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while rooms that rest give up their actors: it does not rest."""
    monkeypatch.setattr(table, "MOST", most)
    crashes: list[str] = []

    async def warn(_: RoomHistory, message: str) -> None:
        crashes.append(message)
        raise AssertionError("a defect of the room itself")

    monkeypatch.setattr(RoomHistory, "warn", warn)
    room = attrs.evolve(alone(agent("ann", "yes")), until=Stumbles())
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        with trio.fail_after(5):
            await opened.post("@ann hello", user="alice")
            while len(await opened.history()) < 2:
                await trio.sleep(0.01)
            await opened.wait()
        assert len(crashes) == 1
        assert [one.author for one in await opened.history()] == ["alice", "ann"]


async def test_the_next_message_starts_a_passivated_room(
    autojump_clock: MockClock,
) -> None:
    async with motet.open_host() as host:
        opened = await host.open_room(alone(agent("ann", "yes")))
        await opened.post("@ann hello", user="alice")
        await opened.wait()
        await trio.sleep(2_000)
        assert not [one for one in host.system.snapshot() if one.path.endswith("/rooms/r")]
        await opened.post("@ann again", user="alice")
        await opened.wait()
        assert len(await opened.history()) == 4


async def test_of_many_rooms_that_rest_few_have_an_actor(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given many rooms one after the other, then the longest idle give up their actors soon, those
    at work keep them, and each answers its next message."""
    monkeypatch.setattr(table, "MOST", 5)

    def actors(host: motet.Host) -> set[str]:
        paths = (one.path.rpartition("/") for one in host.system.snapshot())
        return {name for above, _, name in paths if above.endswith("/rooms")}

    async with motet.open_host() as host:
        bob = agent("bob", "late")
        model_of(bob).gate = trio.Event()
        slow = await host.open_room(alone(bob, "slow"))
        await slow.post("@bob hello", user="alice")
        await held(bob)
        ann = agent("ann", "yes")
        opened = [await host.open_room(alone(ann, f"r{n}")) for n in range(20)]
        for one in opened:
            await one.post("@ann hello", user="alice")
            await one.wait()
        await trio.sleep(1.0)
        assert actors(host) == {"slow", *(f"r{n}" for n in range(15, 20))}
        for one in opened:
            await one.post("@ann again", user="alice")
            await one.wait()
            assert len(await one.history()) == 4
        let_go(bob)
        await slow.wait()
        assert len(await slow.history()) == 2


names = st.lists(st.sampled_from(["ann", "ben", "cid", "dot"]), min_size=1, max_size=4, unique=True)


@settings(max_examples=15, deadline=None)
@given(names, st.integers(1, 4), st.integers(1, 3), st.integers(1, 2))
def test_members_who_always_call_each_other_end(
    members: list[str], most: int, concurrency: int, people: int
) -> None:
    """Law: one message of a person leads to at most ``max_turns`` turns."""

    async def main() -> int:
        room = motet.Room(
            "r",
            members=[agent(name, "@all " + "@".join(members)) for name in members],
            max_turns=most,
            max_depth=1000,
            concurrency=concurrency,
        )
        with trio.fail_after(10):
            async with motet.open_host() as host:
                opened = await host.open_room(room)
                for number in range(people):
                    await opened.post(f"@all {number}", user=f"user {number}")
                await opened.wait()
                stored = await host.events.read("room:r", 0, 10_000)
        return sum(isinstance(one.event, RoomTurn) for one in stored)

    assert 1 <= trio.run(main) <= most * people


async def test_concurrent_speakers_see_the_same_messages_and_each_other_s_at_the_next_turn() -> (
    None
):
    ann, ben = agent("ann", "a"), agent("ben", "b")
    model_of(ann).gate = trio.Event()
    room = motet.Room("r", members=[ann, ben], speakers=motet.mentions(), concurrency=2)
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("@all first", user="alice")
            await held(ann)
            await held(ben)
            let_go(ann)  # after ben has answered
            first = await until_idle(events)
            await opened.post("@all second", user="alice")
            second = await until_idle(events)
    assert said(first)[1:] == said(second)[1:] == [("ann", "a"), ("ben", "b")], "in their order"
    assert turns(first) == ["ann", "ben"]
    assert model_of(ann).told == [
        "[#1 person alice] @all first",
        "[#3 agent ben] b\n[#4 person alice] @all second",
    ]
    assert model_of(ben).told == [
        "[#1 person alice] @all first",
        "[#2 agent ann] a\n[#4 person alice] @all second",
    ]
