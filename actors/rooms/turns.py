"""What came of a member's turn, and turns that outlive the task that began them.

Those wait for a person's approval outside of any task, or their host was killed before what they
said was stored in the room. Invariant: what came of one is read from its run, which ends once, in
whatever host.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
import trio

from motet.actors.result import RunResult
from motet.actors.rooms.tools import handed_to
from motet.actors.sessions.recall import recall
from motet.actors.sessions.run import Run
from motet.actors.storage.errors import StorageError
from motet.protocols.errors import NotFound
from motet.protocols.events import EventRecord, Terminal
from motet.protocols.models import Usage
from motet.protocols.sessions import FINAL, GetRun, ListRuns, RunInfo
from motet.runtime import ActorDead, ActorRef

if TYPE_CHECKING:
    from motet.actors.services import Services
    from motet.actors.sessions.store import SessionStoreMessage

LOOK = 30.0
"""Seconds after which a run is looked at again whose end was told and could not be read."""
_LATELY = 200
_ENTERED = ("steered", "dropped")  # what people said to it on its way
WAITS = "it waits for a person's approval"
DELETED = "its session was deleted"


@attrs.frozen
class Turn:
    """What came of a turn.

    Attributes:
        run_id: of its run, if that has begun: then its member was told what it was to answer.
        problem: why nothing, in words that are fit for the room.
        given: the name that it has given the floor to.
        waits: nothing yet: its run is parked until a person has decided.
        usage: of its run, so far.
    """

    run_id: str = ""
    text: str = ""
    problem: str = ""
    given: str = ""
    waits: bool = False
    usage: Usage = attrs.field(factory=Usage)


def turn_of(result: RunResult[object]) -> Turn:
    if result.status == "completed":
        given = handed_to(result.rows)
        return Turn(result.run_id, result.text, given=given, usage=result.usage)
    if result.status == "waiting":
        return Turn(result.run_id, waits=True, usage=result.usage)
    why = f"{result.status}, {result.limit}" if result.limit else result.status
    begun = result.run_id if result.status != "dropped" else ""
    return Turn(begun, problem=why, usage=result.usage)


def more(after: Usage, before: Usage) -> Usage:
    """What was used in between."""
    cost = None if after.cost is None else after.cost - (before.cost or 0.0)
    return Usage(
        after.input_tokens - before.input_tokens,
        after.output_tokens - before.output_tokens,
        after.cached_tokens - before.cached_tokens,
        cost,
        after.cache_write_tokens - before.cache_write_tokens,
    )


@attrs.frozen(eq=False)
class Late:
    """The turns of one host that do not end in the task that began them, by their sessions."""

    store: ActorRef[SessionStoreMessage]
    services: Services

    def goes_on(self, session: str) -> bool:
        """Whether an earlier turn has not ended, or waits."""
        return session in self.services.table.parked or bool(self._at_work(session))

    def wake(self, session: str) -> list[Run]:
        """The runs at work in a session, and those that are parked, which are so from now on: to be
        stopped, without an await in between.
        """
        services = self.services
        if services.parking is not None:
            for one in tuple(services.table.parked.get(session, {}).values()):
                services.parking.stopped(one)
        return self._at_work(session)

    def _at_work(self, session: str) -> list[Run]:
        runs = self.services.table.runs.values()
        return [run for run in runs if run.session == session and run.state == "running"]

    async def last(self, session: str, since: float) -> RunInfo | None:
        """The run that a turn of then has become, if its input was stored. 0: nobody knows when.

        It is the first since then: what was to enter it came later, and may have been cut off too.
        """
        if not since:
            return None
        found = await self.store.ask(ListRuns(session=session, limit=_LATELY))
        own = [one for one in found if one.status not in _ENTERED and one.created >= since]
        return own[-1] if own else None

    async def outcome(self, session: str, run_id: str) -> Turn:
        """What came of it, as soon as it has ended. Cancelling is harmless."""
        news = trio.Event()

        def heard(record: EventRecord) -> None:
            if record.run_id == run_id and isinstance(record.event, Terminal):
                news.set()

        leave = self.services.fanout.attach(f"session:{session}", heard)
        try:
            while (turn := await self._ended(session, run_id)) is None:
                with trio.move_on_after(LOOK):
                    await news.wait()
                    news = trio.Event()
            return turn
        finally:
            leave()

    async def _ended(self, session: str, run_id: str) -> Turn | None:
        try:
            with suppress(StorageError, ActorDead):
                info = await self.store.ask(GetRun(run_id))
                if info is None or info.status in FINAL:
                    return turn_of(await recall(run_id, session, self.store))
        except NotFound:
            return Turn(run_id, problem=DELETED)
        return None
