"""Writer and critic: two agents take turns until the critic approves, or turns run out."""

import trio

import motet
from motet.testing import ScriptedModel, say

WRITER = ScriptedModel([say("The sea is big."), say("The sea has no other side.")], name="writer")
CRITIC = ScriptedModel([say("Too plain."), say("APPROVE")], name="critic")

room = motet.Room(
    "reflection",
    members=[
        motet.Agent("writer", model=WRITER, instructions="Write one line; improve it as told."),
        motet.Agent("critic", model=CRITIC, instructions="Criticise the line, or say APPROVE."),
    ],
    speakers=motet.round_robin(),
    until=motet.TextMention("APPROVE", author="critic") | motet.MaxTurns(10),
)


async def main() -> None:
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        result = await opened.run("A line about the sea.", user="alice")
        for message in result.messages:
            print(f"[{message.author}] {message.text}")
        print(f"{result.turns} turns; {result.reason}")


if __name__ == "__main__":
    trio.run(main)
