"""Stash, retries, and suspension."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorDead,
    ActorPaused,
    ActorRef,
    MailboxFull,
    MailboxSpec,
    MotetRuntimeError,
    Supervision,
    handles,
    open_system,
)


class Say(Message, frozen=True, tag="say"):
    word: str


class Spell(Request[str], frozen=True, tag="spell"):
    word: str


class Open(Message, frozen=True, tag="open"):
    pass


class Crash(Message, frozen=True, tag="crash"):
    pass


class Door(Actor[Say | Spell | Open | Crash]):
    """Stashes all messages until it is opened."""

    mailbox = MailboxSpec(capacity=4, overflow="fail")

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.open = False

    @handles(Say)
    async def say(self, message: Say) -> None:
        if not self.open:
            try:
                self.stash()
            except MailboxFull:
                self.log.append(f"no room for {message.word}")
            return
        self.log.append(message.word)

    @handles(Spell)
    async def spell(self, request: Spell) -> str:
        if not self.open:
            self.stash()
        return "-".join(request.word)

    @handles(Open)
    async def unlock(self, _: Open) -> None:
        self.open = True
        self.unstash_all()

    @handles(Crash)
    async def crash(self, _: Crash) -> None:
        raise RuntimeError("door is broken")


def _balanced(ref: ActorRef[Any]) -> bool:
    s = ref.statistics()
    placed = s.handled + s.withdrawn + s.dead_lettered
    return s.accepted == placed + s.stashed + s.queued + s.running


async def test_stashed_messages_are_handled_in_their_order_before_later_mail() -> None:
    log: list[str] = []
    async with open_system() as system:
        door = await system.start(lambda: Door(log), name="door")
        await door.tell(Say("one"))
        await door.tell(Say("two"))
        await wait_all_tasks_blocked()
        assert door.statistics().stashed == 2
        assert _balanced(door)

        await door.tell(Open())
        await door.tell(Say("three"))
        await wait_all_tasks_blocked()

        assert log == ["one", "two", "three"]
        assert door.statistics().stashed == 0
        assert _balanced(door)


async def test_the_asker_of_a_stashed_request_gets_the_answer_of_its_second_handling() -> None:
    async with open_system() as system, trio.open_nursery() as nursery:
        door = await system.start(lambda: Door([]), name="door")
        answers: list[str] = []

        async def asker() -> None:
            answers.append(await door.ask(Spell("abc")))

        nursery.start_soon(asker)
        await wait_all_tasks_blocked()
        assert answers == []
        assert door.statistics().stashed == 1

        await door.tell(Open())
        await wait_all_tasks_blocked()
        assert answers == ["a-b-c"]
        assert _balanced(door)


async def test_a_stashed_request_is_withdrawn_when_its_asker_is_cancelled() -> None:
    async with open_system() as system:
        door = await system.start(lambda: Door([]), name="door")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(door.ask, Spell("abc"))
                await wait_all_tasks_blocked()
                scope.cancel()
        assert door.statistics().withdrawn == 1
        assert door.statistics().stashed == 0
        assert _balanced(door)


async def test_a_stash_takes_room_but_never_the_last_place() -> None:
    log: list[str] = []
    async with open_system() as system:
        door = await system.start(lambda: Door(log), name="door")
        for word in "abc":
            await door.tell(Say(word))
        await wait_all_tasks_blocked()
        assert door.statistics().stashed == 3
        await door.tell(Say("d"))
        with pytest.raises(MailboxFull):
            door.tell_nowait(Say("e"))
        await wait_all_tasks_blocked()
        assert log == ["no room for d"]
        await door.tell(Open())
        await wait_all_tasks_blocked()
        assert log == ["no room for d", "a", "b", "c"]
        assert _balanced(door)


async def test_the_stash_survives_a_restart() -> None:
    log: list[str] = []
    async with open_system() as system:
        door = await system.start(lambda: Door(log), name="door")
        await door.tell(Say("kept"))
        await door.tell(Crash())
        await wait_all_tasks_blocked()
        assert (door.statistics().restarts, door.statistics().stashed) == (1, 1)
        await door.tell(Open())
        await wait_all_tasks_blocked()
        assert log == ["kept"]
        assert _balanced(door)


async def test_stopping_settles_stashed_messages() -> None:
    async with open_system() as system, trio.open_nursery() as nursery:
        door = await system.start(lambda: Door([]), name="door")
        await door.tell(Say("told"))

        async def asker() -> None:
            with pytest.raises(ActorDead):
                await door.ask(Spell("asked"))

        nursery.start_soon(asker)
        await wait_all_tasks_blocked()
        await door.stop()
        assert door.statistics().dead_lettered == 2
        assert _balanced(door)


async def test_stashing_outside_of_a_handler_is_refused() -> None:
    class Early(Actor[Say]):
        async def on_start(self) -> None:
            with pytest.raises(MotetRuntimeError, match="in a handler"):
                self.stash()

        @handles(Say, concurrent=2)
        async def say(self, message: Say) -> None:
            with pytest.raises(MotetRuntimeError, match="not concurrent"):
                self.stash()

    async with open_system() as system:
        early = await system.start(Early, name="early")
        await early.tell(Say("x"))
        await wait_all_tasks_blocked()
        assert early.statistics().handled == 1


class StashAndFail(Actor[Say]):
    @handles(Say)
    async def say(self, message: Say) -> None:
        self.stash()
        raise RuntimeError(message.word)


async def test_a_message_whose_handler_fails_after_stash_is_not_stashed() -> None:
    async with open_system() as system:
        actor = await system.start(StashAndFail, name="actor")
        await actor.tell(Say("x"))
        await wait_all_tasks_blocked()
        seen = actor.statistics()
        assert (seen.dead_lettered, seen.stashed, seen.restarts) == (1, 0, 1)
        assert _balanced(actor)


# ---------------------------------------------------------------------- retries


class Flaky(Actor[Say]):
    def __init__(self, log: list[str], good_at: int) -> None:
        self.log = log
        self.good_at = good_at

    @handles(Say, retries=2)
    async def say(self, message: Say) -> None:
        self.log.append(message.word)
        await trio.lowlevel.checkpoint()
        if message.word == "bad" and self.log.count("bad") < self.good_at:
            raise RuntimeError("not yet")


async def test_a_failing_message_is_handled_again_first_by_the_next_incarnation() -> None:
    log: list[str] = []
    async with open_system() as system:
        flaky = await system.start(lambda: Flaky(log, good_at=3), name="flaky")
        await flaky.tell(Say("bad"))
        await flaky.tell(Say("good"))
        await wait_all_tasks_blocked()
        seen = flaky.statistics()
        assert log == ["bad", "bad", "bad", "good"]
        assert (seen.handled, seen.dead_lettered, seen.restarts) == (2, 0, 2)
        assert _balanced(flaky)


async def test_after_its_retries_a_failing_message_is_a_dead_letter() -> None:
    log: list[str] = []
    async with open_system() as system:
        flaky = await system.start(lambda: Flaky(log, good_at=9), name="flaky")
        await flaky.tell(Say("bad"))
        await flaky.tell(Say("good"))
        await wait_all_tasks_blocked()
        assert log == ["bad", "bad", "bad", "good"]
        (letter,) = system.dead_letters
        assert letter.message == Say("bad")
        assert "3 times" in letter.reason
        assert _balanced(flaky)


async def test_a_message_waiting_for_its_retry_becomes_a_dead_letter_when_the_actor_is_stopped(
    autojump_clock: MockClock,
) -> None:
    async with open_system(supervision=Supervision(backoff=10)) as system:
        flaky = await system.start(lambda: Flaky([], good_at=9), name="flaky")
        await flaky.tell(Say("bad"))
        await trio.sleep(1)
        seen = flaky.statistics()
        assert (seen.running, seen.in_turn, seen.queued) == (1, 0, 0)
        await flaky.stop()
        assert flaky.statistics().dead_lettered == 1
        assert _balanced(flaky)


def test_retries_are_for_told_messages_handled_in_the_turn() -> None:
    with pytest.raises(ValueError, match="asker"):
        handles(Spell, retries=1)
    with pytest.raises(ValueError, match="concurrently"):
        handles(Say, concurrent=2, retries=1)
    with pytest.raises(ValueError, match=">= 0"):
        handles(Say, retries=-1)


# ---------------------------------------------------------------------- suspend


class Slow(Actor[Say | Spell]):
    mailbox = MailboxSpec(capacity=2, overflow="drop_oldest")

    def __init__(self, log: list[str]) -> None:
        self.log = log

    @handles(Say)
    async def say(self, message: Say) -> None:
        self.log.append(f"begin {message.word}")
        await trio.sleep(1)
        self.log.append(f"end {message.word}")

    @handles(Spell, concurrent=3)
    async def spell(self, request: Spell) -> str:
        return "-".join(request.word)


async def test_a_suspended_actor_ends_its_turn_and_begins_no_other(
    autojump_clock: MockClock,
) -> None:
    log: list[str] = []
    async with open_system() as system:
        slow = await system.start(lambda: Slow(log), name="slow")
        await slow.tell(Say("a"))
        await slow.tell(Say("b"))
        await trio.sleep(0.5)
        slow.suspend()
        await trio.sleep(10)
        assert log == ["begin a", "end a"]
        assert [info.paused for info in system.snapshot()] == [True]
        slow.resume()
        await trio.sleep(10)
        assert log == ["begin a", "end a", "begin b", "end b"]


async def test_asks_of_a_suspended_actor_wait_or_are_refused(autojump_clock: MockClock) -> None:
    async with open_system() as system, trio.open_nursery() as nursery:
        slow = await system.start(lambda: Slow([]), name="slow")
        answers: list[str] = []

        async def asker() -> None:
            answers.append(await slow.ask(Spell("ab")))

        slow.suspend()
        nursery.start_soon(asker)
        await trio.sleep(1)
        assert answers == []

        slow.suspend(refuse=True)
        with pytest.raises(ActorPaused, match="suspended"):
            await slow.ask(Spell("cd"))
        assert answers == []

        slow.resume()
        await trio.sleep(1)
        assert answers == ["a-b"]
        assert _balanced(slow)


async def test_tells_are_accepted_and_bounded_while_requests_are_refused() -> None:
    async with open_system() as system:
        slow = await system.start(lambda: Slow([]), name="slow")
        slow.suspend(refuse=True)
        for word in "abcd":
            slow.tell_nowait(Say(word))
        seen = slow.statistics()
        assert (seen.accepted, seen.queued, seen.dead_lettered) == (4, 2, 2)
        await slow.stop(grace=0)
        assert _balanced(slow)


async def test_a_suspended_actor_can_be_stopped_at_once(autojump_clock: MockClock) -> None:
    async with open_system() as system:
        slow = await system.start(lambda: Slow([]), name="slow")
        slow.suspend()
        await slow.tell(Say("a"))
        await trio.sleep(1)
        began = trio.current_time()
        assert (await slow.stop()).complete
        assert trio.current_time() == began


async def test_statistics_have_the_declared_limits_and_the_handler_in_the_turn(
    autojump_clock: MockClock,
) -> None:
    async with open_system() as system:
        slow = await system.start(lambda: Slow([]), name="slow")
        await slow.tell(Say("a"))
        await trio.sleep(0.5)
        seen = slow.statistics()
        assert (seen.capacity, seen.concurrency, seen.running, seen.in_turn) == (2, 4, 1, 1)


# ---------------------------------------------------------------------- all of it


class Moody(Actor[Say | Spell | Open | Crash]):
    """Stashes, fails and recovers as the words say; remembers every word it has handled."""

    mailbox = MailboxSpec(capacity=3)

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    @handles(Say, retries=1)
    async def say(self, message: Say) -> None:
        await trio.sleep(0.5)
        if message.word.startswith("stash"):
            with suppress(MailboxFull):
                self.stash()
        if "crash" in message.word:
            raise RuntimeError(message.word)

    @handles(Spell)
    async def spell(self, request: Spell) -> str:
        await trio.sleep(0.5)
        if request.word.startswith("stash") and request.word not in self.seen:
            self.seen.append(request.word)
            with suppress(MailboxFull):
                self.stash()
        return request.word

    @handles(Open)
    async def open(self, _: Open) -> None:
        self.unstash_all()
        await trio.sleep(1)

    @handles(Crash)
    async def crash(self, _: Crash) -> None:
        raise RuntimeError("crash")


_WORDS = st.sampled_from(["plain", "stash", "crash", "stash crash"])
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), _WORDS),
        st.tuples(st.just("ask"), st.sampled_from(["plain", "stash"])),
        st.tuples(st.sampled_from(["open", "crash", "suspend", "refuse", "resume"]), st.just("")),
        st.tuples(st.just("open"), st.just("")),
        st.tuples(st.just("wait"), st.sampled_from(["0.25", "0.5", "2"])),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(steps=_STEPS)
def test_all_mail_is_counted_with_stash_retries_and_suspension(
    steps: list[tuple[str, str]],
) -> None:
    """At every look accepted = handled + withdrawn + dead-lettered + stashed + queued + running
    (G4), queued + stashed <= capacity (G13), and every ask has one outcome in the end (G3)."""

    outcomes: list[str] = []

    async def asker(ref: ActorRef[Say | Spell | Open | Crash], word: str) -> None:
        try:
            answer = await ref.ask(Spell(word), timeout=1.6)
        except MotetRuntimeError as error:
            outcomes.append(type(error).__name__)
        else:
            assert answer == word, "the answer of another ask"
            outcomes.append("value")

    def look(ref: ActorRef[Any]) -> None:
        assert _balanced(ref), ref.statistics()
        seen = ref.statistics()
        assert seen.queued + seen.stashed <= seen.capacity
        assert 0 <= seen.in_turn <= 1

    async def main() -> None:
        supervision = Supervision(intensity=1000)
        async with open_system(supervision=supervision) as system, trio.open_nursery() as nursery:
            ref = await system.start(lambda: Moody([]), name="moody")
            for number, (step, word) in enumerate(steps):
                match step:
                    case "say":
                        nursery.start_soon(ref.tell, Say(f"{word} {number}"))
                    case "ask":
                        nursery.start_soon(asker, ref, f"{word} {number}")
                    case "open":
                        nursery.start_soon(ref.tell, Open())
                    case "crash":
                        system.inject(ref.path, "crash")
                    case "suspend" | "refuse":
                        ref.suspend(refuse=step == "refuse")
                    case "resume":
                        ref.resume()
                    case _:
                        await trio.sleep(float(word))
                look(ref)
                await trio.lowlevel.checkpoint()
                look(ref)
            ref.resume()
            await trio.sleep(30)
            await ref.ask(Spell("the last one"), timeout=100)
            look(ref)
            await ref.stop()
            look(ref)
            seen = ref.statistics()
            assert seen.stashed == seen.queued == seen.running == seen.waiting == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert len(outcomes) == sum(step == "ask" for step, _ in steps)
