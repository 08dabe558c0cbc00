"""A turn on the OpenAI Agents SDK: `Runner.run` on a model of our own, tracing off."""

# The package is there only where peers are measured, so the checkers do not know its types.
# mypy: disable-error-code="misc,import-not-found,import-untyped,no-untyped-call,no-any-return"
# mypy: disable-error-code="untyped-decorator,type-var,unused-ignore"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from bench.clock import Watch

ANSWER = "hello world"
# Tracing is on by default, and would send what it records to a server.
CONFIG = RunConfig(tracing_disabled=True)


class Fake(Model):
    """Answers at once; with tools, it calls them before it answers."""

    async def get_response(self, *_: Any, **asked: Any) -> ModelResponse:
        given, tools = asked["input"], asked["tools"]
        last = given[-1] if isinstance(given, list) else {}
        calls = tools and last.get("type") != "function_call_output"
        output: list[Any] = [_call(number) for number in range(4)] if calls else [_message()]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the turns are not streamed")


def _call(number: int) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        id=f"f{number}",
        call_id=f"c{number}",
        type="function_call",
        name="double",
        arguments=f'{{"x": {number}}}',
    )


def _message() -> ResponseOutputMessage:
    part = ResponseOutputText(text=ANSWER, type="output_text", annotations=[])
    return ResponseOutputMessage(
        id="m", type="message", role="assistant", status="completed", content=[part]
    )


@function_tool
async def double(x: int) -> str:
    """Twice a number."""
    return str(2 * x)


def text(count: int) -> float:
    return asyncio.run(_turns(count, Agent(name="bench", model=Fake())))


def tools(count: int) -> float:
    return asyncio.run(_turns(count, Agent(name="bench", model=Fake(), tools=[double])))


async def _turns(count: int, agent: Agent[Any]) -> float:
    watch = Watch()
    for _ in range(count):
        assert (await Runner.run(agent, "hi", run_config=CONFIG)).final_output == ANSWER
    return watch.seconds() / count * 1e6
