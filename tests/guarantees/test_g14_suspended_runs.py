"""Only hosts that die while they resume a suspended run count against that run (G14)."""

# It looks at the runs that wait in a host.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from itertools import product

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.runs.suspend import MOST_RESUMED
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.models import ModelRequest

CONFIG = motet.HostConfig(approvals=ApprovalsConfig(hold=0.0))


def answered(request: ModelRequest) -> mt.Step:
    """The second answer takes so long that no host sees it, unless it is left to."""
    if any(getattr(row, "calls", ()) for row in request.messages):
        return mt.slow(mt.say("done"), seconds=5)
    return mt.call("pay")


async def _allow(host: Host) -> None:
    (one,) = await host.approvals(state="pending")
    await host.approve(one.id, "allow-once")


def status_after(ends: tuple[str, ...]) -> tuple[str, int]:
    """The status of an approved run whose hosts ended so before its answer; effects of its call."""
    paid: list[int] = []
    agent = motet.Agent("ops", model=mt.FunctionModel(answered))

    @agent.tool(effects="write", approval=True)
    def pay() -> str:
        paid.append(1)
        return "paid"

    with mt.simulated_host(1, agents=[agent], config=CONFIG) as host:
        host.start(agent, "go", session="s")
        host.advance(1)
        host.call(_allow)
        for end in ends:
            host.advance(1)
            host.restart(0) if end == "restart" else host.crash()
        host.advance(20)
        (run,) = host.call(Host.runs)
        return run.status, len(paid)


def test_a_run_is_blocked_by_deaths_in_a_row_and_never_by_shutdowns() -> None:
    """Law: for each way in which the hosts of a resumed run end, it goes on unless the last of them
    have died in a row; one that has blocked it stays blocked, however its hosts end."""
    for ends in product(("crash", "restart"), repeat=5):
        # The first host has run the call: it got somewhere, and does not count.
        deaths = "".join("x" if end == "crash" else "." for end in ends[1:])
        expected = "waiting" if "x" * MOST_RESUMED in deaths else "completed"
        assert status_after(ends) == (expected, 1), ends
