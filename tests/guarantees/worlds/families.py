"""Trees of runs as a plan wants them: runs that call others, start others beside them, fail, hang.

A run is told its place in the plan by its task, and its model does what the plan says for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import attrs
import trio
from hypothesis import strategies as st

import motet
from motet.protocols.chat import AssistantMessage, JsonObject
from motet.protocols.models import ModelEvent, ModelFailure, ModelRequest, Usage, UsageReport
from tests.scripted import Scripted, call, say

DEEPEST = 3
LIMITS = motet.Limits(depth=5, children=4, parallel_children=2, tool_errors=None, total_errors=None)


@attrs.frozen
class Node:
    """What one run does: its requests take ``pause`` seconds each, then it is as ``ending`` says.

    Attributes:
        called: children that it waits for, each by a call of its own in one answer.
        beside: children that it starts and goes on.
        ending: that it fails, never ends, or calls tools until its turns are used up.
    """

    pause: float
    called: tuple[Node, ...]
    beside: tuple[Node, ...]
    ending: str


def nodes(depth: int = DEEPEST) -> st.SearchStrategy[Node]:
    below = st.lists(nodes(depth - 1), max_size=2).map(tuple) if depth else st.just(())
    return st.builds(
        Node,
        st.sampled_from([0.0, 0.5, 1.0, 7.0]),
        below,
        below,
        st.sampled_from(["says", "says", "says", "fails", "hangs", "turns"]),
    )


def flat(node: Node) -> Iterator[Node]:
    yield node
    for child in (*node.called, *node.beside):
        yield from flat(child)


@attrs.define
class Planned:
    """The model of all of them. ``working``: requests that it is at work on."""

    plan: Sequence[Node]
    name: str = "planned"
    working: int = 0
    asked: int = 0

    def place(self, node: Node) -> int:
        return next(at for at, one in enumerate(self.plan) if one is node)

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        node = self.plan[int(request.messages[0].text)]
        answers = sum(isinstance(row, AssistantMessage) for row in request.messages)
        self.working += 1
        self.asked += 1
        try:
            await trio.sleep(node.pause)
            async with self._answer(node, answers).request(request) as parts:
                yield parts
        finally:
            self.working -= 1

    def _answer(self, node: Node, answers: int) -> Scripted:
        places: list[JsonObject] = [{"place": self.place(child)} for child in node.called]
        tasks: list[JsonObject] = [{"task": str(self.place(child))} for child in node.beside]
        calls = [*(("ask", args) for args in places), *(("spawn", args) for args in tasks)]
        if calls and not answers:
            step = call(*calls)
        elif node.ending == "hangs":
            return Scripted(None)
        elif node.ending == "fails":
            raise ModelFailure("it broke", kind="bad_request")
        elif node.ending == "turns":
            step = call(("tick", {"n": self.asked}))
        else:
            step = say("done")
        assert step is not None
        assert not isinstance(step, ModelFailure)
        used = UsageReport(Usage(self.asked, 1))  # every request costs something else
        return Scripted([used if isinstance(part, UsageReport) else part for part in step])


def agent_of(model: Planned) -> motet.Agent[None]:
    agent: motet.Agent[None] = motet.Agent(
        "node", model=model, tools=["group:agents"], limits=LIMITS
    )

    @agent.tool(timeout=1e6)
    async def ask(ctx: motet.Context[None], place: int) -> str:
        result = await ctx.run(agent, str(place))
        return f"{result.status}: {result.text}"

    @agent.tool(polling=True)
    def tick(n: int) -> str:
        return f"tick {n}"

    return agent
