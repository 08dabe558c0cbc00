"""Only hosts that die while they resume a suspended run count against that run (G14)."""

# It looks at the runs that wait in a host.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from itertools import product

import pytest

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.models import ModelRequest
from motet.protocols.recovery import RecoveryConfig


def answered(request: ModelRequest) -> mt.Step:
    """The second answer takes so long that no host sees it, unless it is left to."""
    if any(getattr(row, "calls", ()) for row in request.messages):
        return mt.slow(mt.say("done"), seconds=5)
    return mt.call("pay")


async def _allow(host: Host) -> None:
    (one,) = await host.approvals(state="pending")
    await host.approve(one.id, "allow-once")


def status_after(ends: tuple[str, ...], most: int) -> tuple[str, int]:
    """The status of an approved run whose hosts ended so before its answer; effects of its call."""
    paid: list[int] = []
    agent = motet.Agent("ops", model=mt.FunctionModel(answered))

    @agent.tool(effects="write", approval=True)
    def pay() -> str:
        paid.append(1)
        return "paid"

    config = motet.HostConfig(
        approvals=ApprovalsConfig(hold=0.0), recovery=RecoveryConfig(quarantine_after=most)
    )
    with mt.simulated_host(1, agents=[agent], config=config) as host:
        host.start(agent, "go", session="s")
        host.advance(1)
        host.call(_allow)
        for end in ends:
            host.advance(1)
            host.restart(0) if end == "restart" else host.crash()
        host.advance(20)
        (run,) = host.call(Host.runs)
        return run.status, len(paid)


@pytest.mark.parametrize(
    ("most", "length"),
    [
        *((most, most + 1) for most in (1, 2)),
        *(
            pytest.param(*pair, marks=pytest.mark.sweep)
            for pair in ((2, 4), (3, 4), (3, 5), (4, 5))
        ),
    ],
)
def test_a_run_is_blocked_by_deaths_in_a_row_and_never_by_shutdowns(most: int, length: int) -> None:
    """Law: for each way in which the hosts of a resumed run end, it goes on unless as many of them
    as ``recovery.quarantine_after`` says have died in a row; one that has blocked it stays
    blocked, however its hosts end."""
    for ends in product(("crash", "restart"), repeat=length):
        # The first host has run the call: it got somewhere, and does not count.
        deaths = "".join("x" if end == "crash" else "." for end in ends[1:])
        expected = "waiting" if "x" * most in deaths else "completed"
        assert status_after(ends, most) == (expected, 1), (most, ends)
