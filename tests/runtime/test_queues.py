"""Queues that asks may leave from any place: the same items as in a list, at a constant price."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorRef, MailboxSpec, handles, mailbox, open_system, queues
from motet.runtime.envelope import Ask
from motet.runtime.queues import NOTHING, Item, Queue


class Number(Request[int], frozen=True, tag="queues.number"):
    value: int


class Aside(Request[int], frozen=True, tag="queues.aside"):
    value: int


class Mark(Message, frozen=True, tag="queues.mark"):
    value: int


def ask(number: int) -> Ask:
    # Nothing of a queue looks at these.
    unused: Any = None
    return Ask(unused, Number(number), unused, unused, 0.0)


# ---------------------------------------------------------------------- the queue


@given(st.lists(st.sampled_from(["tell", "ask", "ask", "take", "leave", "leave"]), max_size=400),
       st.randoms(use_true_random=False))  # fmt: skip
def test_a_queue_has_the_items_of_a_list(steps: list[str], chance: random.Random) -> None:
    """Law: after any steps it has the items of a list from which each that leaves is removed, in
    their order, and is at most twice as long and 33 more."""
    queue, model = Queue(), list[Item]()
    for number, step in enumerate(steps):
        asks = [item for item in model if isinstance(item, Ask)]
        if step == "take":
            assert queue.take() is (model.pop(0) if model else None)
        elif step != "leave":
            item = Mark(number % 3) if step == "tell" else ask(number)
            if isinstance(item, Ask):
                item.queue = queue
            queue.append(item)
            model.append(item)
        elif asks:
            gone = chance.choice(asks)
            queue.withdraw(gone)
            model = [item for item in model if item is not gone]
        present = [*queue.present()]
        assert len(present) == len(model) == queue.items
        assert all(one is other for one, other in zip(present, model, strict=True))
        assert len(queue) <= 2 * queue.items + 33


def test_the_shared_queue_stays_empty() -> None:
    with pytest.raises(AssertionError, match="all mailboxes share"):
        NOTHING.append(Mark(1))
    assert not NOTHING


# ---------------------------------------------------------------------- the mailbox


class Counting(Actor[Number | Aside | Mark]):
    mailbox = MailboxSpec(capacity=100_000)

    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    @handles(Number)
    async def number(self, request: Number) -> int:
        self.seen.append(request.value)
        return request.value

    @handles(Aside, concurrent=2)
    async def aside(self, request: Aside) -> int:
        self.seen.append(request.value)
        return request.value

    @handles(Mark)
    async def mark(self, message: Mark) -> None:
        self.seen.append(message.value)
        if message.value < 0:
            await trio.sleep_forever()


def steps_of_cancellation(files: set[str]) -> Any:
    counted = [0]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        counted[0] += event == "opcode"
        return trace

    return trace, counted


async def price_of_leaving(number: int, kind: type[Number | Aside]) -> int:
    """The steps of Python's own machine in the mailbox while so many queued asks give up."""
    trace, counted = steps_of_cancellation({str(mailbox.__file__), str(queues.__file__)})
    async with open_system() as system:
        ref = await system.start(lambda: Counting([]), name="counting")
        ref.suspend()
        async with trio.open_nursery() as nursery:
            for value in range(number):
                nursery.start_soon(ref.ask, kind(value))
            await wait_all_tasks_blocked()
            seen = ref.statistics()
            assert seen.queued + seen.stashed == number
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                nursery.cancel_scope.cancel()
                await wait_all_tasks_blocked()
            finally:
                sys.settrace(before)
        seen = ref.statistics()
        assert (seen.queued, seen.stashed, seen.withdrawn) == (0, 0, number)
    return int(counted[0])


@pytest.mark.parametrize("kind", [Number, Aside])
async def test_leaving_costs_the_same_however_many_are_queued(kind: type[Number | Aside]) -> None:
    """Law: four times as many asks take at most four times as many steps, and some that the number
    does not change."""
    few = await price_of_leaving(400, kind)
    many = await price_of_leaving(1600, kind)
    assert 0 < few < many < 4.2 * few


async def test_those_that_stay_are_handled_in_their_order() -> None:
    """Law: of 500 messages, of which some leave in any order, the others are handled in theirs."""
    chance = random.Random(7)
    seen: list[int] = []
    async with open_system() as system:
        ref: ActorRef[Any] = await system.start(lambda: Counting(seen), name="counting")
        ref.suspend()
        scopes = {number: trio.CancelScope() for number in range(500) if number % 5}

        async def asking(number: int) -> None:
            with scopes[number]:
                assert await ref.ask(Number(number)) == number

        async with trio.open_nursery() as nursery:
            for number in range(500):
                if number in scopes:
                    nursery.start_soon(asking, number)
                    await wait_all_tasks_blocked()
                else:
                    await ref.tell(Mark(number))
            gone = chance.sample([*scopes], 300)
            for number in gone:
                scopes[number].cancel()
                await trio.lowlevel.checkpoint()
            assert ref.statistics().queued == 200
            ref.resume()
        assert seen == [number for number in range(500) if number not in gone]
        assert ref.statistics().withdrawn == 300


@pytest.mark.parametrize("overflow", ["fail", "drop_oldest", "wait"])
async def test_a_gap_takes_no_room(overflow: Any) -> None:
    """Law: the place of an ask that has left is free at once, and of no other."""

    class Small(Counting):
        mailbox = MailboxSpec(capacity=3, overflow=overflow)

    seen: list[int] = []
    async with open_system() as system:
        ref = await system.start(lambda: Small(seen), name="small")
        ref.suspend()
        async with trio.open_nursery() as nursery:
            for number in (1, 2, 3):
                nursery.start_soon(ref.ask, Number(number))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        for number in (4, 5, 6):
            ref.tell_nowait(Mark(number))
        assert ref.statistics().queued == 3
        if overflow == "drop_oldest":
            ref.tell_nowait(Mark(7))
        else:
            with pytest.raises(Exception, match="full"):
                ref.tell_nowait(Mark(7))
        ref.resume()
        await wait_all_tasks_blocked()
        assert seen == ([5, 6, 7] if overflow == "drop_oldest" else [4, 5, 6])
