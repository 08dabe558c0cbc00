"""G15: of an input that ended somebody is told, whatever happens between end and telling."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.protocols.events import EventRecord, InputEnd


def waiting() -> motet.Agent:
    return motet.Agent("t", model=mt.ScriptedModel([mt.slow(mt.say("one"), seconds=50)] * 20))


def dropped(host: mt.SimulatedHost) -> None:
    """Inputs that wait are stopped."""
    agent = waiting()
    for number in range(3):
        host.start(agent, f"text {number}", user="ann")
    host.stop(session="main", user="ann")


def steered(host: mt.SimulatedHost) -> None:
    """What is said during a run enters it."""
    host.start(waiting(), "text", user="ann")
    host.steps(20)
    host.send("main", "and this", user="ann")
    host.settle()


def joined(host: mt.SimulatedHost) -> None:
    """What is said in one breath is answered at once."""
    agent = waiting()
    for number in range(4):
        host.start(agent, f"text {number}", user="ann", mode="collect")
    host.settle()


async def _ends(host: Host) -> dict[str, list[str]]:
    """The events that end an input, by run, for every run that has ended."""
    records: list[EventRecord] = list(await host.events.read("session:main", 0, 1000))
    ends: dict[str, list[str]] = {
        run.run_id: [] for run in await host.runs() if run.status not in ("queued", "running")
    }
    for record in records:
        if isinstance(record.event, InputEnd) and record.run_id is not None:
            ends.setdefault(record.run_id, []).append(type(record.event).__name__)
    return ends


def each_told_once(host: mt.SimulatedHost) -> None:
    ends = host.call(_ends)
    assert all(len(told) == 1 for told in ends.values()), ends


@pytest.mark.parametrize("story", [dropped, steered, joined])
@pytest.mark.parametrize(("fault", "every"), [("crash", 31), ("power", 29)])
def test_every_end_is_told_once_wherever_the_power_goes(
    story: Callable[[mt.SimulatedHost], None], fault: mt.HostFault, every: int
) -> None:
    mt.sweep(story, fault, every=every, check=each_told_once).check()
