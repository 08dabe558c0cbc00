"""G4: no message is lost and none is counted twice, at any step, whatever crashes or stops."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, MailboxFull, MailboxSpec, Supervision, handles, open_system
from tests.guarantees.laws import holds, holds_on, is_found, mutants_of
from tests.guarantees.soak import soak
from tests.guarantees.worlds.beside import NAME as BESIDE


class Item(Message, frozen=True, tag="g4.item"):
    sender: int
    number: int
    fails: bool = False


class Check(Request[int], frozen=True, tag="g4.check"):
    sender: int
    number: int


class Belt(Actor[Item | Check]):
    def __init__(self, handled: list[int]) -> None:
        self.handled = handled

    @handles(Item)
    async def item(self, message: Item) -> None:
        self.handled.append(message.number)
        if message.fails:
            raise RuntimeError("bad item")

    @handles(Check)
    async def check(self, request: Check) -> int:
        self.handled.append(request.number)
        return request.number


def test_accepted_mail_is_always_somewhere() -> None:
    """Law: after every step accepted = handled + withdrawn + dead-lettered + stashed + queued +
    running; at the end every message was handled or is a dead letter, and each sender's messages
    were handled in the order of sending, across restarts."""
    holds("G4", schedules=120)
    holds_on("G4", 3595)  # a message got no place though the oldest was dropped for it


def test_a_crash_costs_no_message_that_is_handled_beside_it() -> None:
    """Law: a crash costs its own message; the handlers beside it are done, with their answers,
    unless they take longer than the grace of their actor, after which the next begins."""
    holds(BESIDE, schedules=80)


@pytest.mark.parametrize("mutant", [*mutants_of("G4"), *mutants_of(BESIDE)])
def test_the_law_finds_a_kernel_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)


def test_twenty_thousand_messages_to_crashing_actors_are_all_accounted_for() -> None:
    """Law: the kernel's counters, summed, are what senders and handlers counted for themselves; and
    memory does not grow with the number of messages."""
    assert soak(messages=20_000, actors=100).problems == []


@pytest.mark.sweep
def test_a_million_messages_to_a_thousand_crashing_actors_are_all_accounted_for() -> None:
    """Law: the same."""
    assert soak(messages=1_000_000, actors=1_000).problems == []


async def test_a_crash_costs_only_the_failing_message(autojump_clock: MockClock) -> None:
    handled: list[int] = []
    async with open_system() as system:
        ref = await system.start(lambda: Belt(handled), name="belt")

        for number in range(6):
            await ref.tell(Item(0, number, fails=number == 2))
        await ref.ask(Check(0, 6))

        assert handled == [0, 1, 2, 3, 4, 5, 6]
        assert [letter.message for letter in system.dead_letters] == [Item(0, 2, fails=True)]
        assert "bad item" in system.dead_letters.last[0].reason
        assert ref.statistics().restarts == 1


async def test_mail_sent_while_an_actor_waits_for_its_restart_is_kept(
    autojump_clock: MockClock,
) -> None:
    handled: list[int] = []
    async with open_system(supervision=Supervision(backoff=10, jitter=0)) as system:
        ref = await system.start(lambda: Belt(handled), name="belt")
        await ref.tell(Item(0, 0, fails=True))
        await trio.sleep(5)

        assert ref.statistics().state == "suspended"
        assert ref.is_alive
        assert await ref.ask(Check(0, 1)) == 1


async def test_a_sender_waits_for_room_and_the_others_policies_do_not() -> None:
    class Stuck(Belt):
        mailbox = MailboxSpec(capacity=2)

        @handles(Item)
        async def item(self, message: Item) -> None:
            await trio.sleep_forever()

    handled: list[int] = []
    async with open_system() as system:
        ref = await system.start(lambda: Stuck(handled), name="stuck")
        for number in range(3):
            await ref.tell(Item(0, number))
            await trio.testing.wait_all_tasks_blocked()

        with pytest.raises(MailboxFull, match=r"/system/stuck is full \(2 messages\)"):
            ref.tell_nowait(Item(0, 3))
        with trio.move_on_after(0) as scope:
            await ref.tell(Item(0, 3))

        assert scope.cancelled_caught
        assert ref.statistics().accepted == 3
        await ref.stop(grace=0)
        assert [letter.message for letter in system.dead_letters] == [
            Item(0, 1),
            Item(0, 2),
            Item(0, 0),
        ]
