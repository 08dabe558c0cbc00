"""Group chats on AutoGen: a `RoundRobinGroupChat` of two agents for each room, in memory.

Its runtime is of the team's own, started and stopped by each run. Opening is ``load_state`` of a
state as ``save_state`` gives it.
"""

# The package is there only where peers are measured, so the checkers do not know its types.
# mypy: disable-error-code="misc,import-not-found,import-untyped,no-untyped-call,no-any-return"
# mypy: disable-error-code="untyped-decorator,type-var,unused-ignore"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import time
from statistics import median, quantiles
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core.models import CreateResult

from bench.clock import Watch, resident
from bench.peers.autogen_turn import Fake

ROOMS = 200
TURNS = 4


class Noting(Fake):
    """Notes when it was asked."""

    def __init__(self) -> None:
        self.asked = 0.0

    async def create(self, messages: Any, *, tools: Any = (), **rest: Any) -> CreateResult:
        self.asked = time.perf_counter()
        return await super().create(messages, tools=tools, **rest)


def _team(model: Noting) -> RoundRobinGroupChat:
    agents = [AssistantAgent(name, model) for name in ("ann", "ben")]
    # The task is a message, too.
    return RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(TURNS + 1))


async def _one(team: RoundRobinGroupChat) -> None:
    result = await team.run(task="hi")
    assert len(result.messages) == TURNS + 1


def turns(count: int) -> tuple[float, float]:
    return asyncio.run(_turns(count))


async def _turns(count: int) -> tuple[float, float]:
    teams = [_team(Noting()) for _ in range(min(ROOMS, max(1, count // TURNS)))]
    await asyncio.gather(*map(_one, teams))
    rounds = max(1, count // (TURNS * len(teams)))
    watch = Watch()
    for _ in range(rounds):
        await asyncio.gather(*map(_one, teams))
    taken, done = watch.seconds(), rounds * TURNS * len(teams)
    return done / taken, taken / done * 1e3


def delivery(count: int) -> tuple[float, float]:
    return asyncio.run(_delivery(count))


async def _delivery(count: int) -> tuple[float, float]:
    models = [Noting() for _ in range(min(ROOMS, count))]
    teams = [_team(model) for model in models]
    taken: list[float] = []
    for number in range(count):
        team, model = teams[number % len(teams)], models[number % len(teams)]
        token = CancellationToken()
        began, model.asked = time.perf_counter(), 0.0
        running = asyncio.ensure_future(team.run(task="hi", cancellation_token=token))
        while not model.asked:
            await asyncio.sleep(0)
        taken.append((model.asked - began) * 1e3)
        await running  # a cancelled team cannot be used again at once
    return median(taken), quantiles(taken, n=100)[98] if count > 1 else taken[0]


def memory(count: int) -> float:
    return asyncio.run(_memory(count))


async def _memory(count: int) -> float:
    model = Noting()
    kept = [_team(model) for _ in range(10)]
    for team in kept:
        await _one(team)
    before = resident()
    for _ in range(count):
        kept.append(_team(model))
        await _one(kept[-1])
    return (resident() - before) / count / 1e3


def opening(count: int) -> float:
    return asyncio.run(_opening(count))


async def _opening(count: int) -> float:
    team = _team(Noting())
    await _one(team)
    state: Any = await team.save_state()
    manager = state["agent_states"]["RoundRobinGroupChatManager"]
    thread = manager["message_thread"]
    manager["message_thread"] = [thread[1 + number % (len(thread) - 1)] for number in range(count)]
    fresh = _team(Noting())
    watch = Watch()
    await fresh.load_state(state)
    return watch.seconds() * 1e3
