"""Watching actors, significant children, and the limit on children."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    AutoShutdown,
    MailboxSpec,
    NotInProtocol,
    Restart,
    StartFailed,
    Supervision,
    Terminated,
    TooManyChildren,
    handles,
    open_system,
)


class Crash(Message, frozen=True, tag="crash"):
    pass


class Finish(Message, frozen=True, tag="finish"):
    pass


class Busy(Request[None], frozen=True, tag="busy"):
    pass


class Child(Actor[Crash | Finish]):
    @handles(Crash)
    async def crash(self, message: Crash) -> None:
        raise RuntimeError("broken")

    @handles(Finish)
    async def finish(self, message: Finish) -> None:
        self.stop_soon()


class Watcher(Actor[Terminated | Crash | Busy]):
    mailbox = MailboxSpec(capacity=1)

    def __init__(self, seen: list[Terminated], watched: ActorRef[Crash | Finish]) -> None:
        self.seen = seen
        self.watched = watched

    async def on_start(self) -> None:
        self.watch(self.watched)
        self.watch(self.watched)

    @handles(Terminated)
    async def terminated(self, message: Terminated) -> None:
        self.seen.append(message)

    @handles(Crash)
    async def crash(self, message: Crash) -> None:
        raise RuntimeError("the watcher is broken")

    @handles(Busy)
    async def busy(self, request: Busy) -> None:
        await trio.sleep(1)


async def test_a_watcher_gets_one_message_when_the_actor_has_ended_for_ever() -> None:
    seen: list[Terminated] = []
    async with open_system("s") as system:
        child = await system.start(Child, name="child")
        watcher = await system.start(lambda: Watcher(seen, child), name="watcher")
        await child.tell(Crash())
        await wait_all_tasks_blocked()
        assert child.statistics().restarts == 1
        assert seen == []  # a restart is no end

        await watcher.tell(Crash())
        await wait_all_tasks_blocked()
        await child.stop()
        await wait_all_tasks_blocked()
        assert seen == [Terminated("/s/child", "it was stopped", exit="stopped")]


async def test_watching_a_dead_actor_is_reported_at_once() -> None:
    seen: list[Terminated] = []
    async with open_system("s") as system:
        child = await system.start(Child, name="child", restart="temporary")
        await child.tell(Crash())
        ended = await child.wait_terminated()
        assert (ended.path, ended.error) == ("/s/child", "RuntimeError('broken')")
        await system.start(lambda: Watcher(seen, child), name="watcher")
        await wait_all_tasks_blocked()
        assert seen == [ended, ended]
        assert await child.wait_terminated() == ended


async def test_waiting_for_the_end_can_be_cancelled(autojump_clock: MockClock) -> None:
    async with open_system() as system:
        child = await system.start(Child, name="child")
        with trio.move_on_after(1) as scope:
            await child.wait_terminated()
        assert scope.cancelled_caught
        assert child.is_alive


async def test_terminated_overtakes_mail_and_takes_no_room(autojump_clock: MockClock) -> None:
    seen: list[Terminated] = []
    async with open_system() as system, trio.open_nursery() as nursery:
        child = await system.start(Child, name="child")
        watcher = await system.start(lambda: Watcher(seen, child), name="watcher")
        for _ in range(4):
            nursery.start_soon(watcher.ask, Busy())
        await trio.sleep(0.5)
        await child.stop()
        assert watcher.statistics().queued == 1  # full, and it is not in there
        await trio.sleep(1)
        assert len(seen) == 1
        statistics = watcher.statistics()
        assert statistics.accepted == statistics.handled + statistics.running + statistics.queued


async def test_no_terminated_after_unwatch() -> None:
    seen: list[Terminated] = []

    class Fickle(Watcher):
        async def on_start(self) -> None:
            self.watch(self.watched)
            self.unwatch(self.watched)

    async with open_system() as system:
        child = await system.start(Child, name="child")
        await system.start(lambda: Fickle(seen, child), name="watcher")
        await child.stop()
        await wait_all_tasks_blocked()
        assert seen == []


async def test_watching_needs_a_handler() -> None:
    class Blind(Actor[Crash]):
        async def on_start(self) -> None:
            self.watch(self.ref)

        @handles(Crash)
        async def crash(self, message: Crash) -> None: ...

    async with open_system() as system:
        with pytest.raises(StartFailed) as caught:
            await system.start(Blind, name="blind")
        assert isinstance(caught.value.__cause__, NotInProtocol)


# ---------------------------------------------------------------------- significant children


class Parent(Actor[Finish]):
    def __init__(self, refs: dict[str, ActorRef[Crash | Finish]]) -> None:
        self.refs = refs

    async def on_start(self) -> None:
        for name, significant in (("a", True), ("b", True), ("c", False)):
            self.refs[name] = await self.start_child(
                Child, name=name, restart="transient", significant=significant
            )

    @handles(Finish)
    async def finish(self, message: Finish) -> None: ...


@pytest.mark.parametrize(("policy", "ends_after"), [("any", 1), ("all", 2)])
async def test_the_end_of_significant_children_ends_their_parent(
    policy: AutoShutdown, ends_after: int
) -> None:
    class Declared(Parent):
        supervision = Supervision(auto_shutdown=policy)

    refs: dict[str, ActorRef[Crash | Finish]] = {}
    async with open_system("s") as system:
        parent = await system.start(lambda: Declared(refs), name="parent", restart="transient")
        for n, name in enumerate(("c", "a", "b")):
            assert parent.is_alive == (n <= ends_after)
            if refs[name].is_alive:
                await refs[name].tell(Finish())
            await wait_all_tasks_blocked()
        assert not parent.is_alive
        assert (await parent.wait_terminated()).error is None
        assert system.snapshot() == ()


async def test_a_significant_child_that_crashes_is_restarted_and_does_not_end_its_parent() -> None:
    class Declared(Parent):
        supervision = Supervision(auto_shutdown="any")

    refs: dict[str, ActorRef[Crash | Finish]] = {}
    async with open_system("s") as system:
        parent = await system.start(lambda: Declared(refs), name="parent")
        await refs["a"].tell(Crash())
        await wait_all_tasks_blocked()
        assert parent.is_alive
        assert refs["a"].statistics().restarts == 1


async def test_a_significant_actor_ends_the_system_without_an_error(
    autojump_clock: MockClock,
) -> None:
    after = False
    async with open_system("s", supervision=Supervision(auto_shutdown="any")) as system:
        child = await system.start(Child, name="child", restart="temporary", significant=True)
        await child.tell(Finish())
        await trio.sleep(10)
        after = True
    assert not after
    assert not child.is_alive


@pytest.mark.parametrize("restart", ["permanent", "temporary"])
async def test_a_significant_child_that_could_never_end_its_parent_is_refused(
    restart: Restart,
) -> None:
    policy: AutoShutdown = "any" if restart == "permanent" else "never"
    async with open_system("s", supervision=Supervision(auto_shutdown=policy)) as system:
        with pytest.raises(ValueError, match="significant"):
            await system.start(Child, name="child", restart=restart, significant=True)
        await system.start(Child, name="child")


# ---------------------------------------------------------------------- how many


async def test_more_children_than_declared_are_refused() -> None:
    async with open_system("s", supervision=Supervision(max_children=2)) as system:
        first = await system.start(Child, name="a")
        await system.start(Child, name="b")
        with pytest.raises(TooManyChildren, match="2 children"):
            await system.start(Child, name="c")
        await first.stop()
        await system.start(Child, name="c")


async def test_a_fault_can_be_injected_by_path() -> None:
    async with open_system("s") as system:
        child = await system.start(Child, name="child")
        assert system.inject("/s/child", "crash")
        await wait_all_tasks_blocked()
        assert child.statistics().restarts == 1
        assert system.inject("/s/child", "kill")
        with pytest.raises(ActorDead):
            child.tell_nowait(Crash())
        assert not system.inject("/s/child", "crash")
        assert not system.inject("/s/nobody", "kill")
        await wait_all_tasks_blocked()
        assert system.snapshot() == ()
