"""Queues that asks may leave from any place: the same items as in a list, at a constant price."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorRef,
    MailboxFull,
    MailboxSpec,
    Overflow,
    handles,
    mailbox,
    open_system,
    queues,
)
from motet.runtime.envelope import Ask
from motet.runtime.feed import DeadLetters
from motet.runtime.mailbox import Mailbox
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


def test_a_control_message_may_be_stashed_before_any_mail_comes() -> None:
    """It takes no room in a mailbox, so the first queue is not made for it."""
    box, other = (Mailbox(path, MailboxSpec(), DeadLetters()) for path in ("/a", "/b"))
    box.reserve_place()
    box.put_aside(Mark(1))
    box.unstash()
    box.put_or_overflow(Mark(2))
    assert [*box.queue.present()] == [Mark(1), Mark(2)]
    assert not other.queue
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


# ---------------------------------------------------------------------- a mailbox beside lists


class Silent(Ask, eq=False):
    """An ask whose asker is nobody, so that no scheduler is needed."""

    @property
    def asked_from(self) -> None:
        return None

    def _deliver(self, result: object) -> None:
        pass


@attrs.define
class Lists:
    """The mailbox as lists: those who wait, and the items for the turn, aside, and stashed."""

    spec: MailboxSpec
    turn: list[Item] = attrs.field(factory=list[Item])
    aside: list[Item] = attrs.field(factory=list[Item])
    stash: list[Item] = attrs.field(factory=list[Item])
    waiting: list[Item] = attrs.field(factory=list[Item])

    @property
    def room(self) -> int:
        return self.spec.capacity - len(self.turn) - len(self.aside) - len(self.stash)

    def line_of(self, item: Item) -> list[Item]:
        return self.aside if isinstance(item, Ask) and type(item.message) is Aside else self.turn

    def put(self, item: Item) -> str:
        """The outcome: accepted, waiting, full, or a dead letter."""
        if self.room > 0 and not self.waiting:
            self.line_of(item).append(item)
            return "accepted"
        if self.spec.overflow == "drop_oldest" and self.turn:
            del self.turn[0]
            self.line_of(item).append(item)
            return "accepted"
        if self.spec.overflow == "wait" and isinstance(item, Ask):
            self.waiting.append(item)
            return "waiting"
        drops = self.spec.overflow.startswith("drop") and not isinstance(item, Ask)
        return "dead letter" if drops else "full"

    def admit(self) -> None:
        while self.waiting and self.room > 0:
            item = self.waiting.pop(0)
            self.line_of(item).append(item)


def put(box: Mailbox, item: Item) -> str:
    """Put an item as its sender does; the outcome as :meth:`Lists.put` says it."""
    dead = box.dead_lettered
    try:
        if not isinstance(item, Ask):
            box.put_or_overflow(item)
        elif not box.put(item):
            box.put_ask_or_overflow(item)
            if item in box.waiting:
                return "waiting"
    except MailboxFull:
        return "full"
    if box.dead_letters.count > dead and box.dead_letters.last[-1].message is item:
        return "dead letter"
    return "accepted"


def taken(box: Mailbox) -> Item | None:
    """The next item of the turn, as the turn takes it (``Incarnation._drain``)."""
    while box.queue:
        item = box.queue.popleft()
        box.taken += 1
        if box.waiting and not box.queue.is_gap(item):
            box.admit()
        if isinstance(item, Ask) and item.queue is None:
            box.skip()
            continue
        return item
    return None


def step_of_mailbox(box: Mailbox, lists: Lists, step: str, number: int, which: float) -> None:
    match step:
        case "tell" | "ask" | "aside":
            sent: Item = Mark(number)
            if step != "tell":
                kind = Number if step == "ask" else Aside
                unused: Any = None
                sent = Silent(box, kind(number), unused, unused, math.inf, queue=box.queue)
            assert put(box, sent) == lists.put(sent)
        case "leave":
            lines = (lists.turn, lists.aside, lists.stash, lists.waiting)
            asks = [(line, item) for line in lines for item in line if isinstance(item, Ask)]
            if asks:
                line, gone = asks[int(which * len(asks))]
                box.withdraw(gone)
                line[:] = [item for item in line if item is not gone]
        case "take" | "stash":
            item = taken(box)
            assert item is (lists.turn.pop(0) if lists.turn else None)
            lists.admit()
            places = min(lists.room, box.spec.capacity - 1 - len(lists.stash))
            if item is not None and step == "stash" and places > 0:
                box.reserve_place()
                box.put_aside(item)
                lists.stash.append(item)
            elif item is not None:
                box.handled += 1
                if isinstance(item, Ask):
                    item.queue = None
        case "take aside":
            item = box.take(Aside)
            assert item is (lists.aside.pop(0) if lists.aside else None)
            if isinstance(item, Ask):
                item.queue = None
                box.handled += 1
        case _:
            box.unstash()
            lists.turn, lists.stash = lists.stash + lists.turn, []
    lists.admit()


STEPS = (
    "tell",
    "ask",
    "ask",
    "aside",
    "aside",
    "leave",
    "leave",
    "take",
    "stash",
    "take aside",
    "unstash",
)
POLICIES: tuple[Overflow, ...] = ("wait", "fail", "drop_oldest", "drop_newest")


def differences(seed: int, length: int = 60) -> str | None:
    """The first step after which a mailbox and its model differ; None: they never do."""
    chance = random.Random(seed)
    spec = MailboxSpec(chance.choice((1, 2, 3, 5, 40)), chance.choice(POLICIES))
    kinds = chance.choice(((), (Aside,)))
    box, lists = Mailbox("/a", spec, DeadLetters(), kinds), Lists(spec)
    steps = [step for step in STEPS if kinds or "aside" not in step]
    for number in range(length):
        step = chance.choice(steps)
        try:
            step_of_mailbox(box, lists, step, number, chance.random())
        except AssertionError as error:
            return f"{spec}, step {number}, {step}: {error}"
        aside = [item for queue in box.concurrent.values() for item in queue.present()]
        lines: list[tuple[Sequence[object], Sequence[object]]] = [
            ([*box.queue.present()], lists.turn),
            ([*box.stash.present()], lists.stash),
            ([*box.waiting], lists.waiting),
            (aside, lists.aside),
        ]
        if any([*map(id, line)] != [*map(id, model)] for line, model in lines):
            return f"{spec}, step {number}, {step}: {lines}"
        if box.stashed != len(lists.stash) + len(lists.aside) or box.running or lists.room < 0:
            return f"{spec}, step {number}, {step}: {box.stashed} stashed, {box.running} running"
    return None


def test_a_mailbox_does_what_lists_do() -> None:
    """Law: under every policy, whoever leaves from wherever, a mailbox has the items of lists from
    which they are removed, and accepts as many as those have room for."""
    for seed in range(1_500):
        assert differences(seed) is None


def _keep_the_room_of_gaps(patch: pytest.MonkeyPatch) -> None:
    def drop_oldest(box: Mailbox) -> bool:
        item = box.queue.take()
        if item is None:
            return False
        box._set_limit()
        box._drop(item, "")
        return True

    patch.setattr(Mailbox, "_drop_oldest", drop_oldest)


def _count_gaps_as_items(patch: pytest.MonkeyPatch) -> None:
    def room(box: Mailbox) -> int:
        return box.spec.capacity - box.stashed - box.reserved

    patch.setattr(Mailbox, "_room", room)


def _forget_who_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mailbox, "admit", Mailbox._set_limit)


@pytest.mark.parametrize(
    "defect", [_keep_the_room_of_gaps, _count_gaps_as_items, _forget_who_waits]
)
def test_the_lists_find_a_mailbox_with(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    assert any(differences(seed) for seed in range(300))
