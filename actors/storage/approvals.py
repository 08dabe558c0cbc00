"""The store of approvals and suspended runs: on disk before anything is published.

Its handlers run concurrently, so that they share commits. A write for a run takes the pending rows
of the run's journal along, in front of it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from motet.actors.errors.log import logger
from motet.actors.storage import approval_rows as rows
from motet.actors.storage.readers import Readers
from motet.actors.storage.run_access import UNKNOWN, RunJournal
from motet.actors.storage.tables import AT_ONCE, TableStore
from motet.protocols import approval_tables as sql
from motet.protocols.approvals import (
    AnswerApproval,
    ApprovalAnswered,
    ApprovalInfo,
    ApprovalProtocol,
    ClaimApproval,
    ExpireApproval,
    GetApproval,
    Grant,
    ListApprovals,
    ListGrants,
    ListSuspended,
    MarkBegun,
    RequestApproval,
    ResumeRun,
    Resumption,
    RevokeGrant,
    Settled,
    StoredSuspendedRun,
    SuspendRun,
    WithdrawLeft,
)
from motet.protocols.errors import NotFound
from motet.protocols.storage import (
    Commit,
    ExpectationFailed,
    Rows,
    Statement,
    StorageError,
    Transaction,
)
from motet.runtime import Actor, handles
from motet.runtime.outside import wall_time

log = logger(__name__)


class ApprovalStore(TableStore, Actor[ApprovalProtocol]):
    """Handles the requests of ``motet.protocols.approvals``."""

    def __init__(
        self,
        commit: Commit,
        readers: Readers,
        journal: RunJournal,
        clock: Callable[[], float] = wall_time,
    ) -> None:
        super().__init__(commit, readers, clock)
        self._journal = journal

    # Asking and answering

    @handles(RequestApproval, concurrent=AT_ONCE)
    async def request(self, request: RequestApproval) -> Settled:
        new = request.new
        statements = rows.request(new, request.suspended, request.began, self._clock())
        found = await self._with_journal(new.run_id, statements)
        *_, others, added, (row,) = found
        superseded = tuple([str(approval) for (approval,) in others])
        return Settled(rows.info(row), fresh=bool(added), superseded=superseded)

    @handles(AnswerApproval, concurrent=AT_ONCE)
    async def answer(self, request: AnswerApproval) -> Settled:
        try:
            found = await self._write(rows.answer(request, self._clock()))
        except ExpectationFailed:
            return await self._answered_before(request)
        return Settled(rows.info(found[-1][0]), fresh=True)

    async def _answered_before(self, request: AnswerApproval) -> Settled:
        """The same answer changes nothing; another one raises, and the error says who was first."""
        known = await self._known(request.id)
        if known.state == "pending":  # its time is over, and it has not been expired yet
            known = (await self.expire(ExpireApproval(request.id))).info
        if known.decision == request.decision:
            return Settled(known, fresh=False)
        raise ApprovalAnswered(_how(known))

    @handles(ExpireApproval, concurrent=AT_ONCE)
    async def expire(self, request: ExpireApproval) -> Settled:
        try:
            found = await self._write(rows.expire(request.id, self._clock()))
        except ExpectationFailed:
            return Settled(await self._known(request.id), fresh=False)
        return Settled(rows.info(found[-1][0]), fresh=True)

    async def _known(self, approval: str) -> ApprovalInfo:
        known = await self.get(GetApproval(approval))
        if known is None:
            raise NotFound(f"no approval {approval!r}")
        return known

    # Using

    @handles(ClaimApproval, concurrent=AT_ONCE)
    async def claim(self, request: ClaimApproval) -> bool:
        return await self._succeeds(rows.claim(request, self._clock()))

    @handles(MarkBegun, concurrent=AT_ONCE)
    async def mark_begun(self, request: MarkBegun) -> None:
        if not await self._succeeds(rows.mark_begun(request.run_id, request.mark)):
            raise NotFound(f"no unfinished run {request.run_id!r}")

    # Suspended runs

    @handles(SuspendRun, concurrent=AT_ONCE)
    async def suspend(self, request: SuspendRun) -> bool:
        _, of_room = self._journal.accepted.get(request.run_id, UNKNOWN)
        statements = rows.suspend(request, self._clock(), of_room)
        try:
            await self._with_journal(request.run_id, statements)
        except NotFound:
            return False
        return True

    @handles(ResumeRun, concurrent=AT_ONCE)
    async def resume(self, request: ResumeRun) -> Resumption | None:
        """Raises ``StorageError`` for a journal that cannot be read."""
        try:
            found = await self._write(rows.resume(request.run_id, self._clock()))
        except ExpectationFailed:
            return None
        try:
            return rows.resumption(found)
        except (msgspec.MsgspecError, KeyError) as error:
            message = f"the journal of run {request.run_id!r} cannot be read: {error}"
            raise StorageError(message) from error

    @handles(ListSuspended)
    async def list_suspended(self, _: ListSuspended) -> tuple[StoredSuspendedRun, ...]:
        answer = await self._write((Statement(sql.SUSPEND_LEFT), Statement(sql.SUSPENDED)))
        return tuple(rows.suspended(row) for row in answer[-1])

    @handles(WithdrawLeft)
    async def withdraw_left(self, _: WithdrawLeft) -> tuple[ApprovalInfo, ...]:
        (found,) = await self._write((Statement(sql.LEFT, (self._clock(),)),))
        return tuple([await self._known(str(approval)) for (approval,) in found])

    # Reading

    @handles(ListApprovals, concurrent=AT_ONCE)
    async def list_approvals(self, request: ListApprovals) -> tuple[ApprovalInfo, ...]:
        return await self._read(rows.info, *rows.search(request))

    @handles(GetApproval, concurrent=AT_ONCE)
    async def get(self, request: GetApproval) -> ApprovalInfo | None:
        return await self._read_one(rows.info, sql.ONE, (request.id,))

    @handles(ListGrants, concurrent=AT_ONCE)
    async def list_grants(self, request: ListGrants) -> tuple[Grant, ...]:
        return await self._read(rows.grant, *rows.grants(request))

    @handles(RevokeGrant, concurrent=AT_ONCE)
    async def revoke(self, request: RevokeGrant) -> bool:
        (found,) = await self._write((rows.revoke(request),))
        return bool(found)

    async def _with_journal(self, run_id: str, statements: Transaction) -> Rows:
        """Write after the pending rows of the run. Raises ``NotFound`` for an ended run."""
        steps = self._journal.pending(run_id)
        try:
            found = await self._write((*steps, *statements))
        except ExpectationFailed:
            raise NotFound(f"no unfinished run {run_id!r}") from None
        self._journal.written(run_id, steps)
        return found


def _how(known: ApprovalInfo) -> str:
    at = datetime.fromtimestamp(known.resolved or 0, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    match known.state:
        case "expired":
            return f"{known.id} has expired at {at}: nobody had answered, and nothing was run"
        case "withdrawn":
            return f"{known.id} was withdrawn at {at}: its run has ended, or asks otherwise now"
        case _:
            who = known.resolved_by or "somebody"
            return f"{who} has answered {known.id} with {known.decision!r} already, at {at}"
