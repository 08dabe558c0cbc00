"""The part of a host that outlives hosts: what is taken up, put aside, sent again and shut down.

Invariants: an interrupted input is sent again at most once; a host that is draining takes no new
inputs, and what it does not finish is on disk for the next one.
"""

from __future__ import annotations

import trio

from motet.actors.answering import Answering
from motet.actors.records import scope_of
from motet.actors.sessions.run import CLOSING, SHUTDOWN, Run
from motet.actors.sessions.store_sql import RESEND
from motet.protocols.errors import InputValidation, NotFound
from motet.protocols.recovery import Quarantined
from motet.protocols.sessions import LOCAL, Ack, GetRun, Principal, RunInfo

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
        standing = self._tree.services.desk.standings.get(run.id)
        return standing is not None and standing.waits and not standing.marks()

    def _cut_off(self, runs: list[Run]) -> None:
        for run in runs:
            run.cancel(SHUTDOWN if self._has_next else CLOSING)


def _goes_on(run: Run) -> bool:
    return run.state == "running" and run.caller is None
