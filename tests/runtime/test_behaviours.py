"""Behaviours of actor systems that no other test shows, and the table of all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Generic, TypeVar

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    Terminated,
    handles,
    open_system,
)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "kernel-behaviours.md"
STATES = ("works", "partly", "differs", "absent")

T = TypeVar("T")


class Add(Message, frozen=True, tag="behaviours.add"):
    number: int


class Sum(Request[int], frozen=True, tag="behaviours.sum"):
    fails: bool = False


class Put(Message, Generic[T], frozen=True, tag="behaviours.put"):
    value: T


class Counter(Actor[Add | Sum]):
    def __init__(self) -> None:
        self.numbers: list[int] = []

    @handles(Add)
    async def add(self, message: Add) -> None:
        self.numbers.append(message.number)

    @handles(Sum)
    async def sum(self, request: Sum) -> int:
        if request.fails:
            self.stop_soon()  # the state is not to be trusted: a permanent actor begins anew
            raise LookupError("the books are wrong")
        assert self.numbers == sorted(self.numbers)
        return sum(self.numbers)


async def test_the_order_of_one_sender_is_kept_between_tells_and_asks() -> None:
    async with open_system() as system:
        counter = await system.start(Counter)
        for number in range(100):
            await counter.tell(Add(number))
            assert await counter.ask(Sum()) == sum(range(number + 1))


async def test_a_failed_request_may_end_its_actor_too() -> None:
    async with open_system() as system:
        counter = await system.start(Counter)
        await counter.tell(Add(1))
        with pytest.raises(LookupError, match="the books are wrong"):
            await counter.ask(Sum(fails=True))
        assert await counter.ask(Sum()) == 0
        assert counter.statistics().restarts == 1


async def test_a_child_may_decline_to_start_without_an_error() -> None:
    class Declines(Counter):
        async def on_start(self) -> None:
            self.stop_soon()

    async with open_system() as system:
        ref = await system.start(Declines, restart="temporary")
        assert (await ref.wait_terminated()).exit == "ended"


async def test_after_a_stop_nothing_starts_and_a_second_stop_is_fine() -> None:
    async with open_system() as system:
        counter = await system.start(Counter)
        await system.stop()
        assert not counter.is_alive
        assert (await system.stop()).complete
        with pytest.raises(ActorDead):
            await system.start(Counter)


async def test_a_system_in_an_actor_ends_with_it() -> None:
    ended: list[str] = []

    class Inner(Counter):
        async def on_stop(self) -> None:
            ended.append(self.path)

    class Outer(Actor[Add]):
        async def on_start(self) -> None:
            self.start_soon(self._host)

        async def _host(self) -> None:
            async with open_system("inner") as system:
                await system.start(Inner, name="one")
                await trio.sleep_forever()

        @handles(Add)
        async def add(self, _: Add) -> None:
            pass

    async with open_system() as system:
        await system.start(Outer)
        await wait_all_tasks_blocked()
    assert ended == ["/inner/one"]


async def test_a_watch_outlives_a_restart_of_the_watcher() -> None:
    heard: list[str] = []

    class Watcher(Actor[Terminated | Add]):
        @handles(Add)
        async def fail(self, _: Add) -> None:
            raise ValueError("it was told to fail")

        @handles(Terminated)
        async def gone(self, message: Terminated) -> None:
            heard.append(message.path)

    watchers: list[Watcher] = []

    def make() -> Watcher:
        watchers.append(Watcher())
        return watchers[-1]

    async with open_system() as system:
        counter = await system.start(Counter, name="counter")
        watcher = await system.start(make)
        watchers[0].watch(counter)
        await watcher.tell(Add(0))
        await wait_all_tasks_blocked()
        await counter.stop()
        await wait_all_tasks_blocked()
        assert heard == ["/system/counter"]
        assert len(watchers) == 2


async def test_a_message_may_be_generic() -> None:
    class Box(Actor[Put[int]]):
        seen = 0

        @handles(Put)
        async def put(self, message: Put[int]) -> None:
            Box.seen += message.value

    async with open_system() as system:
        box: ActorRef[Put[int]] = await system.start(Box)
        await box.tell(Put(3))
        await wait_all_tasks_blocked()
        assert Box.seen == 3


# ---------------------------------------------------------------------- the table


def rows() -> list[tuple[str, str, str]]:
    """By row of the page: the behaviour, its state, and the text with its test or its reason."""
    found = re.findall(
        r"^\| (?!behaviour|-)(.+?) \| (\w+) \| (.*?) \|$", PAGE.read_text("utf-8"), re.M
    )
    return [(behaviour, state, text) for behaviour, state, text in found if state in STATES]


def test_each_behaviour_has_a_test_that_exists_or_a_reason() -> None:
    table = rows()
    assert len(table) == 165
    assert len({behaviour for behaviour, _, _ in table}) == 165
    names: dict[str, str] = {}
    for behaviour, state, text in table:
        tests = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
        assert tests or state == "absent", behaviour
        assert state == "works" or len(re.sub(r"`[^`]*`", "", text)) > 20, f"no reason: {behaviour}"
        for file, name in tests:
            if file not in names:
                names[file] = (ROOT / "tests" / file).read_text("utf-8")
            assert re.search(rf"^(async )?def {name}\(", names[file], re.M), f"{file}::{name}"


def test_at_most_ten_behaviours_are_absent() -> None:
    assert sum(state == "absent" for _, state, _ in rows()) <= 10


def test_the_page_counts_its_rows() -> None:
    said = re.search(
        r"^(\d+) work, (\d+) partly, (\d+) differ, (\d+) are absent\.$",
        PAGE.read_text("utf-8"),
        re.M,
    )
    assert said is not None
    states = [state for _, state, _ in rows()]
    assert [int(number) for number in said.groups()] == [states.count(one) for one in STATES]
