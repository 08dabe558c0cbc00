"""Law: each ``@name`` in a room ends in one of two: a turn of that member, or ``call.dropped``."""

from __future__ import annotations

import pytest

from motet import testing as mt
from motet.protocols.rooms import ROOM_MODES, RoomMode
from tests.guarantees.worlds import calls as world


def found(seed: object, mode: RoomMode | None = None) -> list[str]:
    """How one random conversation breaks the law."""
    plan = world.Plan(seed, mode=mode)
    number = sum(map(ord, str(seed)))
    with (
        world.recorded() as given,
        mt.simulated_host(number, agents=world.agents(seed), config=world.CONFIG) as host,
    ):
        world.talk(plan, host, length=14)
        world.rest(host)
        return world.broken(host.call(world.look), given, steered=True)


@pytest.mark.parametrize("seed", range(10))
def test_each_call_comes_to_a_turn_or_is_told_to_be_dropped(seed: int) -> None:
    assert not found(seed)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ROOM_MODES)
@pytest.mark.parametrize("part", range(4))
def test_each_call_comes_to_one_end_in_many_talks(part: int, mode: RoomMode) -> None:
    for seed in range(100):
        assert not found(f"{part}/{seed}", mode), seed


def killed(fault: mt.HostFault, seed: int, mode: RoomMode, every: int) -> mt.SweepReport:
    """Kill the host at each so many-th step of a conversation."""

    def story(host: mt.SimulatedHost) -> None:
        world.talk(world.Plan(seed, mode=mode), host, length=5)

    def check(host: mt.SimulatedHost) -> None:
        world.rest(host)
        wrong = world.broken_after_kill(host.call(world.look), record)
        assert not wrong, wrong

    options = {"agents": world.agents(seed), "config": world.CONFIG}
    with world.recorded() as record:
        return mt.sweep(story, fault, seeds=(seed,), every=every, check=check, **options)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ROOM_MODES)
def test_each_call_comes_to_an_end_after_a_kill_at_some_moment(mode: RoomMode) -> None:
    killed("power", 1, mode, 61).check()


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ROOM_MODES)
@pytest.mark.parametrize("fault", ["crash", "power"])
def test_each_call_comes_to_an_end_after_a_kill_at_any_moment(
    fault: mt.HostFault, mode: RoomMode, seed: int
) -> None:
    killed(fault, seed, mode, 5).check()
