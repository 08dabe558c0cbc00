"""Names, and identities whose actors live only while they have work."""

from __future__ import annotations

import tracemalloc
from collections import Counter, defaultdict
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request, StreamRequest
from motet.runtime import (
    Actor,
    ActorDead,
    AskTimeout,
    IdentityRef,
    Kind,
    MotetRuntimeError,
    NameTaken,
    NotInProtocol,
    Replies,
    StartFailed,
    Supervision,
    System,
    TooManyChildren,
    handles,
    open_system,
)
from motet.runtime.supervision import Refusals


class Say(Message, frozen=True, tag="say"):
    number: int


class Life(Request[int], frozen=True, tag="life"):
    """Returns the number of the incarnation that answers."""


class Sleep(Request[None], frozen=True, tag="sleep"):
    seconds: float


class Later(Message, frozen=True, tag="later"):
    seconds: float


class Lives(StreamRequest[int, int], frozen=True, tag="lives"):
    pass


class World:
    """The data that all actors of a test share."""

    def __init__(self, clean_up: float = 0) -> None:
        self.clean_up = clean_up
        self.lives: Counter[str] = Counter()
        self.there: Counter[str] = Counter()
        self.most_there = 0
        self.said: dict[str, list[int]] = defaultdict(list)

    def session(self, key: str) -> Session:
        return Session(self, key)


class Session(Actor[Say | Life | Sleep | Later | Lives]):
    def __init__(self, world: World, key: str) -> None:
        self.world = world
        self.key = key

    async def on_start(self) -> None:
        if self.key == "bad":
            raise ValueError("no such session")
        self.world.lives[self.key] += 1
        self.world.there[self.key] += 1
        self.world.most_there = max(self.world.there[self.key], self.world.most_there)

    async def on_stop(self) -> None:
        await trio.sleep(self.world.clean_up)
        self.world.there[self.key] -= 1

    @handles(Say)
    async def say(self, message: Say) -> None:
        await trio.lowlevel.checkpoint()
        if message.number < 0:
            raise RuntimeError("crash")
        self.world.said[self.key].append(message.number)

    @handles(Life)
    async def life(self, request: Life) -> int:
        return self.world.lives[self.key]

    @handles(Sleep)
    async def sleep(self, request: Sleep) -> None:
        await trio.sleep(request.seconds)

    @handles(Later)
    async def later(self, message: Later) -> None:
        self.start_soon(trio.sleep, message.seconds)

    @handles(Lives)
    async def all_lives(self, request: Lives, replies: Replies[int]) -> int:
        await replies.send(1)
        return self.world.lives[self.key]


async def _sessions(
    system: System, world: World, *, idle_after: float = 10, limit: int | None = None
) -> Kind[Say | Life | Sleep | Later | Lives]:
    return await system.registry.kind("session", world.session, idle_after=idle_after, limit=limit)


async def test_an_identity_is_made_on_its_first_message_and_passivated_when_idle(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with open_system("s") as system:
        sessions = await _sessions(system, world)
        alice = sessions.ref("alice/1")
        assert not alice.is_live
        assert await alice.ask(Life()) == 1
        assert alice.is_live
        assert [info.path for info in system.snapshot()] == ["/s/session", "/s/session/alice%2F1"]
        await trio.sleep(9)
        assert await alice.ask(Life()) == 1
        await trio.sleep(9)
        assert alice.is_live
        await trio.sleep(6)
        assert not alice.is_live
        assert sessions.live == 0
        assert await alice.ask(Life()) == 2


async def test_the_next_actor_of_an_identity_has_an_idle_time_of_its_own(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with open_system() as system:
        sessions = await _sessions(system, world, idle_after=4)
        alice = sessions.ref("alice")
        await alice.ask(Life())
        await trio.sleep(3.5)
        await alice.stop()
        # It has had as many messages as the one before, and no sweep has come in between.
        await alice.ask(Life())
        await trio.sleep(3.5)
        assert alice.is_live
        await trio.sleep(2)
        assert not alice.is_live


async def test_every_way_to_send_makes_the_actor_of_an_identity(autojump_clock: MockClock) -> None:
    world = World()
    async with open_system() as system:
        sessions = await _sessions(system, world)
        await sessions.ref("a").tell(Say(1))
        sessions.ref("b").tell_nowait(Say(2))
        async with sessions.ref("c").stream(Lives()) as items:
            assert [item async for item in items] == [1]
        await wait_all_tasks_blocked()
        assert world.said == {"a": [1], "b": [2]}
        assert world.lives == {"a": 1, "b": 1, "c": 1}
        assert system.registry.ref("session", "a") == sessions.ref("a")


async def test_mail_for_a_passivating_identity_waits_for_its_successor(
    autojump_clock: MockClock,
) -> None:
    world = World(clean_up=3)
    async with open_system() as system:
        alice = (await _sessions(system, world, idle_after=4)).ref("alice")
        await alice.tell(Say(1))
        await trio.sleep(5.5)
        assert not alice.is_live
        assert world.there["alice"] == 1  # it is cleaning up
        alice.tell_nowait(Say(2))
        await alice.tell(Say(3))
        with pytest.raises(AskTimeout):
            await alice.ask(Life(), timeout=0.1)
        assert await alice.ask(Life()) == 2
        assert world.said["alice"] == [1, 2, 3]
        assert world.most_there == 1
        assert len(system.dead_letters) == 0


class Visit(Request[int], frozen=True, tag="visit"):
    pass


class Page(Actor[Visit]):
    """Reads its state when it is made, and writes it in ``on_stop``, as the guide does."""

    cleanup_budget = 0.8  # of three, within half of the grace of a stop

    def __init__(self, disk: dict[str, int], key: str, pause: float | None) -> None:
        self.disk = disk
        self.key = key
        self.pause = pause
        self.count = disk.get(key, 0)

    @handles(Visit)
    async def visit(self, _: Visit) -> int:
        self.count += 1
        return self.count

    async def on_stop(self) -> None:
        if self.pause is not None:
            await trio.sleep(self.pause)
        self.disk[self.key] = self.count


class SlowPage(Page):
    cleanup_budget = 2.0


async def visit_pages(random: Random, visits: int) -> None:
    """Visit three pages from several tasks, while they are passivated and come back."""
    disk: dict[str, int] = {}
    pause, visited = random.choice([None, 0, 0.1, 0.4]), Counter[str]()
    async with open_system() as system:
        pages = await system.registry.kind(
            "page", lambda key: Page(disk, key, pause), idle_after=1, limit=random.choice([None, 9])
        )

        async def visitor() -> None:
            for _ in range(visits // 3):
                key = random.choice("abc")
                if random.random() < 0.05:
                    await pages.ref(key).stop()
                # Counted before it answers: others may visit in the step in which it does.
                visited[key] += 1
                try:
                    await pages.ref(key).ask(Visit())
                except ActorDead:  # a stop, unlike passivation, settles the mail that waits
                    visited[key] -= 1
                await trio.sleep(random.choice([0, 0, 0, 0.3, 1.1, 1.25, 1.5, 3]))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(visitor)
    assert disk == visited


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_state_is_lost_by_passivation(seed: int) -> None:
    """Law: the successor is made when the predecessor's ``on_stop`` has ended, so that it reads
    what that wrote: each visit is counted, whatever the times of visits, stops and clean-ups."""
    trio.run(visit_pages, Random(seed), 60, clock=MockClock(autojump_threshold=0))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(10))
def test_no_state_is_lost_in_100_000_visits(seed: int) -> None:
    trio.run(visit_pages, Random(seed), 10_000, clock=MockClock(autojump_threshold=0))


async def test_a_successor_that_cannot_be_made_settles_its_mail(
    autojump_clock: MockClock,
) -> None:
    disk: dict[str, int] = {}

    def make(key: str) -> Page:
        if key in disk:
            raise ValueError("the state cannot be read")
        return SlowPage(disk, key, 1)

    async with open_system() as system:
        page = (await system.registry.kind("page", make, idle_after=4)).ref("a")
        assert await page.ask(Visit()) == 1
        await trio.sleep(5.5)
        assert not page.is_live  # it is cleaning up
        with pytest.raises(ActorDead, match="the state cannot be read"):
            await page.ask(Visit())
        with pytest.raises(StartFailed, match="the state cannot be read"):  # in the sender's task
            await page.ask(Visit())


async def test_a_successor_that_takes_other_messages_is_refused(autojump_clock: MockClock) -> None:
    made: list[str] = []
    disk: dict[str, int] = {}

    def make(key: str) -> Actor[Visit]:
        made.append(key)
        later: Any = Session(World(), key)
        return SlowPage(disk, key, 1) if len(made) == 1 else later

    async with open_system() as system:
        page = (await system.registry.kind("page", make, idle_after=4)).ref("a")
        assert await page.ask(Visit()) == 1
        await trio.sleep(5.5)
        with pytest.raises(ActorDead, match="takes other messages"):
            await page.ask(Visit())


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_message_is_lost_by_passivation(seed: int) -> None:
    """Whatever the times of sending, idling and cleaning up: each message is handled once, in its
    sender's order, and no identity has two lives at a time."""

    random = Random(seed)
    world = World(clean_up=random.choice([0, 0.1, 2]))
    sent: dict[str, list[int]] = defaultdict(list)

    async def main() -> None:
        async with open_system() as system:
            sessions = await _sessions(system, world, idle_after=1, limit=random.choice([None, 9]))
            refs = [sessions.ref(key) for key in "abc"]
            for number in range(60):
                ref = random.choice(refs)
                sent[ref.key].append(number)
                if random.random() < 0.5:
                    ref.tell_nowait(Say(number))
                else:
                    await ref.tell(Say(number))
                await trio.sleep(random.choice([0, 0, 0.3, 1.1, 1.25, 1.5, 3]))
            await trio.sleep(10)
            assert len(system.dead_letters) == 0
            assert sessions.live == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert world.said == sent
    assert world.most_there == 1


async def test_an_actor_with_work_is_not_idle(autojump_clock: MockClock) -> None:
    world = World()
    async with open_system() as system:
        sessions = await _sessions(system, world, idle_after=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sessions.ref("turn").ask, Sleep(5))
            await sessions.ref("task").tell(Later(5))
            await trio.sleep(4.5)
            assert sessions.live == 2
            assert world.lives == {"turn": 1, "task": 1}
        await trio.sleep(3)
        assert sessions.live == 0


async def test_idle_workers_do_not_prevent_passivation(autojump_clock: MockClock) -> None:
    class Reader(Actor[Sleep]):
        @handles(Sleep, concurrent=2)
        async def sleep(self, request: Sleep) -> None:
            await trio.sleep(request.seconds)

    async with open_system() as system:
        readers = await system.registry.kind("reader", lambda _: Reader(), idle_after=1)
        await readers.ref("a").ask(Sleep(5))
        await trio.sleep(3)
        assert readers.live == 0


async def test_a_limit_passivates_an_idle_actor_and_refuses_if_there_is_none(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with open_system() as system:
        sessions = await _sessions(system, world, limit=2)
        await sessions.ref("a").ask(Life())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sessions.ref("b").ask, Sleep(5))
            await wait_all_tasks_blocked()
            nursery.start_soon(sessions.ref("c").ask, Sleep(5))
            await wait_all_tasks_blocked()
            assert not sessions.ref("a").is_live
            with pytest.raises(TooManyChildren):
                await sessions.ref("a").ask(Life())
        assert await sessions.ref("a").ask(Life()) == 2
        await wait_all_tasks_blocked()
        assert sessions.live == 2


async def test_a_crash_keeps_mail_and_a_failed_start_settles_it() -> None:
    world = World()
    async with open_system() as system:
        sessions = await _sessions(system, world)
        alice, bad = sessions.ref("alice"), sessions.ref("bad")
        for number in (1, -1, 2):
            await alice.tell(Say(number))
        await wait_all_tasks_blocked()
        assert world.said["alice"] == [1, 2]
        with pytest.raises(ActorDead, match="no such session"):
            await bad.ask(Life())
        assert not bad.is_live
        assert await alice.ask(Life()) == 2


async def test_an_identity_that_keeps_crashing_ends_no_other(autojump_clock: MockClock) -> None:
    world = World()
    async with open_system("s") as system:
        sessions = await _sessions(system, world, idle_after=1_000)
        good, bad = sessions.ref("good"), sessions.ref("poison")
        assert await good.ask(Life()) == 1
        for _ in range(101):
            await wait_all_tasks_blocked()
            with suppress(ActorDead):
                await bad.tell(Say(-1))
        await wait_all_tasks_blocked()
        assert world.lives == {"good": 1, "poison": 11}
        assert await good.ask(Life()) == 1
        assert [info.path for info in system.snapshot()] == ["/s/session", "/s/session/good"]


async def test_the_mail_of_an_identity_that_is_given_up_gets_the_reason(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with open_system("s") as system:
        rules = Supervision(intensity=2, period=4, jitter=0, backoff_max=10)
        sessions = await system.registry.kind("session", world.session, supervision=rules)
        bad = sessions.ref("poison")
        for number in (-1, -1, -1, 7):
            bad.tell_nowait(Say(number))
        with pytest.raises(ActorDead, match=r"given up after more than 2 restarts .*'crash'"):
            await bad.ask(Life())
        assert [one.message for one in system.dead_letters][-2:] == [Say(7), Life()]
        assert not bad.is_live
        # Refused at once, with every way to send, until four seconds have passed.
        await trio.sleep(3.5)
        with pytest.raises(ActorDead, match=r"'crash'.* may be tried again in 0\.5 s"):
            await bad.ask(Life())
        with pytest.raises(ActorDead, match="tried again"):
            bad.tell_nowait(Say(1))
        assert world.lives["poison"] == 3
        await trio.sleep(0.6)
        assert await bad.ask(Life()) == 4
        # Twice in a row takes twice the time, the third time no more than the maximum.
        for seconds in (8, 10):
            for _ in range(3):
                await bad.tell(Say(-1))
            await wait_all_tasks_blocked()
            with pytest.raises(ActorDead, match=rf"tried again in {seconds} s"):
                await bad.tell(Say(1))
            await trio.sleep(seconds)
            await bad.ask(Life())
        # A while of peace, and it begins anew.
        await trio.sleep(20)
        for _ in range(3):
            await bad.tell(Say(-1))
        await wait_all_tasks_blocked()
        with pytest.raises(ActorDead, match="tried again in 4 s"):
            await bad.tell(Say(1))


async def test_the_restarts_of_an_identity_wait_as_declared(autojump_clock: MockClock) -> None:
    world = World()
    async with open_system("s") as system:
        rules = Supervision(intensity=5, period=100, backoff=1, jitter=0)
        sessions = await system.registry.kind("session", world.session, supervision=rules)
        for _ in range(3):
            await sessions.ref("a").tell(Say(-1))
        begun = trio.current_time()
        assert await sessions.ref("b").ask(Life()) == 1  # another does not wait
        assert trio.current_time() == begun
        assert await sessions.ref("a").ask(Life()) == 4
        assert trio.current_time() == begun + 1 + 2 + 4


async def test_identities_do_not_restart_one_another() -> None:
    async with open_system("s") as system:
        with pytest.raises(ValueError, match="one_for_one"):
            await system.registry.kind(
                "session", World().session, supervision=Supervision(strategy="one_for_all")
            )


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 60)), max_size=60))
def test_a_refused_name_is_free_again_and_forgotten(steps: list[tuple[str, float]]) -> None:
    """Law: a name is refused for the period times a power of two, at most the maximum; its row
    ends a period after that; and names that nobody gives up again are forgotten."""
    refusals = Refusals(Supervision(period=2, backoff_max=8, jitter=0))
    now, rows, until = 0.0, Counter[str](), dict[str, float]()
    for name, later in steps:
        now += later
        if now >= until.get(name, 0) + 2:
            rows[name] = 0
        refused = now < until.get(name, 0)
        assert (refusals.reason(name, now) is not None) == refused
        if refused:
            continue
        rows[name] += 1
        until[name] = now + min(2 * 2 ** (rows[name] - 1), 8)
        refusals.given_up(name, "it crashed", now, 0.5)
    refusals.given_up("z", "it crashed", now + 100, 0.5)
    assert len(refusals) == 1


async def test_mail_waits_while_the_whole_kind_is_restarted(autojump_clock: MockClock) -> None:
    world = World(clean_up=3)
    async with open_system("s") as system:
        alice = (await _sessions(system, world)).ref("alice")
        await alice.ask(Life())
        assert system.inject("/s/session", "crash")
        await trio.sleep(1)
        with pytest.raises(ActorDead, match="restarted"):
            alice.tell_nowait(Say(1))
        assert await alice.ask(Life()) == 2


async def test_an_ended_kind_refuses_mail_with_the_reason() -> None:
    world = World()
    async with open_system("s") as system:
        alice = (await _sessions(system, world)).ref("alice")
        await alice.ask(Life())
        await system.stop()
        with pytest.raises(ActorDead, match="ended"):
            await alice.tell(Say(1))
        with pytest.raises(ActorDead, match="ended"):
            alice.tell_nowait(Say(1))
        assert (await alice.stop()).complete


async def test_stopping_the_system_settles_mail_for_a_successor(
    autojump_clock: MockClock,
) -> None:
    world = World(clean_up=3)
    async with open_system("s") as system:
        alice = (await _sessions(system, world)).ref("alice")
        await alice.ask(Life())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alice.stop)
            await trio.sleep(1)
            alice.tell_nowait(Say(1))
            await system.stop()
        assert [letter.message for letter in system.dead_letters] == [Say(1)]


async def test_a_wrong_message_kind_or_factory_is_an_error_at_the_sender() -> None:
    class Foreign(Message, frozen=True, tag="foreign"):
        pass

    def fail(key: str) -> Session:
        raise ValueError(key)

    async with open_system() as system:
        sessions = await _sessions(system, World())
        with pytest.raises(NotInProtocol):
            sessions.ref("a").tell_nowait(Foreign())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        with pytest.raises(MotetRuntimeError, match="declared are: session"):
            system.registry.ref("room", "a")
        with pytest.raises(NameTaken):
            await _sessions(system, World())
        with pytest.raises(ValueError, match="not empty"):
            sessions.ref("")
        failing = await system.registry.kind("failing", fail)
        with pytest.raises(StartFailed):
            failing.ref("a").tell_nowait(Say(1))
        assert failing.live == 0


async def test_a_name_is_valid_until_its_actor_has_ended() -> None:
    world = World()
    async with open_system() as system:
        one = await system.start(lambda: world.session("one"), name="one")
        two = await system.start(lambda: world.session("two"), name="two")
        system.registry.register("leader", one)
        with pytest.raises(NameTaken):
            system.registry.register("leader", two)
        assert system.registry.find("leader") == one
        await one.stop()
        assert system.registry.find("leader") is None
        system.registry.register("leader", two)
        assert system.registry.names == ("leader",)
        system.registry.unregister("leader")
        assert system.registry.find("leader") is None


async def test_an_idle_identity_costs_less_than_300_bytes_and_no_task(
    autojump_clock: MockClock,
) -> None:
    number = 10_000
    world = World()
    async with open_system() as system:
        sessions = await _sessions(system, world, idle_after=1)
        await sessions.ref("warm up").ask(Life())
        await trio.sleep(3)
        tasks = trio.lowlevel.current_statistics().tasks_living
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        refs: list[IdentityRef[Life]] = [sessions.ref(f"session {n}") for n in range(number)]
        for ref in refs[:500]:
            await ref.ask(Life())
        world.lives.clear()
        world.there.clear()
        await trio.sleep(3)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert sessions.live == 0
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        assert (after - before) / number < 300
