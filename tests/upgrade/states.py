"""The program that writes a small state, and can be run with the code of each past schema.

``python states.py FOLDER`` writes ``FOLDER`` and kills itself: a conversation with an answer and an
error, and, as far as that code can do it, a run that waits for a person, a room, one input at work
and one that waits behind it. It prints as JSON what it has written. The demo model and three tools
are all that it needs, since the first motet had no more.

``states.tar.xz`` has a database ``NN.db`` for each schema: that of the last commit with the number,
on which ``VACUUM`` was run; ``states.json`` has what each program has printed, its commit, and when
it was written, in Unix seconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import trio

import motet

SAID = ["hello", "read shelf"]
EFFECT = "write marks: restarted"
WORK = ["wait 30", "hello again"]


def keeper(folder: Path, model: Any = "demo") -> Any:
    """An agent with a tool that fails and one that a person has to allow, where that is known."""
    agent: Any = motet.Agent("keeper", model=model, instructions="Keep the shelf.")

    async def read_file(path: str) -> str:
        """Read a file."""
        raise OSError(f"{path} is empty")

    async def write_file(path: str, content: str) -> str:
        """Write a file."""
        with (folder / path).open("a") as file:
            file.write(f"{content}\n")
        return "written"

    agent.tool(read_file)
    try:
        agent.tool(write_file, approval=True, effects="write")
    except TypeError:
        try:
            agent.tool(approval=True, effects="write")(write_file)
        except TypeError:
            agent.tool(write_file)
    return agent


async def write(folder: Path) -> None:
    """Fill a state directory, then die."""
    agent, told = keeper(folder), dict[str, object]()
    options: dict[str, Any] = {"agents": [agent]}
    if hasattr(motet, "ApprovalsConfig"):
        options["config"] = motet.HostConfig(approvals=motet.ApprovalsConfig(hold=0.05))
    async with motet.open_host(folder, **options) as host:
        alice = _principal("alice")
        for text in SAID:
            await host.run(agent, text, session="user:alice", principal=alice, key=text)
        told["errors"] = len(await _errors(host))
        if hasattr(host, "approve"):
            await host.submit(EFFECT, agent="keeper", session="ben", key="effect")
            with trio.move_on_after(5):
                while not any(run.status == "waiting" for run in await host.runs(session="ben")):
                    await trio.sleep(0.01)
                told["waits"] = 1
        if hasattr(motet, "Room") and hasattr(host, "open_room"):
            room = await host.open_room(motet.Room("den", members=[agent]))
            await room.post("@keeper hello", user="alice")
            await room.wait()
            told["room"] = [one.author for one in await room.history()]
        for text in WORK:
            await host.submit(text, agent="keeper", session="eve", key=text)
        while not any(run.status == "running" for run in await host.runs(session="eve")):
            await trio.sleep(0.01)
        await trio.sleep(0.3)  # for writes that are behind
        print(json.dumps(told | {"written": time.time()}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def _errors(host: Any) -> Any:
    try:
        return await host.errors(principal=_principal("root", "admin"))
    except TypeError:
        return await host.errors()


def _principal(name: str, role: str = "operator") -> Any:
    from motet.protocols.sessions import Principal

    return Principal(name, role)  # type: ignore[arg-type]  # a role of that time


if __name__ == "__main__":
    trio.run(write, Path(sys.argv[1]))
