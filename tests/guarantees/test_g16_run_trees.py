"""G16 in a tree of runs: a caller reads the errors and results of its sub-agents, and they its own.

Nobody else does: no sub-agent of the same caller, no other tree, no other user.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import attrs
import pytest
import trio

import motet
from motet.protocols.chat import (
    AssistantMessage,
    ChatMessage,
    JsonObject,
    ToolMessage,
    UserMessage,
    json_object,
)
from motet.protocols.models import ModelEvent, ModelRequest
from tests.scripted import Step, call, say

USERS = (motet.Principal("alice"), motet.Principal("bob"))
FREE = motet.Limits(
    turns=50, tool_calls=None, tool_errors=None, total_errors=None, depth=5, children=9
)
RESULT_ID = re.compile(r"res_[0-9a-f]{16}")


@attrs.define
class Forest:
    """Random trees of runs: of each node its caller (None: a root) and its user."""

    callers: list[int | None]
    users: list[motet.Principal]

    @classmethod
    def drawn(cls, random: Random, size: int) -> Forest:
        forest = cls([], [])
        for node in range(size):
            caller = random.choice([None, *(n for n in range(node) if len(forest.above(n)) < 5)])
            forest.callers.append(caller)
            forest.users.append(random.choice(USERS) if caller is None else forest.users[caller])
        return forest

    def above(self, node: int) -> set[int]:
        caller = self.callers[node]
        return set() if caller is None else {caller, *self.above(caller)}

    def may_read(self, reader: int, owner: int) -> bool:
        return reader == owner or reader in self.above(owner) or owner in self.above(reader)


@attrs.define
class Planned:
    """A model that fails, has a long result and delegates, as the forest says; then it looks up."""

    forest: Forest
    ids: list[str] = attrs.field(factory=list[str])
    name: str = "planned"

    def step(self, rows: tuple[ChatMessage, ...]) -> Step:
        asked = max(at for at, row in enumerate(rows) if is_request(row))
        if any(isinstance(row, AssistantMessage) for row in rows[asked:]):
            return say("done")
        word, _, number = rows[asked].text.partition(" ")
        if word == "look":
            return call(*map(look_up, self.ids))
        below = [at for at, caller in enumerate(self.forest.callers) if caller == int(number)]
        calls: list[tuple[str, JsonObject]] = [(f"fail{number}", {}), ("long", {})]
        return call(*calls, *(("delegate", json_object({"task": f"node {n}"})) for n in below))

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        yield parts(self.step(request.messages))


def is_request(row: ChatMessage) -> bool:
    return isinstance(row, UserMessage) and not row.note


def look_up(known: str) -> tuple[str, JsonObject]:
    if known.startswith("res_"):
        return "get_tool_result", {"result_id": known}
    return "get_error_detail", {"error_id": known}


async def parts(step: Step) -> AsyncIterator[ModelEvent]:
    assert isinstance(step, list)
    for event in step:
        await trio.lowlevel.checkpoint()
        yield event


def agent_of(model: Planned) -> motet.Agent[None]:
    agent = motet.Agent("node", model=model, limits=FREE)

    for node in range(len(model.forest.callers)):  # a breaker would take one tool out

        @agent.tool(name=f"fail{node}")
        def fail() -> str:
            raise RuntimeError("no")

    @agent.tool
    def long() -> str:
        return "a line\n" * 4_000

    @agent.tool
    async def delegate(ctx: motet.Context[None], task: str) -> str:
        return (await ctx.run(agent, task)).text

    return agent


@pytest.mark.parametrize("seed", [0, 1])
async def test_errors_and_results_are_read_along_the_callers_and_by_nobody_else(
    tmp_path: Path, seed: int
) -> None:
    """Law: for all nodes of random trees, in this host and in the next one."""
    await try_forest(tmp_path, Forest.drawn(Random(seed), 6))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(2, 40))
async def test_the_same_of_many_larger_trees(tmp_path: Path, seed: int) -> None:
    await try_forest(tmp_path, Forest.drawn(Random(seed), 12))


async def try_forest(tmp_path: Path, forest: Forest) -> None:
    model = Planned(forest)
    agent = agent_of(model)
    owners: dict[str, int] = {}
    async with motet.open_host(tmp_path) as host:
        for node, caller in enumerate(forest.callers):
            if caller is None:
                user = forest.users[node]
                await host.run(agent, f"node {node}", session=f"s{node}", principal=user)
        runs = await host.runs(limit=100)
        sessions = {int(run.text.split()[1]): run.session for run in runs}
        assert len(sessions) == len(forest.callers)
        nodes = {session: node for node, session in sessions.items()}
        for error in await host.errors(limit=100):
            owners[error.id] = nodes[error.session_id]
        for node, session in sessions.items():
            for row in await host.history(session):
                if isinstance(row.row, ToolMessage) and row.row.name == "long":
                    owners[RESULT_ID.findall(row.row.text)[0]] = node
        assert len(owners) == 2 * len(sessions)
        model.ids = [*owners]
        await check(host, agent, forest, sessions, owners)
    async with motet.open_host(tmp_path) as host:
        await check(host, agent, forest, sessions, owners)


async def check(
    host: motet.Host,
    agent: motet.Agent[None],
    forest: Forest,
    sessions: dict[int, str],
    owners: dict[str, int],
) -> None:
    for reader, session in sessions.items():
        result = await host.run(agent, "look", session=session, principal=forest.users[reader])
        found = [row for row in result.rows if isinstance(row, ToolMessage)]
        for row, (known, owner) in zip(found, owners.items(), strict=True):
            expected = forest.may_read(reader, owner)
            assert (row.outcome == "done") is expected, (reader, owner, known, row.text[:200])
            assert expected or "NOT_FOUND" in row.text
