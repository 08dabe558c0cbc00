"""Resumes the unfinished runs of the last host: inputs in their order, begun runs where they were.

The unfinished runs of a session are in its queue from the start, so that a stop finds them and new
inputs come after them; the session is held until all of its agents are known. No run resumes before
the block of the host has had its first turn, so that its hooks are there.
Guarantees: G14, G15.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Never

import attrs
import trio

from motet.actors.agents.spec import AgentSpec
from motet.actors.errors.log import logger
from motet.actors.runs.run import Carried, Input, Lineage, Placement, Run
from motet.actors.runs.table import RunTable, SessionActors
from motet.actors.sessions.recovery_events import RecoveryEvents, with_missing_events
from motet.actors.sessions.recovery_plan import (
    has_begun,
    has_left_queue,
    has_started,
    refusal,
    resumption,
    rows_of,
    unrepeatable,
)
from motet.actors.storage import recovery as stored
from motet.actors.storage.events import append_events, storable
from motet.actors.storage.readers import Readers
from motet.actors.storage.recovery import UnfinishedRun
from motet.protocols.approval_tables import NONE_RESUMED
from motet.protocols.approvals import Resumption
from motet.protocols.chat import ChatMessage
from motet.protocols.errors import MotetError
from motet.protocols.events import EventRecord, RunInterrupted, SessionQuarantined
from motet.protocols.limits import Limits
from motet.protocols.recovery import InputOptions, Quarantined, RecoveryConfig
from motet.protocols.sessions import Principal, RecoverRuns, RunInfo, SessionStoreMessage
from motet.protocols.storage import Commit, ExpectationFailed, Row, Statement, StorageUnavailable
from motet.runtime import Actor, ActorRef
from motet.runtime.outside import wall_time

if TYPE_CHECKING:
    from motet.actors.agents.registry import Resolver
    from motet.actors.runs.services import Services

log = logger(__name__)


@attrs.frozen(eq=False)
class _Resumable:
    """A run that may resume; it waits in the queue of its session."""

    run: Run
    left: UnfinishedRun
    given: InputOptions


@attrs.define(eq=False)
class Recovery:
    """Recovers the runs of one host. ``clock`` gives Unix seconds.

    Attributes:
        resumed: all runs that resume, oldest first, also those that have not begun to.
        opened: set when the block of the host begins.
        waits: why sessions are held, by their keys.
    """

    config: RecoveryConfig
    readers: Readers
    commit: Commit
    store: ActorRef[SessionStoreMessage]
    table: RunTable
    resolver: Resolver
    services: Services
    actors: SessionActors
    clock: Callable[[], float] = wall_time
    resumed: tuple[RunInfo, ...] = ()
    opened: trio.Event = attrs.field(factory=trio.Event)
    waits: dict[str, str] = attrs.field(factory=dict[str, str])
    _agents_changed: trio.Event = attrs.field(factory=trio.Event)
    _resumable: dict[str, list[_Resumable]] = attrs.field(factory=dict[str, list[_Resumable]])

    # At the start, before the first input

    async def plan(self) -> RecoverRuns:
        """Queue the runs that may resume. Raises ``StorageError``.

        The request that is returned interrupts all others.
        """
        found = await self._read_left()
        reasons: dict[str, str] = {}
        kept: list[_Resumable] = []
        quarantined = await self._quarantine(found)
        for left in found:
            given, why = left.given, refusal(left, self.config, self.clock())
            if left.info.session in quarantined:
                why = f"taking up its session has ended {left.tries} hosts in a row"
            if given is None or (why and not given.stopped):
                reasons[left.info.run_id] = why
            else:
                kept.append(_Resumable(self._run(left, given), left, given))
        for one in kept:
            self.table.hold(one.run)
            if why := one.given.stopped:  # and nothing else becomes of it
                queue = self.table.queue(one.run.session)
                queue.dropped += self.table.cancel_run(one.run, why, by_user=True).dropped
            self._resumable.setdefault(one.run.session, []).append(one)
        self.resumed = tuple(one.left.info for one in kept if not one.given.stopped)
        drop = [one.info.run_id for one in found if one.given and one.given.only_enters]
        return RecoverRuns(tuple(one.run.id for one in kept), reasons, drop=tuple(drop))

    @property
    def resumable(self) -> list[UnfinishedRun]:
        """The runs that resume."""
        return [one.left for kept in self._resumable.values() for one in kept]

    @property
    def events(self) -> RecoveryEvents:
        """Publishes the events that the last host could not."""
        suspended_runs = self.services.suspended_runs
        assert suspended_runs is not None
        return RecoveryEvents(self.readers, suspended_runs.approvals, self.services.events.emit_to)

    async def _read_left(self) -> list[UnfinishedRun]:
        """Oldest first."""
        found = map(stored.run_info, await self.readers.read(stored.UNFINISHED))
        infos = {info.run_id: info for info in found}
        rows = await self.readers.read(stored.RESUMPTIONS) if infos else ()
        known = [(infos[str(row[0])], row) for row in rows if row[0] in infos]
        return [await self._read(info, row) for info, row in known]

    async def _read(self, info: RunInfo, row: Row) -> UnfinishedRun:
        if not row[1]:  # it belonged to a caller
            return stored.unfinished_run(info, row)
        read = self.readers.read
        published = await read(stored.PUBLISHED, (info.session, info.run_id))
        # Events and the journal of runs are stored by themselves: an input that is still queued on
        # disk may have begun, and clients may have heard of it.
        if info.status == "queued" and all(event == "input.accepted" for event, *_ in published):
            return stored.unfinished_run(info, row)
        left = stored.unfinished_run(
            info,
            row,
            await read(stored.STEPS, (info.run_id,)),
            published,
            await read(stored.TRACE, (info.run_id,)),
        )
        return with_missing_events(left, published)

    async def _quarantine(self, found: list[UnfinishedRun]) -> set[str]:
        """Quarantine the sessions that have ended too many hosts in a row; their keys."""
        most = self.config.quarantine_after
        tries = {
            left.info.session: left.tries
            for left in found
            if left.tries >= most
            and not left.quarantined
            and not refusal(left, self.config, self.clock())
        }
        if tries:
            now = self.clock()
            statements = [Statement(stored.QUARANTINE, (key, now)) for key in tries]
            # In one transaction: no later host would publish it.
            records = [
                EventRecord(f"session:{key}", SessionQuarantined(count), now)
                for key, count in tries.items()
            ]
            await self.commit(
                (*statements, *append_events(list(map(storable, records))).statements)
            )
        for session, count in tries.items():
            log.error("a session is quarantined", session=session, tries=count)
        return set(tries)

    def _run(self, left: UnfinishedRun, given: InputOptions) -> Run:
        info = left.info
        agent = self.resolver.known(info.agent) or AgentSpec(info.agent)
        who, limits = Principal(info.user, given.role), given.limits or agent.limits
        begun, started = has_begun(left), has_left_queue(left)
        where = self._resumption(left, given, limits)[1] if begun or started else None
        own = Input(info.run_id, info.session, who, info.text, sender=given.sender)
        return Run(
            attrs.evolve(own, payers=given.payers, round=given.round),
            agent,
            limits,
            placement=Placement() if begun else Placement(given.mode, given.steers),
            lineage=Lineage(ancestors=given.lineage),
            carried=Carried(
                durable=True,
                resumption=where if begun else None,
                started=None if begun else where,
                start_published=has_started(left),
                has_approval=begun,
            ),
        )

    def _resumption(
        self, left: UnfinishedRun, given: InputOptions, limits: Limits
    ) -> tuple[tuple[ChatMessage, ...], Resumption]:
        journal = rows_of(left, limits)
        return journal, resumption(left, given, journal, limits)

    async def interrupt_unfit(self) -> tuple[RunInfo, ...]:
        """Interrupt the runs that cannot be repeated, as far as their agents are known already."""
        cut_off: list[RunInfo] = []
        for session, kept in tuple(self._resumable.items()):
            for one in tuple(kept):
                agent = self.resolver.known(one.left.info.agent)
                if agent is None:
                    continue
                one.run.agent = agent
                if why := self._unrepeatable(one):
                    with suppress(StorageUnavailable):  # else it is interrupted when it is back
                        cut_off += await self._interrupt(one, why)
                        kept.remove(one)
            if not kept:
                del self._resumable[session]
                self.table.held.discard(session)
        ids = {info.run_id for info in cut_off}
        self.resumed = tuple(one for one in self.resumed if one.run_id not in ids)
        return tuple(cut_off)

    # When the host is open

    async def run(self) -> None:
        """Start sessions as their agents become known; interrupt those that wait for too long."""
        await self.opened.wait()
        for session in [one.session for one in self.table.queues.values() if one.dropped]:
            self.actors.wake(session)
        deadline = trio.current_time() + self.config.resume_within
        async with trio.open_nursery() as nursery:
            with trio.move_on_at(deadline):
                while self._resumable:
                    self._agents_changed = trio.Event()
                    for session in tuple(self._resumable):
                        if await self._find_agents(session):
                            kept = self._resumable.pop(session)
                            nursery.start_soon(self._start, nursery, session, kept)
                    if self._resumable:
                        await self._agents_changed.wait()
            for session, kept in self._resumable.items():
                why = f"the host ended during this run: {self.waits.get(session, '')}"
                nursery.start_soon(self._start, nursery, session, kept, why)
            self._resumable = {}

    def agent_added(self) -> None:
        """Check again which sessions can start."""
        self._agents_changed.set()

    async def _find_agents(self, session: str) -> bool:
        """Whether all agents of a session are known; ``waits`` says which one is missing."""
        for one in self._resumable[session]:
            try:
                agent, name = await self.resolver.resolve(one.left.info.agent), one.given.next_agent
                next_agent = await self.resolver.resolve(name) if name else None
            except MotetError as error:
                if self.waits.get(session) != str(error):
                    log.warning("a session waits for its agent", session=session, why=str(error))
                self.waits[session] = str(error)
                return False
            one.run.agent = agent
            one.run.limits = one.given.limits or agent.limits
            one.run.next_agent = next_agent
        self.waits.pop(session, None)
        return True

    async def _start(
        self, nursery: trio.Nursery, session: str, kept: list[_Resumable], late: str = ""
    ) -> None:
        """Interrupt the runs that cannot be repeated, count the try of the others, start them.

        The try is on disk before a run begins: one that kills its host is counted. ``late``: why
        all of them are interrupted.
        """
        fit: list[_Resumable] = []
        for one in kept:
            if why := late or self._unrepeatable(one):
                await self.services.health.insist(partial(self._interrupt, one, why))
            elif one.run.state == "queued":
                fit.append(one)
        if fit:
            await self._count_try(session, fit)
            nursery.start_soon(self._settle, session, [one.run for one in fit])
        self.table.held.discard(session)
        self.actors.wake(session)

    def _rows_of(self, one: _Resumable) -> tuple[str, tuple[ChatMessage, ...]]:
        """The id and rows of a begun run, whose state is made anew with its real agent."""
        if one.run.carried.resumption is None:
            return one.run.id, ()
        journal, one.run.carried.resumption = self._resumption(one.left, one.given, one.run.limits)
        return one.run.id, journal

    async def _count_try(self, session: str, fit: Sequence[_Resumable]) -> None:
        """Store the try. A full disk must not keep accepted inputs from being answered."""
        statements = stored.replace_journals(map(self._rows_of, fit))
        if session not in self.table.suspended:  # its runs wait for the suspended one
            statements.append(Statement(stored.TRY, (session,)))
        try:
            await self.commit(tuple(statements))
        except Exception as error:
            self.services.journal.torn.update(one.run.id for one in fit)
            log.error("a session resumes with its try uncounted", why=str(error))

    def _unrepeatable(self, one: _Resumable) -> str:
        agent, catalog = one.run.agent.name, self.services.toolkits.current.catalog
        tools = {tool.name: tool for tool in catalog.tools(agent)}

        def is_repeatable(name: str) -> bool:
            tool = tools.get(name)
            # An agent that reads as a tool is; its run is not.
            is_run = tool is not None and tool.agent is not None and tool.only_reads
            return tool is not None and tool.idempotent and not is_run

        if one.run.agent.deps_type is not None:
            return "the host ended during this run, whose agent needs deps that are not stored"
        name = unrepeatable(one.left, is_repeatable)
        return f"the host ended while {name} was run: its effect may have happened" if name else ""

    async def _interrupt(self, one: _Resumable, why: str) -> tuple[RunInfo, ...]:
        """End a queued run as interrupted; its record. Raises ``StorageUnavailable``: try again."""
        run, ended = one.run, tuple[RunInfo, ...]()
        inputs = self.table.queue(run.session).inputs
        if run.state != "queued":  # it was stopped
            return ()
        if run in inputs:
            inputs.remove(run)
        try:
            ended = await self.store.ask(RecoverRuns((), {run.id: why}, only=(run.id,)))
            if ended:
                await self.services.events.publisher.settle()
                end = RunInterrupted(why)
                user = run.input.principal.user
                await self.events.publish_end(run.session, user, run.id, end, this_host=True)
        except StorageUnavailable:
            raise
        except Exception as error:
            log.error("an input is not stored as interrupted", run=run.id, why=str(error))
        self.table.finish(run, run.ends_as("interrupted", why))
        return ended

    async def _settle(self, session: str, runs: list[Run]) -> None:
        """Forget the try when the first of them has ended: the session has not killed this host."""
        async with trio.open_nursery() as nursery:
            for run in runs:
                nursery.start_soon(_first, run, nursery.cancel_scope)
        await self.forget_tries(Statement(stored.SETTLED, (session,)))

    async def forget_tries(self, statement: Statement | None = None) -> None:
        """Forget the tries of a session; None: all tries, since this host ends in order."""
        try:
            survived = Statement(stored.ALL_SETTLED), Statement(NONE_RESUMED)
            await self.commit((statement,) if statement else survived)
        except Exception as error:
            log.warning("a resumption stays counted as a try", why=str(error))

    # Quarantine

    async def quarantined(self, owner: str | None) -> tuple[Quarantined, ...]:
        """The quarantined sessions of one owner, or of all, oldest first."""
        found = [stored.quarantined(row) for row in await self.readers.read(stored.QUARANTINED)]
        return tuple(one for one in found if owner in (None, one.owner))

    async def release(self, session: str) -> bool:
        """End the quarantine of a session; False: it is not quarantined."""
        try:
            await self.commit((Statement(stored.RELEASE, (session,), expect=1),))
        except ExpectationFailed:
            return False
        return True


async def _first(run: Run, scope: trio.CancelScope) -> None:
    await run.ended.wait()
    scope.cancel()


class Recoverer(Actor[Never]):
    """Has the task of a :class:`Recovery`, and forgets the tries when the host ends in order."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery

    async def on_start(self) -> None:
        self.start_soon(self._recovery.run)

    async def on_stop(self) -> None:
        await self._recovery.forget_tries()
