"""Steers a run while it works, and stops another one."""

import trio

import motet
from motet.testing import ScriptedModel, call, say

MODEL = ScriptedModel([call("search", place="attic"), say("Then I look no further.")])
agent = motet.Agent("finder", model=MODEL)
searching = trio.Event()


@agent.tool
async def search(place: str) -> str:
    """Look for the keys somewhere."""
    searching.set()
    await trio.sleep(0.1)
    return f"nothing in the {place}"


async def main() -> None:
    async with motet.open_host() as host:
        async with host.stream(agent, "Where are my keys?", session="user:alice") as run:
            await searching.wait()
            await host.send(run_id=run.id, text="never mind, I have found them", mode="steer")
            print((await run.wait()).output)

        slow = motet.Agent("slow", model="demo")
        async with host.stream(slow, "wait 60", session="user:bob") as run:
            report = await host.stop(session="user:bob", grace=5)
            print(f"stopped {len(report.stopped)}, still running {len(report.still_running)}")
            print((await run.wait()).status)


if __name__ == "__main__":
    trio.run(main)
