"""An ask that would wait for itself fails at once, and names the chain (G11)."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorRef, AskCycle, StartFailed, handles, open_system
from motet.runtime.waits import Work, refuse_cycle


class Forward(Request[str], frozen=True, tag="waits.forward"):
    """Ask the actors at these paths, one through the other."""

    route: tuple[str, ...]


class Aside(Forward, frozen=True, tag="waits.aside"):
    """The same, next to the turn."""


class Later(Message, frozen=True, tag="waits.later"):
    """Ask them from a background task."""

    route: tuple[str, ...]


class Relay(Actor[Forward | Aside | Later]):
    def __init__(self) -> None:
        self.answers: list[str] = []

    @handles(Forward)
    async def forward(self, request: Forward) -> str:
        return await self._next(request.route)

    @handles(Aside, concurrent=2)
    async def aside(self, request: Aside) -> str:
        return await self._next(request.route)

    @handles(Later)
    async def later(self, message: Later) -> None:
        self.start_soon(self._note, message.route)

    async def _note(self, route: tuple[str, ...]) -> None:
        self.answers.append(await self._next(route))

    async def _next(self, route: tuple[str, ...]) -> str:
        if not route:
            return "end"
        name, aside = route[0].rstrip("!"), route[0].endswith("!")
        ref: ActorRef[Forward | Aside] | None = self.system.find(f"/s/{name}")
        assert ref is not None
        return await ref.ask(Aside(route[1:]) if aside else Forward(route[1:]))


@pytest.mark.parametrize(
    ("route", "chain"),
    [
        (("a",), ("/s/a", "/s/a")),
        (("b", "a"), ("/s/b", "/s/a", "/s/b")),
        (("b", "c", "b"), ("/s/c", "/s/b", "/s/c")),
        (("b!", "a"), ("/s/b", "/s/a", "/s/b")),
    ],
)
async def test_a_cycle_fails_at_once_and_names_its_chain(
    route: tuple[str, ...], chain: tuple[str, ...]
) -> None:
    async with open_system("s") as system:
        refs = {name: await system.start(Relay, name=name) for name in "abc"}

        with pytest.raises(AskCycle, match="->") as caught:
            await refs["a"].ask(Forward(route))

        assert caught.value.chain == chain
        # Nobody is stuck or restarted.
        for ref in refs.values():
            assert await ref.ask(Forward(())) == "end"
            assert ref.statistics().restarts == 0


@pytest.mark.parametrize("route", [("b", "c"), ("a!",), ("b", "a!"), ("b!", "c", "b")])
async def test_a_chain_without_a_cycle_is_not_refused(route: tuple[str, ...]) -> None:
    async with open_system("s") as system:
        refs = {name: await system.start(Relay, name=name) for name in "abc"}

        assert await refs["a"].ask(Forward(route)) == "end"


async def test_two_actors_that_ask_each_other_at_the_same_time_do_not_deadlock() -> None:
    outcomes: list[str] = []

    async def ask(ref: ActorRef[Forward], other: str) -> None:
        try:
            outcomes.append(await ref.ask(Forward((other,))))
        except AskCycle:
            outcomes.append("cycle")

    async with open_system("s") as system:
        a = await system.start(Relay, name="a")
        b = await system.start(Relay, name="b")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, a, "b")
            nursery.start_soon(ask, b, "a")

    assert sorted(outcomes) == ["cycle", "end"]


async def test_a_background_task_may_ask_its_own_actor() -> None:
    relay = Relay()
    async with open_system("s") as system:
        ref = await system.start(lambda: relay, name="a")
        await ref.tell(Later(("a",)))
        await wait_all_tasks_blocked()

    assert relay.answers == ["end"]


async def test_a_child_that_asks_its_starting_parent_fails_to_start() -> None:
    class Child(Relay):
        async def on_start(self) -> None:
            await self._next(("parent",))

    class Parent(Relay):
        async def on_start(self) -> None:
            await self.start_child(Child, name="child")

    async with open_system("s") as system:
        with pytest.raises(StartFailed) as caught:
            await system.start(Parent, name="parent")

    child_failed = caught.value.__cause__
    assert isinstance(child_failed, StartFailed)
    assert isinstance(child_failed.__cause__, AskCycle)


def test_a_long_chain_of_waits_is_searched_to_its_end() -> None:
    class Edge:
        def __init__(self, target: Work) -> None:
            self.target = target

        def describe(self, now: float) -> str:
            return f"{now}"

    works = [Work(str(number)) for number in range(100)]
    for one, next_one in pairwise(works):
        one.waits.append(Edge(next_one))

    refuse_cycle(works[0], Work("elsewhere"))
    with pytest.raises(AskCycle):
        refuse_cycle(works[-1], works[0])
