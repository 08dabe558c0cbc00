"""Turns of two agents on Microsoft Agent Framework's core: a workflow for each room, in memory.

Its group chats are a package of their own (``agent-framework-orchestrations``); the core has
workflows, so that a round is a chain of four executors, two for each agent.
"""

# The package is there only where peers are measured, so the checkers do not know its types.
# mypy: disable-error-code="misc,import-not-found,import-untyped,no-untyped-call,no-any-return"
# mypy: disable-error-code="untyped-decorator,type-var,unused-ignore"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import logging
import time
from statistics import median, quantiles
from typing import Any

from agent_framework import (
    Agent,
    AgentExecutor,
    BaseChatClient,
    ChatResponse,
    Message,
    Workflow,
    WorkflowBuilder,
)

from bench.clock import Watch, resident

logging.getLogger("agent_framework").setLevel(logging.ERROR)  # no tools, as it warns of

ROOMS = 200
TURNS = 4


class Noting(BaseChatClient):
    """Answers at once, and notes when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0.0
        self.answers = 0

    async def _inner_get_response(self, *, stream: bool, **_: Any) -> ChatResponse:
        assert not stream
        self.asked = time.perf_counter()
        self.answers += 1
        return ChatResponse(messages=[Message("assistant", ["hello world"])])


def _flow(model: Noting) -> Workflow:
    agents = [Agent(model, name=name) for name in ("ann", "ben")]
    steps = [AgentExecutor(agents[number % 2], id=f"step{number}") for number in range(TURNS)]
    return (
        WorkflowBuilder(start_executor=steps[0], output_from=[steps[-1]]).add_chain(steps).build()
    )


async def _one(model: Noting, flow: Workflow) -> None:
    before = model.answers
    await flow.run("hi")
    assert model.answers == before + TURNS


def turns(count: int) -> tuple[float, float]:
    return asyncio.run(_turns(count))


async def _turns(count: int) -> tuple[float, float]:
    models = [Noting() for _ in range(min(ROOMS, max(1, count // TURNS)))]
    flows = [_flow(model) for model in models]
    await asyncio.gather(*map(_one, models, flows))
    rounds = max(1, count // (TURNS * len(flows)))
    watch = Watch()
    for _ in range(rounds):
        await asyncio.gather(*map(_one, models, flows))
    taken, done = watch.seconds(), rounds * TURNS * len(flows)
    return done / taken, taken / done * 1e3


def delivery(count: int) -> tuple[float, float]:
    return asyncio.run(_delivery(count))


async def _delivery(count: int) -> tuple[float, float]:
    models = [Noting() for _ in range(min(ROOMS, count))]
    flows = [_flow(model) for model in models]
    taken: list[float] = []
    for number in range(count):
        model, flow = models[number % len(flows)], flows[number % len(flows)]
        began, model.asked = time.perf_counter(), 0.0
        running = asyncio.ensure_future(flow.run("hi"))
        while not model.asked:
            await asyncio.sleep(0)
        taken.append((model.asked - began) * 1e3)
        await running
    return median(taken), quantiles(taken, n=100)[98] if count > 1 else taken[0]


def memory(count: int) -> float:
    return asyncio.run(_memory(count))


async def _memory(count: int) -> float:
    model = Noting()
    kept = [_flow(model) for _ in range(10)]
    for flow in kept:
        await _one(model, flow)
    before = resident()
    for _ in range(count):
        kept.append(_flow(model))
        await _one(model, kept[-1])
    return (resident() - before) / count / 1e3
