"""Selector group chat: a model reads the chat and names the next speaker, never the last one."""

from collections.abc import Sequence

import trio

import motet
from motet.testing import ScriptedModel, say

CHOOSER = ScriptedModel([say("planner"), say("analyst")], name="chooser")
PLANNER = ScriptedModel([say("First search, then compute."), say("TERMINATE")], name="planner")
SEARCHER = ScriptedModel([say("The Heat scored 1,397 and 2,064 points.")], name="searcher")
ANALYST = ScriptedModel([say("That is 48 % more.")], name="analyst")

PROMPT = """\
You are the host of a chat of {names}.
{members}
The planner comes first.

{chat}

Who is next? Answer with one name."""


def candidates(view: motet.RoomView) -> Sequence[str]:
    """Everybody but the last speaker; after the plan, only the one who searches."""
    if view.floor.last == "planner" and view.floor.turns == 1:
        return ["searcher"]
    if view.floor.last == "analyst":
        return ["planner"]
    return [name for name in view.free if name != view.floor.last]


room = motet.Room(
    "stats",
    members=[
        motet.Agent("planner", model=PLANNER, description="breaks the task down"),
        motet.Agent("searcher", model=SEARCHER, description="searches the web"),
        motet.Agent("analyst", model=ANALYST, description="computes"),
    ],
    speakers=motet.selector(CHOOSER, prompt=PROMPT, candidates=candidates),
    until=motet.TextMention("TERMINATE") | motet.MaxTurns(25),
    max_turns=25,
)


async def main() -> None:
    async with motet.open_host() as host:
        opened = await host.open_room(room)
        result = await opened.run("How did the points change from 2005 to 2006?", user="alice")
        for message in result.messages:
            print(f"[{message.author}] {message.text}")
        print(result.reason)


if __name__ == "__main__":
    trio.run(main)
