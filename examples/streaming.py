"""Prints an answer while it arrives, with the tool calls in between."""

import trio

import motet

agent = motet.Agent("helper", model="demo", tools=["group:fs"])


async def main() -> None:
    async with (
        motet.open_host() as host,
        host.stream(agent, "write notes.txt: buy milk and then read notes.txt") as run,
    ):
        async for event in run:
            match event:
                case motet.TextDelta(text=text):
                    print(text, end="", flush=True)
                case motet.ToolCall(name=name, args=args):
                    print(f"\n-> {name} {args}")
                case motet.ToolResult(ok=ok, name=name):
                    print(f"<- {name} {'worked' if ok else 'failed'}")
                case _:
                    pass
    print(f"\n{run.result.status}")


if __name__ == "__main__":
    trio.run(main)
