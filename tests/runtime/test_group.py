"""Groups: joining, leaving, publishing, and the members that are slow or end."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorRef,
    Group,
    MailboxSpec,
    MessageNotPortable,
    NotInProtocol,
    handles,
    open_system,
)


class Price(Message, frozen=True, tag="price"):
    cents: int


class Seen(Request[list[int]], frozen=True, tag="seen"):
    pass


class Reader(Actor[Price | Seen]):
    def __init__(self) -> None:
        self.seen: list[int] = []

    @handles(Price)
    async def price(self, message: Price) -> None:
        if message.cents < 0:
            raise ValueError("a price is not negative")
        self.seen.append(message.cents)

    @handles(Seen)
    async def report(self, _: Seen) -> list[int]:
        return self.seen


class Stuck(Reader):
    mailbox = MailboxSpec(capacity=2)

    @handles(Price)
    async def price(self, message: Price) -> None:
        await trio.sleep_forever()


class Newest(Stuck):
    mailbox = MailboxSpec(capacity=2, overflow="drop_oldest")


async def test_members_get_what_is_published_while_they_are_members() -> None:
    group = Group[Price]("prices")
    async with open_system() as system:
        one = await system.start(Reader, name="one")
        two = await system.start(Reader, name="two")
        assert group.publish(Price(1)) == 0
        assert group.join(one)
        assert not group.join(one)
        assert group.publish(Price(2)) == 1
        assert group.join(two)
        assert group.publish(Price(3)) == 2
        assert group.leave(one)
        assert not group.leave(one)
        assert group.publish(Price(4)) == 1
        assert await one.ask(Seen()) == [2, 3]
        assert await two.ask(Seen()) == [3, 4]
        assert group.members == (two,)
        assert [*group] == [two]
        assert two in group
        assert one not in group
    assert len(group) == 0


async def test_a_slow_member_delays_nobody_and_what_it_misses_is_counted() -> None:
    group = Group[Price]("prices")
    async with open_system() as system:
        stuck = await system.start(Stuck, name="stuck")
        newest = await system.start(Newest, name="newest")
        reader = await system.start(Reader, name="reader")
        for ref in (stuck, newest, reader):
            group.join(ref)
        group.publish(Price(0))
        await wait_all_tasks_blocked()
        for cents in range(1, 5):
            group.publish(Price(cents))
        assert await reader.ask(Seen()) == [0, 1, 2, 3, 4]
        assert group.missed == 2
        letters = [(x.path, x.message, x.reason.partition(":")[0]) for x in system.dead_letters]
        assert letters == [
            ("/system/stuck", Price(3), "published"),
            ("/system/newest", Price(1), "dropped"),
            ("/system/stuck", Price(4), "published"),
            ("/system/newest", Price(2), "dropped"),
        ]
        await stuck.stop(grace=0)
        await newest.stop(grace=0)


async def test_a_restarted_member_stays_and_a_dead_one_is_gone() -> None:
    group = Group[Price]("prices")
    async with open_system() as system:
        reader = await system.start(Reader, name="reader")
        group.join(reader)
        with group.follow_members() as changes:
            group.publish(Price(-1))
            group.publish(Price(1))
            assert await reader.ask(Seen()) == [1]
            assert reader.statistics().restarts == 1
            await reader.stop()
            assert len(group) == 0
            assert not group.join(reader)
            change = changes.receive_nowait()
            assert (change.ref, change.joined) == (reader, False)


async def test_a_foreign_message_is_refused_before_anything_is_sent() -> None:
    class Other(Message, frozen=True, tag="other"):
        pass

    class Takes(Reader):
        pass

    class Both(Actor[Price | Other]):
        @handles(Price)
        async def price(self, _: Price) -> None:
            pass

        @handles(Other)
        async def other(self, _: Other) -> None:
            pass

    async with open_system(check_messages=True) as system:
        group = Group[Price | Other]("all")
        both: ActorRef[Price | Other] = await system.start(Both, name="both")
        reader = await system.start(Takes, name="reader")
        group.join(both)
        group.join(reader)  # type: ignore[arg-type]  # the checkers refuse it
        with pytest.raises(NotInProtocol, match="Takes at /system/reader"):
            group.publish(Other())
        with pytest.raises(MessageNotPortable):
            group.publish(Price("a lot"))  # type: ignore[arg-type]
        assert both.statistics().accepted == 0


async def test_a_task_follows_a_group_without_being_an_actor() -> None:
    group = Group[Price]("prices")
    with group.follow(buffer=2) as feed:
        for cents in range(3):
            group.publish(Price(cents))
        assert feed.receive_nowait() == Price(0)
        assert feed.missed == 1
    assert [price async for price in feed] == [Price(1)]
    assert repr(group) == "<Group 'prices': 0 members>"
