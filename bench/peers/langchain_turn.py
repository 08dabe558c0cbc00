"""A turn on LangChain: the graph of `create_agent`, without a checkpointer."""

# The package is there only where peers are measured, so the checkers do not know its types.
# mypy: disable-error-code="misc,import-not-found,import-untyped,no-untyped-call,no-any-return"
# mypy: disable-error-code="untyped-decorator,type-var,unused-ignore"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import os
from typing import Any

# Before the import, which looks at it.
os.environ.update(LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false")

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from bench.clock import Watch

ANSWER = "hello world"


class Fake(BaseChatModel):
    """Answers at once; with tools bound, it calls them before it answers."""

    calls: bool = False

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **_: Any) -> Fake:  # noqa: ARG002
        return Fake(calls=True)

    def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        message = AIMessage(content=ANSWER)
        if self.calls and not isinstance(messages[-1], ToolMessage):
            calls = [{"name": "double", "args": {"x": n}, "id": f"c{n}"} for n in range(4)]
            message = AIMessage(content="", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        return self._generate(messages)


@tool
async def double(x: int) -> str:
    """Twice a number."""
    return str(2 * x)


def text(count: int) -> float:
    return asyncio.run(_turns(count, create_agent(Fake(), [])))


def tools(count: int) -> float:
    return asyncio.run(_turns(count, create_agent(Fake(), [double])))


async def _turns(count: int, graph: Any) -> float:
    watch = Watch()
    for _ in range(count):
        result = await graph.ainvoke({"messages": [("user", "hi")]})
        assert result["messages"][-1].content == ANSWER
    return watch.seconds() / count * 1e6
