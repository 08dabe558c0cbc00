"""Third step: the same story once for each of its steps, and each time the power is cut there.

Run it: `pytest examples/testing/test_3_crash.py`. It fails: a bug is planted in the declaration.
"""

import trio

import motet
from motet import testing as mt


def cashier(ledger: mt.Ledger) -> motet.Agent:
    """An agent that pays; the ledger is the bank, which remembers whatever happens to the host."""
    agent = motet.Agent("cashier")

    # Who declares a tool idempotent lets it be called again after a crash.
    @agent.tool(idempotent=True)  # planted, right is: @agent.tool
    async def pay(ctx: motet.Context[None], euros: int) -> str:
        """Pay so much."""
        await trio.sleep(1)
        ledger.did(ctx, f"paid {euros}")
        await trio.sleep(1)
        return "paid"

    agent.model = mt.ScriptedModel([mt.call("pay", euros=5), *[mt.say("I have paid.")] * 3])
    return agent


def pay_the_rent(host: mt.SimulatedHost) -> None:
    host.start(cashier(host.ledger), "pay the rent", session="rent")
    host.settle()


def the_rent_is_paid_once_at_most(host: mt.SimulatedHost) -> None:
    mt.check(host)
    assert len(host.ledger.effects) <= 1, host.ledger.effects


def test_the_rent_is_never_paid_twice() -> None:
    report = mt.sweep(pay_the_rent, "crash", every=4, check=the_rent_is_paid_once_at_most)

    report.check()
    assert report.struck > 5
