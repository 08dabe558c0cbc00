"""Custom tools: dependencies, checked arguments, an error that asks the model to try again."""

from dataclasses import dataclass
from typing import Annotated

import trio

import motet
from motet.testing import ScriptedModel, call, say

MODEL = ScriptedModel(  # or the name of a real model
    [
        call("stock", item="pears") + call("stock", item="apples"),
        call("order", item="pears", count=3),
        say("There were 0 pears, so I ordered 3."),
    ]
)


@dataclass
class Shop:
    shelves: dict[str, int]
    orders: list[str]


agent = motet.Agent("clerk", model=MODEL, deps_type=Shop)


@agent.tool
async def stock(ctx: motet.Context[Shop], item: str) -> int:
    """How many of an item are on the shelf."""
    if item not in ctx.deps.shelves:
        raise motet.ToolRetry(f"there are no {item!r}, only {sorted(ctx.deps.shelves)}")
    return ctx.deps.shelves[item]


@agent.tool(effects="write", timeout=5)
def order(ctx: motet.Context[Shop], item: str, count: Annotated[int, motet.Range(1, 10)]) -> str:
    """Order more of an item.

    Args:
        item: its name.
        count: how many, at most ten at a time.
    """
    ctx.deps.orders.append(f"{count} {item}")  # a plain function runs in a worker thread
    return "ordered"


async def main() -> None:
    shop = Shop({"pears": 0, "plums": 7}, [])
    async with motet.open_host() as host:
        result = await host.run(agent, "Are there any pears or apples?", deps=shop)
    print(result.output)
    print("orders:", shop.orders)


if __name__ == "__main__":
    trio.run(main)
