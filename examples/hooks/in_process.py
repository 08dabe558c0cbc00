"""Hooks as functions: a gate for calls, a gate for answers, and an observer of run ends."""

import trio

import motet


async def main() -> None:
    agent = motet.Agent("clerk", model="demo")

    @agent.tool
    def read_file(path: str) -> str:
        """Read a file."""
        return f"the contents of {path}"

    async with motet.open_host() as host:

        @host.on("before_tool", match="read_*")
        async def only_notes(call: motet.BeforeTool) -> motet.Decision:
            if not str(call.args.get("path", "")).endswith(".txt"):
                return motet.Deny("only .txt files may be read")
            return motet.Allow()

        @host.on("before_output")
        async def signed(answer: motet.BeforeOutput) -> motet.Allow | motet.Replace:
            return motet.Replace(f"{answer.text}\n-- the clerk")

        @host.on("run_end")
        async def note(end: motet.RunEnd) -> None:
            print(f"[{end.run_id}: {end.status}]")

        result = await host.run(agent, "read keys.pem")
        print(result.output)


trio.run(main)
