"""Progress of a tool, and the way to the rest of a long result."""

from __future__ import annotations

import trio

import motet
from motet.actors.telemetry.subscription import subscribe
from motet.protocols.events import AnyEvent, RunCompleted, ToolProgress, ToolResult
from tests.scripted import Scripted, call, say


async def events_of(agent: motet.Agent[None]) -> list[AnyEvent]:
    seen: list[AnyEvent] = []
    async with motet.open_host(agents=[agent]) as host, subscribe(host.events, "session:s") as some:
        await host.submit("go", session="s")
        async for record in some:
            seen.append(record.event)
            if isinstance(record.event, RunCompleted):
                break
    return seen


async def test_people_are_told_of_progress_also_from_a_thread_and_the_model_is_not() -> None:
    model = Scripted(call(("near", {}), ("far", {})), say("done"))
    agent = motet.Agent("a", model=model)

    @agent.tool
    async def near(ctx: motet.Context[None]) -> str:
        ctx.progress("x" * 900, done=1, total=4)
        await trio.lowlevel.checkpoint()
        return "n"

    @agent.tool
    def far(ctx: motet.Context[None]) -> str:
        ctx.progress("in a thread")
        return "f"

    told = {e.id: e for e in await events_of(agent) if isinstance(e, ToolProgress)}
    assert told == {
        "c0": ToolProgress("c0", "x" * 500, 1, 4),
        "c1": ToolProgress("c1", "in a thread"),
    }
    assert "in a thread" not in str(model.requests[-1])


async def test_a_result_that_was_cut_says_where_the_whole_is() -> None:
    agent = motet.Agent("a", model=Scripted(call(("much", {}), ("little", {})), say("done")))

    @agent.tool
    def much() -> str:
        return "line\n" * 20_000

    @agent.tool
    def little() -> str:
        return "line"

    results = {e.name: e for e in await events_of(agent) if isinstance(e, ToolResult)}
    found = results["much"].result_id
    assert found is not None
    assert found in results["much"].preview or found.startswith("res_")
    assert results["little"].result_id is None
