"""The client against the simplest model of one: a client that never lost its connection.

A real gateway and a real WebSocket, with a network between them that breaks as Hypothesis likes.
"""

from __future__ import annotations

from functools import partial

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from trio.testing import MockClock

from motet.actors.gateway.context import Context, Settings
from motet.client.client import Client
from motet.protocols.events import EventRecord
from motet.protocols.gateway import Limits
from tests.actors.gateway.fake_host import FakeHost
from tests.motet.client.fakes import Fault, FaultKind, client_of, gateway

SESSIONS = ("a", "b")
UNLIMITED = Settings(limits=Limits(message_burst=1_000))


@attrs.frozen
class Say:
    session: str
    text: str
    pause: float


@attrs.frozen
class Program:
    """The actions of two people, and the faults of the first one's connections."""

    says: list[Say]
    faults: list[Fault | None]
    reading: float
    capacity: int


KINDS: list[FaultKind] = ["cut", "swallow", "twice", "slow", "cut_sending"]


def faults() -> st.SearchStrategy[list[Fault | None]]:
    """The first connection has to succeed, or the client raises."""
    first = st.none() | st.builds(Fault, st.sampled_from(KINDS), st.integers(2, 25))
    kinds = st.sampled_from([*KINDS, "unreachable"])
    later = st.lists(st.builds(Fault, kinds, st.integers(1, 25)), max_size=7)
    return st.tuples(first, later).map(lambda found: [found[0], *found[1]])


says = st.builds(
    Say,
    st.sampled_from(SESSIONS),
    st.sampled_from(["hi", "one two three", "a b c d e f g h"]),
    st.sampled_from([0.0, 0.0, 0.3, 5.0, 40.0]),
)
programs = st.builds(
    Program,
    st.lists(says, min_size=1, max_size=8),
    faults(),
    st.sampled_from([0.0, 0.0, 0.2, 2.0]),
    st.sampled_from([2, 8, 1024]),
)


@given(program=programs)
@settings(max_examples=20, deadline=None)
def test_a_client_that_loses_connections_misses_nothing(
    program: Program,
) -> None:
    """For all programs: every text is taken once, and the numbered events of each stream are the
    same for a client whose connections break as for one whose do not.
    """
    clock = MockClock(autojump_threshold=0)
    trio.run(_compare, program, clock=clock)


async def _compare(program: Program) -> None:
    seen: dict[str, list[EventRecord]] = {session: [] for session in SESSIONS}
    calm: dict[str, list[EventRecord]] = {session: [] for session in SESSIONS}
    with trio.fail_after(100_000):
        async with gateway(UNLIMITED) as (host, context, servers), trio.open_nursery() as nursery:
            for which, found, faulty in (("calm", calm, False), ("faulty", seen, True)):
                given_faults = program.faults if faulty else []
                run = partial(_live, program, host, context, servers, which, found)
                nursery.start_soon(run, given_faults)

    assert sorted(host.submitted) == sorted(_texts(program, "calm") + _texts(program, "faulty"))
    for session in SESSIONS:
        # Whose an event is stays inside the host.
        journal = [replace(one, owner=None) for one in host.events.records[f"session:{session}"]]
        assert calm[session] == journal
        assert seen[session] == journal


def _texts(program: Program, which: str) -> list[str]:
    return [f"{which} {n} {say.text}" for n, say in enumerate(program.says)]


async def _live(
    program: Program,
    host: FakeHost,
    context: Context,
    servers: trio.Nursery,
    which: str,
    found: dict[str, list[EventRecord]],
    faults: list[Fault | None],
) -> None:
    async with client_of(context, servers, faults) as client, trio.open_nursery() as nursery:
        for session in SESSIONS:
            nursery.start_soon(_read, client, program, host, session, found[session])
        for number, say in enumerate(program.says):
            await trio.sleep(say.pause)
            ack = await client.send(say.session, f"{which} {number} {say.text}", agent="echo")
            assert ack.status in ("accepted", "duplicate")


async def _read(
    client: Client, program: Program, host: FakeHost, session: str, found: list[EventRecord]
) -> None:
    """Read until every input has been answered."""
    expected = 2 * sum(say.session == session for say in program.says)
    ends = 0
    name = f"session:{session}"
    if not expected:
        return
    async with client.stream(name, 0, capacity=program.capacity) as events:
        async for record in events:
            await trio.sleep(program.reading)
            if record.seq is not None:
                found.append(record)
                ends += record.event.__class__.__name__ == "RunCompleted"
            if ends == expected:
                return
