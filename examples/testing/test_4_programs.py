"""Fourth step: nobody writes the story; programs of users, models and faults are drawn.

Run it: `pytest examples/testing/test_4_programs.py`. It fails: a bug is planted in the webhook.
"""

import trio
from hypothesis import given, settings

import motet
from motet import testing as mt

agent = motet.Agent("desk", instructions="You answer customers.")


@agent.tool
async def look_up(order: int) -> str:
    """Where an order is."""
    return f"order {order} is on its way"


async def webhook(host: motet.Host, user: str, session: str, text: str, key: str | None) -> None:
    """A message comes in; a messenger that gets no answer delivers it again, with the same key."""
    number = f"{key} at {trio.current_time()}"  # planted, right is: number = key
    await host.submit(text, session=session, principal=motet.Principal(user), key=number)


@given(mt.programs(agent, users=2, sessions=2, max_steps=20, receive=webhook))
@settings(max_examples=200, deadline=None)
def test_everybody_is_answered_once(program: mt.BoundProgram) -> None:
    with mt.simulated_host(seed=program.seed) as host:
        program.execute(host)
        mt.check(host)
        mt.sometimes(len(host.history.sent) > 1, "several inputs")
