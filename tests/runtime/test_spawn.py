"""Spawned children: the reference is valid before the start, even if the start fails."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    NameTaken,
    StartFailed,
    Supervision,
    System,
    TooManyChildren,
    handles,
    open_system,
)

whose: ContextVar[str] = ContextVar("whose", default="nobody")


class Who(Request[str], frozen=True, tag="spawn.who"):
    pass


class Crash(Message, frozen=True, tag="spawn.crash"):
    pass


class Child(Actor[Who | Crash]):
    def __init__(self, log: list[str], seconds: float = 0, fails: bool = False) -> None:
        self.log = log
        self.seconds = seconds
        self.fails = fails

    async def on_start(self) -> None:
        self.log.append(f"{self.name} starts")
        await trio.sleep(self.seconds)
        if self.fails:
            raise OSError("no start")

    @handles(Who)
    async def who(self, _: Who) -> str:
        return whose.get()

    @handles(Crash)
    async def crash(self, _: Crash) -> None:
        raise RuntimeError("crash")

    async def on_stop(self) -> None:
        self.log.append(f"{self.name} stops")


class Owner(Actor[Crash]):
    """What it is hands itself out: others call its methods, in tasks of their own."""

    supervision = Supervision(max_children=3)

    def __init__(self, owners: list[Owner], begin: Callable[[Owner], None] | None = None) -> None:
        self.owners = owners
        self.begin = begin

    async def on_start(self) -> None:
        whose.set("owner")
        self.owners.append(self)
        if self.begin is not None:
            self.begin(self)

    @handles(Crash)
    async def crash(self, _: Crash) -> None:
        raise RuntimeError("crash")


async def _owner(system: System, begin: Callable[[Owner], None] | None = None) -> Owner:
    owners: list[Owner] = []
    await system.start(lambda: Owner(owners, begin), name="owner")
    return owners[0]


async def test_the_reference_is_valid_at_once_and_mail_waits_for_the_start(
    autojump_clock: MockClock,
) -> None:
    log: list[str] = []
    async with open_system() as system:
        owner = await _owner(system)

        child = owner.spawn_child(lambda: Child(log, seconds=2), name="child")

        assert owner.children == {"child": child}
        assert child.is_alive
        assert log == []
        assert await child.ask(Who()) == "owner"
        assert trio.current_time() == 2
        assert owner.spawn_child(lambda: Child(log), name="second").path == "/system/owner/second"
    assert log == ["child starts", "second starts", "second stops", "child stops"]


async def test_a_child_has_the_context_of_its_parent_and_not_of_the_caller() -> None:
    async with open_system() as system:
        owner = await _owner(system)
        whose.set("caller")

        first = owner.spawn_child(lambda: Child([]), name="first")
        assert await first.ask(Who()) == "owner"
        second = owner.spawn_child(lambda: Child([]), name="second")
        assert await second.ask(Who()) == "owner"
        await second.tell(Crash())

        assert await second.ask(Who()) == "owner"
        assert second.statistics().restarts == 1


async def test_an_actor_can_spawn_in_its_own_on_start() -> None:
    log: list[str] = []
    refs: list[ActorRef[Any]] = []

    def begin(owner: Owner) -> None:
        for name in ("a", "b"):
            refs.append(owner.spawn_child(lambda: Child(log), name=name))

    async with open_system() as system:
        owner = await _owner(system, begin)
        assert list(owner.children) == ["a", "b"]
        assert [await ref.ask(Who()) for ref in refs] == ["owner", "owner"]
    assert sorted(log[:2]) == ["a starts", "b starts"]  # nobody said which is first
    assert log[2:] == ["b stops", "a stops"]


async def test_an_impossible_child_is_refused_as_by_start_child() -> None:
    async with open_system() as system:
        owner = await _owner(system)
        owner.spawn_child(lambda: Child([]), name="a")

        with pytest.raises(NameTaken, match="/system/owner/a"):
            owner.spawn_child(lambda: Child([]), name="a")
        with pytest.raises(ValueError, match="no '/'"):
            owner.spawn_child(lambda: Child([]), name="a/b")
        with pytest.raises(StartFailed, match="its factory raised"):
            owner.spawn_child(lambda: Child(), name="b")  # type: ignore[call-arg]
        for name in ("b", "c"):
            owner.spawn_child(lambda: Child([]), name=name)
        with pytest.raises(TooManyChildren):
            owner.spawn_child(lambda: Child([]), name="d")

        assert list(owner.children) == ["a", "b", "c"]


@pytest.mark.parametrize("seconds", [0, 2])
async def test_a_start_that_fails_settles_the_mail_and_leaves_nothing(
    seconds: float, autojump_clock: MockClock
) -> None:
    async with open_system() as system:
        owner = await _owner(system)
        child = owner.spawn_child(lambda: Child([], seconds, fails=True), name="child")

        with pytest.raises(ActorDead, match="it did not start: OSError"):
            await child.ask(Who())

        assert owner.children == {}
        assert owner.ref.statistics().restarts == 0
        again = owner.spawn_child(lambda: Child([]), name="child")
        assert await again.ask(Who()) == "owner"


async def test_a_child_that_is_stopped_before_its_first_step_never_starts() -> None:
    log: list[str] = []
    async with open_system() as system:
        owner = await _owner(system)
        early = owner.spawn_child(lambda: Child(log), name="early")
        assert (await early.stop()).complete

        await wait_all_tasks_blocked()
        soon = owner.spawn_child(lambda: Child(log), name="soon")
        assert (await soon.stop(grace=0)).complete

        assert owner.children == {}
        assert not early.is_alive
        assert not soon.is_alive
    assert log == []


async def test_a_stop_of_the_parent_right_after_spawn_settles_the_mail_of_the_child() -> None:
    answers: list[str] = []

    async def asker(child: ActorRef[Who | Crash]) -> None:
        with pytest.raises(ActorDead) as caught:
            await child.ask(Who())
        answers.append(caught.value.path)

    async with open_system() as system, trio.open_nursery() as nursery:
        owner = await _owner(system)
        child = owner.spawn_child(lambda: Child([]), name="child")
        nursery.start_soon(asker, child)
        await owner.ref.stop(grace=0)
    assert answers == ["/system/owner/child"]


async def test_children_stopped_without_waiting_end_concurrently(
    autojump_clock: MockClock,
) -> None:
    log: list[str] = []

    class Slow(Child):
        async def on_stop(self) -> None:
            await trio.sleep(2)
            await super().on_stop()

    async with open_system() as system:
        owner = await _owner(system)
        children = [owner.spawn_child(lambda: Slow(log), name=name) for name in ("a", "b")]
        await wait_all_tasks_blocked()

        for child in children:
            owner.stop_child_soon(child.path.rpartition("/")[2])
        owner.stop_child_soon("nobody")

        with pytest.raises(ActorDead, match="it was stopped"):
            await children[0].ask(Who())
        with pytest.raises(NameTaken):
            owner.spawn_child(lambda: Child(log), name="a")
        await trio.sleep(2.5)
        assert sorted(log[2:]) == ["a stops", "b stops"]
        assert owner.children == {}
        owner.spawn_child(lambda: Child(log), name="a")


async def test_a_parent_is_told_of_the_final_end_of_a_child_and_can_replace_it() -> None:
    told: list[tuple[str, str]] = []

    class Parent(Owner):
        def on_child_end(self, name: str, error: Exception | None) -> None:
            told.append((name, repr(error)))
            if name == "a":
                self.spawn_child(lambda: Child([]), name="a")

    owners: list[Owner] = []
    async with open_system() as system:
        await system.start(lambda: Parent(owners), name="owner")
        owner = owners[0]
        a = owner.spawn_child(lambda: Child([]), name="a")
        await a.tell(Crash())
        assert await a.ask(Who()) == "owner"
        assert told == []  # it was restarted
        await a.stop()
        assert told == [("a", "None")]
        assert owner.children["a"] != a
        with pytest.raises(StartFailed):
            await owner.start_child(lambda: Child([], fails=True), name="b")
        assert told[1:] == [("b", "OSError('no start')")]
    assert len(told) == 2  # what its own end ends is no news


async def test_an_error_in_on_child_end_is_a_crash_of_the_parent() -> None:
    class Parent(Owner):
        def on_child_end(self, name: str, error: Exception | None) -> None:
            raise LookupError(name)

    owners: list[Owner] = []
    async with open_system() as system:
        ref = await system.start(lambda: Parent(owners), name="owner")
        child = owners[0].spawn_child(lambda: Child([]), name="child")
        await child.stop()
        await wait_all_tasks_blocked()
        assert len(owners) == 2
        assert ref.statistics().restarts == 1


async def test_only_the_current_incarnation_starts_children() -> None:
    async with open_system() as system:
        owners: list[Owner] = []
        ref = await system.start(lambda: Owner(owners), name="owner")
        await ref.tell(Crash())
        await wait_all_tasks_blocked()
        before, after = owners

        with pytest.raises(ActorDead, match="starts no children"):
            before.spawn_child(lambda: Child([]), name="child")
        assert await after.spawn_child(lambda: Child([]), name="child").ask(Who()) == "owner"
        after.stop_soon()
        with pytest.raises(ActorDead, match="starts no children"):
            after.spawn_child(lambda: Child([]), name="other")
        await ref.stop()
        with pytest.raises(ActorDead, match="starts no children"):
            after.spawn_child(lambda: Child([]), name="child")
