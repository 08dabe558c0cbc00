"""A room whose host is killed in the middle of a round goes on, with what the round has left."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

import motet
from motet.protocols.events import AnyEvent, CallDropped, MessageAdded, RoomIdle, RoomTurn, Warned
from motet.protocols.room_calls import AWAY
from motet.protocols.rooms import INTERRUPTED, NOBODY
from tests import forks
from tests.actors.rooms.talk import behind_the_host, said, turns, warnings
from tests.actors.rooms.victim import room


def killed(state: Path, moment: str) -> None:
    ran = forks.ran("-m", "tests.actors.rooms.victim", str(state), moment)
    assert ran.returncode == -signal.SIGKILL, ran.stderr


async def after(state: Path, *, tools: bool = False) -> list[AnyEvent]:
    """All that the room's stream holds when it waits for a person again."""
    async with motet.open_host(state) as host:
        opened = await host.open_room(room(fresh=False, tools=tools))
        events: list[AnyEvent] = []
        with trio.fail_after(20):
            while not (events and isinstance(events[-1], RoomIdle)):
                await opened.wait()
                events = [one.event for one in await host.events.read("room:r", 0, 500)]
        again = await opened.post("@ann go", user="alice", key="k")
        assert again.duplicate, "it is never answered twice"
        return events


async def test_an_acknowledged_message_is_answered_by_the_next_host(tmp_path: Path) -> None:
    killed(tmp_path, "posted")
    events = await after(tmp_path)
    assert said(events) == [("alice", "@ann go"), ("ann", "@ben your turn"), ("ben", "I am ben")]
    assert events[-1] == RoomIdle(NOBODY)


async def test_a_speaker_that_was_killed_speaks_again_and_the_lost_turn_stays_used(
    tmp_path: Path,
) -> None:
    killed(tmp_path, "speaking")
    events = await after(tmp_path)
    last = [one for one in events if isinstance(one, RoomTurn)][-1]
    assert last == RoomTurn("ben", 3, 1, ("alice",), called_by=("ann",))
    assert said(events)[-1] == ("ben", "I am ben")


async def test_the_first_message_is_told_though_its_round_was_on_disk_before_any_event(
    tmp_path: Path,
) -> None:
    killed(tmp_path, "speaking")
    behind_the_host(
        tmp_path,
        "DELETE FROM events WHERE stream = 'room:r'",
        "DELETE FROM streams WHERE stream = 'room:r'",
    )
    events = await after(tmp_path)
    numbers = [one.number for one in events if isinstance(one, MessageAdded)]
    assert numbers == [1, 2, 3]


@pytest.mark.slow
async def test_a_turn_that_has_used_tools_is_not_repeated(tmp_path: Path) -> None:
    killed(tmp_path, "acted")
    events = await after(tmp_path, tools=True)
    assert turns(events) == ["ann", "ben"]
    assert warnings(events) == ["ben was cut off while it used its tools"]
    assert events[-1] == RoomIdle(NOBODY)


@pytest.mark.slow
async def test_an_old_round_is_listed_and_not_resumed(tmp_path: Path) -> None:
    killed(tmp_path, "posted")
    behind_the_host(
        tmp_path,
        "UPDATE room_messages SET at = at - 3600",
        "UPDATE rooms SET state = json_set(state, '$.opened', 0)",
    )
    events = await after(tmp_path)
    assert [one for one in events if not isinstance(one, MessageAdded)] == [
        Warned("room", AWAY, number=1),
        CallDropped("ann", ("alice",), INTERRUPTED, 0, 1, first=1, last=1),
        RoomIdle(INTERRUPTED),
    ]
