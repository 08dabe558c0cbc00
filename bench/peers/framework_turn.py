"""A turn on Microsoft Agent Framework: `Agent.run` on a chat client of our own."""

# The package is there only where peers are measured, so the checkers do not know its types.
# mypy: disable-error-code="misc,import-not-found,import-untyped,no-untyped-call,no-any-return"
# mypy: disable-error-code="untyped-decorator,type-var,unused-ignore"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    tool,
)

from bench.clock import Watch

logging.getLogger("agent_framework").setLevel(logging.ERROR)  # no tools, as it warns of

ANSWER = "hello world"


class Fake(FunctionInvocationLayer, BaseChatClient):
    """Answers at once; with tools, it calls them before it answers."""

    async def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Any, **_: Any
    ) -> ChatResponse:
        assert not stream
        done = any(one.type == "function_result" for one in messages[-1].contents)
        said: list[Any] = [ANSWER]
        if options.get("tools") and not done:
            said = [
                Content.from_function_call(f"c{n}", "double", arguments=f'{{"x": {n}}}')
                for n in range(4)
            ]
        return ChatResponse(messages=[Message("assistant", said)])


@tool(approval_mode="never_require")
async def double(x: int) -> str:
    """Twice a number."""
    return str(2 * x)


def text(count: int) -> float:
    return asyncio.run(_turns(count, Agent(Fake())))


def tools(count: int) -> float:
    return asyncio.run(_turns(count, Agent(Fake(), tools=[double])))


async def _turns(count: int, agent: Agent) -> float:
    watch = Watch()
    for _ in range(count):
        assert (await agent.run("hi")).text == ANSWER
    return watch.seconds() / count * 1e6
