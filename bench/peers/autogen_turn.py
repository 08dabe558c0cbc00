"""A turn on AutoGen: an `AssistantAgent` that is reset before each, without its runtime.

It makes the JSON schema of every tool anew each time that it asks for it, which is most of what
its turn with tools costs. `tools_patched` measures it with schemas that are made once.
"""

# The package is there only where peers are measured, so the checkers do not know its types.
# mypy: disable-error-code="misc,import-not-found,import-untyped,no-untyped-call,no-any-return"
# mypy: disable-error-code="untyped-decorator,type-var,unused-ignore"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken, FunctionCall
from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResultMessage,
    ModelFamily,
    ModelInfo,
    RequestUsage,
)
from autogen_core.tools import FunctionTool

from bench.clock import Watch

ANSWER = "hello world"
USAGE = RequestUsage(prompt_tokens=10, completion_tokens=5)
CALLS = [FunctionCall(id=f"c{n}", name="double", arguments=f'{{"x": {n}}}') for n in range(4)]


class Fake(ChatCompletionClient):
    """Answers at once; with tools, it calls them before it answers."""

    async def create(self, messages: Any, *, tools: Any = (), **_: Any) -> CreateResult:
        if tools and not isinstance(messages[-1], FunctionExecutionResultMessage):
            return CreateResult(
                finish_reason="function_calls", content=CALLS, usage=USAGE, cached=False
            )
        return CreateResult(finish_reason="stop", content=ANSWER, usage=USAGE, cached=False)

    def create_stream(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the turns are not streamed")

    async def close(self) -> None:
        pass

    def actual_usage(self) -> RequestUsage:
        return USAGE

    def total_usage(self) -> RequestUsage:
        return USAGE

    def count_tokens(self, *_: Any, **__: Any) -> int:
        return 0

    def remaining_tokens(self, *_: Any, **__: Any) -> int:
        return 100_000

    @property
    def capabilities(self) -> Any:
        return self.model_info

    @property
    def model_info(self) -> ModelInfo:
        return ModelInfo(
            vision=False,
            function_calling=True,
            json_output=False,
            family=ModelFamily.UNKNOWN,
            structured_output=False,
        )


class Cached(FunctionTool):
    """A tool that makes its schema once."""

    @cached_property
    def schema(self) -> Any:
        return super().schema


async def double(x: int) -> str:
    """Twice a number."""
    return str(2 * x)


def text(count: int) -> float:
    return asyncio.run(_turns(count, AssistantAgent("bench", Fake())))


def tools(count: int) -> float:
    return _with(count, FunctionTool(double, "Twice a number."))


def tools_patched(count: int) -> float:
    return _with(count, Cached(double, "Twice a number."))


def _with(count: int, tool: FunctionTool) -> float:
    agent = AssistantAgent("bench", Fake(), tools=[tool], max_tool_iterations=5)
    return asyncio.run(_turns(count, agent))


async def _turns(count: int, agent: AssistantAgent) -> float:
    token = CancellationToken()
    watch = Watch()
    for _ in range(count):
        await agent.on_reset(token)
        assert (await agent.run(task="hi")).messages[-1].content == ANSWER
    return watch.seconds() / count * 1e6
