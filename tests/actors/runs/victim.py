"""A host that is killed at a chosen moment; run as a program: ``victim.py STATE MARKS MOMENT``."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import apsw
import trio

import motet
from motet.actors.runs.suspend import SuspendedRuns
from motet.protocols.approvals import ApprovalInfo, ApprovalsConfig
from motet.protocols.config import HostConfig
from tests.scripted import Scripted, call


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def deliver(self: SuspendedRuns, info: ApprovalInfo) -> None:
    """In place of what comes of an answer that is on disk."""
    die()


async def main(state: str, marks: Path, moment: str) -> None:
    script = call(("write", {"text": "a"}), ("write", {"text": "b"}), ("note", {}))
    agent = motet.Agent("ops", model=Scripted(script))

    @agent.tool(approval=True)
    def write(text: str) -> str:
        with marks.open("a") as file:
            file.write(text)
        if moment == "running":
            die()
        return text

    @agent.tool
    def note() -> str:
        with marks.open("a") as file:
            file.write("n")
        return "noted"

    hold = 0 if moment == "suspended" else 3_600
    config = HostConfig(approvals=ApprovalsConfig(hold=hold))
    async with motet.open_host(state, config=config, agents=[agent]) as host:
        if moment == "answered":
            SuspendedRuns.deliver = deliver  # type: ignore[method-assign]  # the moment to die at
        ack = await host.submit("go", session="s", agent="ops")
        while len(found := await host.approvals(state="pending")) < 2 or "n" not in read(marks):
            await trio.sleep(0.005)
        if moment == "suspended":
            while (await host.runs())[0].status != "waiting":
                await trio.sleep(0.005)
        # The outcome of a call may be lost in its last 5 ms; it would be unknown then.
        while moment != "suspended" and not is_stored(Path(state, "motet.db"), "noted"):
            await trio.sleep(0.005)
        print(ack.run_id, flush=True)
        if moment in ("answered", "running"):
            first = next(info for info in found if info.args == {"text": "a"})
            await host.approve(first.id, "allow-once", by="first")
            await trio.sleep_forever()
        die()


def is_stored(database: Path, text: str) -> bool:
    """Whether a row of an unfinished run has this text."""
    wanted = "SELECT count(*) FROM steps WHERE instr(CAST(body AS TEXT), ?)"
    with closing(apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        ((found,),) = db.execute(wanted, (text,))  # pyright: ignore[reportUnknownMemberType]  # its stub
        return int(str(found)) > 0


def read(marks: Path) -> str:
    return marks.read_text() if marks.exists() else ""


if __name__ == "__main__":
    trio.run(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3])
