"""Hooks: a gate that refuses or changes calls, and an observer that logs them."""

import trio

import motet
from motet.testing import ScriptedModel, call, say

MODEL = ScriptedModel(
    [call("shell", command="rm -rf /"), call("shell", command="ls"), say("I listed the files.")]
)
agent = motet.Agent("ops", model=MODEL)


@agent.tool(effects="write")
async def shell(command: str, folder: str = "/") -> str:
    """Run a command."""
    return f"ran {command} in {folder}"


def install(host: motet.Host) -> None:
    @host.on("before_tool", match="shell", on_error="block", timeout=5)
    async def guard(call: motet.BeforeTool) -> motet.Decision:
        if "rm -rf" in str(call.args):
            return motet.Deny("nothing is deleted here")  # the model reads this
        return motet.Allow(args={**call.args, "folder": "/srv"})  # the arguments are checked again

    @host.on("after_tool")
    async def audit(call: motet.AfterTool) -> None:
        print(f"[audit] {call.name}: {call.text if call.ok else call.error_id or 'refused'}")


async def main() -> None:
    async with motet.open_host() as host:
        install(host)
        print((await host.run(agent, "tidy up")).output)


if __name__ == "__main__":
    trio.run(main)
