"""Stopping runs and rooms, and the drain of a host that shuts down.

Invariants: everything that a stop covers is asked to end in one step, before anything is awaited,
so that no stuck actor, connection or disk is in its way and nothing slips between; only what
belongs to the principal is touched, and a foreign run or room is not found (G16). A host that
drains takes no new inputs, and the runs it does not finish are on disk for the next host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain

import attrs
import trio
from msgspec.structs import replace

from motet.actors.hosting.answers import sees
from motet.actors.rooms.api import RoomApi
from motet.actors.rooms.live import RoomStop
from motet.actors.runs.queue import SuspendedRun
from motet.actors.runs.run import CLOSING, SHUTDOWN, PendingInput, Run
from motet.actors.runs.suspend import SuspendedRuns
from motet.actors.runs.table import RunTable, Stop
from motet.actors.sessions.intake import Intake
from motet.actors.transcript.history import is_from
from motet.protocols.errors import NotFound
from motet.protocols.run_states import NOT_BEGUN
from motet.protocols.sessions import Principal, StopReport
from motet.runtime.programs import Strays


@attrs.frozen(eq=False)
class Stops:
    """See :meth:`motet.Host.stop` and :meth:`motet.Host.drain`.

    ``resumable``: the next host can resume the runs that this one leaves.
    """

    _table: RunTable
    _rooms: RoomApi
    _suspended_runs: SuspendedRuns
    _intake: Intake
    _resumable: bool = attrs.field(alias="resumable", kw_only=True)

    async def stop(
        self,
        *,
        run_id: str | None = None,
        session: str | None = None,
        room: str | None = None,
        everything: bool = False,
        newest: bool = False,
        sender: str = "",
        principal: Principal,
        grace: float = 5.0,
    ) -> StopReport:
        if sum((run_id is not None, session is not None, room is not None, everything)) != 1:
            raise TypeError("stop() needs one of run_id=..., session=..., room=... or everything")
        why = f"stopped by {principal.user}"
        strays = Strays()
        rooms = await self._stopped_rooms(room, why, principal) if room or everything else []
        if room is not None:
            stop = Stop()
        elif run_id is not None:
            stop = self._stopped_run(run_id, why, principal)
        elif newest:
            stop = self._stopped_newest(str(session), sender, why, principal)
        elif sender:
            stop = self._stopped_sender(str(session), sender, why, principal)
        else:
            stop = self._stopped_sessions(session, why, principal)
        with trio.move_on_after(grace):
            await self._intake.discard(stop.dropped)
            with trio.move_on_after(min(grace / 2, 1)):  # most end at once
                await stop.wait()
            await self._intake.discard([run for run in stop.runs if run.is_stopping])
            await stop.wait()
            for one in rooms:
                await one.wait()
        asked = {run.id for run in stop.runs}.union(*(one.asked for one in rooms))
        report = _joined([stop.report(), *(one.report() for one in rooms)], asked)
        owners = (*report.stopped, *report.already_stopping, *report.still_running)
        return replace(report, processes=strays.left(owners))

    async def drain(self, seconds: float) -> tuple[str, ...]:
        table = self._table
        table.draining.set()
        await self._intake.discard(self._release_callers())
        with trio.move_on_after(seconds):
            while active := [run for run in table.runs.values() if _is_active(run)]:
                self._cut_off([run for run in active if self._waits_for_a_person(run)])
                await active[0].ended.wait()
        left = [run for run in table.runs.values() if _is_active(run)]
        self._cut_off(left)
        for run in left:
            await run.ended.wait()
        return tuple(run.id for run in left)

    def _release_callers(self) -> list[Run]:
        """Release the callers that wait for an input which does not start any more.

        Nothing is awaited. Inputs that no caller waits for stay queued for the next host.
        """
        table, dropped = self._table, list[Run]()
        for run in list(table.runs.values()):
            waits = run.state in NOT_BEGUN and not run.is_part
            if not waits or run.carried.durable:
                continue
            queue = table.queue(run.session).inputs
            if run.input.key is not None and run in queue and self._resumable:
                queue.remove(run)
                table.finish(run, run.ends_as("interrupted", SHUTDOWN))
            else:
                dropped += table.cancel_run(run, SHUTDOWN).dropped
        return dropped

    def _waits_for_a_person(self, run: Run) -> bool:
        """Whether the run waits for a person, and for nothing else."""
        step = self._suspended_runs.pending_approvals.steps.get(run.id)
        return step is not None and step.only_waits

    def _cut_off(self, runs: list[Run]) -> None:
        for run in runs:
            run.cancel(SHUTDOWN if self._resumable else CLOSING)

    # The request to end: nothing is awaited

    def _stopped_run(self, run_id: str, why: str, principal: Principal) -> Stop:
        table = self._table
        self._resume(principal, run_id=run_id)
        unheard = self._stop_pending(why, lambda one: one.run_id == run_id, principal)
        run = table.runs.get(run_id)
        if run is not None and table.may(principal, run):
            return table.cancel_run(run, why, by_user=True)
        if unheard:
            return Stop(unheard=unheard)
        raise NotFound(f"no live run {run_id!r}")

    def _stopped_sessions(self, session: str | None, why: str, principal: Principal) -> Stop:
        """``session`` None: all."""
        table = self._table
        self._resume(principal, session=session)
        unheard = self._stop_pending(why, lambda one: session in (None, one.session), principal)
        keys = table.owned(principal) if session is None else [session]
        stop = table.cancel(keys, why, by_user=True, principal=principal)
        return attrs.evolve(stop, unheard=unheard)

    def _stopped_sender(self, session: str, sender: str, why: str, principal: Principal) -> Stop:
        """All inputs of one person in a group."""
        table = self._table
        for suspended in self._suspended_of(session, sender, principal):
            self._resume(principal, run_id=suspended.id)
        stop = table.cancel_runs(self._runs_of(session, sender, principal), why, by_user=True)
        unheard = self._stop_pending(
            why, lambda one: (one.session, one.sender) == (session, sender), principal
        )
        return attrs.evolve(stop, unheard=unheard)

    def _stopped_newest(self, session: str, sender: str, why: str, principal: Principal) -> Stop:
        """The newest run, live or suspended, and all inputs of its author that have not begun."""
        table = self._table
        runs = self._runs_of(session, sender, principal)
        # A run that the last host had begun counts as live, also while it waits for its agent.
        going = [run for run in runs if run.is_running or run.carried.resumption is not None]
        waiting = [run for run in runs if run not in going]
        chosen: list[Run] = []
        if going:
            own = [run for run in going if run.input.principal.user == principal.user]
            chosen.append(max(own or going, key=lambda run: (not run.stop_reason, run.admission)))
        elif suspended := self._suspended_of(session, sender, principal):
            self._resume(principal, run_id=suspended[-1].id)
            chosen.append(table.runs[suspended[-1].id])
        author = chosen[0].author if chosen else sender
        unheard = self._stop_pending(
            why,
            lambda one: one.session == session and author in ("", one.sender or one.principal.user),
            principal,
        )
        chosen += [run for run in waiting if author in ("", run.author)]
        return attrs.evolve(table.cancel_runs(chosen, why, by_user=True), unheard=unheard)

    def _resume(
        self, principal: Principal, *, session: str | None = None, run_id: str | None = None
    ) -> None:
        """Make suspended runs live, so that they can be stopped: one, of a session, or all."""
        for one in self._table.all_suspended():
            meant = one.id == run_id if run_id is not None else session in (None, one.session)
            if meant and sees(principal, one.user):
                self._table.resume_to_stop(one)

    def _runs_of(self, session: str, sender: str, principal: Principal) -> list[Run]:
        runs = self._table.of(session, principal)
        return [run for run in runs if sender == run.author or is_from(run.input.text, sender)]

    def _suspended_of(self, session: str, sender: str, principal: Principal) -> list[SuspendedRun]:
        ours = self._table.suspended_in(session)
        mine = [one for one in ours if sees(principal, one.user)]
        return [one for one in mine if is_from(one.text, sender)]

    def _stop_pending(
        self, why: str, meant: Callable[[PendingInput], bool], principal: Principal
    ) -> list[str]:
        arrivals = self._table.pending_inputs
        found = arrivals.find(lambda one: meant(one) and sees(principal, one.principal.user))
        for one in found:
            one.stopped = one.stopped or why
        return [one.run_id for one in found]

    async def _stopped_rooms(
        self, name: str | None, why: str, principal: Principal
    ) -> list[RoomStop]:
        """The one of that name, or all. Only a room that rests is looked up on disk. Raises
        ``NotFound``.
        """
        table = self._rooms.parts.table
        if name is None:
            mine = [one for one in table.rooms.values() if sees(principal, one.settings.owner)]
            return [one.stop(why) for one in mine]
        live = table.rooms.get(name)
        standing = live.settings.standing if live else await self._rooms.reader(name, principal)
        table.clocks.demand_stop(standing, principal)
        found = (table.rooms.get(name), *table.threads(name))
        return [one.stop(why) for one in found if one is not None]


def _is_active(run: Run) -> bool:
    return run.is_running and run.lineage.caller is None


def _joined(reports: Sequence[StopReport], asked: Collection[str]) -> StopReport:
    """One report of several stops, which may have runs in common: a run of a room's member may be
    the principal's in a session, too. ``asked``: the runs that these were the first to stop.
    """
    each = {
        name: list(dict.fromkeys(chain.from_iterable(getattr(one, name) for one in reports)))
        for name in StopReport.__struct_fields__
    }
    already = [run_id for run_id in each.pop("already_stopping") if run_id not in asked]
    return StopReport(already_stopping=already, **each)
