"""A turn on pydantic-ai: a fresh run of one agent, on a model that is a function."""

# The package is there only where peers are measured, so the checkers do not know its types.
# mypy: disable-error-code="misc,import-not-found,import-untyped,no-untyped-call,no-any-return"
# mypy: disable-error-code="untyped-decorator,type-var,unused-ignore"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bench.clock import Watch

ANSWER = "hello world"


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if info.function_tools and not isinstance(messages[-1].parts[-1], ToolReturnPart):
        calls = [ToolCallPart("double", f'{{"x": {n}}}', tool_call_id=f"c{n}") for n in range(4)]
        return ModelResponse(parts=calls)
    return ModelResponse(parts=[TextPart(ANSWER)])


async def double(x: int) -> str:
    """Twice a number."""
    return str(2 * x)


def text(count: int) -> float:
    return asyncio.run(_turns(count, Agent(FunctionModel(answer))))


def tools(count: int) -> float:
    return asyncio.run(_turns(count, Agent(FunctionModel(answer), tools=[double])))


async def _turns(count: int, agent: Agent[None, str]) -> float:
    watch = Watch()
    for _ in range(count):
        assert (await agent.run("hi")).output == ANSWER
    return watch.seconds() / count * 1e6
