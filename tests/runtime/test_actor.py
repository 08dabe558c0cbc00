"""Actors, children, systems, snapshots and streams."""

from __future__ import annotations

import gc
from typing import Any
from weakref import WeakSet, ref

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request, StreamRequest
from motet.runtime import (
    Actor,
    ActorDead,
    ActorInfo,
    ActorRef,
    MotetRuntimeError,
    NameTaken,
    Replies,
    StartFailed,
    handles,
    open_system,
)


class Spawn(Request[None], frozen=True, tag="actor.spawn"):
    name: str


class Names(Request[tuple[str, ...]], frozen=True, tag="actor.names"):
    pass


class Crash(Message, frozen=True, tag="actor.crash"):
    in_background: bool = False


class Wait(Request[None], frozen=True, tag="actor.wait"):
    clean_up: float = 0


class Letters(StreamRequest[str, int], frozen=True, tag="actor.letters"):
    text: str


class Person(Actor[Spawn | Names | Crash | Wait | Letters]):
    @handles(Spawn)
    async def spawn(self, request: Spawn) -> None:
        await self.start_child(Person, name=request.name)

    @handles(Names)
    async def names(self, _: Names) -> tuple[str, ...]:
        return tuple(self.children)

    @handles(Crash)
    async def crash(self, message: Crash) -> None:
        if not message.in_background:
            raise RuntimeError("crash")
        self.start_soon(self._fail)

    async def _fail(self) -> None:
        raise RuntimeError("crash in the background")

    @handles(Wait)
    async def wait(self, request: Wait) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(request.clean_up)

    @handles(Letters)
    async def letters(self, request: Letters, replies: Replies[str]) -> int:
        for letter in request.text:
            if letter == "!":
                raise ValueError("an exclamation")
            await replies.send(letter)
        return len(request.text)


async def test_a_tree_has_paths_and_children_can_be_found_and_stopped() -> None:
    async with open_system("home") as system:
        anna = await system.start(Person, name="anna")
        for name in ("ben", "cleo"):
            await anna.ask(Spawn(name))

        assert anna.path == "/home/anna"
        assert await anna.ask(Names()) == ("ben", "cleo")
        ben = system.find("/home/anna/ben")
        assert ben is not None
        await ben.ask(Spawn("dora"))
        await ben.stop()

        assert await anna.ask(Names()) == ("cleo",)
        assert system.find("/home/anna/ben/dora") is None
        assert [info.path for info in system.snapshot()] == ["/home/anna", "/home/anna/cleo"]


async def test_names_are_unique_among_living_siblings() -> None:
    async with open_system() as system:
        anna = await system.start(Person, name="anna")

        with pytest.raises(NameTaken, match="/system/anna"):
            await system.start(Person, name="anna")
        await anna.stop()
        again = await system.start(Person, name="anna")

        assert again.is_alive
        assert not anna.is_alive
        assert again != anna
        with pytest.raises(ValueError, match="no '/'"):
            await system.start(Person, name="a/b")


async def test_a_crash_ends_the_children_and_keeps_the_reference_valid() -> None:
    async with open_system() as system:
        anna = await system.start(Person, name="anna")
        await anna.ask(Spawn("ben"))
        ben = system.find("/system/anna/ben")
        assert ben is not None

        await anna.tell(Crash())

        assert await anna.ask(Names()) == ()
        assert not ben.is_alive
        assert repr(anna) == "<ActorRef /system/anna running>"


async def test_a_background_tasks_crash_is_the_actors_crash() -> None:
    async with open_system() as system:
        anna = await system.start(Person, name="anna")

        await anna.tell(Crash(in_background=True))
        await wait_all_tasks_blocked()

        assert anna.statistics().restarts == 1
        # No message failed, so none became a dead letter.
        assert len(system.dead_letters) == 0


async def test_a_temporary_actor_is_not_restarted() -> None:
    async with open_system() as system:
        anna = await system.start(Person, name="anna", restart="temporary")

        await anna.tell(Crash())
        await wait_all_tasks_blocked()

        assert not anna.is_alive
        with pytest.raises(ActorDead):
            await anna.ask(Names())


async def test_an_ended_actor_is_freed_without_the_garbage_collector() -> None:
    """Law: the end of an actor leaves no reference cycle."""

    class Busy(Person):
        async def on_start(self) -> None:
            seen.add(self)
            self.start_soon(trio.sleep_forever)

    seen: WeakSet[Person] = WeakSet()
    async with open_system() as system:
        ref = await system.start(Busy, name="a")
        await ref.ask(Spawn("child"))
        gc.disable()
        try:
            await ref.stop()
            await wait_all_tasks_blocked()
            assert not seen
        finally:
            gc.enable()


async def test_a_cancelled_ask_leaves_nothing_to_the_garbage_collector() -> None:
    seen: list[ref[BaseException]] = []

    async def ask(person: ActorRef[Wait]) -> None:
        try:
            await person.ask(Wait())
        except trio.Cancelled as cancelled:
            seen.append(ref(cancelled))
            raise

    async with open_system() as system:
        person = await system.start(Person, name="a")
        gc.disable()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, person)
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            assert [cancelled() for cancelled in seen] == [None]
        finally:
            gc.enable()


async def test_references_to_one_actor_are_equal() -> None:
    async with open_system() as system:
        anna = await system.start(Person, name="anna")

        assert system.find("/system/anna") == anna
        assert len({anna, system.find("/system/anna")}) == 1


async def test_an_actor_that_was_not_started_says_so() -> None:
    with pytest.raises(MotetRuntimeError, match="Person is not in a system yet"):
        _ = Person().ref


async def test_a_factory_must_return_a_new_actor_each_time() -> None:
    person = Person()
    async with open_system() as system:
        await system.start(lambda: person, name="one")

        with pytest.raises(StartFailed, match="not a new one"):
            await system.start(lambda: person, name="two")


async def test_an_actor_in_place_of_its_class_is_refused_with_what_to_give() -> None:
    person: Any = Person()
    async with open_system() as system:
        with pytest.raises(StartFailed, match=r"was given a Person, .* and not its class"):
            await system.start(person, name="one")
        assert await (await system.start(Person, name="one")).stop()  # the name is free


async def test_two_systems_in_one_process_are_independent() -> None:
    async with open_system("one") as one, open_system("two") as two:
        left = await one.start(Person, name="anna")
        right = await two.start(Person, name="anna")

        await one.stop()

        assert one.find("/two/anna") is None
        assert two.find("/one/anna") is None
        assert not left.is_alive
        assert await right.ask(Names()) == ()
        with pytest.raises(ActorDead):
            await one.start(Person, name="ben")


async def test_a_snapshot_shows_what_each_actor_waits_for(autojump_clock: MockClock) -> None:
    class Asker(Person):
        def __init__(self, other: ActorRef[Wait]) -> None:
            self.other = other

        @handles(Wait)
        async def wait(self, request: Wait) -> None:
            await self.other.ask(request)

    async with open_system("s") as system, trio.open_nursery() as nursery:
        leaf = await system.start(Person, name="leaf")
        asker = await system.start(lambda: Asker(leaf), name="asker")
        nursery.start_soon(asker.ask, Wait(clean_up=10))
        await trio.sleep(3)

        assert system.snapshot() == (
            ActorInfo("/s/leaf", "running", 0, 3.0, None),
            ActorInfo("/s/asker", "running", 0, 3.0, "answer of /s/leaf"),
        )

        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
            assert system.snapshot()[1].waiting_on == "clean-up of /s/leaf, 2.0 s"


async def test_a_stream_has_a_result_after_its_last_item() -> None:
    async with open_system() as system:
        anna = await system.start(Person, name="anna")

        async with anna.stream(Letters("x" * 200)) as letters:
            with pytest.raises(RuntimeError, match="has not ended"):
                _ = letters.result
            read = [letter async for letter in letters]

        assert read == ["x"] * 200
        assert letters.result == 200


async def test_a_streams_error_comes_after_the_items_before_it() -> None:
    read: list[str] = []
    async with open_system() as system:
        anna = await system.start(Person, name="anna")

        with pytest.raises(ValueError, match="an exclamation"):  # noqa: PT012
            async with anna.stream(Letters("oh!")) as letters:
                async for letter in letters:
                    read.append(letter)

        assert read == ["o", "h"]
        assert anna.statistics().restarts == 0


async def test_an_unseen_error_of_a_stream_is_raised_at_the_end_of_its_block() -> None:
    async with open_system() as system:
        anna = await system.start(Person, name="anna")

        with pytest.raises(ValueError, match="an exclamation"):
            async with anna.stream(Letters("!")):
                await wait_all_tasks_blocked()
        with pytest.raises(KeyError) as caught:  # noqa: PT012
            async with anna.stream(Letters("!")):
                await wait_all_tasks_blocked()
                raise KeyError("mine")

        assert "handler failed too" in caught.value.__notes__[0]


async def test_asking_a_stream_request_returns_only_the_answer() -> None:
    async with open_system() as system:
        anna = await system.start(Person, name="anna")

        assert await anna.ask(Letters("abc")) == 3
