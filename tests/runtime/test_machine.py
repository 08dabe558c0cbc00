"""State machines, and the timers that they are made of, one by one."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request, StreamRequest
from motet.runtime import (
    Actor,
    Machine,
    MailboxFull,
    MailboxSpec,
    MotetRuntimeError,
    NotInState,
    Replies,
    State,
    handles,
    open_system,
)

NO_PLACE = "no place was left to postpone it"


class Push(Message, frozen=True, tag="push"):
    pass


class Coin(Request[str], frozen=True, tag="coin"):
    cents: int = 50


class Expired(Message, frozen=True, tag="expired"):
    pass


class Passed(Request[int], frozen=True, tag="passed"):
    pass


class Items(StreamRequest[str, int], frozen=True, tag="items"):
    pass


class Gate(Machine[Push | Coin | Expired | Passed | Items]):
    def __init__(self) -> None:
        self.passed = 0
        self.log: list[str] = []

    async def initial(self) -> State[Any, Gate]:
        return Locked()

    @handles(Passed)
    async def report(self, _: Passed) -> int:
        return self.passed


class Locked(State[Coin, Gate]):
    postpones = (Push,)

    def on_enter(self) -> None:
        self.machine.log.append("locked")

    @handles(Coin)
    async def coin(self, request: Coin) -> str:
        if request.cents < 50:
            self.become(Open(10))
            raise ValueError("too little")
        self.become(Open(10))
        return "open"


class Open(State[Push | Expired | Items, Gate]):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_enter(self) -> None:
        self.machine.log.append("open")
        self.timers.once(self.seconds, Expired())

    def on_leave(self) -> None:
        self.machine.log.append("left")

    @handles(Push)
    async def push(self, _: Push) -> None:
        self.machine.passed += 1
        self.become(Locked())

    @handles(Expired)
    async def expired(self, _: Expired) -> None:
        self.become(Locked())

    @handles(Items)
    async def items(self, _: Items, replies: Replies[str]) -> int:
        await replies.send("a")
        return 1


async def test_a_message_goes_to_the_state_and_a_transition_follows_its_handler(
    autojump_clock: MockClock,
) -> None:
    gates: list[Gate] = []

    def gate() -> Gate:
        gates.append(Gate())
        return gates[-1]

    async with open_system() as system:
        ref = await system.start(gate, name="gate")
        await ref.tell(Push())  # is postponed
        assert ref.statistics().handled == 0
        assert await ref.ask(Coin()) == "open"
        assert await ref.ask(Passed()) == 1
        assert gates[0].log == ["locked", "open", "left", "locked"]
        with pytest.raises(ValueError, match="too little"):
            await ref.ask(Coin(10))
        assert isinstance(gates[0].state, Locked)
        assert await ref.ask(Coin()) == "open"
        with pytest.raises(NotInState, match="does not take Coin in the state Open"):
            await ref.ask(Coin())
        async with ref.stream(Items()) as items:
            assert [item async for item in items] == ["a"]
            assert items.result == 1
        await trio.sleep(11)
        assert isinstance(gates[0].state, Locked)


async def test_the_timer_of_a_state_that_was_left_is_not_handled(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(Gate):
        async def initial(self) -> State[Any, Gate]:
            return SlowOpen(1)

    class SlowOpen(Open):
        @handles(Push)
        async def push(self, _: Push) -> None:
            await trio.sleep(5)
            self.become(Open(100))

    async with open_system() as system:
        ref = await system.start(Slow, name="slow")
        await ref.tell(Push())
        await trio.sleep(20)  # it expired while the handler ran, and the state was left after that
        assert ref.statistics().withdrawn == 1
        await ref.tell(Expired())
        await ref.tell(Expired())
        await trio.sleep(1)
        assert caplog.messages == ["/system/slow does not handle Expired in the state Locked"]


async def test_a_state_is_entered_once_and_names_messages_of_its_machine() -> None:
    class Foreign(Message, frozen=True, tag="foreign"):
        pass

    class Alien(State[Foreign, Gate]):
        @handles(Foreign)
        async def foreign(self, _: Foreign) -> None: ...

    class Wrong(Gate):
        @handles(Passed)
        async def report(self, _: Passed) -> int:
            with pytest.raises(TypeError, match="Alien has Foreign, which Wrong does not name"):
                self.become(Alien())
            with pytest.raises(MotetRuntimeError, match="entered before"):
                self.become(self.state)
            return 1

    async with open_system() as system:
        ref = await system.start(Wrong, name="wrong")
        assert await ref.ask(Passed()) == 1
    with pytest.raises(MotetRuntimeError, match="was not entered"):
        _ = Locked().machine
    with pytest.raises(MotetRuntimeError, match="has not started"):
        _ = Gate().state


def test_wrong_declarations_are_refused() -> None:
    with pytest.raises(TypeError, match="no handler for Push"):

        class Missing(State[Push | Coin, Gate]):  # pyright: ignore[reportUnusedClass]
            @handles(Coin)
            async def coin(self, request: Coin) -> str:
                return ""

    with pytest.raises(TypeError, match="one message at a time"):

        class Beside(State[Coin, Gate]):  # pyright: ignore[reportUnusedClass]
            @handles(Coin, concurrent=2)
            async def coin(self, request: Coin) -> str:
                return ""

    with pytest.raises(TypeError, match="handles and postpones Coin"):

        class Both(State[Coin, Gate]):  # pyright: ignore[reportUnusedClass]
            postpones = (Coin,)

            @handles(Coin)
            async def coin(self, request: Coin) -> str:
                return ""

    with pytest.raises(TypeError, match="override initial instead"):

        class Starts(Gate):  # pyright: ignore[reportUnusedClass]
            async def on_start(self) -> None: ...  # type: ignore[misc]  # pyright: ignore[reportIncompatibleMethodOverride]


async def test_a_failing_enter_crashes_the_machine_which_begins_anew() -> None:
    class Broken(Open):
        def on_enter(self) -> None:
            raise OSError("no hinge")

    class Fragile(Gate):
        @handles(Passed)
        async def report(self, _: Passed) -> int:
            self.become(Broken(1))
            return 1

    async with open_system() as system:
        ref = await system.start(Fragile, name="fragile")
        with pytest.raises(OSError, match="no hinge"):
            await ref.ask(Passed())
        assert await ref.ask(Coin()) == "open"
        assert ref.statistics().restarts == 1


class Small(Gate):
    mailbox = MailboxSpec(capacity=4)

    async def initial(self) -> State[Any, Gate]:
        return Shut()


class Shut(State[Coin, Gate]):
    postpones = (Push, Passed)

    @handles(Coin)
    async def coin(self, _: Coin) -> str:
        self.become(Free())
        return "open"


class Free(State[Push, Gate]):
    @handles(Push)
    async def push(self, _: Push) -> None:
        self.machine.passed += 1


async def test_a_machine_goes_on_when_no_place_is_left_to_postpone_a_message() -> None:
    """All places but the last are for what is postponed; the last is for what ends the state."""
    async with open_system() as system:
        ref = await system.start(Small, name="small")
        for _ in range(5):
            await ref.tell(Push())
        await wait_all_tasks_blocked()
        assert ref.statistics().stashed == 3
        with pytest.raises(MailboxFull):
            await ref.ask(Passed())
        assert [letter.reason for letter in system.dead_letters] == [NO_PLACE] * 3
        assert await ref.ask(Coin()) == "open"
        assert await ref.ask(Passed()) == 3
        assert ref.statistics().restarts == 0


async def test_the_place_of_a_postponed_message_is_not_given_to_a_sender_that_waits() -> None:
    """Else the mailbox would be full again when the message is postponed, with a place to spare."""
    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.start(Small, name="small")
        ref.suspend()
        for _ in range(3):
            nursery.start_soon(ref.tell, Push())
        await wait_all_tasks_blocked()
        nursery.start_soon(ref.tell, Coin())
        await wait_all_tasks_blocked()
        nursery.start_soon(ref.tell, Push())  # finds the mailbox full
        await wait_all_tasks_blocked()
        assert ref.statistics().waiting == 1
        ref.resume()
        await wait_all_tasks_blocked()
        assert await ref.ask(Passed()) == 4
        assert len(system.dead_letters) == 0


async def test_a_sender_gets_the_place_of_a_message_that_is_not_postponed_after_all(
    autojump_clock: MockClock,
) -> None:
    class One(Small):
        mailbox = MailboxSpec(capacity=1)

        async def initial(self) -> State[Any, Gate]:
            self.timers.once(1, Push(), key="push")
            return Busy()

    class Busy(State[Coin, Gate]):
        postpones = (Push,)

        @handles(Coin)
        async def coin(self, _: Coin) -> str:
            await trio.sleep(2)
            self.machine.timers.cancel("push")  # it waits in the only place
            return "tried"

    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.start(One, name="one")
        nursery.start_soon(ref.ask, Coin())
        await trio.sleep(1.5)
        with trio.fail_after(10):
            assert await ref.ask(Passed()) == 0


async def test_a_machine_that_drops_the_oldest_drops_the_message_postponed_first() -> None:
    class Dropping(Small):
        mailbox = MailboxSpec(capacity=4, overflow="drop_oldest")

    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.start(Dropping, name="dropping")

        async def ask() -> None:
            with pytest.raises(MailboxFull):
                await ref.ask(Passed())

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        for _ in range(3):
            await ref.tell(Push())
        await wait_all_tasks_blocked()
        assert ref.statistics().stashed == 3
        assert await ref.ask(Coin()) == "open"
        assert await ref.ask(Passed()) == 3
        assert [type(letter.message) for letter in system.dead_letters] == [Passed]


# ---------------------------------------------------------------------- timers


class Tick(Message, frozen=True, tag="tick"):
    name: str = ""
    seconds: float = 0


class Ticker(Actor[Tick]):
    mailbox = MailboxSpec(capacity=8)

    def __init__(self) -> None:
        self.seen: list[tuple[float, str]] = []

    @handles(Tick)
    async def tick(self, message: Tick) -> None:
        if message.name == "crash":
            raise RuntimeError("it was told to crash")
        self.seen.append((trio.current_time(), message.name))
        await trio.sleep(message.seconds)


async def test_a_key_is_set_anew_and_cancelled_finally(autojump_clock: MockClock) -> None:
    actor = Ticker()
    async with open_system() as system:
        ref = await system.start(lambda: actor, name="ticker")
        timers = actor.timers
        timers.once(5, Tick("first"), key="retry")
        assert timers.remaining("retry") == 5
        timers.once(2, Tick("second"), key="retry")
        assert timers.remaining("retry") == 2
        await trio.sleep(10)
        assert actor.seen == [(2, "second")]
        assert timers.remaining("retry") is None
        assert not timers.cancel("retry")

        await ref.tell(Tick("busy", 5))
        timers.once(1, Tick("queued"), key="a")
        other = timers.once(1, Tick("queued too"))
        await trio.sleep(2)
        assert ref.statistics().queued == 2
        assert timers.cancel("a")
        other.cancel()
        await trio.sleep(10)
        assert [name for _, name in actor.seen] == ["second", "busy"]
        assert ref.statistics().withdrawn == 2
        assert len(timers) == 0


async def test_a_fixed_delay_waits_for_the_handler(autojump_clock: MockClock) -> None:
    actor = Ticker()
    async with open_system() as system:
        ref = await system.start(lambda: actor, name="ticker")
        every = actor.timers.every(1, Tick("slow", 3), fixed_delay=True)
        await trio.sleep(10)
        assert [when for when, _ in actor.seen] == [1, 5, 9]
        assert ref.statistics().queued == 0
        assert every.is_active
        every.cancel()
        await trio.sleep(10)
        assert len(actor.seen) == 3
        with pytest.raises(ValueError, match="a period"):
            actor.timers.every(0, Tick())


async def test_a_fixed_delay_goes_on_after_a_message_that_the_mailbox_dropped(
    autojump_clock: MockClock,
) -> None:
    class Narrow(Ticker):
        mailbox = MailboxSpec(capacity=1, overflow="drop_newest")

    actor = Narrow()
    async with open_system() as system:
        ref = await system.start(lambda: actor, name="narrow")
        actor.timers.every(1, Tick("timer"), fixed_delay=True)
        await ref.tell(Tick("busy", 1.5))
        await wait_all_tasks_blocked()
        await ref.tell(Tick("other"))  # takes the only place
        await trio.sleep(5.5)
        assert [name for _, name in actor.seen] == ["busy", "other"] + ["timer"] * 4


async def test_an_idle_actor_is_told_once_in_each_pause(autojump_clock: MockClock) -> None:
    actor = Ticker()
    async with open_system() as system:
        ref = await system.start(lambda: actor, name="ticker")
        actor.timers.idle(8, Tick("idle"), key="idle")
        for _ in range(5):
            await trio.sleep(3)
            await ref.tell(Tick("mail"))
        await trio.sleep(100)
        await ref.tell(Tick("mail"))
        await trio.sleep(100)
        idle = [when for when, name in actor.seen if name == "idle"]
        assert len(idle) == 2
        assert 23 <= idle[0] <= 25
        assert 123 <= idle[1] <= 125
        with pytest.raises(ValueError, match="an idle time"):
            actor.timers.idle(0, Tick())


async def test_another_actor_is_told_later_unless_the_sender_has_ended(
    autojump_clock: MockClock,
) -> None:
    actor, other = Ticker(), Ticker()
    async with open_system() as system:
        ref = await system.start(lambda: actor, name="ticker", restart="temporary")
        target = await system.start(lambda: other, name="other", restart="temporary")
        actor.send_after(1, target, Tick("first"))
        actor.send_after(2, target, Tick("second"), key="a")
        actor.send_after(3, target, Tick("third"), key="a")
        actor.send_after(9, target, Tick("never"))
        await trio.sleep(5)
        assert other.seen == [(1, "first"), (3, "third")]
        await target.stop()
        actor.send_after(1, target, Tick("to nobody"))
        await trio.sleep(2)
        assert [letter.message for letter in system.dead_letters] == [Tick("to nobody")]
        await ref.stop()
        await trio.sleep(10)


async def test_keys_end_with_their_incarnation_also_in_the_mailbox(
    autojump_clock: MockClock,
) -> None:
    actors: list[Ticker] = []

    def make() -> Ticker:
        actors.append(Ticker())
        return actors[-1]

    async with open_system() as system:
        ref = await system.start(make, name="ticker")
        await ref.tell(Tick("busy", 5))
        await ref.tell(Tick("crash"))
        actors[0].timers.once(1, Tick("with a key"), key="a")
        actors[0].timers.once(1, Tick("without"))
        await trio.sleep(20)
        assert [name for _, name in actors[1].seen] == ["without"]
