"""A host with both adapters against an independent server of both providers' APIs."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
import trio

import motet
from motet.actors.models.anthropic import AnthropicModel
from motet.actors.models.openai import OpenAIModel
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import ToolMessage
from tests.aimock import Aimock, serving

pytestmark = pytest.mark.usefixtures("sdk_garbage")


@pytest.fixture(scope="module")
def aimock(node: Path) -> Iterator[Aimock]:
    with serving(node, Path(__file__).parent / "fixtures") as server:
        yield server


@pytest.fixture(scope="module")
def sdk_garbage() -> Iterator[None]:
    """What the SDKs leave behind is found while the module's filter of warnings still holds."""
    yield
    gc.collect()


@pytest.fixture
def gates() -> list[trio.Event]:
    """The naps that may end, by their numbers."""
    return [trio.Event() for _ in range(5)]


@pytest.fixture(params=["openai", "anthropic"])
async def agent(
    request: pytest.FixtureRequest, aimock: Aimock, gates: list[trio.Event]
) -> AsyncGenerator[motet.Agent[None]]:
    model = (
        OpenAIModel("gpt-test", base_url=aimock.openai_url, api_key="none")
        if request.param == "openai"
        else AnthropicModel("claude-test", base_url=aimock.url, api_key="none")
    )
    agent = motet.Agent("a", model=model)

    @agent.tool
    async def nap(n: int) -> str:
        await gates[n].wait()
        return f"napped {n}"

    @agent.tool
    def boom() -> None:
        raise RuntimeError("kaboom " + "x" * 3_000)

    yield agent
    await model.aclose()


async def test_four_parallel_tools_and_a_memory_of_them(
    agent: motet.Agent[None], gates: list[trio.Event]
) -> None:
    async with motet.open_host(check_messages=True) as host:
        async with host.stream(agent, "four at once", session="s") as run:
            ended: list[str] = []
            async for event in run:
                ended += [event.id] if isinstance(event, motet.ToolResult) else []
                gates[min(len(ended) + 1, 4)].set()
        assert run.result.output == "All four are in."
        assert ended == ["call_d", "call_c", "call_b", "call_a"]
        rows = [row for row in run.result.rows if isinstance(row, ToolMessage)]
        assert [row.text for row in rows] == ["napped 4", "napped 3", "napped 2", "napped 1"]
        assert (await host.run(agent, "what do you remember", session="s")).output == "Four naps."
        assert violations([item.row for item in await host.history("s")]) == ()


async def test_a_failing_tool_reaches_the_model_in_short(
    agent: motet.Agent[None], aimock: Aimock
) -> None:
    async with motet.open_host(check_messages=True) as host:
        result = await host.run(agent, "please fail", session="s")
    assert result.output == "It did not work."
    (failed,) = result.errors
    assert failed.error_id is not None
    sent = str(aimock.journal(failed.error_id)[-1])
    assert "x" * 200 not in sent


async def test_a_stop_in_the_middle_of_a_stream_keeps_the_text_so_far(
    agent: motet.Agent[None],
) -> None:
    async with motet.open_host() as host, host.stream(agent, "a long story", session="s") as run:
        async for event in run:
            if isinstance(event, motet.TextDelta):
                run.cancel()
        result = await run.wait()
        rows = [item.row for item in await host.history("s")]
    assert result.status == "cancelled"
    assert rows[-1].text.startswith("Once")
    assert rows[-1].text.endswith("[Stopped by user]")
