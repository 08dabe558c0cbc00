"""A durable turn on LangGraph: the graph of `create_agent` with its SQLite checkpointer."""

# The package is there only where peers are measured, so the checkers do not know its types.
# mypy: disable-error-code="misc,import-not-found,import-untyped,no-untyped-call,no-any-return"
# mypy: disable-error-code="untyped-decorator,type-var,unused-ignore"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langchain.agents import create_agent
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from bench.clock import Watch
from bench.peers.langchain_turn import ANSWER, Fake, double


def text(count: int) -> float:
    return asyncio.run(_turns(count, []))


def tools(count: int) -> float:
    return asyncio.run(_turns(count, [double]))


async def _turns(count: int, used: list[Any]) -> float:
    with TemporaryDirectory(prefix="motet-bench-") as folder:
        async with AsyncSqliteSaver.from_conn_string(str(Path(folder, "state.db"))) as saver:
            graph = create_agent(Fake(), used, checkpointer=saver)
            await _turn(graph, "warm-up")
            watch = Watch()
            for number in range(count):
                await _turn(graph, str(number))
            return watch.seconds() / count * 1e6


async def _turn(graph: Any, thread: str) -> None:
    # "sync": a step is stored before the next one begins, as a turn of motet's.
    result = await graph.ainvoke(
        {"messages": [("user", "hi")]},
        {"configurable": {"thread_id": thread}},
        durability="sync",
    )
    assert result["messages"][-1].content == ANSWER
