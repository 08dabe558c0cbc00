"""A run in a window that is too small for it: the conversation is compacted, the run goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from trio.testing import MockClock

import motet
from motet.actors.transcript.grammar import violations
from motet.actors.transcript.history import estimate
from motet.actors.transcript.summary import HEADER
from motet.protocols import events
from motet.protocols.chat import AssistantMessage, ToolMessage, UserMessage
from motet.protocols.errors import Llm
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)
from tests.scripted import Scripted, call, say

WINDOW = 20_000
TOO_LONG = ModelFailure("too many tokens", kind="context_exhausted", status=400)


class Reader:
    """Reads 60 pages, one in each answer, then is done; sums up when it is asked to.

    ``overflows``: requests with more estimated tokens are refused, as a provider does it.
    """

    name = "reader"

    def __init__(self, pages: int = 60, overflows: int = WINDOW, summary: str = "") -> None:
        self.pages = pages
        self.overflows = overflows
        self.summary = summary
        self.read = 0
        self.requests: list[ModelRequest] = []
        self.summaries: list[ModelRequest] = []

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        tokens = estimate(request.messages)
        if tokens > self.overflows:
            raise TOO_LONG
        yield self._answer(request, tokens)

    async def _answer(self, request: ModelRequest, tokens: int) -> AsyncIterator[ModelEvent]:
        if not request.tools:
            self.summaries.append(request)
            if not self.summary:
                raise ModelFailure("no", kind="auth", status=401)
            yield TextPart(self.summary)
        else:
            self.requests.append(request)
            self.read += 1
            if self.read <= self.pages:
                yield CallStart(0, f"c{self.read}", "read_page")
                yield CallArguments(0, f'{{"number": {self.read}}}')
            else:
                yield TextPart("All read.")
        yield UsageReport(Usage(tokens, 10))
        yield Finished("stop" if self.read > self.pages else "tool_calls")


def reading(model: Reader, chars: int = 6_000) -> motet.Agent[None]:
    agent = motet.Agent(
        "reader",
        model=model,
        instructions="You read books.",
        window=WINDOW,
        limits=motet.Limits(turns=100),
    )

    @agent.tool
    def read_page(number: int) -> str:
        return f"page {number}: " + f"{number} words " * (chars // 9)

    return agent


@pytest.mark.parametrize("summary", ["Pages were read, and they hold words. Go on reading.", ""])
async def test_a_chain_of_sixty_calls_fits_in_a_small_window(summary: str) -> None:
    model = Reader(summary=summary)
    async with motet.open_host() as host:
        result = await host.run(reading(model), "Read the whole book.", session="s")
        stored = [item.row for item in await host.history("s", limit=200)]

    assert (result.status, result.output) == ("completed", "All read.")
    assert len(model.summaries) >= 3
    assert {request.system for request in model.requests} == {model.requests[0].system}
    for request in model.requests:
        assert violations(request.messages) == ()
        assert estimate(request.messages) < WINDOW
        assert any(
            isinstance(row, UserMessage) and "Read the whole book." in row.text
            for row in request.messages
        )
    assert any(HEADER in request.messages[0].text for request in model.requests)
    assert [row.call_id for row in stored if isinstance(row, ToolMessage)] == [
        f"c{n}" for n in range(1, 61)
    ]
    assert violations(stored) == ()


async def test_what_summaries_cost_is_part_of_what_the_run_cost() -> None:
    model = Reader(summary="They were read.")
    async with motet.open_host() as host:
        result = await host.run(reading(model), "Read.")
    asked = sum(estimate(r.messages) for r in (*model.requests, *model.summaries))
    assert result.usage.input_tokens == asked
    assert result.usage.output_tokens == 10 * len((*model.requests, *model.summaries))


async def test_a_request_that_is_refused_for_its_length_is_compacted_and_sent_once_more() -> None:
    model = Reader(pages=12, overflows=12_000, summary="Pages were read. Go on.")
    async with (
        motet.open_host() as host,
        host.stream(reading(model), "Read.", session="s") as run,
    ):
        seen = [event async for event in run]
    assert run.result.status == "completed"
    phases = [event.phase for event in seen if isinstance(event, events.Activity)]
    assert "compacting" in phases


async def test_a_conversation_that_cannot_be_made_shorter_ends_the_run_with_advice(
    autojump_clock: MockClock,
) -> None:
    model = Reader(pages=12, overflows=10, summary="x")
    async with motet.open_host() as host:
        result = await host.run(reading(model), "Read all of it. " * 40, check=False)
    del autojump_clock
    assert result.status == "failed"
    assert isinstance(result.error, Llm)
    assert result.error.kind == "context_exhausted"
    assert "shorten the conversation" in result.detail


async def test_a_summary_that_fails_costs_a_warning_and_nothing_else() -> None:
    model = Reader(pages=20)
    async with motet.open_host() as host, host.stream(reading(model), "Read.") as run:
        seen = [event async for event in run]
    assert run.result.status == "completed"
    warnings = [event for event in seen if isinstance(event, events.Warned)]
    assert {event.source for event in warnings} == {"compaction"}
    assert "summarised without a model" in warnings[0].message


async def test_ids_of_calls_that_a_server_counts_anew_are_told_apart() -> None:
    model = Scripted(call(("ping", {})), call(("ping", {"n": 2})), say("done"))
    model.then(call(("ping", {})), say("done"))
    agent = motet.Agent("a", model=model)

    @agent.tool
    def ping(n: int = 1) -> str:
        return f"pong {n}"

    async with motet.open_host() as host:
        await host.run(agent, "go", session="s")
        await host.run(agent, "again", session="s")
    rows = model.requests[-1].messages
    ids = [one.id for row in rows if isinstance(row, AssistantMessage) for one in row.calls]
    assert ids[0] == "c0"
    assert len(set(ids)) == 3
    assert all(0 < len(one) <= 40 for one in ids)
    assert [row.call_id for row in rows if isinstance(row, ToolMessage)] == ids


class Ticket(msgspec.Struct):
    title: str


@pytest.mark.parametrize("typed", [False, True])
async def test_tools_that_a_provider_does_not_take_are_left_out_with_one_warning(
    typed: bool,
) -> None:
    """130 tools would be refused in each turn. The tool of an output always stays."""
    end = call(("final_answer", {"title": "x"})) if typed else say("x")
    model = Scripted(call(("t0", {})), end, name="openai:m")
    tools = [motet.tool(lambda: "ok", name=f"t{n}", description="d") for n in range(130)]
    agent: motet.Agent[None, Any] = motet.Agent(
        "many", model=model, tools=tools, output_type=Ticket if typed else str
    )
    async with motet.open_host() as host, host.stream(agent, "go") as run:
        warned = [event async for event in run if isinstance(event, motet.Warned)]
    assert [len(asked.tools) for asked in model.requests] == [128, 128]
    assert [event.source for event in warned] == ["tools"]
    assert "132 tools are offered, and openai takes 128 in a request" in warned[0].message
    assert ("left out: t95, t96, t97, t98, t99." if typed else "out: t96, ") in warned[0].message
