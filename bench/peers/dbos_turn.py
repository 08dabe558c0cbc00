"""A durable turn on pydantic-ai with DBOS: a workflow on SQLite, and a step for each call."""

# The package is there only where peers are measured, so the checkers do not know its types.
# mypy: disable-error-code="misc,import-not-found,import-untyped,no-untyped-call,no-any-return"
# mypy: disable-error-code="untyped-decorator,type-var,unused-ignore"
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dbos import DBOS
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.models.function import FunctionModel

from bench.clock import Watch
from bench.peers import pydantic_ai_turn as plain


@DBOS.step()
async def double(x: int) -> str:
    """Twice a number."""
    return str(2 * x)


def text(count: int) -> float:
    return asyncio.run(_turns(count, []))


def tools(count: int) -> float:
    return asyncio.run(_turns(count, [double]))


async def _turns(count: int, used: list[Any]) -> float:
    with TemporaryDirectory(prefix="motet-bench-") as folder:
        url = f"sqlite:///{Path(folder, 'state.db')}"
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
        agent = Agent(
            FunctionModel(plain.answer),
            name="bench",
            tools=used,
            capabilities=[DBOSDurability()],
        )

        @DBOS.workflow()
        async def turn() -> str:
            return (await agent.run("hi")).output

        DBOS.launch()
        try:
            await turn()
            watch = Watch()
            for _ in range(count):
                assert await turn() == plain.ANSWER
            return watch.seconds() / count * 1e6
        finally:
            DBOS.destroy()
