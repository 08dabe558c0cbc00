"""Law: each ``@name`` in a room ends in one of two: a turn of that member, or ``call.dropped``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.rooms import history
from motet.actors.rooms.definition import member_session
from motet.actors.rooms.history import RoomHistory
from motet.protocols import room_floor as floor
from motet.protocols.chat import ToolMessage
from motet.protocols.events import RoomTurn
from motet.protocols.models import ModelRequest
from motet.protocols.rooms import ROOM_MODES, Due, RoomMode, RoomState
from motet.protocols.sessions import FINAL
from tests.guarantees.worlds import calls as world


def found(
    seed: object,
    mode: RoomMode | None = None,
    *,
    troubled: bool = False,
    hurried: bool = False,
    renames: bool = False,
) -> list[str]:
    """How one random conversation breaks the law.

    ``troubled``: the storage fails now and then. ``hurried``: stops come while the end of a round
    is being stored. ``renames``: members get other names.
    """
    plan = world.Plan(seed, mode, troubled, renames)
    number, agents = sum(map(ord, str(seed))), world.agents(seed, renames=renames)
    with (
        world.recorded() as given,
        mt.simulated_host(number, agents=agents, config=world.CONFIG) as host,
    ):
        if hurried:
            world.hurry(plan, host)
        else:
            world.talk(plan, host, length=14)
        world.rest(host)
        seen = host.call(world.look)
        broken = (world.broken(one, given.of(room), steered=True) for room, one in seen.items())
        return [f"{room}: {what}" for room, some in zip(seen, broken, strict=True) for what in some]


@pytest.mark.parametrize("seed", range(2))
def test_each_call_comes_to_a_turn_or_is_told_to_be_dropped(seed: int) -> None:
    assert not found(seed)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ROOM_MODES)
@pytest.mark.parametrize("part", range(4))
def test_each_call_comes_to_one_end_in_many_talks(part: int, mode: RoomMode) -> None:
    for seed in range(100):
        assert not found(f"{part}/{seed}", mode), seed


@pytest.mark.parametrize("seed", range(2))
def test_each_call_comes_to_one_end_while_the_storage_fails(seed: int) -> None:
    assert not found(seed, troubled=True)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ROOM_MODES)
@pytest.mark.parametrize("part", range(4))
def test_each_call_comes_to_one_end_in_many_talks_while_the_storage_fails(
    part: int, mode: RoomMode
) -> None:
    for seed in range(100):
        assert not found(f"{part}/{seed}", mode, troubled=True), seed


@pytest.mark.parametrize("seed", [61, 139, 141])
def test_each_call_comes_to_one_end_when_a_stop_meets_an_interrupt(seed: int) -> None:
    assert not found(seed, "interrupt", hurried=True)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ROOM_MODES)
def test_each_call_comes_to_one_end_when_stops_meet_ends_of_rounds(mode: RoomMode) -> None:
    for seed in range(400):
        assert not found(seed, mode, hurried=True), seed


@pytest.mark.parametrize("seed", range(2))
def test_each_call_comes_to_one_end_though_members_are_renamed(seed: int) -> None:
    assert not found(f"renamed {seed}", renames=True)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ROOM_MODES)
@pytest.mark.parametrize("troubled", [False, True])
def test_each_call_comes_to_one_end_in_many_talks_whose_members_are_renamed(
    troubled: bool, mode: RoomMode
) -> None:
    for seed in range(100):
        assert not found(f"renamed {seed}", mode, troubled=troubled, renames=True), seed


def killed(
    fault: mt.HostFault, seed: int, mode: RoomMode, every: int, *, renames: bool = False
) -> mt.SweepReport:
    """Kill the host at each so many-th step of a conversation."""

    def story(host: mt.SimulatedHost) -> None:
        world.talk(world.Plan(seed, mode, renames=renames), host, length=5)

    def check(host: mt.SimulatedHost) -> None:
        world.rest(host)
        for room, seen in host.call(world.look).items():
            wrong = world.broken_after_kill(seen, record.of(room))
            assert not wrong, (room, wrong)

    options = {"agents": world.agents(seed, renames=renames), "config": world.CONFIG}
    with world.recorded() as record:
        return mt.sweep(story, fault, seeds=(seed,), every=every, check=check, **options)  # type: ignore[arg-type]


def test_each_call_comes_to_an_end_after_a_kill_at_some_moment() -> None:
    killed("power", 1, "interrupt", 151).check()


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ROOM_MODES)
@pytest.mark.parametrize("fault", ["crash", "power"])
def test_each_call_comes_to_an_end_after_a_kill_though_members_are_renamed(
    fault: mt.HostFault, mode: RoomMode, seed: int
) -> None:
    killed(fault, seed, mode, 15, renames=True).check()


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ROOM_MODES)
@pytest.mark.parametrize("fault", ["crash", "power"])
def test_each_call_comes_to_an_end_after_a_kill_at_any_moment(
    fault: mt.HostFault, mode: RoomMode, seed: int
) -> None:
    killed(fault, seed, mode, 5).check()


# Planted defects: each is found within a few talks.


def forgets_pending(state: RoomState, **how: Any) -> RoomState:
    """A round begins with its own calls only, as before."""
    return OPEN(replace(state, floor=replace(state.floor, due=())), **how)


def says_nothing(state: RoomState, *_: object) -> RoomState:
    """Calls are dropped without a word."""
    return state


async def tells_nobody(_: RoomHistory) -> None:
    """The state knows, the stream does not."""


def drops_with_the_round(state: RoomState, reason: str, **how: Any) -> RoomState:
    """An interrupt ends more than the turns under way."""
    ended = END(state, reason, **how)
    return replace(ended, floor=replace(ended.floor, due=()))


def leaves_due(state: RoomState, speakers: Sequence[Due], **how: Any) -> RoomState:
    """A call that has come to a turn comes to another one."""
    given = GIVE(state, speakers, **how)
    return replace(given, floor=replace(given.floor, due=state.floor.due))


OPEN, GIVE, END = floor.open_round, floor.give_floor, floor.end_round
DEFECTS: list[tuple[object, str, object, RoomMode | None]] = [
    (floor, "open_round", forgets_pending, "interrupt"),
    (floor, "give_floor", leaves_due, None),
    (floor, "drop", says_nothing, None),
    (floor, "end_round", drops_with_the_round, "interrupt"),
    (RoomHistory, "_tell", tells_nobody, None),
    (history, "collect", says_nothing, None),
]


@pytest.mark.parametrize(
    ("owner", "name", "defect", "mode"), DEFECTS, ids=[name for _, name, _, _ in DEFECTS]
)
def test_the_law_finds_a_defect_of(
    owner: object,
    name: str,
    defect: object,
    mode: RoomMode | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, defect)
    assert any(found(f"defect {seed}", mode) for seed in range(60)), (
        "the law holds with the defect, too"
    )


# A turn without a message has only its event to tell of it.

SOME = range(84, 111, 3)
"""Changes of the disk around the end of its run."""
SILENT: dict[str, mt.Step] = {
    "passes": mt.say("[pass]"),
    "fails": mt.fail(400),
    "waits": mt.call("act"),
}
"""Her answers; she passes once nobody has allowed her call in time."""


def untold(end: str, change: int) -> int | None:
    """Turns of a member that says nothing which no event tells of, where the power was cut before
    that change of the disk. None: there are not so many changes.
    """

    def answer(request: ModelRequest) -> mt.Step:
        has_asked = any(isinstance(row, ToolMessage) for row in request.messages)
        return SILENT["passes" if has_asked else end]

    silent = motet.Agent("ann", model=mt.FunctionModel(answer, name="ann's"))

    @silent.tool(approval=True)
    async def act() -> str:
        return "done"

    caller = motet.Agent("ben", model=mt.FunctionModel(lambda _: mt.say("@ann your turn")))
    room = motet.Room("den", members=[caller, silent], max_turns=2)

    async def missing(host: Host) -> int:
        events = [one.event for one in await host.events.read("room:den", 0, 200)]
        told = [one for one in events if isinstance(one, RoomTurn) and one.speaker == "ann"]
        runs = await host.runs(session=member_session("den", "ann"))
        return len([run for run in runs if run.status in FINAL]) - len(told)

    with mt.simulated_host(change, agents=[caller, silent], config=world.CONFIG) as host:
        with mt.power_cut(host, change) as power:
            host.room(room)
            host.post("den", "@ben <m1>", user="ada", key="1")
            host.settle()
        host.room(room)
        host.settle()
        return max(0, host.call(missing)) if power.failed else None


@pytest.mark.parametrize("end", list(SILENT))
def test_a_turn_that_says_nothing_is_told_after_a_power_cut(end: str) -> None:
    assert [untold(end, change) for change in SOME] == [0] * len(SOME)


@pytest.mark.sweep
@pytest.mark.parametrize("end", list(SILENT))
def test_a_turn_that_says_nothing_is_told_after_a_power_cut_at_any_change(end: str) -> None:
    change = next(change for change in count(1) if untold(end, change) != 0)
    assert untold(end, change) is None, change
    assert change > 50, "a round takes changes"
