"""Reply tokens and abandoned asks, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request, StreamRequest
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    AskCycle,
    AskTimeout,
    Cut,
    MailboxSpec,
    MotetRuntimeError,
    NotInProtocol,
    Replies,
    ReplyTo,
    ask_each,
    current_deadline,
    handles,
    open_system,
)


class Wait(Request[int], frozen=True, tag="wait"):
    number: int = 1


class Go(Message, frozen=True, tag="go"):
    value: int = 1


class Plain(Request[int], frozen=True, tag="plain"):
    seconds: float = 0


class Desk(Actor[Wait | Go | Plain]):
    """Keeps its tokens where the test sees them."""

    tokens: ClassVar[list[ReplyTo[int]]] = []

    @handles(Wait, later=True)
    async def wait(self, request: Wait) -> int | ReplyTo[int]:
        token = self.reply_later(request)
        if request.number == 0:
            token.send(0)
            await trio.sleep(1)
        if request.number < 0:
            return request.number  # an answer after all
        self.tokens.append(token)
        return token

    @handles(Go)
    async def go(self, message: Go) -> None:
        if message.value < 0:
            raise RuntimeError("it was told to crash")
        self.tokens.pop(0).send(message.value)

    @handles(Plain)
    async def plain(self, request: Plain) -> int:
        await trio.sleep(request.seconds)
        return 100

    def in_background(self) -> None:
        self.start_soon(self.tokens.pop(0).run, self._later)

    async def _later(self) -> int:
        await trio.sleep(1)
        return round(current_deadline() - trio.current_time())


@pytest.fixture(autouse=True)
def no_tokens() -> None:
    Desk.tokens.clear()


async def asked(nursery: trio.Nursery, ref: ActorRef[Wait], *numbers: int) -> list[object]:
    """Ask once for each number, in their order; the outcomes as they come."""
    outcomes: list[object] = []

    async def ask(number: int) -> None:
        try:
            outcomes.append(await ref.ask(Wait(number)))
        except Exception as error:
            outcomes.append(error)

    for number in numbers:
        nursery.start_soon(ask, number)
        await wait_all_tasks_blocked()
    return outcomes


async def test_another_message_answers_and_the_actor_goes_on_meanwhile() -> None:
    async with open_system() as system, trio.open_nursery() as nursery:
        desk = await system.start(Desk, name="desk")
        outcomes = await asked(nursery, desk, 1, 2)
        assert await desk.ask(Plain()) == 100
        assert desk.statistics().deferred == 2
        assert desk.statistics().running == 0
        await desk.tell(Go(7))
        await desk.tell(Go(8))
        await wait_all_tasks_blocked()
        assert sorted(map(repr, outcomes)) == ["7", "8"]  # they wake in any order
        assert desk.statistics().deferred == 0


async def test_a_token_answers_once_and_an_error_is_an_answer() -> None:
    async with open_system() as system, trio.open_nursery() as nursery:
        desk = await system.start(Desk, name="desk")
        outcomes = await asked(nursery, desk, 1)
        (token,) = desk_tokens = [*Desk.tokens]
        assert token.is_open
        assert token.fail(LookupError("no such number"))
        assert not token.send(1)
        assert not token.is_open
        await wait_all_tasks_blocked()
        assert repr(outcomes) == "[LookupError('no such number')]"
        assert repr(desk_tokens) == "[<ReplyTo closed>]"


async def test_an_asker_that_leaves_closes_the_token(autojump_clock: MockClock) -> None:
    async with open_system() as system:
        desk = await system.start(Desk, name="desk")
        with trio.move_on_after(1):
            await desk.ask(Wait())
        with pytest.raises(AskTimeout):
            await desk.ask(Wait(), timeout=1)
        assert trio.current_time() == 2
        cut: Sequence[object] = await ask_each(
            desk, [Wait()], limit=1, deadline=trio.current_time() + 1
        )
        assert cut == [Cut(started=True)]
        assert [token.send(1) for token in Desk.tokens] == [False] * 3
        assert desk.statistics().deferred == 0


async def test_an_answer_within_the_handler_waits_for_its_end(autojump_clock: MockClock) -> None:
    async with open_system() as system:
        desk = await system.start(Desk, name="desk")
        assert await desk.ask(Wait(0)) == 0
        assert trio.current_time() == 1
        assert await desk.ask(Wait(-5)) == -5  # no token was returned


async def test_work_of_a_token_is_work_of_the_ask(autojump_clock: MockClock) -> None:
    class Busy(Desk):
        @handles(Go)
        async def go(self, message: Go) -> None:
            self.in_background()

    async with open_system() as system:
        busy = await system.start(Busy, name="busy")
        async with trio.open_nursery() as inner:
            outcomes: list[int] = []

            async def ask() -> None:
                outcomes.append(await busy.ask(Wait(), timeout=11.5))

            inner.start_soon(ask)
            await trio.sleep(0.5)
            await busy.tell(Go())
        assert outcomes == [10]  # its deadline is inherited, and a second and a half are gone
        assert trio.current_time() == 1.5


async def test_the_cancellation_of_the_asker_waits_for_the_work(autojump_clock: MockClock) -> None:
    ended: list[float] = []

    async def slow() -> int:
        try:
            await trio.sleep(60)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)
            ended.append(trio.current_time())
        return 1

    async with open_system() as system, trio.open_nursery() as nursery:
        desk = await system.start(Desk, name="desk")

        async def work() -> None:
            await trio.sleep(0.5)
            await Desk.tokens[0].run(slow)

        nursery.start_soon(work)
        with trio.move_on_after(1):
            await desk.ask(Wait())
        assert ended == [4]
        with trio.move_on_after(1) as scope:
            await Desk.tokens[0].run(slow)  # it is closed
        assert not scope.cancelled_caught


async def test_an_incarnation_that_ends_settles_what_it_has_not_answered() -> None:
    class Polite(Desk):
        async def on_stop(self) -> None:
            self.tokens[-1].send(99)

    async with open_system() as system, trio.open_nursery() as nursery:
        desk = await system.start(Desk, name="desk")
        outcomes = await asked(nursery, desk, 1)
        await desk.tell(Go(-1))
        await wait_all_tasks_blocked()
        (error,) = outcomes
        assert isinstance(error, ActorDead)
        assert error.reason == "it ended before it answered"
        assert not Desk.tokens[0].is_open
        polite = await system.start(Polite, name="polite")
        outcomes = await asked(nursery, polite, 1, 2)
        await polite.stop()
        await wait_all_tasks_blocked()
        assert {type(one) for one in outcomes} == {int, ActorDead}


async def test_a_forwarded_request_is_one_of_the_other_actor(autojump_clock: MockClock) -> None:
    class Small(Desk):
        mailbox = MailboxSpec(capacity=1, overflow="fail")

    async with open_system() as system, trio.open_nursery() as nursery:
        desk = await system.start(Desk, name="desk")
        other = await system.start(Small, name="other")
        outcomes = await asked(nursery, desk, 1)
        with pytest.raises(NotInProtocol):
            other.forward(Strange(), Desk.tokens[0])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert other.forward(Plain(), Desk.tokens.pop())
        await trio.sleep(1)
        assert outcomes == [100]
        assert (desk.statistics().handled, other.statistics().handled) == (1, 1)

        with trio.move_on_after(1):  # its cancellation reaches the handler
            nursery.start_soon(forward_soon, other, Plain(60))
            await desk.ask(Wait())
        assert other.statistics().handled == 2
        assert trio.current_time() == 2

        outcomes = await asked(nursery, desk, 1, 2)
        await other.stop()
        for token in Desk.tokens:
            assert other.forward(Plain(), token)
        await wait_all_tasks_blocked()
        assert [type(one) for one in outcomes] == [ActorDead] * 2
        assert not other.forward(Plain(), Desk.tokens[0])


async def forward_soon(other: ActorRef[Plain], request: Plain) -> None:
    await trio.sleep(0.5)
    other.forward(request, Desk.tokens.pop())


class Strange(Request[int], frozen=True, tag="strange"):
    pass


async def test_a_forward_that_would_never_end_is_refused_at_the_asker() -> None:
    class Front(Actor[Wait]):
        def __init__(self, desk: ActorRef[Wait | Plain]) -> None:
            self.desk = desk

        @handles(Wait)
        async def wait(self, request: Wait) -> int:
            return await self.desk.ask(request)

    async with open_system() as system, trio.open_nursery() as nursery:
        desk = await system.start(Desk, name="desk")
        front = await system.start(lambda: Front(desk), name="front")
        outcomes = await asked(nursery, front, 1)
        assert front.forward(Wait(), Desk.tokens.pop())
        await wait_all_tasks_blocked()
        assert [type(one) for one in outcomes] == [AskCycle]


async def test_a_drain_and_a_passivation_wait_for_the_answers(autojump_clock: MockClock) -> None:
    async with open_system() as system, trio.open_nursery() as nursery:
        desks = await system.registry.kind("desks", lambda _: Desk(), idle_after=1)
        nursery.start_soon(desks.ref("one").ask, Wait())
        await trio.sleep(60)
        assert desks.live == 1
        Desk.tokens.pop().send(1)
        await trio.sleep(60)
        assert desks.live == 0


async def test_wrong_uses_are_refused() -> None:
    class Told(Desk):
        @handles(Go)
        async def go(self, message: Go) -> None:
            self.reply_later(Wait(3))

        @handles(Plain)
        async def plain(self, request: Plain) -> int:
            self.reply_later(request)
            return 1

        @handles(Wait, later=True)
        async def wait(self, request: Wait) -> int | ReplyTo[int]:
            if request.number == 2:
                self.reply_later(Wait(2))
            return self.tokens[0] if self.tokens else self.reply_later(request)

    async with open_system() as system, trio.open_nursery() as nursery:
        told = await system.start(Told, name="told")
        await told.tell(Wait())  # nobody waits, so its token is closed
        with pytest.raises(MotetRuntimeError, match="later=True"):
            await told.ask(Plain())
        with pytest.raises(MotetRuntimeError, match="that very request"):
            await told.ask(Wait(2))
        desk = await system.start(Desk, name="desk")
        outcomes = await asked(nursery, desk, 1)
        with pytest.raises(MotetRuntimeError, match="token of another request"):
            await told.ask(Wait())
        Desk.tokens[0].send(4)
        await wait_all_tasks_blocked()
        assert outcomes == [4]
    wrong: Any = handles
    for kind in (Go, Items):
        with pytest.raises(ValueError, match="later=True"):
            wrong(kind, later=True)


class Items(StreamRequest[int, int], frozen=True, tag="items"):
    pass


class Stubborn(Actor[Plain | Items]):
    """Its clean-up takes ten seconds."""

    @handles(Plain, concurrent=2, here=True)
    async def plain(self, request: Plain) -> int:
        try:
            await trio.sleep(60)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(10)
            if request.seconds:
                raise ValueError("the clean-up failed")
        return 1

    @handles(Items)
    async def items(self, _: Items, replies: Replies[int]) -> int:
        return 1


async def test_an_abandoned_ask_returns_before_its_handler(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_system() as system:
        ref = await system.start(Stubborn, name="stubborn")
        with pytest.raises(AskTimeout):
            await ref.ask(Plain(), timeout=1, abandon=True)
        assert trio.current_time() == 1
        assert ref.statistics().running == 1
        with trio.move_on_after(1):
            await ref.ask(Plain(1), abandon=True)
        assert trio.current_time() == 2
        await trio.sleep(20)
        assert ref.statistics().running == 0
        assert caplog.messages == [
            "/system/stubborn failed, its asker had left Plain: ValueError('the clean-up failed')"
        ]
        with trio.move_on_after(1):
            await ref.ask(Plain())
        assert trio.current_time() == 33  # without abandon=True it waits for the clean-up


async def test_an_abandoned_ask_that_waits_is_withdrawn(autojump_clock: MockClock) -> None:
    async with open_system() as system, trio.open_nursery() as nursery:
        desk = await system.start(Desk, name="desk")
        nursery.start_soon(desk.ask, Plain(5))
        await wait_all_tasks_blocked()
        with pytest.raises(AskTimeout):
            await desk.ask(Plain(), timeout=1, abandon=True)
        with trio.move_on_after(1):
            await desk.ask(Plain(), abandon=True)
        assert await desk.ask(Plain(), abandon=True) == 100
        assert desk.statistics().withdrawn == 2
