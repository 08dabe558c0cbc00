"""First step: the model follows a script, and the test looks at what the agent did.

Run it: `pytest examples/testing/test_1_script.py`. It fails: a bug is planted in the shop.
"""

import motet
from motet.testing import ScriptedModel, SimulatedHost, call, say

# What is tested: in a project of yours it is imported.

stock = {"pear": 3, "plum": 0}
agent = motet.Agent("shop", instructions="You sell fruit.")


@agent.tool
def order(item: str, count: int) -> str:
    """Order so many of an item."""
    if stock[item] < count:
        raise motet.ToolRetry(f"there are only {stock[item]}")
    stock[item] -= 1  # planted, right is: stock[item] -= count
    return f"{count} {item} ordered"


# The test.


def test_an_order_reduces_the_stock(motet_host: SimulatedHost) -> None:
    agent.model = model = ScriptedModel(
        [
            call("order", item="pear", count=4),
            call("order", item="pear", count=2),
            say("I have ordered two pears."),
        ]
    )

    result = motet_host.run(agent, "four pears, or what you have")

    assert result.output == "I have ordered two pears."
    assert "there are only 3" in model.requests[1].messages[-1].text
    model.assert_complete()
    assert stock == {"pear": 1, "plum": 0}
