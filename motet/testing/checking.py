"""``check(host)``: takes a snapshot of a host and checks all invariants, at any time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import trio
from msgspec.structs import replace

from motet.actors.host import Host
from motet.actors.sessions.router import IDLE_AFTER, SWEEP_EVERY
from motet.protocols.events import EventRecord
from motet.protocols.sessions import HistoryRow
from motet.runtime.snapshot import statistics_of
from motet.runtime.testing.invariants import broken_laws
from motet.runtime.testing.probe import cells, limits_of
from motet.testing.invariants import (
    STANDARD,
    Invariant,
    Snapshot,
    Violation,
    broken,
)
from motet.testing.invariants.snapshot import RoomSeen, Task
from motet.testing.stories.program import InvariantBroken, play_in
from motet.testing.stories.stage import events_published, tasks_of_runs

if TYPE_CHECKING:
    from motet.testing.host import SimulatedHost

__all__ = ["check", "check_memory", "snapshot"]

AWAY = IDLE_AFTER + 2 * SWEEP_EVERY
"""Virtual seconds after which an idle session must have left memory."""

SESSIONS = "/host/router/"

PAGE = 200
ALL = 100_000


def check(host: SimulatedHost, *invariants: Invariant) -> None:
    """Check the invariants of every host, and ``invariants`` in addition.

    Raises :class:`InvariantBroken` with all violations, the last steps, and the program as a test.
    ``mt.invariants`` has more than the standard ones.
    """
    wrong = broken(snapshot(host), (*STANDARD, *invariants))
    if not wrong:
        return
    play = play_in(host)
    if play is None:
        raise InvariantBroken(wrong, host.report(50))
    raise play.broken(wrong, invariants)


def check_memory(host: SimulatedHost) -> None:
    """Check for leaks: wait until idle sessions are evicted, a quarter of a virtual hour.

    Raises :class:`InvariantBroken` when an actor or a run of a session is still in memory. For the
    end of a test.
    """
    host.advance(AWAY)
    left = host.call(_kept)
    if left:
        sentence = f"after {AWAY:g} idle seconds there is still {', '.join(left)}"
        wrong = Violation("sessions_are_put_away", sentence)
        play = play_in(host)
        raise play.broken([wrong]) if play else InvariantBroken([wrong], host.report(50))


async def _kept(host: Host) -> list[str]:
    """The sessions and runs in a host's memory."""
    parts = host._parts  # pyright: ignore[reportPrivateUsage]  # the harness looks inside
    paths = [actor.path for actor in host.actors()]
    sessions = [path for path in paths if path.startswith(SESSIONS)]
    return [*sessions, *(f"the run {run_id}" for run_id in parts.table.runs)]


def snapshot(host: SimulatedHost) -> Snapshot:
    """The visible state of a host and its history; calls the host."""
    play = play_in(host)
    with host.loop.inside():
        host.call(events_published)
        seen = play.history() if play is not None else history(host)
        streams = {happened.record.stream for happened in seen.events}
        seen = host.call(_look, seen, streams)
    laws = (*map(str, host.violations), *_broken_laws(host.host))
    return replace(seen, laws=tuple(dict.fromkeys(laws)), effects=tuple(host.ledger.effects))


def _broken_laws(host: Host) -> Iterator[str]:
    """Violations that the current counters of the actors show."""
    for cell in cells(host.system):
        for law, numbers in broken_laws(None, statistics_of(cell), limits_of(cell), None):
            yield f"{law} broken by {cell.path}: {numbers}"


def history(host: SimulatedHost) -> Snapshot:
    """A snapshot of the history alone, without a call of the host."""
    past = host.history
    return Snapshot(
        sent=tuple(past.sent),
        asked=tuple(past.asked),
        events=tuple(past.events),
        stops=tuple(past.stops),
        crashes=tuple(past.crashes),
    )


async def _look(host: Host, seen: Snapshot, streams: set[str]) -> Snapshot:
    tasks = tuple(
        Task(run_id, name) for run_id, name in tasks_of_runs(trio.lowlevel.current_root_task())
    )
    sessions = await host.sessions(limit=ALL)
    runs = await host.runs(limit=ALL)
    keys = dict.fromkeys([*(one.session for one in sessions), *(run.session for run in runs)])
    rooms = [await _room(host, info.name) for info in await host.rooms.list()]
    # Also streams without a seen event: events during the start of a host have no subscriber yet.
    streams = streams | {f"session:{key}" for key in keys}
    return replace(
        seen,
        sessions=sessions,
        runs=tuple(reversed(runs)),
        transcripts={key: await _rows(host, key) for key in keys},
        journal={stream: await _events(host, stream) for stream in sorted(streams)},
        errors=await host.errors(limit=ALL),
        approvals=await host.approvals(limit=ALL),
        rooms=tuple(rooms),
        tasks=tasks,
        actors=tuple(actor.path for actor in host.actors()),
    )


async def _rows(host: Host, session: str) -> tuple[HistoryRow, ...]:
    rows: tuple[HistoryRow, ...] = ()
    while True:
        before = rows[0].pos if rows else None
        page = await host.history(session, before=before, limit=PAGE)
        rows = page + rows
        if len(page) < PAGE:
            return rows


async def _events(host: Host, stream: str) -> tuple[EventRecord, ...]:
    records: tuple[EventRecord, ...] = ()
    while True:
        after = records[-1].seq or 0 if records else 0
        page = await host.events.read(stream, after, limit=PAGE)
        records += page
        if len(page) < PAGE:
            return records


async def _room(host: Host, name: str) -> RoomSeen:
    info = await host.rooms.get(name)
    messages = await host.rooms.history(name, limit=PAGE)
    while messages and len(
        page := await host.rooms.history(name, before=messages[0].seq, limit=PAGE)
    ):
        messages = page + messages
    members = tuple(member.name for member in info.members)
    return RoomSeen(name, members, messages, idle=info.idle)
