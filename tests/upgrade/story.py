"""The program whose state directory is kept, and the agents that both versions run.

``python story.py FOLDER`` writes ``FOLDER`` and kills itself in the middle: one run waits for a
person, one is in a tool with two inputs queued behind it. ``python story.py FOLDER rooms`` writes a
room with budgets, and kills itself in the tool of a member's turn. Only the public interface is
used, so that every version can run it. To keep the directory of another version, run this there and
pack the folder: ``tar -czf state-VERSION.tar.gz -C FOLDER .``
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

import motet
from motet.protocols.agents import AgentRecord
from motet.protocols.chat import UserMessage
from motet.protocols.models import ModelRequest
from motet.protocols.room_limits import Allowance, Budgets
from motet.protocols.rooms import RoomPlan
from motet.testing import Answer, FunctionModel, call, say

ALICE, BEN = motet.Principal("alice"), motet.Principal("ben")
ADMIN = motet.Principal("root", role="admin")
CONFIG = motet.HostConfig(approvals=motet.ApprovalsConfig(hold=0.05))
BIG = "\n".join(f"line {number} of a long report" for number in range(4_000))


def repeats(name: str) -> FunctionModel:
    """A model without a script, so that any process can go on with any conversation.

    It calls the tool that an input names, and repeats the start of anything else.
    """

    def answer(request: ModelRequest) -> Answer:
        last = request.messages[-1]
        text = last.text if isinstance(last, UserMessage) else str(last)
        if text.startswith("call "):
            return call(text.removeprefix("call "))
        return say(f"heard: {text[:40]}" if isinstance(last, UserMessage) else "done")

    return FunctionModel(answer, name=name)


def keeper(slow: Callable[[], object], marks: Path) -> motet.Agent:
    agent = motet.Agent("keeper", model=repeats("one"), instructions="Repeat.")

    @agent.tool
    def report() -> str:
        """A long result, which is stored beside the transcript."""
        return BIG

    @agent.tool
    def broken() -> str:
        """An error, which is stored whole."""
        raise ValueError("the shelf is empty")

    @agent.tool(approval=True, effects="write")
    def restart() -> str:
        """An effect that a person has to allow."""
        with marks.open("a") as file:
            file.write("restarted\n")
        return "restarted"

    @agent.tool(effects="write")
    async def hang() -> str:
        """An effect that is under way when the host is killed."""
        slow()
        await trio.sleep_forever()
        return ""

    return agent


def team() -> Sequence[motet.Agent]:
    return motet.Agent("planner", model=repeats("two")), motet.Agent(
        "coder", model=repeats("three")
    )


def room() -> motet.Room:
    return motet.Room(
        "dev", members=list(team()), speakers=motet.round_robin(), until=motet.MaxTurns(2)
    )


async def write(folder: Path) -> None:
    """Fill a state directory, then die."""
    hangs = trio.Event()
    agent = keeper(hangs.set, folder / "marks")
    async with motet.open_host(folder, config=CONFIG, agents=[agent]) as host:
        for text in ("good morning", "call report", "call broken"):
            await host.run("keeper", text, session="user:alice", principal=ALICE, key=text)
        await host.put_agent(AgentRecord("stored", instructions="Be brief."))
        await host.new_token("alice", "operator", label="phone")
        opened = await host.open_room(room())
        await opened.post("who begins?", user="alice")
        await opened.wait()
        await host.submit("call restart", agent="keeper", session="user:ben", principal=BEN)
        while not any(run.status == "waiting" for run in await host.runs(principal=ADMIN)):
            await trio.sleep(0.01)
        await host.submit("call hang", agent="keeper", session="user:eve", key="h")
        await hangs.wait()
        while not await host.traces(principal=ADMIN):
            await trio.sleep(0.1)
        for text in ("first behind", "second behind"):
            await host.submit(text, agent="keeper", session="user:eve", key=text)
        os.kill(os.getpid(), signal.SIGKILL)


def spender(slow: Callable[[], object]) -> motet.Agent:
    """The member of a room who is killed in a tool, when its turn has spent some tokens."""

    def answer(request: ModelRequest) -> Answer:
        last = request.messages[-1]
        heard = last.text if isinstance(last, UserMessage) else ""
        return call("hang") if heard.endswith("hang") else say("heard")

    agent = motet.Agent("spender", model=FunctionModel(answer, name="four"))

    @agent.tool(effects="write")
    async def hang() -> str:
        slow()
        await trio.sleep_forever()
        return ""

    return agent


BUDGETS = Budgets(person_day=Allowance(turns=3))


async def write_rooms(folder: Path) -> None:
    hangs = trio.Event()
    async with motet.open_host(folder, config=CONFIG, agents=[spender(hangs.set)]) as host:
        plan = RoomPlan(("spender",), budgets=BUDGETS)
        made = await host.rooms.create("costs", plan, principal=ALICE)
        opened = await host.open_room(made.name)
        await opened.post("@spender good morning", user="alice")
        await opened.wait()
        await opened.post("@spender hang", user="alice")
        await hangs.wait()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    trio.run(write_rooms if sys.argv[2:] else write, Path(sys.argv[1]))
