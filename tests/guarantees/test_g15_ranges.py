"""Law: many calls of a busy member have one end each, though some end alone on a full disk."""

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest
from msgspec.structs import replace

from motet import testing as mt
from motet.actors.rooms.history import RoomHistory
from motet.protocols import room_calls, room_messages
from motet.protocols.rooms import ROOM_MODES, Due, RoomMode, RoomState
from tests.guarantees.worlds import calls
from tests.guarantees.worlds import ranges as world


def found(seed: object, mode: RoomMode, *, kills: bool = False, length: int = 4) -> list[str]:
    number = sum(map(ord, f"{seed}/{mode}"))
    with (
        calls.recorded() as given,
        mt.simulated_host(number, agents=world.agents(seed), config=calls.CONFIG) as host,
    ):
        talk = world.Talk(f"{seed}", mode, kills, given)
        world.play(talk, host, length=length)
        calls.rest(host)
        host.call(world.last_word)
        calls.rest(host)
        seen, room = host.call(world.look, host.history), host.call(calls.name_of)
        return [*world.broken(seen, talk, given.of(room))]


@pytest.mark.parametrize("mode", ROOM_MODES)
def test_each_call_in_a_range_has_one_end_while_the_storage_fails(mode: RoomMode) -> None:
    assert not found(0, mode)


@pytest.mark.parametrize("mode", ROOM_MODES[:2])
def test_each_call_in_a_range_has_one_end_though_the_host_is_killed(mode: RoomMode) -> None:
    assert not found(1, mode, kills=True)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ROOM_MODES)
@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_each_call_in_a_range_has_one_end_in_many_talks(
    part: int, kills: bool, mode: RoomMode
) -> None:
    for seed in range(100):
        assert not found(f"{part}/{seed}", mode, kills=kills), seed


def stopped_on_a_full_disk(away: str) -> list[str]:
    """Turns of a room that was stopped while nothing could be stored, in the host after a kill."""
    talk = world.Talk("stop", "collect", False, calls.Record())
    with (
        calls.recorded() as given,
        mt.simulated_host(1, agents=world.agents("stop"), config=calls.CONFIG) as host,
    ):
        host.call(world.begin, talk)
        for text in ("@ann <m1>", "@ann <m2>"):
            host.call(world.post, text, "ada")
            host.advance(0.1)
        calls.fail(host.disk, away)
        host.call(calls.stop)
        host.advance(30)
        calls.mend(host.disk)
        host.advance(5)
        before = {*given.of(host.call(calls.name_of)).turns}
        host.crash()
        calls.rest(host)
        room = host.call(calls.name_of)
        return [f"{turn}" for turn in given.of(room).turns if turn not in before]


@pytest.mark.parametrize("away", calls.FAULTS)
def test_a_stop_that_the_storage_did_not_take_is_stored_once_it_does(away: str) -> None:
    assert not stopped_on_a_full_disk(away)


def test_a_room_that_never_stores_its_stop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: RoomHistory) -> None:
        """The stop stays in memory."""

    monkeypatch.setattr(RoomHistory, "catch_up", never)
    assert stopped_on_a_full_disk("full")


# Planted defects: each is found within a few talks.


def keeps_what_has_ended(call: Due, _: int) -> Due:
    """A call that has ended alone stays in its range."""
    return call


def forgets_what_has_ended_at_the_edge(call: Due, number: int) -> Due | None:
    """What has ended behind a range is called again when a later message joins it."""
    left = WITHOUT(call, number)
    inside = tuple(one for one in left.ended if left.first < one < left.last) if left else ()
    return replace(left, ended=inside) if left else None


def forgets_what_was_assumed(self: RoomHistory, state: RoomState) -> None:
    """What happened during a write is undone by its end."""
    self._set(state)


def notes_nothing(calls: Iterable[Due], *_: object) -> tuple[Due, ...]:
    """Others of the member go over what has ended when they grow."""
    return tuple(calls)


WITHOUT = room_calls.without
DEFECTS: Final[dict[str, list[tuple[object, str, object]]]] = {
    "keeps what has ended": [(room_messages, "without", keeps_what_has_ended)],
    "forgets the edge": [
        (room_messages, "without", forgets_what_has_ended_at_the_edge),
        (room_messages, "ended_alone", notes_nothing),
    ],
    "forgets what was assumed": [(RoomHistory, "_stored", forgets_what_was_assumed)],
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_law_finds_a_room_that(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, planted in DEFECTS[defect]:
        monkeypatch.setattr(owner, name, planted)
    assert any(found(seed, "collect") for seed in (9, 43, *range(10, 60)))
