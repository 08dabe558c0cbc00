"""Large and binary results in a host: nothing is lost, nothing too large enters a transcript."""

from __future__ import annotations

import base64
import random
import re
from pathlib import Path

import motet
from motet.actors.storage.connection import Connection
from motet.actors.tools.results import INLINE_LIMIT
from motet.protocols.chat import ToolMessage
from tests.scripted import Scripted, call, say

LONG = "".join(f"line {n}: {'é' * 20}\n" for n in range(1_000))


def agent_with_a_report(model: Scripted) -> motet.Agent[None]:
    agent = motet.Agent("a", model=model)

    @agent.tool
    def report() -> str:
        return LONG

    return agent


def last_text(model: Scripted) -> str:
    row = model.requests[-1].messages[-1]
    assert isinstance(row, ToolMessage)
    assert len(row.text.encode()) <= INLINE_LIMIT
    return row.text


def result_id(text: str) -> str:
    found = re.search(r"res_[0-9a-f]{16}", text)
    assert found
    return found.group()


async def test_the_model_gets_a_head_and_reads_all_of_it_in_pages_after_a_restart(
    tmp_path: Path,
) -> None:
    model = Scripted(call(("report", {})), say("long"))
    agent = agent_with_a_report(model)
    async with motet.open_host(tmp_path, check_messages=True) as host:
        await host.run(agent, "go", session="s")
        head = last_text(model)
    assert f"{len(LONG.encode())} bytes" in head
    identity = result_id(head)

    read, offset = "", 0
    async with motet.open_host(tmp_path) as host:
        while len(read) < len(LONG):
            model.then(call(("get_tool_result", {"result_id": identity, "offset": offset})))
            model.then(say("more"))
            await host.run(agent, "go on", session="s")
            page = last_text(model).split("\n", 1)[1]
            read += page
            offset += page.count("\n")
    assert read == LONG


async def test_another_session_does_not_find_it() -> None:
    model = Scripted(call(("report", {})), say("long"))
    agent = agent_with_a_report(model)
    async with motet.open_host() as host:
        await host.run(agent, "go", session="s")
        identity = result_id(last_text(model))
        model.then(call(("get_tool_result", {"result_id": identity})), say("nothing"))
        result = await host.run(agent, "read it", session="other")
    (failed,) = result.errors
    assert "RESULT_NOT_FOUND" in failed.text
    assert "line 1" not in failed.text


async def test_binary_never_enters_the_transcript() -> None:
    data = random.Random(1).randbytes(3_000)
    model = Scripted(call(("draw", {}), ("shot", {})), say("nice"))
    agent = motet.Agent("a", model=model)

    @agent.tool
    def draw() -> bytes:
        return data

    @agent.tool
    def shot() -> dict[str, object]:
        return {"type": "image", "mimeType": "image/png", "data": base64.b64encode(data).decode()}

    async with motet.open_host() as host:
        result = await host.run(agent, "go", session="s")
    texts = [row.text for row in result.rows if isinstance(row, ToolMessage)]
    assert all("[binary omitted: 3000 bytes, sha256" in text for text in texts)
    assert all(len(text) < 300 for text in texts)
    assert all(result_id(text) for text in texts)


async def test_a_gates_own_answer_and_a_retry_obey_the_same_rule() -> None:
    model = Scripted(call(("ask", {}), ("guarded", {})), say("hm"))
    agent = motet.Agent("a", model=model)

    @agent.tool
    def ask() -> None:
        raise motet.ToolRetry(LONG)

    @agent.tool
    def guarded() -> None:
        raise AssertionError("the gate answers")

    async with motet.open_host() as host:

        @host.on("before_tool", match="guarded")
        async def gate(_event: motet.BeforeTool) -> motet.Decision:
            return motet.Respond(LONG)

        result = await host.run(agent, "go")
    texts = [row.text for row in result.rows if isinstance(row, ToolMessage)]
    assert all(len(text.encode()) <= INLINE_LIMIT and result_id(text) for text in texts)


async def test_a_store_that_refuses_costs_the_rest_and_a_warning(tmp_path: Path) -> None:
    model = Scripted(call(("report", {})), say("went on"))
    agent = agent_with_a_report(model)
    async with motet.open_host(tmp_path) as host:
        other = Connection(str(tmp_path / "motet.db"))
        other.run(
            "CREATE TRIGGER refuse BEFORE INSERT ON results "
            "BEGIN SELECT raise(ABORT, 'refused'); END"
        )
        other.close()
        async with host.stream(agent, "go", session="s") as run:
            seen = [event async for event in run]
    assert run.result.output == "went on"
    assert "the rest could not be stored" in last_text(model)
    assert any(isinstance(event, motet.Warned) and event.source == "results" for event in seen)
