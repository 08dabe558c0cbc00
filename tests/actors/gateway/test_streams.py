"""Streams reach their clients whole, in order, once, and only their owners."""

from __future__ import annotations

import random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Settings
from motet.actors.storage.tokens import new_token
from motet.protocols import gateway as wire
from motet.protocols.events import MessageAdded, TextDelta
from motet.protocols.sessions import Principal
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import Client, connected, context_of, opened, stuck_client

ALICE, BOB = new_token(), new_token()
TOKENS = StaticTokens((token_entry(ALICE, "alice"), token_entry(BOB, "bob")))


def message(index: int) -> MessageAdded:
    return MessageAdded("assistant", "echo", str(index))


async def seed(host: FakeHost, count: int, user: str = "local") -> None:
    """A session ``a`` of ``user`` with ``count`` journalled events."""
    await host.api.submit("first", session="a", principal=Principal(user))
    for index in range(2, count + 1):
        host.say("a", message(index))


async def numbers(client: Client, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        event = await client.event()
        if isinstance(event.seq, int):
            found.append(event.seq)
    return found


async def test_resume_gives_what_was_missed_and_then_what_comes() -> None:
    host = FakeHost()
    await seed(host, 700)
    async with connected(context_of(host), resume={"session:a": 41}) as client:
        host.say("a", message(701))
        assert await numbers(client, 660) == list(range(42, 702))


async def test_the_answer_to_connect_tells_where_each_stream_stands() -> None:
    host = FakeHost()
    await seed(host, 9)
    host.events.oldest = 5
    resume = {"session:a": 2, "session:fresh": 0, "nonsense": 4}
    async with opened(context_of(host)) as client:
        result = await client.result("connect", resume=resume)
    assert result["streams"] == {
        "session:a": {"head": 9, "oldest": 5, "resumed": False, "reason": "too_old"},
        "session:fresh": {"head": 0, "oldest": 5, "resumed": True},
        "nonsense": {"head": 0, "oldest": 0, "resumed": False, "reason": "not_found"},
    }


async def test_after_a_refused_resume_the_stream_goes_on_from_its_head() -> None:
    host = FakeHost()
    await seed(host, 9)
    async with connected(context_of(host)) as client:
        state = await client.result("subscribe", stream="session:a", after=50)
        assert state == {"head": 9, "oldest": 1, "resumed": False, "reason": "ahead"}
        host.say("a", message(10))
        assert await numbers(client, 1) == [10]


async def test_unsubscribe_ends_a_stream() -> None:
    host = FakeHost()
    await seed(host, 1)
    context = context_of(host)
    async with connected(context) as client:
        await client.result("subscribe", stream="session:a")
        assert (await client.result("unsubscribe", stream="session:a"))["was"] is True
        assert (await client.result("unsubscribe", stream="session:a"))["was"] is False
        host.say("a", message(2))
        await client.result("ping")
        assert not client.events
        assert len(context.hub) == 0


async def test_a_connection_has_a_number_of_subscriptions() -> None:
    async with connected(context_of(FakeHost())) as client:
        for index in range(32):
            await client.result("subscribe", stream=f"session:s{index}")
        error = await client.error("subscribe", stream="session:more")
        assert error.code == "limit_reached"
        await client.result("subscribe", stream="session:s1", after=0)


async def test_nothing_is_left_when_a_client_has_gone() -> None:
    host = FakeHost()
    await seed(host, 1)
    context = context_of(host)
    async with connected(context) as client:
        await client.result("subscribe", stream="session:a")
        assert len(context.hub) == 1
    await wait_all_tasks_blocked()
    assert (len(context.hub), host.events.sinks["session:a"]) == (0, [])
    assert (+context.counts.open, len(context.connections)) == ({}, 0)


# -- isolation (G16) ---------------------------------------------------------------------------


async def test_a_foreign_session_is_not_found_by_any_method() -> None:
    host = FakeHost()
    await seed(host, 3, user="alice")
    async with connected(context_of(host, Settings(tokens=TOKENS)), BOB) as bob:
        for method, params in (
            ("subscribe", {"stream": "session:a"}),
            ("sessions.history", {"session": "a"}),
            ("runs.stop", {"session": "a", "key": "k"}),
            ("chat.send", {"session": "a", "text": "hi", "key": "k"}),
            ("chat.send", {"session": "a", "text": "/new", "key": "k"}),
        ):
            assert (await bob.error(method, **params)).code == "not_found", method
        assert (await bob.result("sessions.list"))["sessions"] == []
        assert (await bob.result("runs.list"))["runs"] == []
        host.say("a", message(4))
        await bob.result("ping")
        assert not bob.events


async def test_who_subscribed_before_a_foreign_session_was_made_gets_nothing() -> None:
    host = FakeHost()
    context = context_of(host, Settings(tokens=TOKENS))
    async with connected(context, BOB) as bob, connected(context, ALICE) as alice:
        for client in (bob, alice):
            await client.result("subscribe", stream="session:a")
        await alice.result("chat.send", session="a", text="secret", key="k")
        host.say("a", TextDelta(0, 0, "secret"))
        host.say("a", message(2))
        assert await numbers(alice, 2) == [1, 2]
        context.tick()
        assert [event.data for event in await bob.until("tick")] == [{"heads": {}}]
        host.say("a", message(3))
        await bob.result("ping")
        assert not bob.events


async def test_the_own_session_may_be_subscribed_to_before_it_is_made() -> None:
    host = FakeHost()
    async with connected(context_of(host, Settings(tokens=TOKENS)), ALICE) as alice:
        await alice.result("subscribe", stream="session:a")
        await alice.result("chat.send", session="a", text="hi", key="k")
        host.say("a", TextDelta(0, 0, "he"))
        host.say("a", TextDelta(0, 2, "llo"))
        host.say("a", message(2))
        events = await alice.until("message")
        assert "".join(str(e.data["text"]) for e in events if e.event == "text.delta") == "hello"


# -- slow clients ------------------------------------------------------------------------------


async def test_a_client_that_takes_nothing_for_ten_seconds_is_cut_off_and_slows_nobody(
    autojump_clock: MockClock,
) -> None:
    host = FakeHost()
    await seed(host, 1)
    context = context_of(host)
    async with trio.open_nursery() as nursery:
        stuck = await stuck_client(nursery, context, "session:a")
        async with connected(context) as other:
            await other.result("subscribe", stream="session:a")
            for index in range(2, 600):
                host.say("a", message(index))
                if index % 100 == 0:
                    await numbers(other, 100 if index > 100 else 99)
            assert context.counts.total["evicted"] == 0
            await trio.sleep(11)
            assert context.counts.total["evicted"] == 1
        await stuck.aclose()
        nursery.cancel_scope.cancel()


# -- the law -----------------------------------------------------------------------------------


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), total=st.integers(1, 120))
def test_a_client_that_comes_and_goes_has_what_one_that_stayed_has(seed: int, total: int) -> None:
    """Law: with drops, reconnects and repeated subscribes at random steps, and the tiny limits
    that make gaps likely, the recipe of docs/protocol.md ends with the journal, in order, once.
    """
    trio.run(_comes_and_goes, random.Random(seed), total, clock=MockClock(autojump_threshold=0))


async def _comes_and_goes(chance: random.Random, total: int) -> None:
    host = FakeHost()
    await host.api.submit("first", session="a")
    limits = wire.Limits(outbox_frames=4, page_events=3, messages_per_min=60_000)
    context = context_of(host, Settings(limits=limits))
    follower = Follower()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_publish, host, chance, total)
        with trio.fail_after(3600):
            while len(follower.applied) < total:
                async with connected(context, resume={"session:a": follower.last}) as client:
                    await follower.follow(client, total, chance)
    assert follower.applied == list(range(1, total + 1))


async def _publish(host: FakeHost, chance: random.Random, total: int) -> None:
    for index in range(2, total + 1):
        host.say("a", message(index))
        host.say("a", TextDelta(index, 0, "x"))
        for _ in range(chance.choice((0, 0, 0, 1, 5))):
            await trio.lowlevel.checkpoint()
        if chance.random() < 0.05:
            await trio.sleep(1)


class Follower:
    """The recipe for clients: apply in order, ignore duplicates, ask again after a gap."""

    def __init__(self) -> None:
        self.applied: list[int] = []

    @property
    def last(self) -> int:
        return self.applied[-1] if self.applied else 0

    async def follow(self, client: Client, total: int, chance: random.Random) -> None:
        """Until all is there, or the client drops the connection on a whim."""
        while len(self.applied) < total and chance.random() > 0.03:
            with trio.move_on_after(25):
                await self._one(client)
            if chance.random() < 0.03:
                await client.post("subscribe", stream="session:a", after=self.last)

    async def _one(self, client: Client) -> None:
        event = await client.event()
        if event.event == "gap" or (isinstance(event.seq, int) and event.seq > self.last + 1):
            await client.post("subscribe", stream="session:a", after=self.last)
        elif event.seq == self.last + 1:
            self.applied.append(self.last + 1)


@pytest.mark.parametrize("lag", [1, 5])
async def test_a_journal_that_lags_behind_its_announcements_is_waited_for(
    lag: int, autojump_clock: MockClock
) -> None:
    host = FakeHost()
    await seed(host, 100)
    hidden = host.events.records["session:a"]
    host.events.records["session:a"] = hidden[: 100 - lag]
    async with connected(context_of(host), resume={"session:a": 0}) as client:
        for record in hidden[100 - lag :]:
            for sink in tuple(host.events.sinks["session:a"]):
                sink(record)
        assert await numbers(client, 100) == list(range(1, 101))
