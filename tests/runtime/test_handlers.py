"""Handlers: declared once, checked when the class is made."""

from __future__ import annotations

import pytest

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, NotInProtocol, handles, open_system


class Ping(Message, frozen=True, tag="h.ping"):
    pass


class Count(Request[int], frozen=True, tag="h.count"):
    pass


class Other(Message, frozen=True, tag="h.other"):
    pass


class Base(Actor[Ping | Count]):
    def __init__(self) -> None:
        self.pings = 0

    @handles(Ping)
    async def ping(self, _: Ping) -> None:
        self.pings += 1

    @handles(Count)
    async def count(self, _: Count) -> int:
        return self.pings


async def test_a_subclass_replaces_a_handler_by_overriding_its_method() -> None:
    class Double(Base):
        async def ping(self, _: Ping) -> None:
            self.pings += 2

    async with open_system() as system:
        ref = await system.start(Double, name="double")
        await ref.tell(Ping())
        assert await ref.ask(Count()) == 2


async def test_the_answer_to_a_told_request_is_discarded() -> None:
    async with open_system() as system:
        ref = await system.start(Base, name="base")
        await ref.tell(Count())
        assert await ref.ask(Count()) == 0
        assert ref.statistics().handled == 2


async def test_a_foreign_message_is_refused_at_the_sender_with_the_accepted_types() -> None:
    async with open_system() as system:
        ref = await system.start(Base, name="base")

        with pytest.raises(
            NotInProtocol,
            match="/system/base does not accept Other; it accepts Count, Ping",
        ):
            await ref.tell(Other())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert ref.statistics().accepted == 0


def test_a_missing_handler_is_an_error_in_the_class() -> None:
    with pytest.raises(TypeError, match="Half has no handler for Count of its protocol"):

        class Half(Actor[Ping | Count]):  # pyright: ignore[reportUnusedClass]
            @handles(Ping)
            async def ping(self, _: Ping) -> None: ...


def test_a_handler_outside_the_protocol_is_an_error_in_the_class() -> None:
    with pytest.raises(TypeError, match="More handles Other, which its protocol does not name"):

        class More(Actor[Ping]):  # pyright: ignore[reportUnusedClass]
            @handles(Ping)
            async def ping(self, _: Ping) -> None: ...

            @handles(Other)
            async def other(self, _: Other) -> None: ...


def test_two_handlers_for_one_message_are_an_error_in_the_class() -> None:
    with pytest.raises(TypeError, match="Twice has two handlers for Ping"):

        class Twice(Actor[Ping]):  # pyright: ignore[reportUnusedClass]
            @handles(Ping)
            async def one(self, _: Ping) -> None: ...

            @handles(Ping)
            async def two(self, _: Ping) -> None: ...


def test_concurrency_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="not 0"):
        handles(Ping, concurrent=0)
