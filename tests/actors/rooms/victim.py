"""A host that is killed in the middle of a round; run as a program: ``victim.py STATE MOMENT``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import trio

import motet
from motet.protocols.events import ApprovalRequested, RoomTurn, ToolResult
from motet.protocols.rooms import RoomMode
from tests.actors.rooms.talk import agent
from tests.scripted import Scripted, Step, call, say


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


def payers(*, mode: RoomMode = "collect", ann: Sequence[Step] | None = None) -> motet.Room:
    """``ann`` calls a tool that needs an approval, and then ``ben``; else what is given."""
    steps = [call(("pay", {})), say("@ben it is paid")] if ann is None else ann
    payer = motet.Agent("ann", model=Scripted(*steps, name="ann"))

    @payer.tool(approval=True, effects="write")
    def pay() -> str:
        return "paid"

    members = [payer, agent("ben", "I am ben")]
    return motet.Room("r", members=members, speakers=motet.mentions(), max_turns=4, mode=mode)


async def main(state: str, moment: str) -> None:
    async with motet.open_host(state) as host:
        waits = moment == "waiting"
        made = payers() if waits else room(fresh=True, tools=moment == "acted")
        opened = await host.open_room(made)
        async with opened.subscribe() as events:
            await opened.post("@ann pay" if waits else "@ann go", user="alice", key="k")
            if moment == "posted":
                die()
            async for event in events:
                if waits and isinstance(event, ApprovalRequested):
                    die()
                if moment == "speaking" and isinstance(event, RoomTurn) and event.turn == 2:
                    die()
                if moment == "acted" and isinstance(event, ToolResult):
                    await host.events.head("room:r")  # what happened is in the journal
                    await trio.sleep(0.1)
                    die()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
