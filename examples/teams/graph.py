"""A graph with a join: two reviewers work side by side, and the editor waits for both."""

import trio

import motet
from motet.testing import ScriptedModel, say


def reviewer(name: str, text: str) -> motet.Agent[None]:
    return motet.Agent(name, model=ScriptedModel([say(text)], name=name))


writer = motet.Agent("writer", model=ScriptedModel([say("A draft.")], name="writer"))
grammar = reviewer("grammar", "A comma is missing.")
style = reviewer("style", "Shorter, please.")
editor = motet.Agent("editor", model=ScriptedModel([say("Final: a draft, short.")], name="editor"))

flow = motet.Graph("press")
flow.edge(writer, grammar)
flow.edge(writer, style)
flow.edge([grammar, style], editor)


async def main() -> None:
    async with motet.open_host() as host:
        opened = await host.open_room(flow.room())
        result = await opened.run("Write about drafts.", user="alice")
        for message in result.messages:
            print(f"[{message.author}] {message.text}")
        print(result.reason)


if __name__ == "__main__":
    trio.run(main)
