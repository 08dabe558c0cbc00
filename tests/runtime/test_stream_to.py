"""Streams to a function: the asker waits once for any number of items (G1, G3)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import StreamRequest
from motet.runtime import Actor, ActorRef, AskCycle, AskTimeout, Replies, handles, open_system
from motet.runtime.testing import Simulation
from motet.runtime.testing.sweep import sweep


class Spell(StreamRequest[str, int], frozen=True, tag="to.spell"):
    """``then``: what the speller does when it has sent all letters."""

    word: str
    then: str = "answers"
    at_once: bool = True


class Ask(StreamRequest[str, int], frozen=True, tag="to.ask"):
    """Asks the speller below."""


seen_by: ContextVar[str] = ContextVar("seen_by")


class Speller(Actor[Spell | Ask]):
    def __init__(self, below: list[ActorRef[Spell | Ask]] | None = None) -> None:
        self.below = [] if below is None else below
        self.met: list[type[BaseException]] = []

    @handles(Spell)
    async def spell(self, request: Spell, replies: Replies[str]) -> int:
        seen_by.set("the speller")
        try:
            await self._letters(request, replies)
        except trio.BrokenResourceError as error:
            self.met.append(type(error))
            if request.then == "swallows":
                return -1
            if request.then == "replaces":
                raise LookupError("something else") from None
            raise
        except trio.Cancelled as error:
            self.met.append(type(error))
            if request.then == "sends on":
                with pytest.raises(trio.BrokenResourceError):
                    replies.send_nowait("too late")
                with trio.CancelScope(shield=True), pytest.raises(trio.BrokenResourceError):
                    await replies.send("too late")
            raise
        return len(request.word)

    async def _letters(self, request: Spell, replies: Replies[str]) -> None:
        for letter in request.word:
            if request.at_once:
                replies.send_nowait(letter)
            else:
                await replies.send(letter)
        if request.then == "fails":
            raise ValueError("after all letters")
        if request.then in ("hangs", "sends on"):
            await trio.sleep_forever()

    @handles(Ask)
    async def ask_below(self, _: Ask, replies: Replies[str]) -> int:
        return await self.below[0].stream_to(Spell("x"), replies.send_nowait)


def failing_at(letter: str, into: list[str]) -> Callable[[str], None]:
    def take(item: str) -> None:
        into.append(item)
        if item == letter:
            raise KeyError(letter)

    return take


@pytest.mark.parametrize("at_once", [True, False])
async def test_take_gets_each_item_in_order_before_the_answer(at_once: bool) -> None:
    async with open_system() as system:
        speller = await system.start(Speller, name="speller")
        taken: list[str] = []

        answer = await speller.stream_to(Spell("x" * 99 + "y", at_once=at_once), taken.append)

        assert "".join(taken) == "x" * 99 + "y"
        assert answer == 100


async def test_items_are_taken_in_the_handlers_task() -> None:
    seen_by.set("the asker")
    contexts: list[str] = []
    async with open_system() as system:
        speller = await system.start(Speller, name="speller")

        await speller.stream_to(Spell("a"), lambda _: contexts.append(seen_by.get()))

    assert contexts == ["the speller"]


async def test_the_asker_is_resumed_once_for_any_number_of_items() -> None:
    class Steps(trio.abc.Instrument):
        count = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.count += task is asker

    asker, steps = trio.lowlevel.current_task(), Steps()
    async with open_system() as system:
        speller = await system.start(Speller, name="speller")
        trio.lowlevel.add_instrument(steps)
        await speller.stream_to(Spell("x" * 1000), lambda _: None)
        trio.lowlevel.remove_instrument(steps)

    assert steps.count == 1


async def test_send_is_a_checkpoint_and_lets_others_run() -> None:
    order: list[str] = []
    async with open_system() as system, trio.open_nursery() as nursery:
        speller = await system.start(Speller, name="speller")

        async def other() -> None:
            for _ in range(3):
                order.append("other")
                await trio.lowlevel.checkpoint()

        nursery.start_soon(other)
        await speller.stream_to(Spell("aaa", at_once=False), order.append)

    assert order != sorted(order)


async def test_a_handlers_error_comes_after_the_items_before_it() -> None:
    taken: list[str] = []
    async with open_system() as system:
        speller = await system.start(Speller, name="speller")

        with pytest.raises(ValueError, match="after all letters"):
            await speller.stream_to(Spell("oh", then="fails"), taken.append)

        assert taken == ["o", "h"]
        assert speller.statistics().restarts == 0


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("then", ["answers", "hangs", "swallows", "replaces", "fails"])
async def test_an_error_of_take_is_the_outcome_whatever_the_handler_does(
    then: str, at_once: bool
) -> None:
    taken: list[str] = []
    spellers: list[Speller] = []

    def speller_of_its_own() -> Speller:
        spellers.append(Speller())
        return spellers[-1]

    async with open_system() as system:
        speller = await system.start(speller_of_its_own, name="speller")

        with pytest.raises(KeyError) as caught:
            await speller.stream_to(
                Spell("abc", then=then, at_once=at_once), failing_at("b", taken)
            )

        assert caught.value.args == ("b",)
        assert taken == ["a", "b"]
        assert spellers[0].met == [trio.BrokenResourceError]
        notes = getattr(caught.value, "__notes__", [])
        assert bool(notes) == (then == "replaces")
        # It was the asker's error: the actor goes on.
        assert await speller.ask(Spell("de")) == 2
        assert speller.statistics().restarts == 0


async def test_a_failed_take_ends_a_handler_that_would_continue() -> None:
    """Given a handler that does not see the error, since a task of its own sent the item."""

    class Deaf(Actor[Spell]):
        @handles(Spell)
        async def spell(self, request: Spell, replies: Replies[str]) -> int:
            try:
                replies.send_nowait(request.word)
            except trio.BrokenResourceError:
                await trio.sleep_forever()
            return 0

    async with open_system() as system:
        deaf = await system.start(Deaf, name="deaf")

        with pytest.raises(KeyError):
            await deaf.stream_to(Spell("b"), failing_at("b", []))


@pytest.mark.parametrize("seconds", [1.0, None])
async def test_take_gets_no_item_after_the_asker_has_left(
    seconds: float | None, autojump_clock: MockClock
) -> None:
    taken: list[str] = []
    async with open_system() as system:
        speller = await system.start(Speller, name="speller")

        with trio.move_on_after(2) as scope:
            try:
                await speller.stream_to(Spell("ab", "sends on"), taken.append, timeout=seconds)
            except AskTimeout:
                assert trio.current_time() == 1

        assert scope.cancelled_caught == (seconds is None)
        assert taken == ["a", "b"]


async def test_a_queued_request_is_withdrawn(autojump_clock: MockClock) -> None:
    async with open_system() as system, trio.open_nursery() as nursery:
        speller = await system.start(Speller, name="speller")
        nursery.start_soon(speller.ask, Spell("", "hangs"))
        await wait_all_tasks_blocked()

        with trio.move_on_after(1):
            await speller.stream_to(Spell("a"), pytest.fail)

        assert speller.statistics().withdrawn == 1
        nursery.cancel_scope.cancel()


async def test_a_cycle_is_refused() -> None:
    below: list[ActorRef[Spell | Ask]] = []
    async with open_system() as system:
        below.append(await system.start(lambda: Speller(below), name="speller"))

        with pytest.raises(AskCycle):
            await below[0].stream_to(Ask(), lambda _: None)


async def test_an_identity_streams_to_a_function_too() -> None:
    taken: list[str] = []
    async with open_system() as system:
        spellers = await system.registry.kind("spellers", lambda _: Speller())

        assert await spellers.ref("a").stream_to(Spell("ab"), taken.append) == 2

    assert taken == ["a", "b"]


async def streaming(sim: Simulation) -> None:
    """Three askers at once take the words of a chain of two spellers; each may be cancelled."""

    async def asker(name: str) -> None:
        over = False

        def take(_: str) -> None:
            if over:
                sim.violated("G1", name, "an item came after the asker had left")

        with sim.may_cancel(name):
            try:
                await ref.stream_to(request, take)
            finally:
                over = True

    async with open_system() as system:
        sim.watch(system)
        below = await system.start(Speller, name="below")
        ref = await system.start(lambda: Speller([below]), name="ref")
        async with trio.open_nursery() as nursery:
            for number in range(3):
                request: Spell | Ask = Ask() if number else Spell("abc", at_once=False)
                nursery.start_soon(asker, f"asker {number}")
                await trio.lowlevel.checkpoint()


def test_cancelling_the_asker_of_a_stream_at_every_step() -> None:
    """Law: at whatever step it is cancelled, take gets no item after the asker has resumed."""
    report = sweep(streaming, "cancel", seeds=range(2))

    report.check()
    assert report.struck > 25


class Chunks(Actor[Spell]):
    """Sends the letters of each chunk without a checkpoint in between, as a model's answer."""

    def __init__(self, chunks: trio.MemoryReceiveChannel[str], wraps: bool) -> None:
        self.chunks = chunks
        self.wraps = wraps

    @handles(Spell)
    async def spell(self, _: Spell, replies: Replies[str]) -> int:
        try:
            async for chunk in self.chunks:
                for letter in chunk:
                    replies.send_nowait(letter)
        except trio.BrokenResourceError as error:
            if self.wraps:
                raise ConnectionError("as libraries word it") from error
            raise
        return 1


@pytest.mark.parametrize("reader", ["stream_to", "stream"])
@pytest.mark.parametrize("wraps", [False, True])
def test_a_cancellation_between_two_items_of_a_chunk_is_no_failure(
    reader: str, wraps: bool
) -> None:
    """Law: at whatever step its asker is cancelled or leaves, a handler that sends several items
    between two checkpoints ends by that: the asker gets its Cancelled, and no error.
    """

    async def chunked(sim: Simulation) -> None:
        send, receive = trio.open_memory_channel[str](0)

        async def feed() -> None:
            with suppress(trio.BrokenResourceError), send:
                for chunk in ("abc", "def", "ghi"):
                    await send.send(chunk)

        async def asker() -> None:
            with sim.may_cancel("asker"):
                if reader == "stream_to":
                    await ref.stream_to(Spell(""), lambda _: None)
                else:
                    async with ref.stream(Spell("")) as letters:
                        async for letter in letters:
                            if letter == "e":
                                break

        async with open_system() as system:
            sim.watch(system)
            ref = await system.start(lambda: Chunks(receive, wraps), name="chunks")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(feed)
                await asker()
                nursery.cancel_scope.cancel()

    report = sweep(chunked, "cancel", seeds=range(8))

    report.check()
    assert report.struck > 25
