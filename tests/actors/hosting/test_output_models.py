"""Outputs of a declared type through both adapters, against an independent server of their APIs."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, cast

import msgspec
import pytest

import motet
from motet.actors.models.anthropic import AnthropicModel
from motet.actors.models.openai import OpenAIModel
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import JsonObject
from tests.aimock import SDK_GENERATORS, Aimock, serving

pytestmark = [SDK_GENERATORS, pytest.mark.usefixtures("sdk_garbage")]
FIXTURES = Path(__file__).parents[1] / "fixtures" / "output.json"


class Ticket(msgspec.Struct):
    title: str
    severity: Annotated[int, motet.Range(1, 5)]


@pytest.fixture(scope="module")
def aimock(node: Path) -> Iterator[Aimock]:
    with serving(node, FIXTURES) as server:
        yield server


@pytest.fixture(scope="module")
def sdk_garbage() -> Iterator[None]:
    """What the SDKs leave behind is found while the module's filter of warnings still holds."""
    yield
    gc.collect()


@pytest.fixture(params=["openai", "anthropic"])
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def triage(
    provider: str, aimock: Aimock, *, native: bool | None
) -> AsyncGenerator[motet.Agent[None, Ticket]]:
    model = (
        OpenAIModel("gpt-x", base_url=aimock.openai_url, api_key="none", native_output=native)
        if provider == "openai"
        else AnthropicModel("claude-x", base_url=aimock.url, api_key="none", native_output=native)
    )
    yield motet.Agent("triage", model=model, output_type=Ticket)
    await model.aclose()


async def test_a_server_of_its_own_kind_is_asked_for_the_tool(
    provider: str, aimock: Aimock
) -> None:
    say = f"classify by tool for {provider}"
    async with triage(provider, aimock, native=None) as agent, motet.open_host() as host:
        result = await host.run(agent, say, session="s")
        rows = [item.row for item in await host.history("s")]

    assert result.output == Ticket("It crashes", 2)
    assert violations(rows) == ()
    first, second = aimock.journal(say)
    assert "response_format" not in first
    assert "severity: is missing" in str(second)


async def test_the_provider_itself_is_asked_for_the_form_beside_tools(
    provider: str, aimock: Aimock
) -> None:
    say = f"classify natively for {provider}"
    async with triage(provider, aimock, native=True) as agent, motet.open_host() as host:

        @agent.tool
        def look() -> str:
            return "a stack trace"

        async with host.stream(agent, say) as run:
            seen = [event async for event in run]

    assert run.result.output == Ticket("It crashes", 2)
    assert not [event for event in seen if isinstance(event, motet.TextDelta)]
    for body in aimock.journal(say):
        assert "final_answer" not in str(body)
        if provider == "openai":  # the server keeps nothing of what Anthropic's API has for it
            form = cast("dict[str, JsonObject]", body["response_format"])["json_schema"]
            assert (form["name"], form["strict"]) == ("Ticket", True)


async def test_an_answer_that_the_provider_did_not_hold_to_the_form_is_repaired(
    provider: str, aimock: Aimock
) -> None:
    say = f"classify badly for {provider}" if provider == "openai" else "as it stands now"
    async with triage(provider, aimock, native=True) as agent, motet.open_host() as host:
        result = await host.run(agent, say, session="s", check=False)
        rows = [item.row for item in await host.history("s")]

    assert violations(rows) == ()
    assert (result.status, result.output) == ("completed", Ticket("It crashes", 2))
