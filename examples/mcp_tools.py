"""Tools of an MCP server: with --server, this file is the server itself."""

import sys

import trio

import motet
from motet.testing import ScriptedModel, call, say

MODEL = ScriptedModel([call("mcp__notes__remember", text="buy milk"), say("I have noted it.")])
agent = motet.Agent("helper", model=MODEL, tools=["mcp:notes"])


def serve() -> None:
    """An MCP server with one tool, on standard input and output."""
    from mcp.server import MCPServer

    server = MCPServer("notes")
    notes: list[str] = []

    @server.tool()
    def remember(text: str) -> str:
        """Keep a note."""
        notes.append(text)
        return f"kept {len(notes)} note"

    server.run()


async def main() -> None:
    notes = motet.McpServer(command=[sys.executable, __file__, "--server"], idle_stop="5m")
    async with motet.open_host(mcp={"notes": notes}) as host:
        result = await host.run(agent, "remember the milk")
        print(result.output)
    print("the server has ended with its host")


if __name__ == "__main__":
    serve() if "--server" in sys.argv else trio.run(main)
