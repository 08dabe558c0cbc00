"""A wait that would never end fails at once, and names the chain (G11)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorRef,
    AskCycle,
    MailboxSpec,
    StartFailed,
    System,
    TellCycle,
    WaitCycle,
    handles,
    open_system,
)
from motet.runtime.waits import Groups, Work, cycle_of, refuse_cycle


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


class Edge:
    def __init__(self, *groups: tuple[Work, ...]) -> None:
        self._groups = groups

    def groups(self) -> Groups:
        return self._groups

    def describe(self, now: float) -> str:
        return f"{now}"


def test_a_long_chain_of_waits_is_searched_to_its_end() -> None:
    works = [Work(str(number)) for number in range(100)]
    for one, next_one in pairwise(works):
        one.waits.append(Edge((next_one,)))

    refuse_cycle(works[0], ((Work("elsewhere"),),))
    with pytest.raises(AskCycle):
        refuse_cycle(works[-1], ((works[0],),))


@given(data=st.data())
def test_work_is_deadlocked_iff_no_order_of_ends_lets_it_go_on(data: st.DataObject) -> None:
    """Law: against a model that ends, one by one, what has only edges with an ended work in each
    group; a cycle is named for the rest that is in one, and for nothing else."""
    works = [Work(str(number)) for number in range(data.draw(st.integers(1, 6)))]
    group = st.lists(st.sampled_from(works), min_size=1, max_size=3).map(tuple)
    for work in works:
        for groups in data.draw(st.lists(st.lists(group, max_size=2), max_size=2)):
            work.waits.append(Edge(*groups))

    ended: set[str] = set()
    for _ in works:  # each round ends one at least, if any can end
        ended |= {
            work.path
            for work in works
            if all(
                any(one.path in ended for one in group)
                for wait in work.waits
                for group in wait.groups()
            )
        }

    for work in works:
        chain = cycle_of(work)
        if work.path in ended:
            assert chain is None
        elif chain is not None:
            assert chain[0] == chain[-1] == work.path
            assert not ended.intersection(chain)
    stuck = [work for work in works if work.path not in ended]
    assert not stuck or any(cycle_of(work) for work in stuck)


# Every wait is an edge. Each of these programs hung once, with nothing in the dump.


class Go(Message, frozen=True, tag="waits.go"):
    """Tell the actor of this name ``count`` times."""

    name: str
    count: int = 1
    beside: bool = False


class Probe(Request[str], frozen=True, tag="waits.probe"):
    what: str = ""


class Pair(Probe, frozen=True, tag="waits.pair"):
    """The same, next to the turn: two places."""


class Here(Probe, frozen=True, tag="waits.here"):
    """The same, in the task of the asker if there is a place."""


class Peer(Actor[Go | Probe | Pair | Here]):
    """Has room for one message."""

    mailbox = MailboxSpec(1)

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.release = trio.Event()

    @handles(Go)
    async def go(self, message: Go) -> None:
        ref = self._find(message.name)
        try:
            for _ in range(message.count):
                await ref.tell(Go(self.name, 0))
        except TellCycle as error:
            self.refused.append(" ".join(error.chain))

    @handles(Probe)
    async def probe(self, request: Probe) -> str:
        return await self._do(request.what)

    @handles(Pair, concurrent=2)
    async def pair(self, request: Pair) -> str:
        return await self._do(request.what)

    @handles(Here, concurrent=2, here=True)
    async def here(self, request: Here) -> str:
        return await self._do(request.what)

    async def _do(self, what: str) -> str:
        match what.split(" ", 2):
            case ["end", name]:
                await self._find(name).wait_terminated()
            case ["turn", name, *rest]:
                return await self._find(name).ask(Probe(*rest))
            case ["pair", name, *rest]:
                return await self._find(name).ask(Pair(*rest))
            case ["here", name, *rest]:
                return await self._find(name).ask(Here(*rest))
            case ["leave", *_]:
                self.stop_soon()
            case ["wait", *rest]:
                await self.release.wait()
                return await self._do(" ".join(rest))
            case _:
                pass
        return "done"

    def _find(self, name: str) -> ActorRef[Go | Probe | Pair | Here]:
        ref = self.system.find(f"/s/{name}")
        assert ref is not None
        return ref


async def start(system: System, *names: str) -> list[Peer]:
    peers: list[Peer] = []
    for name in names:
        peers.append(Peer())
        await system.start(incarnations(peers[-1]).__next__, name=name)
    return peers


def incarnations(first: Peer) -> Iterator[Peer]:
    """The one that the test holds, then a new one for each restart."""
    yield first
    while True:
        yield Peer()


async def test_two_actors_that_tell_each_other_with_full_mailboxes_go_on() -> None:
    async with open_system("s") as system:
        a, b = await start(system, "a", "b")
        await a.ref.tell(Go("b", 3))
        await b.ref.tell(Go("a", 3))
        await wait_all_tasks_blocked()

        # One of the two is refused; the other finds room then.
        assert sorted([*a.refused, *b.refused]) in (["/s/a /s/b /s/a"], ["/s/b /s/a /s/b"])
        assert await a.ref.ask(Probe()) == await b.ref.ask(Probe()) == "done"


async def test_a_tell_to_oneself_that_finds_no_room_is_refused() -> None:
    async with open_system("s") as system:
        (a,) = await start(system, "a")
        await a.ref.tell(Go("a", 3))
        await wait_all_tasks_blocked()

        assert a.refused == ["/s/a /s/a"]
        assert await a.ref.ask(Probe()) == "done"


async def test_an_ask_of_an_actor_that_tells_the_asker_without_room_is_refused() -> None:
    async with open_system("s") as system, trio.open_nursery() as nursery:
        a, b = await start(system, "a", "b")

        async def ask() -> None:
            with pytest.raises(AskCycle, match="/s/a -> /s/b -> /s/a"):
                await a.ref.ask(Probe("wait turn b"))

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        await b.ref.tell(Go("a", 2))
        await wait_all_tasks_blocked()
        assert {info.path: info.waiting_on for info in system.snapshot()}["/s/b"] == "room in /s/a"
        a.release.set()


@pytest.mark.parametrize("kind", [Pair, Here])
async def test_a_handler_that_asks_itself_deeper_than_its_places_is_refused(
    kind: type[Probe],
) -> None:
    async with open_system("s") as system:
        (a,) = await start(system, "a")
        word = kind.__name__.lower()

        assert await a.ref.ask(kind(f"{word} a")) == "done"
        with pytest.raises(AskCycle, match="/s/a -> /s/a"):
            await a.ref.ask(kind(f"{word} a {word} a"))


async def test_a_turn_that_asks_its_own_handler_without_room_is_refused() -> None:
    async with open_system("s") as system, trio.open_nursery() as nursery:
        (a,) = await start(system, "a")

        async def ask() -> None:
            with pytest.raises(AskCycle, match="/s/a -> /s/a"):
                await a.ref.ask(Probe("wait pair a"))

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        await a.ref.tell(Go("a", 0))
        a.release.set()


async def test_an_incarnation_that_ends_waits_for_no_handler_that_asks_it() -> None:
    """The handler asks the turn, which ends: only the next incarnation could answer."""
    async with open_system("s") as system:
        (a,) = await start(system, "a")

        async def ask() -> None:
            with pytest.raises(AskCycle, match="/s/a -> /s/a"):
                await a.ref.ask(Pair("turn a"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.ref.ask, Probe("wait"))
            await wait_all_tasks_blocked()
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            a.stop_soon()
            a.release.set()

        # The refusal may come before the end of the incarnation, whose successor answers this.
        assert await a.ref.ask(Probe()) == "done"
        assert a.ref.statistics().restarts == 1


@pytest.mark.parametrize("route", ["end a", "turn b end a", "pair a end a"])
async def test_a_handler_that_waits_for_its_own_end_is_refused(route: str) -> None:
    async with open_system("s") as system:
        a, _ = await start(system, "a", "b")

        with pytest.raises(WaitCycle, match="would never end"):
            await a.ref.ask(Probe(route))


async def test_a_handler_may_wait_for_the_end_of_another_actor() -> None:
    async with open_system("s") as system, trio.open_nursery() as nursery:
        a, b = await start(system, "a", "b")
        nursery.start_soon(a.ref.ask, Probe("end b"))
        await wait_all_tasks_blocked()
        assert {info.path: info.waiting_on for info in system.snapshot()}["/s/a"] == "end of /s/b"
        await b.ref.stop()


async def test_an_asker_that_has_its_answer_waits_for_nothing() -> None:
    """It has not taken a step since: its wait is over all the same, and closes no circle."""

    class Quick(Actor[Probe | Go]):
        @handles(Probe)
        async def probe(self, request: Probe) -> str:
            return request.what

        @handles(Go)
        async def go(self, message: Go) -> None:
            # In the step of Trio in which the request before has been answered.
            answers.append(await peer.ref.ask(Probe()))

    answers: list[str] = []
    async with open_system("s") as system:
        (peer,) = await start(system, "a")
        quick = await system.start(Quick, name="quick")
        async with trio.open_nursery() as nursery:
            quick.suspend()
            nursery.start_soon(peer.ref.ask, Probe("turn quick hello"))
            await wait_all_tasks_blocked()
            await quick.tell(Go(""))
            quick.resume()
        await wait_all_tasks_blocked()

    assert answers == ["done"]


async def test_a_dump_names_the_waits_of_handlers_and_tasks_beside_the_turn() -> None:
    async with open_system("s") as system, trio.open_nursery() as nursery:
        a, b = await start(system, "a", "b")
        nursery.start_soon(b.ref.ask, Probe("wait"))
        await wait_all_tasks_blocked()
        nursery.start_soon(a.ref.ask, Pair("turn b"))
        a.start_soon(b.ref.ask, Probe(), name="poll")
        await wait_all_tasks_blocked()

        waits = {info.path: info.waiting_on for info in system.snapshot()}
        assert waits["/s/a"] == "pair: answer of /s/b; poll: answer of /s/b"
        b.release.set()
