"""Event-sourced actors in memory: starts, failures, cancellations, snapshots, versions."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorDead,
    DomainEvent,
    EventNotApplied,
    EventNotPortable,
    EventSourced,
    JournalConflict,
    MemoryJournal,
    MotetRuntimeError,
    Persistence,
    StartFailed,
    StartTimeout,
    StoredEvent,
    Supervision,
    handles,
    open_system,
)


class Deposited(DomainEvent, frozen=True, tag="account.deposited"):
    amount: int


class Balanced(DomainEvent, frozen=True, tag="account.balanced"):
    balance: int


class Deposit(Request[int], frozen=True, tag="deposit"):
    amounts: list[int]


class Balance(Request[int], frozen=True, tag="balance"):
    pass


class Slowly(Request[int], frozen=True, tag="slowly"):
    amount: int


class Account(EventSourced[Deposit | Balance | Slowly, Deposited | Balanced]):
    persistence = Persistence(snapshot_every=10, retain=5)
    balance = 0
    starts: ClassVar[int] = 0

    def apply(self, event: Deposited | Balanced) -> None:
        match event:
            case Deposited(13):
                raise ValueError("13 cannot be applied")
            case Deposited(amount):
                self.balance += amount
            case Balanced(balance):
                self.balance = balance

    def snapshot(self) -> Balanced:
        return Balanced(self.balance)

    @handles(Deposit)
    async def deposit(self, request: Deposit) -> int:
        return await self.persist(*map(Deposited, request.amounts))

    @handles(Balance)
    async def report(self, _: Balance) -> int:
        return self.balance

    @handles(Slowly, concurrent=10)
    async def slowly(self, request: Slowly) -> int:
        before = self.balance
        await self.persist(Deposited(request.amount))
        return self.balance - before


class Gate(MemoryJournal):
    """A journal whose next write runs ``trouble`` before or after it has stored the events."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], Any] | None = None
        self.after: Callable[[], Any] | None = None
        self.reads = 0

    async def append(self, stream: str, after: int, events: Sequence[StoredEvent], /) -> None:
        before, self.before = self.before, None
        if before is not None:
            await before()
        await super().append(stream, after, events)
        later, self.after = self.after, None
        if later is not None:
            await later()

    async def read(self, stream: str, after: int, limit: int, /) -> Sequence[StoredEvent]:
        self.reads += 1
        return await super().read(stream, after, limit)


async def fail() -> None:
    raise OSError("no space left on the device")


async def test_the_state_survives_the_actor_and_its_system() -> None:
    journal = MemoryJournal()
    for before in (0, 6):
        async with open_system() as system:
            account = await system.start(lambda: Account(journal, "account/a"), name="a")
            assert await account.ask(Balance()) == before
            assert await account.ask(Deposit([1, 2])) == (2 if not before else 6)
            assert await account.ask(Deposit([3, 0])) == (4 if not before else 8)


@pytest.mark.parametrize("stored", [False, True])
async def test_a_failed_write_ends_the_incarnation_and_the_next_has_what_is_stored(
    stored: bool,
) -> None:
    journal = Gate()
    async with open_system() as system:
        account = await system.start(lambda: Account(journal, "account/a"), name="a")
        await account.ask(Deposit([1]))
        journal.before, journal.after = (None, fail) if stored else (fail, None)
        with pytest.raises(OSError, match="no space left"):
            await account.ask(Deposit([2, 3]))
        assert await account.ask(Balance()) == (6 if stored else 1)
        assert account.statistics().restarts == 1
        await account.ask(Deposit([10]))
        assert await account.ask(Balance()) == (16 if stored else 11)


@pytest.mark.parametrize("stored", [False, True])
async def test_a_cancelled_write_is_looked_up_and_costs_no_restart(
    stored: bool, autojump_clock: MockClock
) -> None:
    journal = Gate()
    async with open_system() as system:
        account = await system.start(lambda: Account(journal, "account/a"), name="a")
        journal.before, journal.after = (
            (None, trio.sleep_forever) if stored else (trio.sleep_forever, None)
        )
        with trio.move_on_after(1):
            await account.ask(Deposit([2, 3]))
        assert await account.ask(Balance()) == (5 if stored else 0)
        assert account.statistics().restarts == 0
        await account.ask(Deposit([10]))
        assert await account.ask(Balance()) == (15 if stored else 10)


async def test_a_cancelled_write_that_cannot_be_looked_up_ends_the_incarnation(
    autojump_clock: MockClock,
) -> None:
    class Silent(Gate):
        async def read(self, stream: str, after: int, limit: int, /) -> Sequence[StoredEvent]:
            if self.reads == 1:
                self.reads += 1
                await trio.sleep_forever()
            return await super().read(stream, after, limit)

    journal = Silent()
    async with open_system() as system:
        account = await system.start(lambda: Account(journal, "account/a"), name="a")
        journal.after = trio.sleep_forever
        with trio.move_on_after(1):
            await account.ask(Deposit([2]))
        assert await account.ask(Balance()) == 2
        assert account.statistics().restarts == 1


async def test_two_incarnations_of_one_stream_never_both_write() -> None:
    journal = MemoryJournal()
    async with open_system() as one, open_system() as other:
        here = await one.start(lambda: Account(journal, "account/a"), name="a")
        there = await other.start(lambda: Account(journal, "account/a"), name="a")
        await here.ask(Deposit([1]))
        with pytest.raises(JournalConflict, match="another incarnation"):
            await there.ask(Deposit([2]))
        assert await there.ask(Deposit([4])) == 2  # it was started again, and knows the first
        assert await there.ask(Balance()) == 5
        with pytest.raises(JournalConflict):
            await here.ask(Deposit([8]))
        assert await here.ask(Balance()) == 5


async def test_what_cannot_be_stored_ends_nothing() -> None:
    wrong: Any = "five"
    async with open_system() as system:
        account = await system.start(lambda: Account(MemoryJournal(), "account/a"), name="a")
        with pytest.raises(EventNotPortable, match="Expected `int`, got `str`"):
            await account.ask(Deposit([1, wrong]))
        assert await account.ask(Deposit([])) == 0
        assert await account.ask(Balance()) == 0
        assert account.statistics().restarts == 0


async def test_an_event_that_cannot_be_applied_is_named_at_every_start() -> None:
    journal = MemoryJournal()
    async with open_system() as system:
        kind = await system.registry.kind("account", lambda key: Account(journal, key))
        with pytest.raises(EventNotApplied, match="event 2 of 'a', a Deposited") as caught:
            await kind.ref("a").ask(Deposit([1, 13]))
        assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(ActorDead, match="event 2 of 'a'"):
            await kind.ref("a").ask(Balance())
        assert await kind.ref("b").ask(Balance()) == 0


async def test_concurrent_handlers_take_turns() -> None:
    async with open_system() as system:
        account = await system.start(lambda: Account(MemoryJournal(), "account/a"), name="a")
        async with trio.open_nursery() as nursery:
            for amount in range(1, 11):
                nursery.start_soon(account.ask, Slowly(amount))
        assert await account.ask(Balance()) == 55
        assert account.statistics().restarts == 0


async def test_snapshots_bound_the_replay_and_retain_bounds_the_journal() -> None:
    journal = Gate()
    async with open_system() as system:
        account = await system.start(lambda: Account(journal, "account/a"), name="a")
        for _ in range(27):
            await account.ask(Deposit([1]))
        await wait_all_tasks_blocked()
        kept = await journal.snapshot("account/a")
        assert kept == StoredEvent(
            20, "account.balanced", 1, '{"type":"account.balanced","balance":20}'
        )
        numbers = [event.number for event in await journal.read("account/a", 0, 100)]
        assert numbers == [*range(16, 28)]
        await account.stop()
        account = await system.start(lambda: Account(journal, "account/a"), name="a")
        assert await account.ask(Balance()) == 27
        assert await account.ask(Deposit([1])) == 28


async def test_a_snapshot_that_cannot_be_read_or_made_costs_time_and_no_state(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Unsteady(Account):
        persistence = Persistence(snapshot_every=2)

        def snapshot(self) -> Balanced:
            if self.balance > 2:
                raise ValueError("no snapshot today")
            return super().snapshot()

    class Older(EventSourced[Deposit | Balance, Deposited]):
        balance = 0

        def apply(self, event: Deposited) -> None:
            self.balance += event.amount

        @handles(Deposit)
        async def deposit(self, request: Deposit) -> int:
            return await self.persist(*map(Deposited, request.amounts))

        @handles(Balance)
        async def report(self, _: Balance) -> int:
            return self.balance

    journal = MemoryJournal()
    async with open_system() as system:
        account = await system.start(lambda: Unsteady(journal, "a"), name="a")
        for _ in range(6):
            await account.ask(Deposit([1]))
        await wait_all_tasks_blocked()
        assert "no snapshot today" in caplog.text
        older = await system.start(lambda: Older(journal, "a"), name="older")
        assert await older.ask(Balance()) == 6
        assert "reads all its events" in caplog.text
        assert "'account.balanced'" in caplog.text
        # Without the events there is no state, and a start that says so.
        snapshot = StoredEvent(6, "account.balanced", 1, '{"balance":6}')
        await journal.keep("a", snapshot, 4)
        with pytest.raises(StartFailed, match=r"event 6 of 'a' is a 'account.balanced'"):
            await system.start(lambda: Older(journal, "a"), name="late")


async def test_a_gap_in_a_stream_is_no_start() -> None:
    class Torn(MemoryJournal):
        async def read(self, stream: str, after: int, limit: int, /) -> Sequence[StoredEvent]:
            found = await super().read(stream, after, limit)
            return [event for event in found if event.number != 2]

    journal = Torn()
    async with open_system() as system:
        account = await system.start(lambda: Account(journal, "a"), name="a")
        await account.ask(Deposit([1, 2, 3]))
        with pytest.raises(StartFailed, match="has event 3 where 2 should be"):
            await system.start(lambda: Account(journal, "a"), name="b")


async def test_a_long_stream_is_read_in_pages() -> None:
    class Plain(Account):
        persistence = Persistence(snapshot_every=10_000)

    journal = Gate()
    async with open_system() as system:
        account = await system.start(lambda: Plain(journal, "a"), name="a")
        await account.ask(Deposit([1] * 1_001))
        journal.reads = 0
        again = await system.start(lambda: Plain(journal, "a"), name="again")
        assert await again.ask(Balance()) == 1_001
        assert journal.reads == 3


async def test_nothing_is_stored_outside_of_the_life_of_an_actor() -> None:
    made: list[Account] = []

    def make() -> Account:
        made.append(Account(MemoryJournal(), "a"))
        return made[-1]

    async with open_system() as system:
        account = await system.start(make, name="a")
        await account.stop()
        with pytest.raises(MotetRuntimeError, match="does not run"):
            await made[0].persist(Deposited(1))


async def test_events_can_be_stored_at_the_start_and_in_the_clean_up() -> None:
    class Opening(Account):
        async def on_replayed(self) -> None:
            if not self.event_number:
                await self.persist(Deposited(100))

        async def on_stop(self) -> None:
            await self.persist(Deposited(1))

    journal = MemoryJournal()
    async with open_system() as system:
        for balance in (100, 101, 102):
            account = await system.start(lambda: Opening(journal, "a"), name="a")
            assert await account.ask(Balance()) == balance
            await account.stop()


async def test_a_handler_that_hides_a_failed_write_stores_nothing_more() -> None:
    class Stubborn(Account):
        @handles(Deposit)
        async def deposit(self, request: Deposit) -> int:
            for amount in request.amounts:
                with contextlib.suppress(OSError):
                    await self.persist(Deposited(amount))
            return -1

    journal = Gate()
    async with open_system() as system:
        account = await system.start(lambda: Stubborn(journal, "a"), name="a")
        journal.before = fail
        with pytest.raises(ActorDead):
            await account.ask(Deposit([1, 2, 3]))
        assert await account.ask(Balance()) == 0


def test_a_class_that_could_not_work_is_refused() -> None:
    with pytest.raises(TypeError, match="on_replayed"):

        class Starts(EventSourced[Balance, Deposited]):  # pyright: ignore[reportUnusedClass]
            def apply(self, event: Deposited) -> None: ...

            async def on_start(self) -> None: ...  # type: ignore[misc]  # pyright: ignore

            @handles(Balance)
            async def report(self, _: Balance) -> int:
                return 0

    with pytest.raises(TypeError, match="needs a method apply"):

        class Applies(EventSourced[Balance, Deposited]):  # pyright: ignore[reportUnusedClass]
            @handles(Balance)
            async def report(self, _: Balance) -> int:
                return 0

    with pytest.raises(TypeError, match="no handler for Balance"):

        class Handles(EventSourced[Balance, Deposited]):  # pyright: ignore[reportUnusedClass]
            def apply(self, event: Deposited) -> None: ...

    class Note(Message, frozen=True, tag="note"):
        pass

    with pytest.raises(TypeError, match="derive it from DomainEvent"):

        class Stores(EventSourced[Balance, Note]):  # type: ignore[type-var]
            def apply(self, event: Note) -> None: ...

            @handles(Balance)
            async def report(self, _: Balance) -> int:
                return 0

    with pytest.raises(ValueError, match="snapshot_every must be"):
        Persistence(snapshot_every=0)
    with pytest.raises(ValueError, match="retain >= 0"):
        Persistence(retain=-1)
    with pytest.raises(ValueError, match="not empty"):
        Account(MemoryJournal(), "")


def test_the_kernel_loads_nothing_of_agents_and_no_database() -> None:
    code = (
        "import sys, motet.runtime; loaded = set(sys.modules);"
        "print([one for one in loaded if one.startswith('motet.actors') or one in"
        " ('apsw', 'sqlite3', 'h11', 'typer', 'motet.protocols.agents', 'motet.protocols.models')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_an_event_sourced_actor_is_an_actor() -> None:
    assert issubclass(Account, Actor)


class SlowlyRead(MemoryJournal):
    """A page takes ``seconds``."""

    seconds = 0.0

    async def read(self, stream: str, after: int, limit: int, /) -> Sequence[StoredEvent]:
        await trio.sleep(self.seconds)
        return await super().read(stream, after, limit)


class Timed(EventSourced[Deposit | Balance, Deposited]):
    start_timeout = 5.0
    balance = 0

    def apply(self, event: Deposited) -> None:
        self.balance += event.amount

    @handles(Deposit)
    async def deposit(self, request: Deposit) -> int:
        return await self.persist(*map(Deposited, request.amounts))

    @handles(Balance)
    async def report(self, _: Balance) -> int:
        return self.balance


async def test_a_recovery_that_exceeds_the_time_of_a_start_is_a_failed_start_and_loses_nothing(
    autojump_clock: MockClock,
) -> None:
    journal = SlowlyRead()
    async with open_system() as system:
        first = await system.start(Timed, journal, "a", name="first")
        await first.ask(Deposit([1] * 1_200))  # three pages
        await first.stop()
        journal.seconds = 2.0
        began = trio.current_time()
        with pytest.raises(StartFailed) as failed:
            await system.start(Timed, journal, "a", name="second")
        assert isinstance(failed.value.__cause__, StartTimeout)
        assert trio.current_time() == began + 5
        journal.seconds = 1.0
        second = await system.start(Timed, journal, "a", name="second")
        assert await second.ask(Balance()) == 1_200
        assert await second.ask(Deposit([5])) == 1_201


async def test_a_restart_whose_recovery_exceeds_the_time_counts_as_a_crash_and_keeps_the_mail(
    autojump_clock: MockClock,
) -> None:
    journal = SlowlyRead()
    rules = Supervision(intensity=10, period=1, backoff=1, backoff_max=1, jitter=0)
    async with open_system(supervision=rules) as system, trio.open_nursery() as nursery:
        ref = await system.start(Timed, journal, "a", name="timed")
        await ref.ask(Deposit([1] * 1_200))
        journal.seconds = 2.0
        with system.restarts.follow() as restarts:
            system.inject(ref.path, "crash")

            async def faster() -> None:
                await trio.sleep(15)
                journal.seconds = 0.5

            nursery.start_soon(faster)
            assert await ref.ask(Balance()) == 1_200
        errors = [event.error or "" async for event in restarts]
        assert len(errors) >= 3
        assert all("StartTimeout" in error for error in errors[1:])
        assert ref.statistics().restarts == len(errors)
