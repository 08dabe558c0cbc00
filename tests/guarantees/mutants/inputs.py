"""Defects of what an acknowledgement promises: given too early, kept in halves, forgotten."""

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import trio
from msgspec.structs import replace

from motet.actors.sessions.recovery import Recovery
from motet.actors.storage import recovery, session_runs
from motet.actors.storage.connection import Connection
from motet.actors.storage.idempotency import FORGET_KEYS
from motet.actors.storage.location import Location
from motet.actors.storage.run_access import PATIENCE
from motet.actors.storage.session_runs import RunTables
from motet.protocols.sessions import RecoverRuns
from motet.protocols.storage import Rows, Statement, Transaction
from motet.runtime.testing.scheduler import Patch
from tests.guarantees.law import Mutant

__all__ = ["MUTANTS"]


def _acknowledge_early() -> list[Patch]:
    """An input without a key is written with what is written behind, and acknowledged at once."""
    write = RunTables._write

    async def write_later(store: RunTables, statements: Transaction) -> Rows:
        if statements[0].sql is not session_runs.CLAIM_SESSION:
            return await write(store, statements)
        for statement in statements:
            await store._journal.add(str(statements[-1].params[0]), statement)
        return (), (("", 1, 0),), ()

    return [(RunTables, "_write", write_later)]


def _claim_keys_first() -> list[Patch]:
    """A key is claimed in a transaction of its own, a moment before its input is stored."""
    write = RunTables._write

    async def write_apart(store: RunTables, statements: Transaction) -> Rows:
        if statements[0].sql is not FORGET_KEYS:
            return await write(store, statements)
        claimed = await write(store, statements[:2])
        await trio.sleep(PATIENCE)
        return (*claimed, *await write(store, statements[2:]))

    return [(RunTables, "_write", write_apart)]


def _forget_keys() -> list[Patch]:
    """A host that starts does not know the keys of the last one."""
    plan = Recovery.plan

    async def look_and_forget(recovery: Recovery) -> RecoverRuns:
        await recovery.commit((Statement("DELETE FROM idempotency"),))
        return await plan(recovery)

    return [(Recovery, "plan", look_and_forget)]


def _forget_the_queue() -> list[Patch]:
    """Only runs that had begun are looked for when a host starts."""
    only_begun = recovery.UNFINISHED.replace("IN ('queued', 'running')", "= 'running'")
    return [(recovery, "UNFINISHED", only_begun)]


def _end_what_goes_on() -> list[Patch]:
    """What is taken up again is listed as interrupted as well."""
    plan = Recovery.plan

    async def look_and_keep_none(recovery: Recovery) -> RecoverRuns:
        return replace(await plan(recovery), keep=())

    return [(Recovery, "plan", look_and_keep_none)]


def _take_up_what_ended() -> list[Patch]:
    """A run is taken up again although its answer is there, as long as its end was not told."""
    told = "run_id NOT IN (SELECT run_id FROM events WHERE event = 'run.completed')"
    also_ended = f"(status IN ('queued', 'running') OR status = 'completed' AND {told})"
    return [
        (module, name, getattr(module, name).replace("status IN ('queued', 'running')", also_ended))
        for module, name in ((recovery, "UNFINISHED"), (recovery, "RESUMPTIONS"))
    ]


def _sync_rarely() -> list[Patch]:
    """Commits are left to the operating system, which writes them when it likes."""
    configure = Location._configure

    def configure_loosely(location: Location, connection: Connection, read_only: bool) -> None:
        configure(location, connection, read_only)
        connection.run("PRAGMA synchronous = NORMAL")

    return [(Location, "_configure", configure_loosely)]


MUTANTS = (
    Mutant("G15", "acknowledges before it is on disk", _acknowledge_early),
    Mutant("G15", "claims a key before its input is stored", _claim_keys_first),
    Mutant("G15", "forgets keys when it starts", _forget_keys),
    Mutant("G15", "takes up no queued inputs", _forget_the_queue),
    Mutant("G15", "interrupts what it takes up", _end_what_goes_on),
    Mutant("G15", "takes up what was answered", _take_up_what_ended),
    Mutant("G15", "leaves commits to the operating system", _sync_rarely),
)
