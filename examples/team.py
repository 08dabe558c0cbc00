"""A team: one agent is a tool, and another one takes over the conversation."""

import trio

import motet
from motet.testing import ScriptedModel, call, say

FACTS = ScriptedModel([say("Trio is from 2017.")], name="facts")
LEAD = ScriptedModel(
    [call("look_up", task="How old is Trio?"), call("transfer_to_writer")], name="lead"
)
WRITER = ScriptedModel([say("Trio has been around since 2017.")], name="writer")

librarian = motet.Agent("librarian", model=FACTS)
writer = motet.Agent("writer", model=WRITER, description="writes for readers")
lead = motet.Agent(
    "lead",
    model=LEAD,
    handoffs=[writer],  # its model sees transfer_to_writer
    tools=[librarian.as_tool(name="look_up", description="Look a fact up.")],
    limits=motet.Limits(usd=0.50, wall=300, children=4),  # for all of them together
)


async def main() -> None:
    async with motet.open_host() as host:
        result = await host.run(lead, "How old is Trio?", session="user:alice")
        print(f"{result.agent}: {result.output}")
        for run in await host.runs():
            print(f"{run.agent:9} {run.status}")


if __name__ == "__main__":
    trio.run(main)
