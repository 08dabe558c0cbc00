"""A stop at every step, whatever the runs are doing: they end as stopped, and each call says what
has become of it (G2, G3, G7).

By default at some of the steps, with the marker ``sweep`` at all of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

import motet
from motet.actors.host import Host
from motet.protocols.limits import Limits
from motet.protocols.queueing import QueueMode
from tests.guarantees.worlds.stop_gates import GATES, gated
from tests.guarantees.worlds.stop_plays import Story, everywhere
from tests.guarantees.worlds.stops import EVE, FAY, GROUP, Door, Stops, Way

WAYS: tuple[Way, ...] = ("everything", "session", "newest", "close")
POINTS = (
    "before_input",
    "before_model",
    "after_model",
    "before_tool",
    "after_tool",
    "before_output",
    "before_child",
)
MODES: tuple[QueueMode, ...] = ("followup", "steer", "collect", "interrupt")
SOME = 211


def says(*texts: str, mode: QueueMode | None = None, after: float = 0.3) -> Story:
    """Inputs of one session: the first, and the others while its run goes on."""

    def story(world: Stops, agent: motet.Agent[None]) -> None:
        for text in texts:
            world.host.start_soon(agent, text, mode=mode)
            world.host.advance(after)

    return story


def answers(world: Stops, agent: motet.Agent[None]) -> None:
    """Calls that wait for a person, who allows them after a while."""
    world.host.start(agent, "go !nap !wipe !wipe")
    world.host.advance(2)
    for approval in world.host.call(Host.approvals):
        world.host.call(Host.approve, approval.id, "allow-once")
    world.host.advance(2)


def meets(world: Stops, agent: motet.Agent[None]) -> None:
    """A room of two, and a conversation beside it."""
    other = world.agent("other")
    room = motet.Room("den", members=[agent, other], speakers=motet.mentions())
    world.host.post(room, "@main !nap and @other !make", user="local")
    world.host.start(agent, "go !nap")
    world.host.advance(1)


def steered(world: Stops, agent: motet.Agent[None]) -> None:
    """Texts for a run that waits for a person, before and between the answers."""
    world.host.start(agent, "go !wipe !nap !wipe")
    world.host.start_soon(agent, "and !thread", mode="steer")
    world.host.advance(0.5)
    for approval in world.host.call(Host.approvals):
        world.host.call(Host.approve, approval.id, "allow-once")
        world.host.start_soon(agent, "and more", mode="steer")
        world.host.advance(0.5)
    world.host.advance(1)


def group(world: Stops, agent: motet.Agent[None]) -> None:
    """Two people in a group, each with a run, its children, and more to say."""
    for text in ("go +nap !nap", "go !ask", "and !thread", "more"):
        for sender in (EVE, FAY):
            world.host.begin(partial(_say, agent.name, text, sender))
            world.host.advance(0.2)
    world.host.advance(2)


async def _say(agent: str, text: str, sender: str, host: Host) -> None:
    await host.submit(text, session=GROUP, agent=agent, sender=sender)


def long_talk(world: Stops, agent: motet.Agent[None]) -> None:
    """A conversation that is to be summarised soon."""
    for number in range(4):
        world.host.run(agent, f"{number} {PADDING}", session="main")


def many_rows(world: Stops, agent: motet.Agent[None]) -> None:
    """A conversation that is to be summarised after its next run."""
    world.host.run(agent, "hello", session="main")
    for number in range(48):
        world.host.call(Host.inject, "so", session="main", key=f"{number}")


def compacts(world: Stops, _agent: motet.Agent[None]) -> None:
    """A person has the conversation summarised."""

    async def compact(host: Host) -> None:
        if world.struck:  # the stop was before it
            world.spared.add("summary")
        await host.compact("main")

    world.host.begin(compact)
    world.host.advance(1)


class Sized(msgspec.Struct):
    length: int


PADDING = "and so on " * 200
LONG: dict[str, Any] = {"before": long_talk, "window": 4_000, "every": 17, "way": "everything"}
STORIES: dict[str, tuple[Story, dict[str, Any]]] = {
    "streams": (says("hello"), {}),
    "tools": (says("go !nap !stubborn !thread"), {}),
    "tools that clean up": (says("go !shielded !fails", "and !nested !nap"), {}),
    "programs": (says("go !make !nap"), {}),
    "children": (says("go !ask !nap", after=0.8), {}),
    "children in the background": (says("go +nap +make !nap", after=1.5), {}),
    "approvals": (answers, {}),
    "suspended approvals": (answers, {"hold": 0.0}),
    "time-out": (says("go !nap !thread"), {"limits": Limits(wall=1.05)}),
    "turns": (says("go !nap"), {"limits": Limits(turns=1)}),
    "calls": (says("go !nap !nap !thread"), {"limits": Limits(tool_calls=1)}),
    "rooms": (meets, {}),
    "steering beside approvals": (steered, {}),
    "steering beside suspended approvals": (steered, {"hold": 0.0}),
    "repairs": (says("go !nap", "hello", after=1), {"output_type": Sized}),
    "summary in a run": (says(PADDING), LONG),
    "summary on request": (compacts, LONG),
    "summary after a run": (says("more", after=1), {**LONG, "before": many_rows}),
    "children of a run that cleans up": (
        says("go +nap !shielded", after=1),
        {"way": "session", "every": 23},
    ),
    **{mode: (says("go !nap", "and !thread", "more", mode=mode), {}) for mode in MODES},
}


@pytest.mark.parametrize("name", STORIES)
def test_a_stop_at_any_step_is_a_stop(name: str) -> None:
    """Law: at whatever step a stop comes, no run fails, no tool begins and no model is asked after
    it, and each call says that it was done, cut while it ran, or never began, as it was; nothing is
    left running.
    """
    story, options = STORIES[name]
    way = WAYS[list(STORIES).index(name) % len(WAYS)]
    own: dict[str, Any] = {"way": way, "every": SOME, **options}
    assert everywhere(story, own.pop("way"), **own)


@pytest.mark.parametrize(
    "name", ["tools", "children", "approvals", "suspended approvals", "collect"]
)
def test_a_stop_soon_after_a_kill_is_a_stop(name: str) -> None:
    """Law: the same for runs that the last host has begun, resumed or not; their traces say it."""
    story, options = STORIES[name]
    assert everywhere(story, "crash", every=SOME, **options)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "name", ["tools", "children", "approvals", "suspended approvals", "collect"]
)
def test_a_stop_soon_after_a_kill_at_every_step_is_a_stop(name: str, seed: int) -> None:
    story, options = STORIES[name]
    assert everywhere(story, "crash", seeds=(seed,), every=3, **options)


@pytest.mark.parametrize("name", ["nap", "again"])
@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_a_call_that_a_kill_has_cut_is_known_to_have_begun_however_its_run_waits(
    name: str, hosts: int
) -> None:
    """Law: the same for a call that begins again after a kill, behind a gate that is slow, while
    its run asks a person and is killed again: stopped before it does, it never says that it never
    began.
    """
    slow = ("peek", *(name,) * hosts)
    assert everywhere(says(f"go !{name} !peek", after=1), "crash", every=47, hold=0.0, slow=slow)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["nap", "again"])
@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_a_call_that_is_cut_at_any_moment_is_known_to_have_begun(name: str, hosts: int) -> None:
    slow = ("peek", *(name,) * hosts)
    assert everywhere(says(f"go !{name} !peek", after=1), "crash", every=3, hold=0.0, slow=slow)


DOORS: tuple[tuple[Door, Way], ...] = (
    ("python", "run"),
    ("method", "everything"),
    ("method", "session"),
    ("method", "run"),
    ("chat", "everything"),
    ("chat", "newest"),
    ("chat", "run"),
)


@pytest.mark.parametrize(("door", "way"), DOORS)
def test_a_stop_through_any_door_is_a_stop(door: Door, way: Way) -> None:
    """Law: the same for ``runs.stop`` and for a text in a chat, over a gateway."""
    assert everywhere(says("go !ask +nap !thread", "more"), way, door=door, every=2 * SOME)


@pytest.mark.parametrize(("door", "way"), [("python", "sender"), ("chat", "own")])
def test_a_stop_by_one_of_a_group_ends_nothing_of_the_others(door: Door, way: Way) -> None:
    """Law: the same for one person's runs and inputs in a group, with their children; those of the
    others are answered."""
    assert everywhere(group, way, door=door, session=GROUP, every=2 * SOME)


@pytest.mark.parametrize("kind", GATES)
def test_a_stop_at_any_step_of_a_gate_is_a_stop(kind: str) -> None:
    """Law: the same with a gate that is slow, swallows its cancellation, shields itself, or fails
    when it is cancelled."""
    assert everywhere(says("go !nap"), "everything", every=13, setup=gated("before_tool", kind))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", STORIES)
def test_a_stop_at_every_step_is_a_stop(name: str, seed: int) -> None:
    story, options = STORIES[name]
    own: dict[str, Any] = {**options, "seeds": (seed,), "every": 1, "parts": 2}
    own.pop("way", None)
    assert everywhere(story, *WAYS, **own)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("point", POINTS)
def test_a_stop_at_every_step_of_every_gate_is_a_stop(point: str, kind: str) -> None:
    story = says("go !nap !ask +nap !thread", after=2)
    assert everywhere(story, "everything", "close", every=3, setup=gated(point, kind))


@pytest.mark.sweep
@pytest.mark.parametrize("door", ["python", "method", "chat"])
def test_a_stop_at_every_step_through_any_door_is_a_stop(door: Door) -> None:
    ways: list[Way] = [way for one, way in DOORS if one == door]
    assert everywhere(says("go !ask +nap !thread", "more"), *ways, door=door, every=2)


@pytest.mark.sweep
@pytest.mark.parametrize("door", ["python", "chat"])
def test_a_stop_at_every_step_by_one_of_a_group_is_only_theirs(door: Door) -> None:
    assert everywhere(group, "sender", "own", door=door, session=GROUP, every=2)
