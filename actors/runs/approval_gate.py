"""Asks people to approve calls: stored, published, answered, and only then begun (G10).

Every failure on this way means that the call does not run. Cancelling leaves the approval stored:
the end of the run withdraws it, and a run that resumes finds it by its id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from motet.actors.errors.log import logger
from motet.actors.runs.pending_approvals import CallApprovals, PendingApprovals
from motet.actors.storage.writer import StorageHealth
from motet.actors.tools.arguments import preview
from motet.actors.tools.tool import Tool
from motet.protocols.approvals import (
    LATER,
    NOT_STORED,
    ApprovalInfo,
    ApprovalProtocol,
    ApprovalsConfig,
    Asking,
    ClaimApproval,
    GetApproval,
    ListGrants,
    MarkBegun,
    NewApproval,
    Permission,
    RequestApproval,
    StaleCall,
    approval_id,
    hash_of,
    refusal_of,
    why_asked,
)
from motet.protocols.chat import Call, JsonObject
from motet.protocols.events import ApprovalRequested, ApprovalResolved
from motet.protocols.stable_json import canonical, stable_json
from motet.protocols.storage import StorageUnavailable
from motet.protocols.tools import ExecuteCall
from motet.runtime import ActorRef

if TYPE_CHECKING:
    from motet.actors.runs.run import Run
    from motet.actors.runs.table import RunTable

PREVIEW = 500
RETRY_SUSPENSION = 60.0
"""Seconds after which a run that could not be suspended tries again."""

T = TypeVar("T")
log = logger(__name__)


class ApprovalGate:
    """Lets the calls of one host begin."""

    def __init__(
        self,
        pending: PendingApprovals,
        store: ActorRef[ApprovalProtocol],
        table: RunTable,
        config: ApprovalsConfig,
        health: StorageHealth,
    ) -> None:
        self.pending = pending
        self._store = store
        self._table = table
        self._config = config
        self._health = health

    def reconfigure(self, config: ApprovalsConfig) -> None:
        """Use another configuration from now on, also for calls that wait already."""
        self._config = config

    @property
    def call_scopes(self) -> dict[tuple[str, str], trio.CancelScope]:
        """See ``Approver`` of the tool executor."""
        return self.pending.call_scopes

    def clear(self, request: ExecuteCall, tool: Tool) -> bool:
        """Let a call that nobody asks about begin, if it need not wait; False: authorize it."""
        step, call_id = self.pending.steps.get(request.run_id), request.call.id
        if step is None or step.in_order or step.on_record or call_id in step.held:
            return False
        if not step.is_journalled and not tool.only_reads:
            return False
        step.states.move(call_id, "clear")
        return True

    async def authorize(
        self, request: ExecuteCall, tool: Tool, args: JsonObject, asked: Sequence[Asking]
    ) -> Permission:
        """Wait until the call may begin, or may not. Raises nothing but a cancellation.

        Cancelled, the call stays in its state: a stop withdraws its approval, suspending does not.
        Each wait for the storage takes at most the time-out of the tool; then the call never runs.
        """
        step, call_id = self.pending.steps.get(request.run_id), request.call.id
        try:
            if step is not None and not step.is_journalled and (asked or not tool.only_reads):
                assert step.journalled is not None
                await self._within(tool.timeout, step.journalled)
            open_ones = asked and await self._without_grants(request, asked)
            if not open_ones and not await self._was_asked(step, call_id, args):
                return await self._begin(step, request, tool, args, None, approved=bool(asked))
            if step is None or not self._config.ask:
                return Permission(
                    f"a person has to decide, and nobody can be asked: {why_asked(asked)}"
                )
            info = await self._answer(step, request, tool, args, open_ones)
            if call_id in step.stale:
                raise StaleCall
            if info.state == "pending":
                return _suspend(step, call_id)
            step.move(call_id, "answer")
            if info.state != "allowed":
                return Permission(refusal_of(info), info.state)
            return await self._begin(step, request, tool, args, info, approved=True)
        except Exception as error:
            if step is not None:
                step.move(call_id, "refuse")
            if isinstance(error, StaleCall):
                return Permission(str(error), "stale")
            # Where no person is asked, nothing but storing the call can fail.
            if isinstance(error, StorageUnavailable) or (step is not None and not asked):
                return Permission(f"{NOT_STORED}: not run, nothing was done: {error}", NOT_STORED)
            log.error("an approval failed", run=request.run_id, exc_info=error)
            return Permission(f"the approval could not be put on record or used: {error}")

    async def _without_grants(
        self, request: ExecuteCall, asked: Sequence[Asking]
    ) -> tuple[Asking, ...]:
        which = ListGrants(request.principal, request.agent, request.call.name)
        granted = {grant.asker for grant in await self._store.ask(which)}
        return tuple(one for one in asked if one.asker not in granted)

    async def _was_asked(self, step: CallApprovals | None, call_id: str, args: JsonObject) -> bool:
        """Whether a person was asked about this very call, before its run was suspended or cut off.

        That answer counts: a grant, a reload or a condition may have changed since, and would let a
        call begin that was denied.
        """
        if step is None or not step.on_record:
            return False
        which = approval_id(step.run.id, call_id, hash_of(stable_json(args)))
        return await self._store.ask(GetApproval(which)) is not None

    def begin(self, request: ExecuteCall) -> bool:
        """The tool begins in this step; False: its run, or one that waits for it, was stopped."""
        step = self.pending.steps.get(request.run_id)
        if step is None:
            return True
        run: Run | None = step.run
        while run is not None:
            if run.scope.cancel_called:
                return False
            caller = run.lineage.caller
            run = None if caller is None else self._table.runs.get(caller[0])
        step.states.move(request.call.id, "begin")
        return True

    # Asking

    async def _answer(
        self,
        step: CallApprovals,
        request: ExecuteCall,
        tool: Tool,
        args: JsonObject,
        asked: Sequence[Asking],
    ) -> ApprovalInfo:
        """The approval when it is settled, or pending when its run is to be suspended."""
        run, new = step.run, self._new(step, request, args, asked)
        with self.pending.awaiting(new.id) as waiter:
            # Before the approval is stored, so that a call that begins meanwhile is recorded.
            step.on_record = True
            step.move(request.call.id, "ask")
            # The clocks stop now too: the answer may be there before this task looks again.
            with self.pending.paused(self._table.with_callers(run)):  # their time stands still too
                info = await self._within(tool.timeout, partial(self._request, step, new))
                # In a room others wait for its turn: it leaves the floor to them.
                hold, step.asked[new.call_id] = self._config.hold * (not run.input.turn), info.id
                if new.call_id in step.stale:
                    self.pending.expect(info.id, 0)
                while info.state == "pending":
                    with trio.move_on_after(hold):
                        await waiter.answered.wait()
                    info = waiter.info or info
                    if self._may_suspend(step):
                        break
                    hold = max(hold, RETRY_SUSPENSION)
        return info

    def _may_suspend(self, step: CallApprovals) -> bool:
        """Whether the run of a call can wait on disk for a person: not while none takes it, nor
        while children work in the background, which would end, or whose news would be lost.
        """
        children = step.run.lineage.children
        is_alone = children is None or not children.open
        return step.capture is not None and is_alone and self._health.problem is None

    def _new(
        self, step: CallApprovals, request: ExecuteCall, args: JsonObject, asked: Sequence[Asking]
    ) -> NewApproval:
        call, text = request.call, stable_json(args)
        digest, given = hash_of(text), canonical(call.arguments)
        return NewApproval(
            id=approval_id(request.run_id, call.id, digest),
            run_id=request.run_id,
            call_id=call.id,
            step=step.place(call.id),
            tool=call.name,
            args=text,
            args_hash=digest,
            reason=why_asked(asked),
            asked_by=tuple(one.asker for one in asked),
            life=self._config.expires,
            proposed=None if given == text else given,
            people=tuple(dict.fromkeys(who.user for who in step.run.input.asked_by)),
        )

    async def _request(self, step: CallApprovals, new: NewApproval) -> ApprovalInfo:
        """Store and publish it, once the storage takes it."""
        while True:
            try:
                return await self._request_now(step, new)
            except StorageUnavailable:
                await self._health.retry()

    async def _request_now(self, step: CallApprovals, new: NewApproval) -> ApprovalInfo:
        """Shielded: an approval that is stored has to be shown."""
        if new.call_id in step.stale:
            raise StaleCall
        state = step.capture() if step.capture is not None else None
        with trio.CancelScope(shield=True):
            step.run.carried.has_approval = True
            settled = await self._store.ask(RequestApproval(new, state, step.marks()))
            info = settled.info
            for other in settled.superseded:
                self.pending.deadlines.pop(other, None)
                await self.pending.emit(step.run, ApprovalResolved(other, "cancelled", ""))
            if settled.fresh:
                self.pending.expect(info.id, self._config.expires, info.expires)
                await self.pending.emit(step.run, requested(info))
            return info
        raise AssertionError("nobody cancels this scope")

    # Beginning

    async def _begin(
        self,
        step: CallApprovals | None,
        request: ExecuteCall,
        tool: Tool,
        args: JsonObject,
        info: ApprovalInfo | None,
        *,
        approved: bool,
    ) -> Permission:
        """The last wait before the tool runs: its turn, and the arguments that it gets now."""
        if step is None:
            return Permission(approved=approved)
        call = request.call
        if step.in_order and not await step.turn(call.id):
            return _suspend(step, call.id)
        if call.id in step.stale:
            raise StaleCall
        if info is not None:
            digest = hash_of(stable_json(args))
            claim = ClaimApproval(info.id, request.run_id, digest, step.mark(call))
            if not await self._within(tool.timeout, partial(self._begun, step, call, claim)):
                step.move(call.id, "refuse")
                return Permission("its approval is not for this, or was used already")
        elif (step.on_record or call.id in step.held) and not tool.only_reads:
            mark = MarkBegun(request.run_id, step.mark(call))
            await self._within(tool.timeout, partial(self._begun, step, call, mark))
        else:
            step.move(call.id, "clear")
            if step.on_record:
                with suppress(StorageUnavailable):
                    await self._store.ask(MarkBegun(request.run_id, step.mark(call)))
        return Permission(approved=approved)

    async def _begun(
        self, step: CallApprovals, call: Call, record: ClaimApproval | MarkBegun
    ) -> bool:
        """Clear the call, and store that it begins once the storage takes it.

        It is cleared before that is stored: a suspension in between must not run it again.
        """
        while True:
            step.move(call.id, "clear")
            try:
                return await self._store.ask(record) is not False
            except StorageUnavailable:
                step.move(call.id, "refuse")
                await self._health.retry()

    async def _within(self, seconds: float, wait: Callable[[], Awaitable[T]]) -> T:
        """Raises ``StorageUnavailable`` when the storage does not work for so long."""
        with trio.move_on_after(seconds):
            return await wait()
        problem = self._health.problem
        why = "it took too long" if problem is None else f"the host cannot, since {problem.reason}"
        raise StorageUnavailable(f"the call could not be stored within {seconds:g} s: {why}")


def _suspend(step: CallApprovals, call_id: str) -> Permission:
    step.move(call_id, "suspend")
    return Permission("its run is suspended until a person has decided", LATER)


def requested(info: ApprovalInfo) -> ApprovalRequested:
    """The event of a new approval."""
    return ApprovalRequested(
        id=info.id,
        call_id=info.call_id,
        tool=info.tool,
        args=preview(stable_json(info.args), PREVIEW),
        reason=info.reason,
        args_hash=info.args_hash,
        expires=info.expires,
        people=info.people,
    )
