"""G16: no text of one user reaches another's request, whatever else happens at the same time."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols.events import EventRecord, Terminal, ToolCall, ToolResult
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)

SESSIONS = 50
TURNS = 3
TAINT = re.compile(r"taint-(\d+)-")


class Gossip:
    """A model of moods that repeats what it has read, so that a leak would spread and be seen."""

    name = "gossip"

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.active: Counter[str] = Counter()
        self.leaks: list[set[str]] = []
        self.overlaps: list[str] = []

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        owners = set(TAINT.findall(msgspec.json.encode(request).decode()))
        if len(owners) != 1:
            self.leaks.append(owners)
        owner = min(owners, default="")
        self.active[owner] += 1
        if self.active[owner] > 1:
            self.overlaps.append(owner)
        try:
            yield self._answer(owner)
        finally:
            # A connection that takes its time to close: no later run of the session may begin.
            with trio.CancelScope(shield=True):
                await trio.sleep(self.random.random())
            self.active[owner] -= 1

    async def _answer(self, owner: str) -> AsyncIterator[ModelEvent]:
        mood = self.random.random()
        await trio.sleep(self.random.random())
        if mood < 0.15:
            raise ModelFailure("busy", kind="overloaded", status=529, retry_after=0.5)
        if mood < 0.2:
            raise ModelFailure("no", kind="auth", status=401)
        yield TextPart(f"taint-{owner}-said ")
        if mood < 0.3:
            return  # cut off in the middle
        if mood < 0.6:
            for index in range(self.random.randrange(1, 4)):
                yield CallStart(index, f"c{index}", "repeat")
                yield CallArguments(index, f'{{"text": "taint-{owner}-asked"}}')
            yield UsageReport(Usage(10, 5))
            yield Finished("tool_calls")
            return
        await trio.sleep(self.random.random())
        yield UsageReport(Usage(10, 5))
        yield Finished("stop")


def gossips(model: Gossip) -> motet.Agent[None]:
    agent = motet.Agent("gossip", model=model, tools=["get_error_detail"])

    @agent.tool
    async def repeat(text: str) -> str:
        await trio.sleep(model.random.random())
        if model.random.random() < 0.3:
            raise RuntimeError(f"failed with {text}")
        return text

    return agent


async def one_session(host: motet.Host, number: int, chance: random.Random) -> None:
    """Three inputs of one user, some of them sent at once, some stopped, some left."""
    key, user = f"session-{number}", motet.Principal(f"user-{number}")
    for turn in range(TURNS):
        await trio.sleep(chance.random())
        text = f"taint-{number}-says {turn}"
        if chance.random() < 0.3:
            with trio.move_on_after(chance.random() * 2):
                await host.run("gossip", text, session=key, principal=user, check=False)
            continue
        await host.submit(text, session=key, agent="gossip", principal=user)
        if chance.random() < 0.4:
            await trio.sleep(chance.random() * 2)
            await host.stop(session=key, principal=user, grace=60)


def check_events(records: list[EventRecord]) -> None:
    """One terminal event per started run, nothing of it afterwards, a result for each call."""
    by_run: defaultdict[str, list[EventRecord]] = defaultdict(list)
    for record in records:
        by_run[record.run_id or ""].append(record)
    for of_run in by_run.values():
        events = [record.event for record in of_run]
        calls = [event.id for event in events if isinstance(event, ToolCall)]
        results = [event.id for event in events if isinstance(event, ToolResult)]
        assert sorted(calls) == sorted(results)
        if any(type(event).__name__ == "RunStarted" for event in events):
            assert [isinstance(event, Terminal) for event in events].count(True) == 1
            assert isinstance(events[-1], Terminal)


@pytest.mark.parametrize("seed", range(3))
async def test_fifty_sessions_at_once_keep_apart(seed: int, autojump_clock: MockClock) -> None:
    """Runs of one session never overlap, and no request has read two users' text."""
    model, chance, records = Gossip(seed), random.Random(seed), list[EventRecord]()
    async with motet.open_host(agents=[gossips(model)]) as host:
        for number in range(SESSIONS):
            host.events.attach(f"session:session-{number}", records.append)
        async with trio.open_nursery() as nursery:
            for number in range(SESSIONS):
                nursery.start_soon(
                    partial(one_session, host, number, random.Random(chance.random()))
                )
        while host.status().running or host.status().queued:
            await trio.sleep(1)

        assert model.leaks == []
        assert model.overlaps == []
        check_events(records)
        for session in await host.sessions(limit=SESSIONS):
            rows = [item.row for item in await host.history(session.session, limit=200)]
            assert violations(rows) == ()
            assert set(TAINT.findall(str(rows))) <= {session.session.removeprefix("session-")}
        runs = await host.runs(limit=SESSIONS * TURNS)
        assert len(runs) == SESSIONS * TURNS
        assert {"completed", "cancelled", "failed"} <= {run.status for run in runs}
