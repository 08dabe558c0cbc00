"""A tool that needs a person's approval: the run waits while the terminal asks."""

import trio

import motet
from motet.testing import ScriptedModel, call, say

MODEL = ScriptedModel([call("restart", unit="sshd", reason="it hangs"), say("That is all.")])

agent = motet.Agent("ops", model=MODEL)


@agent.tool(approval=True, effects="write")
async def restart(unit: str, reason: str) -> str:
    """Restart a unit. The person who approves reads the reason."""
    return f"restarted {unit}, since {reason}"


async def main() -> None:
    async with motet.open_host() as host, host.stream(agent, "sshd hangs") as run:
        async for event in run:
            match event:
                case motet.ApprovalRequested(id=request, tool=tool, args=args):
                    answer = await trio.to_thread.run_sync(input, f"{tool} {args}? [y/n] ")
                    allowed = answer == "y"
                    await host.approve(request, "allow-once" if allowed else "deny", by="alice")
                case motet.ToolResult(ok=ok, preview=preview):
                    print("done:" if ok else "not done:", preview)
                case _:
                    pass


if __name__ == "__main__":
    trio.run(main)
