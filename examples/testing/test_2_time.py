"""Second step: time is virtual, so that a test waits for nothing and says how long things take.

Run it: `pytest examples/testing/test_2_time.py`. It fails: a bug is planted in the retries.
"""

import trio

import motet
from motet.testing import ScriptedModel, SimulatedHost, call, fail, say

agent = motet.Agent("shop")


async def supplier(item: str) -> str:
    """Ask the supplier's server, which is down today."""
    await trio.sleep(1)
    raise ConnectionError(f"no answer about {item}")


@agent.tool(timeout=3600)
async def price(item: str) -> str:
    """What an item costs."""
    for attempt in range(10):  # planted, right is: for attempt in range(4):
        try:
            return await supplier(item)
        except ConnectionError:
            await trio.sleep(2**attempt)
    raise motet.ToolRetry("the supplier does not answer, try later")


def test_a_supplier_who_is_down_is_given_up_within_a_minute(motet_host: SimulatedHost) -> None:
    agent.model = ScriptedModel([call("price", item="pear"), say("The supplier is down.")])

    result = motet_host.run(agent, "what is a pear?")

    assert result.output == "The supplier is down."
    assert "the supplier does not answer" in result.errors[0].text
    assert motet_host.now() < 60


def test_a_provider_that_is_busy_is_asked_again(motet_host: SimulatedHost) -> None:
    agent.model = ScriptedModel([fail(429, retry_after=7), say("Good morning.")])

    assert motet_host.run(agent, "hello").output == "Good morning."
    assert motet_host.now() >= 7
