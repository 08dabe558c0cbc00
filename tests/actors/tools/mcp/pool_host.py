"""A host for a test to kill: two busy servers, and a detached grandchild of one."""

import sys
from pathlib import Path

import trio

import motet
from tests.actors.tools.mcp.stage import everything, faulty
from tests.scripted import Scripted, call, say


async def main(node: str, mark: str) -> None:
    model = Scripted(
        call(("mcp__it__orphan", {"mark": mark}), ("mcp__every__echo", {"message": "hi"})),
        say("done"),
    )
    agent = motet.Agent("a", model=model, tools=["mcp:it", "mcp:every"])
    servers = {"it": faulty("stubborn"), "every": everything(Path(node))}
    async with motet.open_host(mcp=servers) as host:
        await host.run(agent, "go")
        print("ready", flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
