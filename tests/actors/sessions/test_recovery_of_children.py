"""A run that is suspended when its host is killed gets the results of its children on resuming."""

from __future__ import annotations

from pathlib import Path

import trio

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import UserMessage
from motet.protocols.events import EventRecord
from tests import forks
from tests.scripted import Scripted, call, say

SPAWN = call(
    ("spawn", {"task": "quick", "agent": "quick"}), ("spawn", {"task": "slow", "agent": "slow"})
)

HOST = """
import sys, trio, motet
from motet.protocols.events import ApprovalRequested, ChildEnded
from tests.actors.sessions.test_recovery_of_children import agents

async def main():
    async with motet.open_host(sys.argv[1], agents=agents(fresh=True)) as host:
        async with host.stream("lead", "go", session="s") as run:
            seen = set()
            async for event in run:
                seen.add(type(event))
                if {ApprovalRequested, ChildEnded} <= seen:
                    print("now", flush=True)

trio.run(main)
"""


def agents(*, fresh: bool) -> list[motet.Agent]:
    """Before the kill, and after it."""
    steps = [SPAWN, call(("sign", {}))] if fresh else [say("signed, and I know")]
    lead = motet.Agent("lead", model=Scripted(*steps), tools=["group:agents"])

    @lead.tool(approval=True)
    def sign() -> str:
        return "signed"

    quick = motet.Agent("quick", model=Scripted(say("I was quick"), name="quick"))
    return [lead, quick, motet.Agent("slow", model=Scripted(None, name="slow"))]


async def test_it_gets_the_result_of_each_child_once(tmp_path: Path) -> None:
    with forks.started("-c", HOST, str(tmp_path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        process.kill()
    async with motet.open_host(tmp_path, agents=agents(fresh=False)) as host:
        (approval,) = await host.approvals(state="pending")
        ended = False

        def look(record: EventRecord) -> None:
            nonlocal ended
            ended = ended or isinstance(record.event, motet.RunCompleted)

        host.events.attach("session:s", look)
        await host.approve(approval.id, "allow-once")
        with trio.fail_after(60):
            while not ended:
                await trio.sleep(0.01)
        rows = [item.row for item in await host.history("s")]
    assert violations(rows) == ()
    told = "\n".join(row.text for row in rows if isinstance(row, UserMessage) and row.note)
    assert told.count("[Sub-agent quick (") == told.count("I was quick") == 1
    assert told.count("): interrupted, the host ended during this run") == 1
    assert rows[-1].text == "signed, and I know"
