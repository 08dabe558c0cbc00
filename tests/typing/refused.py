"""Errors that mypy and pyright must find: each line with an ignore comment, and no other.

Both checkers pass this file only while each refuses exactly these lines, for exactly these reasons
(`test_checkers.py` takes the comments away and compares). Nothing here is ever run.
"""

from __future__ import annotations

from motet.protocols.messages import Message, Request, StreamRequest
from motet.runtime import (
    Actor,
    ActorRef,
    Asks,
    Replies,
    ReplyTo,
    Settled,
    System,
    ask_each,
    handles,
)


class Add(Message, frozen=True, tag="typing.add"):
    amount: int


class Total(Request[int], frozen=True, tag="typing.total"):
    pass


class Words(StreamRequest[str, int], frozen=True, tag="typing.words"):
    pass


class Other(Message, frozen=True, tag="typing.other"):
    pass


class Secret(Request[str], frozen=True, tag="typing.secret"):
    pass


class Counter(Actor[Add | Total | Words]):
    """All handlers are right: both checkers take every line of it."""

    @handles(Add)
    async def add(self, message: Add) -> None:
        self.timers.once(1, Add(1))
        self.timers.once(1, Other())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    @handles(Total)
    async def total(self, request: Total) -> int:
        return 1

    @handles(Words)
    async def words(self, request: Words, replies: Replies[str]) -> int:
        await replies.send("one")
        await replies.send(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        return 1


class Later(Actor[Total | Secret]):
    """Answers that come later have the type of the answer."""

    @handles(Total, later=True)
    async def total(self, request: Total) -> int | ReplyTo[int]:
        token = self.reply_later(request)
        token.send("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        return token

    @handles(Secret, later=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async def secret(self, request: Secret) -> ReplyTo[int]:
        raise NotImplementedError

    def hand_on(self, ref: ActorRef[Total | Secret], token: ReplyTo[int]) -> None:
        ref.forward(Total(), token)
        ref.forward(Secret(), token)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]


class Wrong(Actor[Add | Total | Words]):
    """No handler is right."""

    @handles(Add)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async def add(self, message: Add) -> int:
        return 1

    @handles(Add)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async def add_other(self, message: Other) -> None: ...

    @handles(Total)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async def total(self, request: Total) -> str:
        return "1"

    @handles(Total)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async def total_of_other(self, request: Secret) -> int:
        return 1

    @handles(Total)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    def total_at_once(self, request: Total) -> int:
        return 1

    @handles(Total, retries=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async def total_again(self, request: Total) -> int:
        return 1

    @handles(Words)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async def words_without_replies(self, request: Words) -> int:
        return 1

    @handles(Words)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async def words_as_numbers(self, request: Words, replies: Replies[int]) -> int:
        return 1

    @handles(Words)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async def words_with_a_wrong_end(self, request: Words, replies: Replies[str]) -> str:
        return "1"


async def messages(counter: ActorRef[Add | Total | Words]) -> None:
    await counter.tell(Add(1))
    await counter.tell(Other())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    counter.tell_nowait(Other())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await counter.ask(Add(1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await counter.ask(Secret())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Add("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Add(1).amount = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


async def replies(counter: ActorRef[Add | Total | Words]) -> None:
    right: int = await counter.ask(Total())
    wrong: str = await counter.ask(Total())  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    print(right, wrong)


async def streams(counter: ActorRef[Add | Total | Words]) -> None:
    async with counter.stream(Words()) as words:
        async for word in words:
            right: str = word
            wrong: int = word  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
            print(right, wrong)
        end: int = words.result
        wrong_end: str = words.result  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        print(end, wrong_end)
    counter.stream(Total())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def items_by_a_call(counter: ActorRef[Add | Total | Words], words: list[str]) -> None:
    right: int = await counter.stream_to(Words(), words.append)
    wrong: str = await counter.stream_to(Words(), words.append)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    await counter.stream_to(Words(), [1].append)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await counter.stream_to(Total(), print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(right, wrong)


async def many(counter: ActorRef[Add | Total | Words]) -> None:
    right: list[Settled[int]] = await ask_each(counter, [Total(), Total()], limit=2)
    wrong: list[Settled[str]] = await ask_each(counter, [Total()], limit=2)  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]
    await ask_each(counter, [Secret()], limit=2)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    async with Asks[int]() as asks:
        asks.begin(counter, Total())
        asks.begin(counter, Secret())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(right, wrong)


async def references(system: System, adder: ActorRef[Add]) -> None:
    counter = await system.start(Counter, name="counter")
    adder = counter
    other: ActorRef[Other] = counter  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(adder, other)
    narrow: ActorRef[Add] = await system.start(Counter, name="narrow")
    wide: ActorRef[Message] = await system.start(Counter, name="wide")  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    print(narrow, wide)


async def parts(adder: ActorRef[Add]) -> None:
    await adder.ask(Total())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def identities(system: System) -> None:
    counters = await system.registry.kind("counters", lambda _: Counter())
    right: int = await counters.ref("a").ask(Total())
    await counters.ref("a").tell(Other())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await counters.ref("a").ask(Secret())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(right)
