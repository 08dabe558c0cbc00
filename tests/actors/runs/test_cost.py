"""The Python calls and the cyclic garbage of a turn, counted exactly, so that its cost only falls.

The clock stands still: no timer of the host goes off, so that every turn makes the same calls. The
journal of events and the traces, which are written for many turns at once, are no part of it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import motet
from bench.turns import FakeModel, double
from motet.actors.runs.run import Run
from motet.protocols.hooks import Point

OURS = ("motet.actors.", "motet.runtime.", "motet.protocols.")
TURNS = 10


def calls_of_a_turn(*, tools: bool, points: Sequence[Point] = ()) -> float:
    """Calls of Python functions in one turn in a new session, resumptions included.

    ``points`` have a gate each that allows all.
    """

    async def gate(_event: object) -> motet.Allow:
        return motet.Allow()

    async def story() -> float:
        calls = 0

        def count(_frame: object, event: str, _arg: object) -> None:
            nonlocal calls
            calls += event == "call"

        agent = motet.Agent("a", model=FakeModel(tools), tools=[double] if tools else [])
        async with motet.open_host(agents=[agent]) as host:
            for point in points:
                on: Any = host.on
                on(point)(gate)
            for turn in range(3 * TURNS):  # all that is made at first use is there then
                await host.run(agent, "hi", session=f"first-{turn}")
            gc.collect()  # finalizers of what earlier tests have left would be counted
            gc.disable()
            before = sys.getprofile()
            sys.setprofile(count)
            try:
                for turn in range(TURNS):
                    await host.run(agent, "hi", session=f"{turn}")
            finally:
                sys.setprofile(before)
                gc.enable()
            return calls / TURNS

    return trio.run(story, clock=MockClock())


@pytest.mark.parametrize(("tools", "most"), [(False, 817), (True, 2_479)])
def test_a_turn_makes_no_more_calls_than_it_did(tools: bool, most: int) -> None:
    """Lower the bound when a turn gets cheaper: it is one per cent above the count."""
    assert calls_of_a_turn(tools=tools) <= most


@pytest.mark.parametrize(("tools", "most"), [(False, 1_306), (True, 4_246)])
def test_gates_make_no_more_calls_than_they_did(tools: bool, most: int) -> None:
    """Eight gates: two at each point of a text turn; with tools, four around each call."""
    text: list[Point] = ["before_input", "before_model", "after_model", "before_output"]
    around: list[Point] = ["before_tool", "after_tool"]
    points = around * 4 if tools else text * 2
    assert calls_of_a_turn(tools=tools, points=points) <= most


def test_a_turn_of_a_room_makes_no_more_calls_than_it_did() -> None:
    """Of two members that take turns: four turns for a message, which is posted and told.

    The order of tasks changes the count by one per cent; the bound is two above it.
    """

    async def story() -> float:
        calls, rounds = 0, 3

        def count(_frame: object, event: str, _arg: object) -> None:
            nonlocal calls
            calls += event == "call"

        model = FakeModel(False)
        members = [motet.Agent(name, model=model) for name in ("ann", "ben")]
        policy, turns = motet.round_robin(), 4
        room = motet.Room("r", members=members, speakers=policy, max_turns=turns, history=10)
        async with motet.open_host(agents=members) as host:
            opened = await host.open_room(room)
            for _ in range(6):  # its history is as long as it gets then
                await opened.run("hi", user="alice")
            gc.collect()
            gc.disable()
            before = sys.getprofile()
            sys.setprofile(count)
            try:
                for _ in range(rounds):
                    await opened.run("hi", user="alice")
            finally:
                sys.setprofile(before)
                gc.enable()
        return calls / rounds / turns

    assert trio.run(story, clock=MockClock()) <= 2_565


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


@pytest.mark.parametrize(("tools", "most"), [(False, 4.0), (True, 19.5)])
def test_a_turn_takes_no_more_steps_of_trio_than_it_did(tools: bool, most: float) -> None:
    """Three of them are the checkpoints of the fake model, with tools thirteen."""

    async def story() -> float:
        steps = Steps()
        agent = motet.Agent("a", model=FakeModel(tools), tools=[double] if tools else [])
        async with motet.open_host(agents=[agent]) as host:
            for turn in range(3 * TURNS):
                await host.run(agent, "hi", session=f"first-{turn}")
            trio.lowlevel.add_instrument(steps)
            for turn in range(TURNS):
                await host.run(agent, "hi", session=f"{turn}")
            trio.lowlevel.remove_instrument(steps)
        return steps.count / TURNS

    assert trio.run(story, clock=MockClock()) <= most


def test_nothing_of_a_run_has_its_attributes_looked_up_slowly() -> None:
    """attrs gives a slotted class with a ``cached_property`` a ``__getattr__``. With one, the
    interpreter takes its slow way to every attribute, also to those that are there."""
    modules = [module for name, module in sys.modules.items() if name.startswith(OURS)]
    found = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    assert Run in found
    slow = {one.__qualname__ for one in found if attrs.has(one) and hasattr(one, "__getattr__")}
    assert slow <= {"_Screen"}  # it passes on what an object of the MCP SDK has


@pytest.mark.parametrize("tools", [False, True])
def test_a_turn_leaves_nothing_to_the_garbage_collector(tools: bool) -> None:
    """Objects in cycles keep all rows of a run alive, and the collector walks through them."""

    async def story() -> list[object]:
        agent = motet.Agent("a", model=FakeModel(tools), tools=[double] if tools else [])
        async with motet.open_host(agents=[agent]) as host:
            for turn in range(2 * TURNS):
                await host.run(agent, "hi", session=f"first-{turn}")
            gc.collect()
            gc.disable()
            try:
                for turn in range(TURNS):
                    await host.run(agent, "hi", session=f"{turn}")
                gc.set_debug(gc.DEBUG_SAVEALL)
                gc.collect()
                return list(gc.garbage)
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()

    assert trio.run(story, clock=MockClock()) == []
