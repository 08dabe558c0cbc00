"""A stop at every step, whatever the runs are doing: they end as stopped, and each call says what
has become of it (G2, G3, G7).

By default at some of the steps, with the marker ``sweep`` at all of them.
"""

from __future__ import annotations

from typing import Any

import pytest

import motet
from motet.actors.host import Host
from motet.protocols.limits import Limits
from motet.protocols.queueing import QueueMode
from tests.guarantees.worlds.stops import GATES, Stops, Story, Way, everywhere, gated

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
SOME = 61


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


STORIES: dict[str, tuple[Story, dict[str, Any]]] = {
    "streams": (says("hello"), {}),
    "tools": (says("go !nap !stubborn !thread"), {}),
    "tools that clean up": (says("go !shielded !fails"), {}),
    "programs": (says("go !make !nap"), {}),
    "children": (says("go !ask !nap", after=0.8), {}),
    "children in the background": (says("go +nap +make !nap", after=1.5), {}),
    "approvals": (answers, {}),
    "suspended approvals": (answers, {"hold": 0.0}),
    "time-out": (says("go !nap !thread"), {"limits": Limits(wall=1.05)}),
    "turns": (says("go !nap"), {"limits": Limits(turns=1)}),
    "calls": (says("go !nap !nap !thread"), {"limits": Limits(tool_calls=1)}),
    "rooms": (meets, {}),
    **{mode: (says("go !nap", "and !thread", "more", mode=mode), {}) for mode in MODES},
}


@pytest.mark.parametrize("name", STORIES)
def test_a_stop_at_any_step_is_a_stop(name: str) -> None:
    """Law: at whatever step a stop comes, no run fails, no tool begins after it, and each call says
    that it was done, cut while it ran, or never began, as it was; nothing is left running.
    """
    story, options = STORIES[name]
    way = WAYS[list(STORIES).index(name) % len(WAYS)]
    assert everywhere(story, way, every=SOME, **options)


@pytest.mark.parametrize("kind", GATES)
def test_a_stop_at_any_step_of_a_gate_is_a_stop(kind: str) -> None:
    """Law: the same with a gate that is slow, swallows its cancellation, shields itself, or fails
    when it is cancelled."""
    assert everywhere(says("go !nap"), "everything", every=5, setup=gated("before_tool", kind))


@pytest.mark.sweep
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", STORIES)
def test_a_stop_at_every_step_is_a_stop(name: str, way: Way) -> None:
    story, options = STORIES[name]
    assert everywhere(story, way, seeds=range(2), every=1, **options)


@pytest.mark.sweep
@pytest.mark.parametrize("way", ["everything", "close"])
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("point", POINTS)
def test_a_stop_at_every_step_of_every_gate_is_a_stop(point: str, kind: str, way: Way) -> None:
    story = says("go !nap !ask +nap !thread", after=2)
    assert everywhere(story, way, every=3, setup=gated(point, kind))
