"""The options of tools, and the progress that a call reports."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import motet
from motet.actors.telemetry.subscription import subscribe
from motet.actors.tools.context import Context
from motet.protocols.chat import JsonObject
from motet.protocols.events import AnyEvent, RunCompleted, ToolProgress, ToolResult
from tests.scripted import Scripted, call, say


def big(_ctx: Context[Any], args: JsonObject) -> bool:
    return len(args) > 3


@pytest.mark.parametrize("name", ["approval", "requires_approval", "needs_approval"])
@pytest.mark.parametrize("value", [True, False, big])
def test_approval_has_three_names(name: str, value: object) -> None:
    options: dict[str, Any] = {name: value}
    agent = motet.Agent("a")

    @agent.tool(**options)
    def plain() -> None: ...

    @motet.tool(**options)
    def made() -> None: ...

    (known,) = agent.tools
    assert isinstance(known, motet.Tool)
    assert known.approval is made.approval is value


def test_two_names_of_one_option_are_refused() -> None:
    with pytest.raises(TypeError, match="approval and needs_approval mean the same"):
        motet.tool(approval=True, needs_approval=False)


def test_an_unknown_option_is_named_with_the_known_ones() -> None:
    wrong: dict[str, Any] = {"time_out": 5}
    with pytest.raises(TypeError, match="no option 'time_out'; there are timeout, max_output"):
        motet.tool(**wrong)
    with pytest.raises(TypeError, match="no option 'time_out'"):
        motet.Agent("a").tool(**wrong)


def test_by_default_a_tool_reads_runs_in_parallel_and_needs_no_approval() -> None:
    @motet.tool
    def plain() -> None: ...

    assert (plain.effects, plain.parallel, plain.approval, plain.polling) == (
        "read",
        True,
        False,
        False,
    )


def test_the_names_of_other_frameworks_are_aliases() -> None:
    assert motet.ModelRetry is motet.ToolRetry
    assert motet.UsageLimits is motet.Limits


async def test_max_turns_stands_for_the_limit_and_final_output_for_the_output() -> None:
    agent = motet.Agent("a", model="demo", tools=["list_files"])
    result = await agent.run("hello", max_turns=1)
    assert result.final_output == result.output
    with pytest.raises(ValueError, match=r"limits\.turns must be at least 1"):
        await agent.run("hello", max_turns=0)


async def events_of(agent: motet.Agent[None]) -> list[AnyEvent]:
    seen: list[AnyEvent] = []
    async with motet.open_host(agents=[agent]) as host, subscribe(host.events, "session:s") as some:
        await host.submit("go", session="s")
        async for record in some:
            seen.append(record.event)
            if isinstance(record.event, RunCompleted):
                break
    return seen


async def test_progress_reaches_people_also_from_a_thread_and_not_the_model() -> None:
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


async def test_a_cut_result_names_the_id_of_the_whole() -> None:
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
