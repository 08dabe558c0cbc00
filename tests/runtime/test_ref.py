"""References: starts with arguments, references in messages, the state that is shown, pauses."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request, StreamRequest
from motet.runtime import (
    Actor,
    ActorRef,
    IdentityRef,
    MailboxSpec,
    MessageNotPortable,
    Pool,
    Replies,
    ReplyTo,
    Supervision,
    Terminated,
    handles,
    open_system,
    start_pool,
)


class Add(Message, frozen=True, tag="ref.add"):
    amount: int


class Total(Request[int], frozen=True, tag="ref.total"):
    pass


class Report(Request[int], frozen=True, tag="ref.report"):
    """Has the total of another actor."""

    of: ActorRef[Add | Total] | None = None
    among: Pool[Add | Total] | None = None
    kept: IdentityRef[Add | Total] | None = None
    reply_to: ReplyTo[int] | None = None
    size: int = 0


class Loose(Message, frozen=True, tag="ref.loose"):
    anything: object


class Counter(Actor[Add | Total]):
    def __init__(self, total: int = 0, *, step: int = 1) -> None:
        self.total = total
        self._step = step

    @handles(Add)
    async def add(self, message: Add) -> None:
        if message.amount < 0:
            raise ValueError("it only grows")
        self.total += self._step * message.amount

    @handles(Total)
    async def report(self, _: Total) -> int:
        return self.total


class Reporter(Actor[Report | Loose]):
    @handles(Report, later=True)
    async def report(self, request: Report) -> int | ReplyTo[int]:
        if request.reply_to is not None:
            request.reply_to.send(7)
        for ref in (request.of, request.among, request.kept):
            if ref is not None:
                await ref.tell(Add(1))
                return await ref.ask(Total())
        return 0

    @handles(Loose)
    async def loose(self, _: Loose) -> None:
        pass


async def test_an_actor_starts_with_arguments_and_gets_a_name_of_its_class() -> None:
    async with open_system() as system:
        first = await system.start(Counter, 5)
        second = await system.start(Counter, 6, name="counter-2")
        third = await system.start(Counter)
        unnamed = await system.start(lambda: Counter(8))

        assert [ref.path for ref in (first, second, third, unnamed)] == [
            "/system/counter-1",
            "/system/counter-2",
            "/system/counter-3",
            "/system/actor-4",
        ]
        assert [await ref.ask(Total()) for ref in (first, second, third, unnamed)] == [5, 6, 0, 8]
        await first.tell(Add(-1))  # a restart has the same arguments
        assert await first.ask(Total()) == 5
        pool = await start_pool(system, Counter, 9, size=2)
        assert pool.path == "/system/pool-5"
        assert await pool.ask(Total()) == 9


async def test_children_start_with_arguments_too() -> None:
    class Parent(Actor[Total]):
        @handles(Total)
        async def total(self, _: Total) -> int:
            one = await self.start_child(Counter, 1)
            two = self.spawn_child(Counter, 2)
            assert sorted(self.children) == ["counter-2", "counter-3"]
            return await one.ask(Total()) + await two.ask(Total())

    async with open_system() as system:
        assert await (await system.start(Parent)).ask(Total()) == 3


async def test_references_in_messages_pass_the_check_of_messages() -> None:
    async with open_system(check_messages=True) as system:
        reporter = await system.start(Reporter)
        counter = await system.start(Counter, 1)
        pool = await start_pool(system, Counter, 10, size=1)
        kind = await system.registry.kind("kept", lambda _: Counter(100))

        assert await reporter.ask(Report(of=counter)) == 2
        assert await reporter.ask(Report(among=pool)) == 11
        assert await reporter.ask(Report(kept=kind.ref("a"))) == 101
        # Integers beyond 64 bits go another way.
        assert await reporter.ask(Report(of=counter, size=1 << 70)) == 3
        with pytest.raises(MessageNotPortable, match="comes back as"):
            await reporter.tell(Loose(counter))  # nothing says that it is a reference
        with pytest.raises(MessageNotPortable, match="unsupported"):
            await reporter.tell(Loose(open))


async def test_a_reply_token_in_a_message_answers_its_asker() -> None:
    class Front(Actor[Total]):
        def __init__(self, reporter: ActorRef[Report]) -> None:
            self._reporter = reporter

        @handles(Total, later=True)
        async def total(self, request: Total) -> ReplyTo[int]:
            token = self.reply_later(request)
            await self._reporter.ask(Report(reply_to=token))
            return token

    async with open_system(check_messages=True) as system:
        front = await system.start(Front, await system.start(Reporter))
        assert await front.ask(Total()) == 7


async def test_the_state_of_an_actor_can_be_seen() -> None:
    class Secret(Counter):
        def on_inspect(self) -> object:
            if self.total > 5:
                raise LookupError("too much")
            return f"{self.total} in steps of {self._step}"

    async with open_system() as system:
        plain = await system.start(Counter, 4)
        shown = await system.start(Secret, 4)
        assert plain.get_state() == {"total": 4}
        assert shown.get_state() == "4 in steps of 1"
        await shown.tell(Add(3))
        await wait_all_tasks_blocked()
        with pytest.raises(LookupError, match="too much"):
            shown.get_state()
        await shown.stop()
        assert shown.get_state() is None


async def test_the_log_of_a_crash_has_the_message(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Counter):
        async def on_start(self) -> None:
            if self.total > 1:
                raise OSError("no")
            if self.total == 1:
                self.start_soon(self._fail)

        async def _fail(self) -> None:
            raise KeyError("in a task")

    rules = Supervision(intensity=9)
    async with open_system(supervision=rules) as system:
        counter = await system.start(Failing)
        await counter.tell(Add(-1))
        await system.start(Failing, 1, restart="temporary")
        await wait_all_tasks_blocked()
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [
        "/system/failing-1 crashed: ValueError('it only grows'), handling Add(amount=-1)",
        "/system/failing-2 crashed: KeyError('in a task')",
    ]


async def test_nothing_comes_of_a_watch_that_was_undone() -> None:
    heard: list[str] = []

    class Watcher(Actor[Terminated | Report]):
        @handles(Report)
        async def report(self, request: Report) -> int:
            assert request.of is not None
            self.watch(request.of)
            await request.of.stop()  # its Terminated waits for the end of this handler
            self.unwatch(request.of)
            return 0

        @handles(Terminated)
        async def gone(self, message: Terminated) -> None:
            heard.append(message.path)

    async with open_system() as system:
        watcher = await system.start(Watcher)
        await watcher.ask(Report(of=await system.start(Counter)))
        await watcher.ask(Report(of=await system.start(Counter)))
        await wait_all_tasks_blocked()
        assert heard == []


class Numbers(StreamRequest[int, None], frozen=True, tag="ref.numbers"):
    pass


async def test_a_stream_that_is_left_early_ends_quietly(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Source(Actor[Numbers]):
        @handles(Numbers)
        async def numbers(self, _: Numbers, replies: Replies[int]) -> None:
            try:
                for number in range(100):
                    await replies.send(number)
                    await trio.sleep(1)
            finally:
                raise OSError("the device is gone")

    async with open_system() as system:
        source = await system.start(Source)
        async with source.stream(Numbers()) as numbers:
            async for number in numbers:
                if number == 2:
                    break
    assert caplog.messages == [
        "/system/source-1 failed, its asker had left Numbers: OSError('the device is gone')"
    ]


class Big(Counter):
    mailbox = MailboxSpec(capacity=1_000_000)


async def test_a_sender_lets_others_run_every_so_many_tells() -> None:
    """Law: between two rounds of the loop are at most 64 idle actors, or 1,024 messages.

    Each task takes a step in each round, early in one and late in the next, as Trio draws it.
    """
    steps = [0]

    async def other() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            steps.append(0)

    async with open_system() as system, trio.open_nursery() as nursery:
        big = await system.start(Big)
        many = [await system.start(Counter) for _ in range(200)]
        nursery.start_soon(other)
        while len(steps) < 3:
            await trio.lowlevel.checkpoint()
        steps[:] = [0]
        for _ in range(5_000):
            await big.tell(Add(1))
            steps[-1] += 1
        assert max(steps) <= 2 * 1_024
        steps[:] = [0]
        for _ in range(20):
            for ref in many:
                await ref.tell(Add(1))
                steps[-1] += 1
        assert max(steps) <= 2 * 64
        nursery.cancel_scope.cancel()
