"""Fifth step: a room of agents and people, with a law of one's own beside those of every host.

Run it: `pytest examples/testing/test_5_room.py`. It fails: a bug is planted in who speaks next.
"""

from hypothesis import given, settings

import motet
from motet import testing as mt

planner = motet.Agent("planner", description="plans")
coder = motet.Agent("coder", description="writes code")


def next_speaker(view: motet.RoomView) -> str | None:
    """Whom a person calls by name, then whoever has not spoken in this round."""
    last = view.messages[-1]
    heard = view.round[-1:]  # planted, right is: heard = view.round
    spoken = {one.author for one in heard}
    called = [name for name in view.free if last.kind == "person" and f"@{name}" in last.text]
    waiting = called or [name for name in view.free if name not in spoken]
    return waiting[0] if waiting else None


room = motet.Room("den", members=[planner, coder], speakers=next_speaker, max_turns=50)


@given(mt.programs(room, users=3, max_steps=10))
@settings(max_examples=200, deadline=None)
def test_each_agent_speaks_once_for_each_message(program: mt.BoundProgram) -> None:
    with mt.simulated_host(seed=program.seed) as host:
        program.execute(host)
        mt.check(host, mt.invariants.bounded_turns(2))
