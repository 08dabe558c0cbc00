"""A room of two agents and two people; an agent that is mentioned by name speaks next."""

import trio

import motet
from motet.testing import ScriptedModel, say

PLAN = ScriptedModel([say("@coder please sort the names."), say("Well done.")], name="plan")
CODE = ScriptedModel([say("@planner sorted: ann, ben, cid.")], name="code")

room = motet.Room(
    "dev",
    members=[
        motet.Agent("planner", model=PLAN, description="plans the work"),
        motet.Agent("coder", model=CODE, description="writes code"),
    ],
    speakers=motet.mentions(),
    until=motet.MaxTurns(6) | motet.TextMention("DONE"),
)


async def main() -> None:
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        await opened.post("the names are cid, ann and ben", user="bob")
        await opened.post("@planner who does it?", user="alice")
        floor = await opened.wait()
        for message in await opened.history():
            print(f"[{message.author}] {message.text}")
        print(f"{floor.turns} turns; {floor.reason}")


if __name__ == "__main__":
    trio.run(main)
