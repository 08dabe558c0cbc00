"""The settings and the control of a room: plain data, without its actor and its disk."""

from __future__ import annotations

import trio
import trio.testing

import motet
from motet.actors.rooms.state import RoomControl, RoomSettings
from motet.protocols.room_people import Standing, audience
from motet.protocols.rooms import MemberInfo
from motet.protocols.sessions import Principal


def room(**options: int) -> motet.Room:
    return motet.Room("r", members=[motet.Agent("ann")], max_turns=options.get("max_turns", 8))


async def test_a_mark_is_overtaken_by_a_stop_and_by_an_interrupt() -> None:
    control = RoomControl(trio.Event())
    mark = control.mark()
    assert not control.overtaken(mark)
    control.interrupt()
    assert control.overtaken(mark)
    later = control.mark()
    control.stop(3)
    assert control.overtaken(later)
    assert (control.clears, control.cleared) == (1, 3), "an interrupt clears nothing"


async def test_a_stop_that_comes_while_one_is_carried_out_is_carried_out_too() -> None:
    control = RoomControl(trio.Event())
    control.stop(1)
    mark = control.mark()
    control.stop(2)
    control.carried_out(mark)
    assert control.stopping
    control.carried_out(control.mark())
    assert not control.stopping


async def test_a_stop_ends_the_choice_of_a_speaker_and_wakes_those_who_wait_for_the_disk() -> None:
    control = RoomControl(trio.Event())
    reached: list[str] = []

    async def choose() -> None:
        with control.choosing():
            await trio.sleep_forever()
        reached.append("chosen")

    async def retry() -> None:
        await control.wait_interrupted(60)
        reached.append("awake")

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(choose)
            nursery.start_soon(retry)
            await trio.testing.wait_all_tasks_blocked()
            control.stop(1)
    assert sorted(reached) == ["awake", "chosen"]


async def test_a_definition_changes_between_two_rounds_and_the_audience_at_once() -> None:
    settings = RoomSettings(room(), (MemberInfo("ann"),), Standing("dev", "alice"))
    bob = Principal("bob")
    settings.admit(Standing("dev", "alice", audience(("bob",), ())))
    assert settings.open_to(bob)
    settings.plan((room(max_turns=2), (MemberInfo("ann", "new"),)))
    assert (settings.room.max_turns, settings.latest.max_turns) == (8, 2)
    settings.adopt()
    assert settings.room.max_turns == 2
    assert settings.members == (MemberInfo("ann", "new"),)
