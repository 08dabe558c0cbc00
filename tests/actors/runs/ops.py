"""An agent with tools that need an approval, for the tests of approvals."""

from __future__ import annotations

from pathlib import Path

import attrs
import trio

import motet
from motet.actors.hosting.tree import Parts
from motet.protocols.approvals import ApprovalInfo, ApprovalsConfig
from motet.protocols.config import HostConfig
from motet.protocols.events import AnyEvent
from motet.protocols.sessions import HistoryRow, RunInfo
from tests.scripted import Scripted, Step

ALICE = motet.Principal("alice")
BOB = motet.Principal("bob")
AT_ONCE = HostConfig(approvals=ApprovalsConfig(hold=0))
"""Runs are suspended as soon as they wait."""
PATIENT = HostConfig(approvals=ApprovalsConfig(hold=3_600))


@attrs.define
class Ops:
    """The agent ``ops`` on a script; ``ran``: what its tools have done."""

    agent: motet.Agent[None, str]
    model: Scripted
    ran: list[str]


def ops(*steps: Step, limits: motet.Limits | None = None) -> Ops:
    """``restart`` and ``wipe`` need an approval, and are done in order; ``look`` needs none."""
    model, ran = Scripted(*steps), list[str]()
    agent = motet.Agent("ops", model=model, limits=limits or motet.Limits())

    @agent.tool(approval=True, effects="write")
    def restart(unit: str) -> str:
        ran.append(f"restart {unit}")
        return f"restarted {unit}"

    @agent.tool(approval=True)
    async def wipe(disk: str) -> str:
        ran.append(f"wipe {disk}")
        return f"wiped {disk}"

    @agent.tool
    async def look() -> str:
        ran.append("look")
        return "all well"

    return Ops(agent, model, ran)


async def pending(host: motet.Host, count: int = 1) -> tuple[ApprovalInfo, ...]:
    """The approvals that are pending, in call order, as soon as there are so many."""
    with trio.fail_after(60):
        while len(found := await host.approvals(state="pending")) < count:
            await trio.sleep(0.002)
    return tuple(sorted(found, key=lambda info: info.call_id))


async def ended(host: motet.Host, run_id: str) -> RunInfo:
    """The run, when it is over."""
    with trio.fail_after(60):
        while True:
            run = next(run for run in await host.runs() if run.run_id == run_id)
            if run.status not in ("queued", "running", "waiting"):
                return run
            await trio.sleep(0.002)


async def suspended(host: motet.Host, run_id: str) -> None:
    """Wait until a run is suspended."""
    with trio.fail_after(60):
        while not any(
            run.run_id == run_id and run.status == "waiting" for run in await host.runs()
        ):
            await trio.sleep(0.002)


async def rows(host: motet.Host, session: str) -> tuple[HistoryRow, ...]:
    return await host.history(session, limit=200)


async def told(host: motet.Host, session: str) -> list[AnyEvent]:
    """All durable events of a session."""
    return [record.event for record in await host.events.read(f"session:{session}", 0)]


def parts_of(host: motet.Host) -> Parts:
    """What is behind a host, for what cannot be seen or done from outside."""
    return host._parts  # pyright: ignore[reportPrivateUsage]


def state(path: Path) -> Path:
    return path / "state"
