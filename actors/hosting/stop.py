"""The part of a host that outlives hosts: what is taken up, put aside, sent again and shut down.

Invariants: an interrupted input is sent again at most once; a host that is draining takes no new
inputs, and what it does not finish is on disk for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import attrs
import trio

from motet.actors.hosting.answers import Answering
from motet.actors.hosting.inputs import is_from
from motet.actors.hosting.records import scope_of
from motet.actors.rooms.room import RoomStop
from motet.actors.runs.run import CLOSING, SHUTDOWN, Arrival, Run
from motet.actors.runs.table import Stop
from motet.protocols.errors import InputValidation, NotFound
from motet.protocols.recovery import Quarantined
from motet.protocols.sessions import LOCAL, RESEND, Ack, GetRun, Principal, RunInfo, StopReport

if TYPE_CHECKING:
    from motet.actors.runs.table import SuspendedRun


AGAIN = ("interrupted", "dropped")


class Durable(Answering):
    """See :class:`motet.Host`."""

    @property
    def interrupted(self) -> tuple[RunInfo, ...]:
        """Runs that the end of the last host on this state cut off, and that do not go on."""
        return self._tree.interrupted

    @property
    def resumed(self) -> tuple[RunInfo, ...]:
        """Runs that the last host on this state left unfinished, and that this one takes up."""
        return self._tree.recovery.resumed

    async def resend(self, run_id: str, *, principal: Principal = LOCAL) -> Ack:
        """Send the input of an interrupted or dropped run again, as a new run of its session.

        Once: the second time is a duplicate of the first. What the run has done before it was cut
        off stays done, and its transcript says so. Raises ``NotFound``, ``InputValidation`` for a
        run that ended otherwise, ``UnknownName``, ``QueueFull``.
        """
        info = await self._tree.store.ask(GetRun(run_id))
        if info is None or (principal.role != "admin" and info.user != principal.user):
            raise NotFound(f"no run {run_id!r}")
        if info.status not in AGAIN:
            raise InputValidation(
                f"the run {run_id} is {info.status}: only one that was {' or '.join(AGAIN)} is "
                "sent again"
            )
        role = principal.role if info.user == principal.user else "operator"
        whose, key = Principal(info.user, role), f"resend:{run_id}"
        run = await self._intake.new_run(
            info.agent, info.text, info.session, None, None, whose, key
        )
        run.method = RESEND
        return await self._intake.deliver(run)

    async def quarantined(self, *, principal: Principal = LOCAL) -> tuple[Quarantined, ...]:
        """Sessions that are not taken up any more, oldest first (G14)."""
        return await self._tree.recovery.quarantined(scope_of(principal))

    async def release(self, session: str, *, principal: Principal = LOCAL) -> None:
        """Let a quarantined session be taken up again from the next start on.

        What was unfinished is listed as interrupted; :meth:`resend` sends it again. Raises
        ``NotFound``.
        """
        await self.session(session, principal=principal)
        if not await self._tree.recovery.release(session):
            raise NotFound(f"the session {session!r} is not quarantined")

    async def drain(self, deadline: float | None = None) -> tuple[str, ...]:
        """Shut down in order: refuse inputs, tell clients, and let runs end for some seconds.

        ``deadline``: seconds; None: as configured. Runs that have not ended then are cut off, as
        are those that wait for a person: the next host on this state goes on with them where it
        can. Returns their ids. Queued inputs stay queued, for it too, unless somebody waits for
        them in :meth:`run`. Afterwards leave the block of the host. Cancelling cuts the waiting
        short, and what goes on ends with the block.
        """
        table = self._tree.table
        table.draining.set()
        dropped = self._let_go()
        await self._intake.discard(dropped)
        seconds = self._tree.config.recovery.drain if deadline is None else deadline
        with trio.move_on_after(seconds):
            while going := [run for run in table.runs.values() if _goes_on(run)]:
                self._cut_off([run for run in going if self._waits(run)])
                await going[0].ended.wait()
        left = [run for run in table.runs.values() if _goes_on(run)]
        self._cut_off(left)
        for run in left:
            await run.ended.wait()
        return tuple(run.id for run in left)

    async def closing(self) -> None:
        """Return when the host has begun to shut down."""
        await self._tree.table.draining.wait()

    def _let_go(self) -> list[Run]:
        """Release who waits for an input that does not start any more; nothing is awaited."""
        table, dropped = self._tree.table, list[Run]()
        for run in list(table.runs.values()):
            waits = run.state in ("arriving", "queued") and run.budget is None
            if not waits or run.durable:
                continue
            queue = table.slot(run.session).queue
            if run.key is not None and run in queue and self._has_next:
                queue.remove(run)
                table.finish(run, run.ends_as("interrupted", SHUTDOWN))
            else:
                dropped += table.cancel_run(run, SHUTDOWN).dropped
        return dropped

    @property
    def _has_next(self) -> bool:
        """Whether another host can go on with what is left."""
        config = self._tree.config.recovery
        return self._tree.location.path is not None and config.resume_within > 0

    def _waits(self, run: Run) -> bool:
        """For a person, and for nothing else."""
        step = self._tree.services.pending_approvals.steps.get(run.id)
        return step is not None and step.only_waits

    def _cut_off(self, runs: list[Run]) -> None:
        for run in runs:
            run.cancel(SHUTDOWN if self._has_next else CLOSING)


def _goes_on(run: Run) -> bool:
    return run.state == "running" and run.caller is None


# The part of a host that stops what it has going.
#
# Invariants: what a stop is about is asked to end in one step, before anything is awaited, so
# that no stuck actor, connection or disk is in its way and nothing slips between; nothing but
# what is the principal's is touched, and what is foreign is not found (G16).


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
        self._resumed(principal, None, run_id)
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
        self._resumed(principal, None if session is None else (session,), None)
        unheard = self._unheard(why, lambda one: session in (None, one.session), principal)
        keys = table.owned(principal) if session is None else [session]
        stop = table.cancel(keys, why, by_user=True, principal=principal)
        return attrs.evolve(stop, unheard=unheard)

    def _stopped_sender(self, session: str, sender: str, why: str, principal: Principal) -> Stop:
        """All that one person has said in a group."""
        table = self._tree.table
        for suspended in self._suspended(session, sender, principal):
            self._resumed(principal, None, suspended.run_id)
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
        suspended = self._suspended(session, sender, principal)
        if suspended:
            return self._stopped_run(suspended[-1].run_id, why, principal)
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

    def _suspended(self, session: str, sender: str, principal: Principal) -> list[SuspendedRun]:
        ours = self._tree.table.suspended.get(session, {}).values()
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
        known = self._tree.places.rooms
        if name is None:
            mine = [
                one for one in known.values() if scope_of(principal) in (None, one.settings.owner)
            ]
            return [one.stop(why) for one in mine]
        if name not in known or not known[name].settings.open_to(principal):
            raise NotFound(f"no open room {name!r}")
        return [known[name].stop(why)]


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
