"""A host that is killed in the middle of a round; run as a program: ``victim.py STATE MOMENT``."""

from __future__ import annotations

import os
import signal
import sys

import trio

import motet
from motet.protocols.events import RoomTurn, ToolResult
from tests.scripted import Scripted, call, say


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def room(*, fresh: bool, tools: bool) -> motet.Room:
    """Before the kill ``ann`` calls ``ben``, who never ends; after it both speak at once."""
    ann = motet.Agent("ann", model=Scripted(say("@ben your turn"), name="ann"))
    never = [call(("touch", {})), None] if tools else [None]
    steps = never if fresh else [say("I am ben")]
    ben = motet.Agent("ben", model=Scripted(*steps, name="ben"))

    @ben.tool
    def touch() -> str:
        return "touched"

    return motet.Room("r", members=[ann, ben], speakers=motet.mentions(), max_turns=4)


async def main(state: str, moment: str) -> None:
    async with motet.open_host(state) as host:
        opened = await host.open_room(room(fresh=True, tools=moment == "acted"))
        async with opened.subscribe() as events:
            await opened.post("@ann go", user="alice", key="k")
            if moment == "posted":
                die()
            async for event in events:
                if moment == "speaking" and event == RoomTurn("ben", 2, 2):
                    die()
                if moment == "acted" and isinstance(event, ToolResult):
                    await host.events.head("room:r")  # what happened is in the journal
                    await trio.sleep(0.1)
                    die()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
