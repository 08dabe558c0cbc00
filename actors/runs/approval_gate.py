"""The way of a call past a person: on record, shown, answered, and only then begun (G10).

Everything that goes wrong on it means that the call is not run. Cancelling leaves the approval on
record: whoever ends the run withdraws it, and a run that is suspended finds it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

import trio

from motet.actors.errors.log import logger
from motet.actors.runs.pending_approvals import PendingApprovals, Standing
from motet.actors.tools.arguments import preview
from motet.protocols.approvals import (
    LATER,
    ApprovalInfo,
    ApprovalProtocol,
    ApprovalsConfig,
    Asking,
    ClaimApproval,
    ListGrants,
    MarkBegun,
    NewApproval,
    Permission,
    RequestApproval,
)
from motet.protocols.chat import JsonObject
from motet.protocols.events import ApprovalRequested
from motet.protocols.stable_json import stable_json
from motet.protocols.tools import ExecuteCall
from motet.runtime import ActorRef

if TYPE_CHECKING:
    from motet.actors.runs.run import Run
    from motet.actors.runs.table import RunTable

PREVIEW = 500
LOOK = 60.0
"""Seconds between two looks at whether a run that could not be left can be."""

log = logger(__name__)


def hash_of(text: str) -> str:
    """The hash by which arguments are frozen, of their canonical JSON."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def approval_id(run_id: str, call_id: str, args_hash: str) -> str:
    """The id of the one approval that a call with these arguments can have."""
    whole = "\0".join((run_id, call_id, args_hash)).encode("utf-8", "surrogatepass")
    return f"apr_{sha256(whole).hexdigest()[:16]}"


class ApprovalGate:
    """Lets the calls of one host pass. ``config`` may be replaced at any time."""

    def __init__(
        self,
        desk: PendingApprovals,
        store: ActorRef[ApprovalProtocol],
        table: RunTable,
        config: ApprovalsConfig,
    ) -> None:
        self.pending_approvals = desk
        self._store = store
        self._table = table
        self.config = config

    @property
    def call_scopes(self) -> dict[tuple[str, str], trio.CancelScope]:
        """The time-outs of running calls, by (run, call); waits for a person pause them."""
        return self.pending_approvals.timed

    async def authorize(
        self, request: ExecuteCall, args: JsonObject, asked: Sequence[Asking]
    ) -> Permission:
        """Wait until the call may begin, or may not. Never raises but for a cancellation."""
        standing = self.pending_approvals.standings.get(request.run_id)
        try:
            open_ones = asked and await self._without_grants(request, asked)
            if not open_ones:
                return await self._begin(standing, request, args, None, approved=bool(asked))
            if standing is None or not self.config.ask:
                return Permission(f"a person has to decide, and nobody can be asked: {_why(asked)}")
            info = await self._answer(standing, request, args, open_ones)
            if info.state == "pending":
                return self._later(standing, request)
            standing.answered(request.call.id)
            if info.state != "allowed":
                return Permission(_refusal(info), info.state)
            return await self._begin(standing, request, args, info, approved=True)
        except Exception as error:
            if standing is not None:
                standing.answered(request.call.id)
            log.error("an approval failed", run=request.run_id, exc_info=error)
            return Permission(f"the approval could not be put on record or used: {error}")

    async def _without_grants(
        self, request: ExecuteCall, asked: Sequence[Asking]
    ) -> tuple[Asking, ...]:
        which = ListGrants(request.principal, request.agent, request.call.name)
        granted = {grant.asker for grant in await self._store.ask(which)}
        return tuple(one for one in asked if one.asker not in granted)

    # Asking

    async def _answer(
        self,
        standing: Standing,
        request: ExecuteCall,
        args: JsonObject,
        asked: Sequence[Asking],
    ) -> ApprovalInfo:
        """The approval when it is settled, or when it was waited for long enough."""
        run, new = standing.run, self._new(standing, request, args, asked)
        with self.pending_approvals.awaiting(new.id) as waiter:
            # Before it is on record, so that whoever begins meanwhile is marked.
            standing.hold(request.call.id, new.id)
            # So is the clock stopped: the answer may be there before this task looks again.
            with self.pending_approvals.pausing(self._above(run)):
                info = await self._request(standing, new)
                hold = self.config.hold
                while info.state == "pending":
                    with trio.move_on_after(hold):
                        await waiter.answered.wait()
                    info = waiter.info or info
                    if standing.suspended is not None and not _has_children(run):
                        break
                    hold = max(hold, LOOK)
        return info

    def _new(
        self,
        standing: Standing,
        request: ExecuteCall,
        args: JsonObject,
        asked: Sequence[Asking],
    ) -> NewApproval:
        call, text = request.call, stable_json(args)
        digest = hash_of(text)
        return NewApproval(
            id=approval_id(request.run_id, call.id, digest),
            run_id=request.run_id,
            call_id=call.id,
            step=standing.place(call.id),
            tool=call.name,
            args=text,
            args_hash=digest,
            reason=_why(asked),
            asked_by=tuple(one.asker for one in asked),
            life=self.config.expires,
        )

    async def _request(self, standing: Standing, new: NewApproval) -> ApprovalInfo:
        """Put it on record and show it. Shielded: what is on record has to be shown."""
        suspended = standing.suspended() if standing.suspended is not None else None
        with trio.CancelScope(shield=True):
            standing.run.asked = True
            settled = await self._store.ask(RequestApproval(new, suspended, standing.marks()))
            info = settled.info
            if settled.fresh:
                self.pending_approvals.expect(info, self.config.expires)
                await self.pending_approvals.emit(standing.run, requested(info))
            return info
        raise AssertionError("nobody cancels this scope")

    def _above(self, run: Run) -> list[Run]:
        """The run and those that wait for it: their time stands still with it."""
        runs = [run]
        while runs[-1].caller is not None:
            parent = self._table.runs.get(runs[-1].caller[0])
            if parent is None:
                break
            runs.append(parent)
        return runs

    def _later(self, standing: Standing, request: ExecuteCall) -> Permission:
        standing.leave(request.call.id)
        return Permission("its run is suspended until a person has decided", LATER)

    # Beginning

    async def _begin(
        self,
        standing: Standing | None,
        request: ExecuteCall,
        args: JsonObject,
        info: ApprovalInfo | None,
        *,
        approved: bool,
    ) -> Permission:
        """The last step before the tool: in its turn, for the arguments that it gets now."""
        if standing is None:
            return Permission(approved=approved)
        call = request.call
        if standing.in_order and not await standing.turn(call.id):
            return self._later(standing, request)
        standing.began.add(call.id)
        if info is not None:
            digest = hash_of(stable_json(args))
            claim = ClaimApproval(info.id, request.run_id, digest, standing.mark(call))
            if not await self._store.ask(claim):
                standing.began.discard(call.id)
                return Permission("its approval is not for this, or was used already")
        elif standing.asked:
            await self._store.ask(MarkBegun(request.run_id, standing.mark(call)))
        return Permission(approved=approved)


def _has_children(run: Run) -> bool:
    """Children beside it, that would be ended if it were left, or would not be told of."""
    return run.family is not None and bool(run.family.open)


def _why(asked: Sequence[Asking]) -> str:
    return "; ".join(
        one.reason if one.asker in ("tool", "call", "policy") else f"{one.asker}: {one.reason}"
        for one in asked
    )


def _refusal(info: ApprovalInfo) -> str:
    """What the model is told."""
    match info.state:
        case "expired":
            return "nobody has answered the request for an approval in time; it was not run"
        case "withdrawn":
            return "the request for an approval was withdrawn; it was not run"
        case _:
            said = f", who says: {info.note}" if info.note.strip() else ""
            return f"denied by {info.resolved_by}{said}"


def requested(info: ApprovalInfo) -> ApprovalRequested:
    """The event that tells of an approval."""
    return ApprovalRequested(
        id=info.id,
        call_id=info.call_id,
        tool=info.tool,
        args=preview(stable_json(info.args), PREVIEW),
        reason=info.reason,
        args_hash=info.args_hash,
        expires=info.expires,
    )
