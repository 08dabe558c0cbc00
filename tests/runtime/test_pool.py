"""Pools: routes, broadcasts, sizes, crashes and ends, one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request, StreamRequest
from motet.runtime import (
    Actor,
    ActorDead,
    AskTimeout,
    Cut,
    Done,
    Failed,
    MailboxFull,
    MailboxSpec,
    Pool,
    Replies,
    StartFailed,
    Supervision,
    System,
    handles,
    open_system,
    start_pool,
)


class Work(Message, frozen=True, tag="work"):
    seconds: float = 0
    key: str = ""


class Who(Request[str], frozen=True, tag="who"):
    seconds: float = 0
    key: str = ""


class Bad(Request[None], frozen=True, tag="bad"):
    pass


class Count(StreamRequest[int, str], frozen=True, tag="count"):
    pass


class Worker(Actor[Work | Who | Bad | Count]):
    mailbox = MailboxSpec(capacity=4)

    def __init__(self, done: list[str] | None = None) -> None:
        self.done = [] if done is None else done

    @handles(Work)
    async def work(self, message: Work) -> None:
        if message.seconds < 0:
            raise ValueError("no time")
        await trio.sleep(message.seconds)
        self.done.append(self.name)

    @handles(Who)
    async def who(self, request: Who) -> str:
        await trio.sleep(request.seconds * (1 + int(self.name)))
        return self.name

    @handles(Bad)
    async def bad(self, _: Bad) -> None:
        raise ValueError(f"bad in {self.name}")

    @handles(Count)
    async def count(self, _: Count, replies: Replies[int]) -> str:
        await replies.send(1)
        await replies.send(2)
        return self.name


def key_of(message: Message) -> str:
    return message.key if isinstance(message, Work | Who) else ""


Protocol = Work | Who | Bad | Count


async def started(system: System, size: int = 3, **options: Any) -> Pool[Protocol]:
    return await start_pool(system, Worker, name="pool", size=size, **options)


async def test_round_robin_takes_turns() -> None:
    async with open_system() as system:
        pool = await started(system)
        assert [await pool.ask(Who()) for _ in range(5)] == ["0", "1", "2", "0", "1"]
        assert [ref.path for ref in pool.workers] == [f"/system/pool/{n}" for n in range(3)]
        async with pool.stream(Count()) as items:
            assert [item async for item in items] == [1, 2]
            assert items.result == "2"
        seen: list[int] = []
        assert await pool.stream_to(Count(), seen.append) == "0"
        assert seen == [1, 2]


async def test_least_loaded_takes_the_one_with_the_fewest_messages(
    autojump_clock: MockClock,
) -> None:
    async with open_system() as system:
        pool = await started(system, route="least_loaded")
        for seconds in (9, 1, 9):
            await pool.tell(Work(seconds))
        await trio.sleep(2)
        assert [await pool.ask(Who()) for _ in range(3)] == ["1"] * 3


async def test_random_uses_the_chance_of_the_system() -> None:
    chances = iter([0.0, 0.5, 0.99])
    async with open_system(chance=lambda: next(chances)) as system:
        pool = await started(system, route="random")
        assert [await pool.ask(Who()) for _ in range(3)] == ["0", "1", "2"]


async def test_consistent_hash_moves_only_the_keys_of_the_worker_that_comes_or_goes() -> None:
    keys = [f"user-{number}" for number in range(300)]

    async def places(pool: Pool[Protocol]) -> dict[str, str]:
        return {key: await pool.ask(Who(key=key)) for key in keys}

    async with open_system() as system:
        pool = await started(system, 4, route="consistent_hash", key=key_of)
        four = await places(pool)
        assert all(50 < number < 100 for number in Counter(four.values()).values())
        await pool.resize(5)
        five = await places(pool)
        moved = [key for key in keys if four[key] != five[key]]
        assert {five[key] for key in moved} == {"4"}
        assert 30 < len(moved) < 90
        await pool.resize(4)
        assert await places(pool) == four
        await pool.workers[1].stop()
        without = await places(pool)
        assert {key for key in keys if without[key] != four[key]} == {
            key for key in keys if four[key] == "1"
        }


async def test_a_crash_loses_one_message_and_delays_only_its_own_worker(
    autojump_clock: MockClock,
) -> None:
    done: list[str] = []
    async with open_system() as system:
        pool = await start_pool(
            system,
            lambda: Worker(done),
            name="pool",
            size=2,
            supervision=Supervision(backoff=10, jitter=0),
        )
        for message in (Work(-1), Work(), Work(1), Work()):
            await pool.tell(message)
        await trio.sleep(1)
        # The first waits for its restart; the other gets all new mail meanwhile.
        assert [await pool.ask(Who()) for _ in range(3)] == ["1"] * 3
        await trio.sleep(20)
        assert Counter(done) == {"0": 1, "1": 2}
        assert [letter.message for letter in system.dead_letters] == [Work(-1)]


async def test_broadcast_tells_every_worker_and_waits_for_those_without_room(
    autojump_clock: MockClock,
) -> None:
    done: list[str] = []
    async with open_system() as system:
        pool = await start_pool(system, lambda: Worker(done), name="pool", size=2)
        for _ in range(5):
            await pool.workers[0].tell(Work(1))
            await trio.lowlevel.checkpoint()
        with pytest.raises(MailboxFull):
            pool.tell_nowait(Work())
        assert await pool.broadcast(Work()) == 2
        await pool.drain()
        assert Counter(done) == {"0": 6, "1": 1}


async def test_all_or_the_first_of_the_workers_are_asked(autojump_clock: MockClock) -> None:
    async with open_system() as system:
        pool = await started(system)
        assert await pool.ask_all(Who()) == [Done("0"), Done("1"), Done("2")]
        assert await pool.ask_all(Who(1), timeout=2.5) == [Done("0"), Done("1"), Cut(started=True)]
        began = trio.current_time()
        assert await pool.ask_first(Who(1)) == "0"
        assert trio.current_time() == began + 1
        assert [type(entry) for entry in await pool.ask_all(Bad())] == [Failed] * 3
        with pytest.raises(ValueError, match=r"bad in \d"):
            await pool.ask_first(Bad())
        with pytest.raises(AskTimeout):
            await pool.ask_first(Who(9), timeout=1)


async def test_a_worker_that_leaves_handles_what_it_has(autojump_clock: MockClock) -> None:
    done: list[str] = []
    async with open_system() as system:
        pool = await start_pool(system, lambda: Worker(done), name="pool", size=2)
        for _ in range(6):
            await pool.tell(Work(1))
        began = trio.current_time()
        await pool.resize(1)
        assert trio.current_time() == began + 3
        assert len(pool) == 1
        assert Counter(done)["1"] == 3
        await pool.resize(3)
        assert [ref.path[-1] for ref in pool.workers] == ["0", "2", "3"]
        assert not len(system.dead_letters)


async def test_a_drain_that_takes_too_long_ends_in_a_stop(autojump_clock: MockClock) -> None:
    async with open_system() as system:
        pool = await started(system, 1)
        for _ in range(3):
            await pool.tell(Work(10))
        with trio.move_on_after(1):
            await pool.drain()
        assert not pool.is_alive
        with pytest.raises(ActorDead, match="is being drained"):
            await pool.tell(Work())
        report = await pool.drain(timeout=14, grace=0)
        assert report.complete
        assert len(system.dead_letters) == 2
        assert trio.current_time() == 15
        with pytest.raises(ActorDead, match="it was stopped"):
            await pool.ask(Who())


async def test_a_pool_that_fails_begins_anew_and_its_senders_wait_for_it(
    autojump_clock: MockClock,
) -> None:
    rules = Supervision(intensity=0, backoff=0)
    above = Supervision(backoff=5, jitter=0)
    async with open_system(supervision=above) as system:
        pool = await started(system, 2, supervision=rules)
        await pool.resize(3)
        await pool.tell(Work(-1))
        await wait_all_tasks_blocked()
        with pytest.raises(ActorDead, match="being restarted"):
            pool.tell_nowait(Work())
        assert await pool.ask(Who()) in "012"
        assert trio.current_time() == 5
        assert len(pool) == 3
        for ref in pool.workers:
            await ref.stop()
        assert await pool.ask(Who()) in "012"  # without workers it ended, and was restarted
        assert len(pool) == 3


async def test_a_pool_is_a_child_of_the_actor_that_starts_it() -> None:
    class Owner(Actor[Who]):
        pool: Pool[Protocol]

        async def on_start(self) -> None:
            self.pool = await start_pool(self, Worker, name="pool", size=2)

        @handles(Who)
        async def who(self, request: Who) -> str:
            return self.pool.path + await self.pool.ask(request)

    async with open_system() as system:
        owner = await system.start(Owner, name="owner")
        assert await owner.ask(Who()) == "/system/owner/pool0"
        report = await owner.stop()
        assert report.ended[0] == "/system/owner/pool/1"


async def test_a_pool_that_cannot_start_leaves_nothing() -> None:
    started_before: list[str] = []

    class Third(Worker):
        async def on_start(self) -> None:
            started_before.append(self.name)
            if len(started_before) == 3:
                raise OSError("no third connection")

    async with open_system() as system:
        with pytest.raises(StartFailed):
            await start_pool(system, Third, name="pool", size=3)
        assert system.snapshot() == ()
        pool = await start_pool(system, Third, name="pool", size=3)
        assert len(pool) == 3
        started_before[:] = ["", ""]
        with pytest.raises(StartFailed, match="no third connection"):
            await pool.resize(5)
        assert len(pool) == 3
        assert await pool.ask(Who()) == "0"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"size": 0}, "at least 1 worker"),
        ({"size": 1, "route": "any"}, "route is one of"),
        ({"size": 1, "route": "consistent_hash"}, "needs a key"),
        ({"size": 1, "key": str}, "needs a key"),
    ],
)
async def test_wrong_declarations_are_refused(options: dict[str, Any], problem: str) -> None:
    async with open_system() as system:
        with pytest.raises(ValueError, match=problem):
            await started(system, **options)
