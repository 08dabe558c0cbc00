"""The part of a host that stops what it has going.

Invariants: what a stop is about is asked to end in one step, before anything is awaited, so that no
stuck actor, connection or disk is in its way and nothing slips between; nothing but what is the
principal's is touched, and what is foreign is not found (G16).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import attrs
import trio

from motet.actors.answering import Answering
from motet.actors.receiving import is_from
from motet.actors.records import scope_of
from motet.actors.rooms.stopping import RoomStop, stop_room
from motet.actors.sessions.arrivals import Arrival
from motet.actors.sessions.run import Run
from motet.actors.sessions.stops import Stop
from motet.protocols.errors import NotFound
from motet.protocols.sessions import LOCAL, Principal, StopReport

if TYPE_CHECKING:
    from motet.actors.approvals.parked import Parked


class Stopping(Answering):
    """See :class:`motet.Host`."""

    async def stop(
        self,
        *,
        run_id: str | None = None,
        session: str | None = None,
        room: str | None = None,
        everything: bool = False,
        newest: bool = False,
        sender: str = "",
        principal: Principal = LOCAL,
        grace: float = 5.0,
    ) -> StopReport:
        """Cancel runs, drop inputs, and wait at most ``grace`` seconds for the clean-up.

        Give one of ``run_id``, ``session`` (with ``newest``: only the newest run of the principal's
        that goes on there, or else the newest input that waits; with ``sender``: of a group, what
        this one has said), ``room`` and ``everything``: all sessions and rooms of the principal, of
        everybody for an admin. Inputs that wait are
        dropped wherever they are, also when the run table does not know of them yet; sub-agents
        end with their caller, and a task of a team that a run had claimed is open again.

        Needs neither the session's actor nor the database, so it works while both are stuck.
        Of many stops of one run the first reports it as stopped, the others as already stopping.
        Raises ``NotFound`` for a run or a room that is not there or not the principal's.
        """
        if sum((run_id is not None, session is not None, room is not None, everything)) != 1:
            raise TypeError("stop() needs one of run_id=..., session=..., room=... or everything")
        why = f"stopped by {principal.user}"
        rooms = self._stopped_rooms(room, why, principal) if room or everything else []
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
            await stop.wait()
            for one in rooms:
                await one.wait()
        return _sum(stop, rooms)

    # Asking, without awaiting

    def _stopped_run(self, run_id: str, why: str, principal: Principal) -> Stop:
        table = self._tree.table
        self._revived(principal, None, run_id)
        unheard = self._unheard(why, lambda one: one.run_id == run_id, principal)
        run = table.runs.get(run_id)
        if run is not None and table.may(principal, run):
            return table.cancel_run(run, why, by_user=True)
        if unheard:
            return Stop(unheard=unheard)
        raise NotFound(f"no live run {run_id!r}")

    def _stopped_sessions(self, session: str | None, why: str, principal: Principal) -> Stop:
        """``session`` None: all."""
        table = self._tree.table
        self._revived(principal, None if session is None else (session,), None)
        unheard = self._unheard(why, lambda one: session in (None, one.session), principal)
        keys = table.owned(principal) if session is None else [session]
        stop = table.cancel(keys, why, by_user=True, principal=principal)
        return attrs.evolve(stop, unheard=unheard)

    def _stopped_sender(self, session: str, sender: str, why: str, principal: Principal) -> Stop:
        """All that one person has said in a group."""
        table = self._tree.table
        for parked in self._parked(session, sender, principal):
            self._revived(principal, None, parked.run_id)
        stop = table.cancel_runs(self._said(session, sender, principal), why, by_user=True)
        return attrs.evolve(
            stop,
            unheard=self._unheard(
                why, lambda one: (one.session, one.sender) == (session, sender), principal
            ),
        )

    def _stopped_newest(self, session: str, sender: str, why: str, principal: Principal) -> Stop:
        """What goes on is before what waits for a person, and that before what has not begun."""
        table = self._tree.table
        runs = self._said(session, sender, principal)
        # One that the last host had begun goes on, also while it waits for its agent.
        going = [run for run in runs if run.state == "running" or run.resumption is not None]
        if going:
            own = [run for run in going if run.principal.user == principal.user]
            last = max(own or going, key=lambda run: (not run.stop_reason, run.generation))
            return table.cancel_run(last, why, by_user=True)
        parked = self._parked(session, sender, principal)
        if parked:
            return self._stopped_run(parked[-1].run_id, why, principal)
        arrivals = self._unheard(
            why,
            lambda one: one.session == session and sender in ("", one.sender),
            principal,
            newest=True,
        )
        waiting = [run for run in runs if not run.stop_reason]
        if arrivals or not waiting:
            return Stop(unheard=arrivals)
        return table.cancel_run(max(waiting, key=lambda run: run.generation), why, by_user=True)

    def _said(self, session: str, sender: str, principal: Principal) -> list[Run]:
        runs = self._tree.table.of(session, principal)
        return [run for run in runs if sender in ("", run.author) or is_from(run.text, sender)]

    def _parked(self, session: str, sender: str, principal: Principal) -> list[Parked]:
        ours = self._tree.table.parked.get(session, {}).values()
        mine = [one for one in ours if scope_of(principal) in (None, one.user)]
        return [one for one in mine if not sender or is_from(one.text, sender)]

    def _unheard(
        self,
        why: str,
        meant: Callable[[Arrival], bool],
        principal: Principal,
        *,
        newest: bool = False,
    ) -> list[str]:
        arrivals = self._tree.table.arrivals
        whose = scope_of(principal)
        found = arrivals.find(lambda one: meant(one) and whose in (None, one.principal.user))
        chosen = found[-1:] if newest else found
        for one in chosen:
            one.stopped = one.stopped or why
        return [one.run_id for one in chosen]

    def _stopped_rooms(self, name: str | None, why: str, principal: Principal) -> list[RoomStop]:
        """The one of that name, or all. Raises ``NotFound``."""
        known = self._tree.places.known
        if name is None:
            mine = [one for one in known.values() if scope_of(principal) in (None, one.owner)]
            return [stop_room(place, why) for place in mine]
        if name not in known or not known[name].open_to(principal):
            raise NotFound(f"no open room {name!r}")
        return [stop_room(known[name], why)]


def _sum(stop: Stop, rooms: Sequence[RoomStop]) -> StopReport:
    """All in one: what speaks in a room may be the principal's in a session too."""
    reports = [stop.report(), *(one.report() for one in rooms)]
    asked = {run.id for run in stop.runs}.union(*(one.asked for one in rooms))
    already = _each(report.already_stopping for report in reports)
    return StopReport(
        stopped=_each(report.stopped for report in reports),
        already_stopping=[run_id for run_id in already if run_id not in asked],
        dropped_inputs=_each(report.dropped_inputs for report in reports),
        still_running=_each(report.still_running for report in reports),
        held_by=_each(report.held_by for report in reports),
    )


def _each(lists: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(lists)))
