"""Taking turns: nobody is given the floor to answer itself."""

from __future__ import annotations

import pytest

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.rooms.opening import OpenRoom


async def _said(_host: Host, room: OpenRoom) -> list[tuple[str, str]]:
    return [(message.author, message.text) for message in await room.history()]


def agent(name: str, *texts: str) -> motet.Agent:
    return motet.Agent(name, model=mt.ScriptedModel([mt.say(text) for text in texts], name=name))


@pytest.mark.parametrize("others", [[], ["PASS"], ["", "PASS"]], ids=str)
def test_a_round_is_over_when_the_others_have_nothing_to_say_to_the_last_word(
    others: list[str],
) -> None:
    members = [agent("ada", "first", "second")]
    members += [agent(f"silent{number}", text) for number, text in enumerate(others)]
    with mt.simulated_host() as host:
        room = host.room(motet.Room("hall", members=members, speakers=motet.round_robin()))
        host.post(room.name, "hello", user="ann")
        host.settle()
        assert host.call(_said, room) == [("ann", "hello"), ("ada", "first")]
        host.post(room.name, "and?", user="ann")
        host.steps(500)
        assert ("ada", "second") in host.call(_said, room), "a person's word may be answered"
