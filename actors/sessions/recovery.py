"""Takes up what the last host left: queued inputs first come first, begun runs where they were.

What is left of a session is in its queue from the start, so that a stop finds it and new inputs
come behind it; the session is held until all of its agents are known. Nothing goes on before the
block of the host has had its first turn, so that its hooks are there.
Guarantees: G14, G15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import attrs
import trio

from motet.actors.agents.spec import AgentSpec
from motet.actors.errors.log import logger
from motet.actors.runs.run import Run
from motet.actors.runs.table import RunTable
from motet.actors.sessions.recovery_plan import (
    Republisher,
    completed,
    has_begun,
    has_started,
    resumption,
    unfit,
    unrepeatable,
    whole,
)
from motet.actors.sessions.session import wake
from motet.actors.storage import recovery as stored
from motet.actors.storage.events import append, storable
from motet.actors.storage.readers import Readers
from motet.actors.storage.recovery import LeftRun
from motet.protocols.approvals import Resumption
from motet.protocols.chat import ChatMessage
from motet.protocols.errors import MotetError
from motet.protocols.events import EventRecord, RunInterrupted, SessionQuarantined
from motet.protocols.messages import Request
from motet.protocols.recovery import Given, Quarantined, RecoveryConfig
from motet.protocols.sessions import Principal, RecoverRuns, RunInfo, SessionStoreMessage
from motet.protocols.storage import Commit, ExpectationFailed, Row, Statement
from motet.runtime import Actor, ActorRef, System, handles
from motet.runtime.outside import wall_time

if TYPE_CHECKING:
    from motet.actors.agents.registry import Resolver
    from motet.actors.runs.services import Services


log = logger(__name__)

Transact = Commit


@attrs.frozen(eq=False)
class _Kept:
    """A run that may go on, and its place in the queue until it does."""

    run: Run
    left: LeftRun
    given: Given


@attrs.define(eq=False)
class Recovery:
    """Of one host. ``clock`` gives Unix seconds.

    Attributes:
        resumed: the runs that were left to go on, oldest first, whether they do already or not.
        opened: set when the block of the host begins; ``news``: when an agent has become known.
        waits: why sessions are held, by their keys.
    """

    config: RecoveryConfig
    readers: Readers
    transact: Transact
    store: ActorRef[SessionStoreMessage]
    table: RunTable
    resolver: Resolver
    services: Services
    clock: Callable[[], float] = wall_time
    resumed: tuple[RunInfo, ...] = ()
    opened: trio.Event = attrs.field(factory=trio.Event)
    news: trio.Event = attrs.field(factory=trio.Event)
    waits: dict[str, str] = attrs.field(factory=dict[str, str])
    _kept: dict[str, list[_Kept]] = attrs.field(factory=dict[str, list[_Kept]])

    # At the start, before anything can come in

    async def look(self) -> RecoverRuns:
        """Queue what may go on; the request that ends all the rest. Raises ``StorageError``."""
        found = await self._left()
        reasons: dict[str, str] = {}
        kept: list[_Kept] = []
        aside = await self._put_aside(found)
        for left in found:
            given, why = left.given, unfit(left, self.config, self.clock())
            if left.info.session in aside:
                why = f"taking up its session has ended {left.tries} hosts in a row"
            if why or given is None:
                reasons[left.info.run_id] = why
            else:
                kept.append(_Kept(self._run(left, given), left, given))
        for one in kept:
            self.table.hold(one.run)
            self._kept.setdefault(one.run.session, []).append(one)
        self.resumed = tuple(one.left.info for one in kept)
        return RecoverRuns(tuple(info.run_id for info in self.resumed), reasons)

    @property
    def kept(self) -> list[LeftRun]:
        """What was left and goes on."""
        return [one.left for kept in self._kept.values() for one in kept]

    @property
    def republisher(self) -> Republisher:
        """What the last host could not tell any more."""
        suspended_runs = self.services.suspended_runs
        assert suspended_runs is not None
        return Republisher(self.readers, suspended_runs.approvals, self.services.events.emit_to)

    async def _left(self) -> list[LeftRun]:
        infos = [stored.run_info(row) for row in await self.readers.read(stored.UNFINISHED)]
        if not infos:
            return []
        more = {str(row[0]): row for row in await self.readers.read(stored.LEFT)}
        infos.sort(key=lambda info: info.created)
        return [await self._read(info, more[info.run_id]) for info in infos]

    async def _read(self, info: RunInfo, row: Row) -> LeftRun:
        if info.status == "queued" or stored.is_lost(row):
            return stored.left_run(info, row)
        read = self.readers.read
        heard = await read(stored.PUBLISHED, (info.session, info.run_id, info.created))
        left = stored.left_run(
            info,
            row,
            await read(stored.STEPS, (info.run_id,)),
            heard,
            await read(stored.TRACE, (info.run_id,)),
        )
        return completed(left, heard)

    async def _put_aside(self, found: list[LeftRun]) -> set[str]:
        """Quarantine sessions that have been tried too often; which."""
        most = self.config.quarantine_after
        tries = {
            left.info.session: left.tries
            for left in found
            if left.tries >= most and not left.aside and not unfit(left, self.config, self.clock())
        }
        if tries:
            now = self.clock()
            aside = [Statement(stored.QUARANTINE, (key, now)) for key in tries]
            # In one transaction: no host after this one would tell it.
            told = [
                EventRecord(f"session:{key}", SessionQuarantined(count), now)
                for key, count in tries.items()
            ]
            await self.transact((*aside, *append(list(map(storable, told))).statements))
        for session, count in tries.items():
            log.error("a session is quarantined", session=session, tries=count)
        return set(tries)

    def _run(self, left: LeftRun, given: Given) -> Run:
        info = left.info
        agent = self.resolver.known(info.agent) or AgentSpec(info.agent)
        run = Run(
            info.run_id,
            info.session,
            agent,
            Principal(info.user, given.role),
            info.text,
            given.limits or agent.limits,
        )
        run.durable, run.sender = True, given.sender
        run.heard = has_started(left)
        if has_begun(left):
            run.asked = True
            run.resumption = self._resumption(left, given, run)[1]
        else:
            run.mode, run.steers = given.mode, given.steers
        return run

    def _resumption(
        self, left: LeftRun, given: Given, run: Run
    ) -> tuple[tuple[ChatMessage, ...], Resumption]:
        journal = whole(left, run.limits)
        return journal, resumption(left, given, journal, run.limits)

    async def sift(self) -> tuple[RunInfo, ...]:
        """Interrupt what is known already not to go on, now that the first agents are there."""
        cut_off: list[RunInfo] = []
        for session, kept in tuple(self._kept.items()):
            for one in tuple(kept):
                agent = self.resolver.known(one.left.info.agent)
                if agent is None:
                    continue
                one.run.agent = agent
                if why := self._unrepeatable(one):
                    kept.remove(one)
                    cut_off += await self._interrupt(one, why)
            if not kept:
                del self._kept[session]
                self.table.held.discard(session)
        ids = {info.run_id for info in cut_off}
        self.resumed = tuple(one for one in self.resumed if one.run_id not in ids)
        return tuple(cut_off)

    # When the host is open

    async def attend(self) -> None:
        """Let sessions go on as their agents become known, until it is too late for the rest."""
        await self.opened.wait()
        deadline = trio.current_time() + self.config.resume_within
        async with trio.open_nursery() as nursery:
            with trio.move_on_at(deadline):
                while self._kept:
                    self.news = trio.Event()
                    known = [key for key in tuple(self._kept) if await self._is_known(key)]
                    await self._release(known, nursery)
                    if self._kept:
                        await self.news.wait()
            late = tuple(self._kept)
            for session in late:
                why = f"the host ended during this run: {self.waits.get(session, '')}"
                for one in self._kept[session]:
                    await self._interrupt(one, why)
            await self._release(late, nursery)

    async def _is_known(self, session: str) -> bool:
        """Whether all agents of a session are; else it says who is missing."""
        for one in self._kept[session]:
            try:
                agent = await self.resolver.resolve(one.left.info.agent)
            except MotetError as error:
                if self.waits.get(session) != str(error):
                    log.warning("a session waits for its agent", session=session, why=str(error))
                self.waits[session] = str(error)
                return False
            one.run.agent = agent
            one.run.limits = one.given.limits or agent.limits
        self.waits.pop(session, None)
        return True

    async def _release(self, sessions: Iterable[str], nursery: trio.Nursery) -> None:
        """Count the tries, interrupt what may not be repeated, and let the others begin."""
        statements: list[Statement] = []
        begins: dict[str, list[_Kept]] = {}
        for session in sessions:
            fit = begins[session] = await self._fit(session)
            if fit:
                statements += stored.replace_journals(map(self._refreshed, fit))
            if fit and session not in self.table.suspended:  # what is behind a suspended run waits
                statements.append(Statement(stored.TRY, (session,)))
        await self._count(statements)
        for session, fit in begins.items():
            if fit:
                nursery.start_soon(self._settle, session, [one.run for one in fit])
            self.table.held.discard(session)
            wake(self.table, session)

    async def _fit(self, session: str) -> list[_Kept]:
        fit: list[_Kept] = []
        for one in self._kept.pop(session):
            if one.run.state == "queued" and not one.run.stop_reason:
                if why := self._unrepeatable(one):
                    await self._interrupt(one, why)
                else:
                    fit.append(one)
        return fit

    def _refreshed(self, one: _Kept) -> tuple[str, tuple[ChatMessage, ...]]:
        """Its rows, if it has begun; where it goes on, now that its agent is known."""
        if one.run.resumption is None:
            return one.run.id, ()
        journal, one.run.resumption = self._resumption(one.left, one.given, one.run)
        return one.run.id, journal

    async def _count(self, statements: list[Statement]) -> None:
        """A disk that does not take it must not keep what was promised from being done."""
        try:
            if statements:
                await self.transact(tuple(statements))
        except Exception as error:
            log.error("sessions are taken up uncounted", why=str(error))

    def _unrepeatable(self, one: _Kept) -> str:
        agent, catalog = one.run.agent.name, self.services.toolkits.current.catalog
        tools = {tool.name: tool for tool in catalog.tools(agent)}

        def is_repeatable(name: str) -> bool:
            tool = tools.get(name)
            return tool is not None and tool.idempotent and tool.agent is None

        if one.run.agent.deps_type is not None:
            return "the host ended during this run, whose agent needs deps that are not stored"
        name = unrepeatable(one.left, is_repeatable)
        return f"the host ended while {name} was run: its effect may have happened" if name else ""

    async def _interrupt(self, one: _Kept, why: str) -> tuple[RunInfo, ...]:
        """It does not go on after all; its record."""
        run, ended = one.run, tuple[RunInfo, ...]()
        slot = self.table.slot(run.session)
        if run not in slot.queue:
            return ()
        slot.queue.remove(run)
        try:
            ended = await self.store.ask(RecoverRuns((), {run.id: why}, only=(run.id,)))
            if ended:
                await self.services.events.publisher.settle()
                await self.republisher.end(run.session, run.id, RunInterrupted(why))
        except Exception as error:
            log.error("an input is not on record as interrupted", run=run.id, why=str(error))
        self.table.finish(run, run.ends_as("interrupted", why))
        return ended

    async def _settle(self, session: str, runs: list[Run]) -> None:
        """Once one of them has ended, the next host that dies did not die of that."""
        async with trio.open_nursery() as nursery:
            for run in runs:
                nursery.start_soon(_first, run, nursery.cancel_scope)
        await self.settled(Statement(stored.SETTLED, (session,)))

    async def settled(self, statement: Statement | None = None) -> None:
        """No host has died of it; None: of anything, since this one ends in order."""
        try:
            await self.transact((statement or Statement(stored.ALL_SETTLED),))
        except Exception as error:
            log.warning("a resumption stays counted as a try", why=str(error))

    # Quarantine

    async def quarantined(self, owner: str | None) -> tuple[Quarantined, ...]:
        """Oldest first; of one owner, or of all."""
        found = [stored.quarantined(row) for row in await self.readers.read(stored.QUARANTINED)]
        return tuple(one for one in found if owner in (None, one.owner))

    async def release(self, session: str) -> bool:
        """False: it is not quarantined."""
        try:
            await self.transact((Statement(stored.RELEASE, (session,), expect=1),))
        except ExpectationFailed:
            return False
        return True


async def _first(run: Run, scope: trio.CancelScope) -> None:
    await run.ended.wait()
    scope.cancel()


# Starts what takes up the runs of the last host, and settles when this one ends in order.


class HeldSessions(Request[dict[str, str]], frozen=True, tag="recovery.held"):
    """Sessions that wait for an agent, and why."""


class Recoverer(Actor[HeldSessions]):
    """Its task lets sessions go on."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery

    async def on_start(self) -> None:
        self.start_soon(self._recovery.attend)

    @handles(HeldSessions)
    async def held(self, _: HeldSessions) -> dict[str, str]:
        return dict(self._recovery.waits)

    async def on_stop(self) -> None:
        await self._recovery.settled()


async def start_recoverer(system: System, recovery: Recovery) -> None:
    await system.start(lambda: Recoverer(recovery), name="recovery")
