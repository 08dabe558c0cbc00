"""Requests of a real host whose models answer garbage, checked by strict mocks of all providers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

import motet
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    StopReason,
    TextPart,
    ThinkingPart,
    Usage,
    UsageReport,
)
from tests.actors.models.test_lawful import ARGUMENTS, IDS, NAMES, PROVIDERS, TEXTS

SESSIONS = ("a", "b", "c")
REASONS: tuple[StopReason, ...] = (
    *("stop", "stop", "stop", "tool_calls", "tool_calls", "length", "length", "content_filter"),
    *("paused", "context_exhausted", "other"),
)
FAILURES = ("auth", "bad_request", "context_exhausted", "content_filter", "server", "cut")
WINDOW = 3_000


class Ticket(msgspec.Struct):
    title: str


class World:
    """A host, the models that talk garbage in it, and the refusals of strict mocks."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.requests = 0
        self.refused: list[str] = []
        self.host: motet.Host | None = None
        self.ends: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()

    def check(self, asked: ModelRequest) -> None:
        """Each provider's mock sees each request: a session may have gone on with any model."""
        self.requests += 1
        self.kinds["calls"] += any(getattr(row, "calls", ()) for row in asked.messages)
        self.kinds["summaries"] += asked.system.startswith("You keep the working memory")
        self.kinds["hints"] += any(getattr(row, "note", "") == "hint" for row in asked.messages)
        self.kinds["steers"] += any(
            getattr(row, "note", "") == "injected" for row in asked.messages
        )
        for provider in PROVIDERS:
            self.refused += [f"{provider.name}: {why}" for why in provider.refusals(asked)]

    def has_met_all(self) -> bool:
        return all(self.kinds[kind] for kind in ("calls", "tools", "hints")) and len(self.ends) >= 4

    async def disturb(self) -> None:
        """What people do while a model answers."""
        host, session = self.host, self.random.choice(SESSIONS)
        assert host is not None
        match self.random.randrange(24):
            case 0 | 1 | 2:
                await host.send(self.random.choice(("and also", " ", "\u200b")), session=session)
            case 3:
                await host.stop(session=session, grace=0.0)
            case 4:
                await host.set_model(session, self.random.choice(("one", "two")))
            case _:
                pass

    def answer(self, tools: list[str]) -> list[ModelEvent]:
        random = self.random
        events: list[ModelEvent] = []
        if random.random() < 0.7:
            events.append(TextPart(random.choice([*TEXTS, "word " * 150])))
        if random.random() < 0.2:
            events.append(ThinkingPart("hm"))
        for index in range(random.choice([0, 0, 1, 1, 2, 3])):
            known = tools and random.random() < 0.6
            name = random.choice(tools if known else NAMES)
            events.append(CallStart(index, random.choice(IDS), name))
            fits = name in tools and random.random() < 0.7
            events.append(CallArguments(index, "{}" if fits else random.choice(ARGUMENTS)))
        return [*events, UsageReport(Usage(10, 5)), Finished(random.choice(REASONS))]


class Garbage:
    """A model of a world."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        world = self._world
        world.check(request)
        await trio.lowlevel.checkpoint()
        with suppress(motet.MotetError):  # an empty text, a session that is not there yet
            await world.disturb()
        if world.random.random() < 0.08:
            raise ModelFailure("no", kind=world.random.choice(FAILURES))
        yield _parts(world.answer([tool.name for tool in request.tools]))


async def _parts(events: list[ModelEvent]) -> AsyncIterator[ModelEvent]:
    for event in events:
        await trio.lowlevel.checkpoint()
        yield event


def agents_of(world: World) -> list[motet.Agent[None, Any]]:
    def get_weather(city: str = "Rome") -> str:
        world.kinds["tools"] += 1
        if world.random.random() < 0.3:
            raise ValueError("no such city")
        return world.random.choice([*TEXTS, "sun " * 200])

    one = motet.Agent("one", model=Garbage(world, "one"), tools=[get_weather], window=WINDOW)
    two = motet.Agent("two", model=Garbage(world, "two"), window=WINDOW, handoffs=[one])
    form = motet.Agent("form", model=Garbage(world, "form"), output_type=Ticket, window=WINDOW)
    one.may_hand_to(two)
    return [one, two, form]


async def _play(seed: int, requests: int) -> World:
    """A world that has made so many requests at least, and ten times as many where it has not met
    all that it must: the order of Trio's tasks is not the seed's."""
    world = World(seed)
    random = world.random
    async with motet.open_host() as world.host:
        host, agents = world.host, agents_of(world)

        async def ask(agent: motet.Agent[None, Any], session: str) -> None:
            limits = motet.Limits(
                turns=random.choice([1, 2, 4, 6]),
                tool_errors=random.choice([None, 3]),
                total_errors=random.choice([None, 9]),
            )
            text = random.choice(["go", "x " * 300, "weather?"])
            with trio.move_on_after(random.choice([0.0, 5.0, 500.0])):
                result = await host.run(agent, text, session=session, limits=limits, check=False)
                world.ends[result.status] += 1

        while world.requests < (requests if world.has_met_all() else 10 * requests):
            async with trio.open_nursery() as nursery:
                for session in random.sample(SESSIONS, random.choice([1, 2])):
                    nursery.start_soon(ask, random.choice(agents), session)
            if random.random() < 0.1:
                with suppress(motet.NotFound):
                    await host.compact(random.choice(SESSIONS))
    return world


def played(seed: int, requests: int) -> World:
    return trio.run(_play, seed, requests, clock=MockClock(autojump_threshold=0))


def test_no_provider_refuses_a_request_of_a_host_whose_models_answer_garbage() -> None:
    """Law: whatever models answer, and whatever happens to runs meanwhile, a strict mock of each
    provider refuses no request."""
    world = played(1, 80)
    assert world.refused == []
    assert world.has_met_all(), (world.kinds, world.ends)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(20))
def test_no_provider_refuses_any_of_10000_requests(seed: int) -> None:
    """Law: whatever models answer, and whatever happens to runs meanwhile, a strict mock of each
    provider refuses no request. 500 requests at least in each of 20 worlds."""
    world = played(seed, 500)
    assert world.refused == []
    kinds = world.kinds + world.ends
    seen = ("calls", "tools", "hints", "steers", "summaries", "refused", "limited", "cancelled")
    assert all(kinds[kind] for kind in seen), kinds
