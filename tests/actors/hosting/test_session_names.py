"""A session may have any name: its events are journalled and numbered, and are nobody else's."""

from __future__ import annotations

import tempfile

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

import motet
from motet.protocols import events
from motet.testing import ScriptedModel, say

# What a name could mean to SQL, to a pattern, to a terminal and to a C string.
NAMES = st.text("ab\0*[]?%_'\":/\\ \n\x1b\u202eé😀", min_size=1, max_size=6)


@settings(max_examples=12, deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=5, unique=True))
@example(["a\0b", "a", "a\0", "\0"])
def test_each_session_has_its_own_events_and_rows_whatever_its_name(
    names: list[str],
) -> None:
    """Law: for any set of names, each session's stream has the events of its run and no others,
    numbered from 1, in this host and in the next."""
    with tempfile.TemporaryDirectory() as state:
        trio.run(_check, names, state)


async def _check(names: list[str], state: str) -> None:
    async with motet.open_host(state) as host:
        model = ScriptedModel([say(f"answer {number}") for number in range(len(names))])
        agent = motet.Agent("helper", model=model)
        host.add(agent)
        for name in names:
            await host.run(agent, f"for {name}", session=name)
    async with motet.open_host(state) as host:
        for number, name in enumerate(names):
            told = await host.events.read(f"session:{name}", 0)
            assert [record.seq for record in told] == list(range(1, len(told) + 1)), name
            texts = [one.event.text for one in told if isinstance(one.event, events.MessageAdded)]
            assert texts == [f"for {name}", f"answer {number}"], name
            assert sum(isinstance(one.event, events.Terminal) for one in told) == 1, name
            assert len(await host.history(name)) == 2, name
