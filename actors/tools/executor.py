"""The executor: one call in, one result out.

A call passes stages, each of which may end it: find the tool, ask the policy, parse the arguments,
ask the breaker, the hooks and a person, run (:meth:`ToolExecutor._end_of`).

Invariants: every call has exactly one result, even if its tool, its gates, its observers or the
stores fail; a tool runs only after the verdict on this very call (G10), with the arguments that the
verdict was given on; every text for a model obeys the one rule for results.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Literal, Protocol, TypeAlias, cast

import attrs
import msgspec
import trio
from msgspec.structs import replace

from motet.actors.errors.classify import Verdict, failure_class, fallback_text, is_kind
from motet.actors.errors.log import logger
from motet.actors.errors.tracker import verdict_of
from motet.actors.hooks.chain import HooksClient
from motet.actors.telemetry.error_channel import ErrorChannel, Reported
from motet.actors.tools.arguments import ArgumentError
from motet.actors.tools.batch import BEFORE_START
from motet.actors.tools.breakers import Attempt, Breakers
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.context import Context
from motet.actors.tools.policy.engine import PolicyEngine
from motet.actors.tools.policy.rules import Rules
from motet.actors.tools.results import INLINE_LIMIT, inline, is_plain, readable, worked_on
from motet.actors.tools.tool import NotBegun, Tool, asked_by_tool
from motet.protocols.approvals import LATER, NOT_STORED, Asking, NeedsApproval, Permission
from motet.protocols.chat import Call, FailureClass, JsonObject, Outcome
from motet.protocols.error_records import Origin
from motet.protocols.errors import UnknownName
from motet.protocols.events import AnyEvent, Warned
from motet.protocols.hooks import Abort, AfterTool, Allow, Ask, BeforeTool, Deny, Replace, Respond
from motet.protocols.results import ResultProtocol
from motet.protocols.tools import (
    CallResult,
    ExecuteCall,
    ToolDenied,
    ToolFailure,
    ToolNegative,
    ToolRetry,
)
from motet.runtime import Actor, ActorRef, UnderWay, handles
from motet.runtime.exceptions import message_of, sole
from motet.runtime.foreign import is_a
from motet.runtime.outside import foreign_code
from motet.runtime.programs import CallPrograms

log = logger(__name__)

AT_ONCE = 1 << 20
"""Calls of all runs together. Unbounded on purpose: with any limit, calls that delegate to
sub-agents could take every slot while their children's calls wait for one (deadlock). The number of
runs, and of parallel calls in each, is bounded instead."""
LONG = 30.0
"""Seconds, of which a failed call waits less for its turn."""
NOT_YET = "Not run: it was stopped while a person was asked to approve it."

MakeContext: TypeAlias = Callable[[ExecuteCall], Context[object]]
Warn: TypeAlias = Callable[[str, AnyEvent], None]
"""Publishes an event of a run; never waits, never fails."""


class Toolset(Protocol):
    """The tools that the calls of a run may name, and the policy that allows them."""

    @property
    def catalog(self) -> ToolCatalog: ...
    @property
    def policy(self) -> PolicyEngine: ...


ToolsetOf: TypeAlias = Callable[[str], Toolset | None]
"""The toolset of a run, by its id. None: that of the executor."""


class Approver(Protocol):
    """Lets calls begin that a person has to approve.

    ``call_scopes``: the time-outs of running calls, by (run, call). A wait for a person extends
    those of the calls that wait for its run.
    """

    @property
    def call_scopes(self) -> dict[tuple[str, str], trio.CancelScope]: ...

    def clear(self, request: ExecuteCall, tool: Tool, /) -> bool:
        """Let a call that nobody asks about begin, if it need not wait; False: authorize it."""
        ...

    async def authorize(
        self, request: ExecuteCall, tool: Tool, args: JsonObject, asked: Sequence[Asking], /
    ) -> Permission:
        """Wait until the call may begin, or may not. Raises nothing but a cancellation.

        A call that may have effects begins only when it is on disk (G15).
        """
        ...

    def begin(self, request: ExecuteCall, /) -> bool:
        """The tool begins in this step; False: it must not, since its run was stopped."""
        ...


class _End(msgspec.Struct, frozen=True):
    """How a call ended. ``value``: for the model, of any type and size."""

    value: object
    outcome: Outcome
    kind: str = ""
    error_id: str | None = None
    failure: FailureClass | Literal[""] = ""

    def of(self, call: Call, text: str, result_id: str | None = None) -> CallResult:
        """The result; ``text``: the part of the value that the model gets."""
        ended = self.outcome, self.kind, self.error_id
        return CallResult(
            call.id, call.name, text, *ended, result_id=result_id, failure=self.failure
        )


CUT_OFF = _End("Cancelled.", "cancelled_while_running", "cancelled")
NOT_BEGUN = _End(BEFORE_START, "cancelled_before_start", "cancelled")


class _Work(msgspec.Struct):
    """One call on its way through the stages.

    Attributes:
        catalog, policy: those of its run.
        started: on Trio's clock; ``ended``: when its tool did, if nothing waits after that, or 0.
        args: valid arguments, once they are parsed; a gate may replace them.
        limit: bytes of its result that fit in the transcript.
        attempt: its place under the tool's breakers, once it has one.
        asked: those who want a person to approve it.
        later: it waits for a person, and runs when its run is resumed.
        rules: of the policy when that was asked; a reload brings others.
    """

    request: ExecuteCall
    context: Context[object]
    catalog: ToolCatalog
    policy: PolicyEngine
    started: float
    ended: float = 0.0
    args: JsonObject = {}
    limit: int = INLINE_LIMIT
    attempt: Attempt | None = None
    asked: list[Asking] = []
    later: bool = False
    rules: Rules | None = None

    def before(self) -> BeforeTool:
        ctx, call = self.context, self.request.call
        where = ctx.run_id, ctx.session, ctx.agent, ctx.principal
        return BeforeTool(*where, call.id, call.name, self.args)

    def after(self, result: CallResult) -> AfterTool:
        ctx, ended = self.context, (result.ok, result.text, result.ms, result.error_id)
        where = ctx.run_id, ctx.session, ctx.agent, ctx.principal
        return AfterTool(*where, result.call_id, result.name, self.args, *ended)

    def replace_args(self, tool: Tool, replaced: JsonObject) -> _End | None:
        """Strictly: the tool gets exactly what later gates and the person have seen."""
        try:
            self.args = tool.accepts.check(replaced, strict=True)
        except ArgumentError as error:
            return _denied(f"a gate replaced the arguments by invalid ones:\n{error}")
        return None


class ToolExecutor(Actor[ExecuteCall]):
    """Executes calls, many at once.

    Cancelling the ask cancels the tool and waits for its clean-up (G1); observers hear of that
    call too.

    Args:
        context: makes the context that a call runs in.
        results: stores results that do not fit in a transcript; without it they are cut.
        policy: without it all is allowed.
        approvals: without it, a call that needs an approval is denied.
        toolset_of: the catalog and policy of a run, in place of ``catalog`` and ``policy``.
    """

    def __init__(
        self,
        catalog: ToolCatalog,
        hooks: HooksClient,
        reporter: ErrorChannel,
        context: MakeContext,
        *,
        results: ActorRef[ResultProtocol] | None = None,
        breakers: Breakers | None = None,
        warn: Warn | None = None,
        policy: PolicyEngine | None = None,
        approvals: Approver | None = None,
        toolset_of: ToolsetOf | None = None,
    ) -> None:
        self._catalog = catalog
        self._toolset_of = toolset_of
        self._hooks = hooks
        self._reporter = reporter
        self._context = context
        self._results = results
        self._breakers = breakers or Breakers()
        self._warn = warn
        self._policy = policy or PolicyEngine(catalog)
        self._approvals = approvals
        self._call_scopes = approvals.call_scopes if approvals is not None else {}

    @handles(ExecuteCall, concurrent=AT_ONCE)
    async def execute(self, request: ExecuteCall) -> CallResult:
        try:
            toolset = self._toolset_of(request.run_id) if self._toolset_of is not None else None
            context = self._context(request)
        except Exception as error:
            end = await self._failed(request, error, failure="infrastructure")
            return end.of(request.call, str(end.value))
        catalog = self._catalog if toolset is None else toolset.catalog
        policy = self._policy if toolset is None else toolset.policy
        work = _Work(request, context, catalog, policy, trio.current_time())
        result: CallResult | None = None
        try:
            end = await self._end_of(work)
            if is_plain(end.value, work.limit):
                result = end.of(request.call, end.value)
            else:
                work.ended, result = 0.0, await self._shown(work, end)
        finally:
            ms = ((work.ended or trio.current_time()) - work.started) * 1000
            ended = replace(result or CUT_OFF.of(request.call, str(CUT_OFF.value)), ms=ms)
            watched = "after_tool" in self._hooks.hooks.points
            if result is None and watched:
                self._hooks.notify(work.after(ended))
        if work.later or not watched or ended.outcome == NOT_BEGUN.outcome:
            return ended
        return await self._reviewed(work, ended)

    async def _end_of(self, work: _Work) -> _End:
        """Pass a call through the stages. Each gives the call's end, or None to go on.

        Cheap refusals come first: no hook and no person decides on a call that could not run. The
        person comes last, and sees the arguments that the hooks have left.
        """
        tool = self._find(work)
        if isinstance(tool, _End):
            return tool
        verdict: Verdict = "abandoned"
        try:
            # No coroutine is made for hooks and tools that are not there to be asked.
            end = (
                self._ask_policy(work, tool)
                or await self._parse(work, tool)
                or self._ask_breaker(work, tool)
                or ("before_tool" in self._hooks.hooks.points and await self._ask_hooks(work, tool))
                or (tool.approval is not False and await self._ask_tool(work, tool))
                or await self._authorize(work, tool)
                or await self._run(work, tool)
            )
            verdict = verdict_of(end.outcome, end.failure)
        finally:
            # The one place that ends an attempt, in every case, or its breakers would be stuck.
            opened = "" if work.attempt is None else self._breakers.end(work.attempt, verdict)
        if opened:
            self._degraded(work, "tools", opened)
        return end

    # The stages

    def _find(self, work: _Work) -> Tool | _End:
        try:
            tool = work.catalog.get(work.request.agent, work.request.call.name)
        except UnknownName as unknown:
            text = self._no_tool(work, unknown.name)
            return _End(text, "failed", "not_found", failure="argument")
        work.limit = min(tool.max_output, INLINE_LIMIT)
        return tool

    def _ask_policy(self, work: _Work, tool: Tool) -> _End | None:
        """May it be called at all, and now? For the model, a denied tool does not exist."""
        policy, request, subjects = work.policy, work.request, work.context.subjects
        work.rules = policy.rules
        ruling = policy.ruling(subjects, tool)
        if ruling.effect == "deny":
            log.info("denied by policy", tool=tool.name, rule=ruling.rule, run=request.run_id)
            return _End(self._no_tool(work, tool.name), "denied", "denied", failure="refusal")
        if ruling.effect == "ask":
            reason = ruling.reason or f"the policy requires an approval ({ruling.rule})"
            work.asked.append(Asking("policy", reason))
        call = f"{request.run_id}/{request.call.id}"
        if late := policy.wait(subjects, tool, call, work.started):
            return _End(late, "denied", "rate_limit", failure="refusal")
        return None

    async def _parse(self, work: _Work, tool: Tool) -> _End | None:
        """A check that may take long has a thread, so that it holds nothing else."""
        accepts, sent = tool.accepts, work.request.call.arguments
        try:
            if accepts.is_quick(sent):
                work.args = accepts.parse(sent)
            else:
                work.args = await trio.to_thread.run_sync(accepts.parse, sent)
        except ArgumentError as error:
            text = f"Invalid arguments for {tool.name!r}, nothing was done:\n{error}"
            return _End(text, "failed", "validation", failure="argument")
        except Exception as error:  # of the check itself: the tool was not called
            return await self._failed(work.request, error)
        return None

    def _ask_breaker(self, work: _Work, tool: Tool) -> _End | None:
        request = work.request
        attempt = self._breakers.attempt(
            request.agent, tool.name, request.principal, request.sender
        )
        if attempt.refusal:
            return _End(attempt.refusal, "failed", "unavailable", failure="refusal")
        work.attempt = attempt
        return None

    async def _ask_hooks(self, work: _Work, tool: Tool) -> _End | None:
        """None is the permission of the gates, given for ``work.args``."""
        verdict = await self._hooks.ask(work.before())
        match verdict.decision:
            case Allow(args=replaced):
                return None if replaced is None else work.replace_args(tool, replaced)
            case Ask():
                work.asked += [Asking(f"hook {name}", why) for name, why in verdict.asked]
                return None if verdict.args is None else work.replace_args(tool, verdict.args)
            case Respond(text=text):
                return _End(text, "answered")
            case Deny(reason=reason) | Abort(reason=reason):
                return _denied(reason)
            case other:
                return _denied(f"{type(other).__name__} is not a verdict on a call")

    async def _ask_tool(self, work: _Work, tool: Tool) -> _End | None:
        """Add the request of the tool's own declaration for a person, if any. It ends no call."""
        work.asked += await asked_by_tool(tool, work.context, work.args)
        return None

    async def _authorize(self, work: _Work, tool: Tool) -> _End | None:
        """None is the permission to begin now, with the current ``work.args``.

        The approver is asked about every call, since a call in order waits there for its turn, and
        one with effects until it is on disk.
        """
        if self._approvals is None:
            if not work.asked:
                return None
            reasons = "; ".join(one.reason for one in work.asked)
            return _denied(f"a person has to decide, and there is nobody to ask: {reasons}")
        is_due = not work.asked and work.rules is work.policy.rules
        if is_due and self._approvals.clear(work.request, tool):
            return None
        permission = await self._approvals.authorize(work.request, tool, work.args, work.asked)
        if not permission.refusal:
            if permission.approved != work.context.approved:
                work.context = attrs.evolve(work.context, approved=permission.approved)
            return self._ask_again(work, tool) if work.rules is not work.policy.rules else None
        work.later = permission.kind == LATER
        if work.later:
            return _End(NOT_YET, "cancelled_before_start", LATER)
        if permission.kind == NOT_STORED:
            return _End(permission.refusal, "failed", NOT_STORED, failure="refusal")
        return replace(_denied(permission.refusal), kind=permission.kind)

    def _ask_again(self, work: _Work, tool: Tool) -> _End | None:
        """A reload came while the call waited: its rules hold for all that has not begun."""
        was_asked = bool(work.asked)
        if (end := self._ask_policy(work, tool)) is not None or was_asked or not work.asked:
            return end
        return _denied(f"since it was called, {work.asked[0].reason}: call it again")

    async def _run(self, work: _Work, tool: Tool) -> _End:
        """Run the tool. The class of a failure decides where it counts.

        None begins after a cancellation that no stage before has met, or that a gate swallowed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        call, late, waits = (work.request.run_id, work.request.call.id), False, ""
        under_way = UnderWay(call[0], f"tool {tool.name!r}")
        if self._approvals is not None:
            under_way.start = partial(self._approvals.begin, work.request)
        if not tool.begins_itself and not under_way.begin():
            return NOT_BEGUN
        try:
            with trio.CancelScope(deadline=under_way.began + tool.timeout) as scope, under_way:
                # The approver moves the deadline: a child's wait for approval does not count.
                self._call_scopes[call] = scope
                programs = work.context.programs
                programs.ended = False
                try:
                    value = await tool.run(work.context, work.args)
                except Exception as raised:
                    came = trio.current_time()
                    turn = self._turn(raised, programs) if came < scope.deadline else None
                    if turn is None:
                        with foreign_code:
                            raise
                    # Handled in its turn: thousands of scopes that close at once hold up the loop.
                    if scope.deadline < came + LONG:  # a fifth of all that is done until its turn
                        scope.deadline = inf
                    waits = type(raised).__name__
                    try:
                        await turn()  # before anything is made for it, even a coroutine
                    except BaseException:
                        self._reporter.leave(*self._described(work.request, raised), came)
                        raise
                    return await self._failed(work.request, raised, came=came)
                except BaseException:
                    with foreign_code:
                        raise
                finally:
                    # A tool that goes on after its time-out: a function in a thread. It works in
                    # real time: neither a test's clock nor a busy loop makes it late.
                    late = (now := trio.current_time()) > scope.deadline
                    late = late and (not under_way.worked or under_way.worked > tool.timeout)
                    del self._call_scopes[call]
                    programs.ended = True
                    if programs.children:
                        await programs.end()
                        now = trio.current_time()
                if not late:
                    work.ended = now
                    return _End(value, "done")
        except Exception as raised:
            error = sole(raised)
            if is_a(error, NotBegun):
                return NOT_BEGUN
            if late and failure_class(error) not in ("fault", "infrastructure"):  # an answer
                return await self._timed_out(work, tool, under_way, went_on=True)
            if is_a(error, ToolRetry):
                return _End(message_of(error), "failed", "retry", failure="argument")
            if is_a(error, ToolDenied):
                return _denied(message_of(error))
            if is_a(error, ToolNegative):  # an answer, whole, and nothing to look up
                return _End(error.value, "failed", error.kind, failure="negative")
            if not is_a(error, NeedsApproval):
                return await self._failed(work.request, error)
            said = message_of(error)
        except BaseExceptionGroup as cut:
            # Cancelled, and a part of it has failed in its clean-up: it was cut all the same.
            failed, going_on = cut.split(Exception)
            if failed is None or going_on is None:
                raise
            log.warning("a cancelled tool has failed", tool=tool.name, exc_info=failed)
            raise going_on from None
        else:
            if waits:  # the time-out came before its turn
                return _End(f"Error: {waits}; stored later", "failed", "unknown", failure="fault")
            went_on = late and not scope.cancelled_caught
            return await self._timed_out(work, tool, under_way, went_on=went_on)
        return await self._asked(work, tool, said)

    async def _asked(self, work: _Work, tool: Tool, said: str) -> _End:
        """The tool has done nothing yet and asks for a person: back to that stage, once."""
        if work.context.approved:
            text = f"{tool.name!r} asks for an approval that it has: see ctx.approved"
            return await self._failed(work.request, RuntimeError(text))
        work.asked.append(Asking("call", said))
        return await self._authorize(work, tool) or await self._run(work, tool)

    def _turn(
        self, raised: Exception, programs: CallPrograms
    ) -> Callable[[], Awaitable[None]] | None:
        """Waits for its turn, if this is a plain failure, and so many fail now that each waits."""
        spool = self._reporter.spool
        if spool is None or not spool.is_crowded or programs.children:
            return None
        return None if issubclass(type(raised), _NO_PLAIN) else spool.turn

    async def _timed_out(
        self, work: _Work, tool: Tool, under_way: UnderWay, *, went_on: bool
    ) -> _End:
        """The end of a call that had no result in time, by what became of its work."""
        if went_on:
            took = trio.current_time() - under_way.began
            became = f"it could not be stopped and went on to its end, which took {took:.3g} s"
            became += " in all: its effect has happened, and its result is lost"
        elif not under_way.begun:
            became = f"it waited for {under_way.waits_for} and never began: nothing was done"
        else:
            became = "it was stopped"
        error = TimeoutError(f"no result within {tool.timeout:g} s; {became}")
        return await self._failed(work.request, error, kind="timeout")

    # The result

    async def _shown(self, work: _Work, end: _End) -> CallResult:
        """The result as the model gets it. Shielded: the call has had its effect already (G1)."""
        request, call = work.request, work.request.call
        with trio.CancelScope(shield=True):
            read = await worked_on(end.value, lambda: readable(end.value))
            if read.fits(work.limit):
                return end.of(call, read.text)
            where, user = request.session, work.context.principal.user
            shown = await inline(
                self._results, session=where, tool=call.name, read=read, limit=work.limit, user=user
            )
            if shown.problem:
                self._degraded(work, "results", f"not stored whole: {shown.problem}")
            return end.of(call, shown.text, shown.result_id)
        raise AssertionError("nobody cancels this scope")

    async def _reviewed(self, work: _Work, result: CallResult) -> CallResult:
        """The result as the ``after_tool`` hooks leave it; they cannot undo the call.

        Cancelled meanwhile: the result is lost, like that of a call that was cut off.
        """
        verdict = await self._hooks.ask(work.after(result))
        match verdict.decision:
            case Replace(text=str(text)):
                value = text
            case Abort(reason=reason):
                value = f"[The result of this call is withheld by {verdict.hook!r}: {reason}]"
            case _:
                return result
        end = _End(value, result.outcome, result.kind, result.error_id, result.failure)
        return replace(await self._shown(work, end), ms=result.ms)

    # Failures

    def _no_tool(self, work: _Work, name: str) -> str:
        allowed = work.policy.allowed_names(work.context.subjects)
        near = work.catalog.nearest_first(work.request.agent, name, allowed)
        return f"There is no tool {name!r}. Available tools, nearest first: {near}"

    async def _failed(
        self,
        request: ExecuteCall,
        error: BaseException,
        kind: str = "",
        failure: FailureClass | None = None,
        came: float | None = None,
    ) -> _End:
        """Store the error; the model gets the reporter's summary. ``came``: see the reporter."""
        described, tool = self._described(request, error), request.call.name
        if issubclass(type(error), ToolFailure):
            with _reading(tool):
                kind = cast("ToolFailure", error).kind
        try:
            report = await self._reporter.report(*described, came)
        except Exception:  # the first error is reported, not that of the store
            report = Reported(fallback_text(message_of(error), described[2]), None, "unknown")
            kind, told = kind or "unknown", report.text
        else:
            kind, told = kind if is_kind(kind) else report.kind, report.told
        # Not before it is reported: of thousands that fail at once, each waits there for its turn.
        found: FailureClass = failure or "fault"
        with _reading(tool):
            found = failure or failure_class(error)
        return _End(told, "failed", kind, report.error_id, found)

    def _described(
        self, request: ExecuteCall, error: BaseException
    ) -> tuple[Origin, BaseException, str, JsonObject | None]:
        """The call, its error, and the code and the detail that the error has."""
        code, detail, call = "", None, request.call
        if issubclass(type(error), ToolFailure):
            with _reading(call.name):
                code, detail = cast("ToolFailure", error).code, cast("ToolFailure", error).detail
        where = request.session, call.name, request.run_id, call.id
        origin = Origin(*where, request.agent, request.principal, call.arguments)
        return origin, error, code, detail

    def _degraded(self, work: _Work, source: str, message: str) -> None:
        request = work.request
        log.warning(message, source=source, run=request.run_id, session=request.session)
        if self._warn is not None:
            self._warn(request.run_id, Warned(source, message))


_ODD = BaseExceptionGroup, StopIteration, StopAsyncIteration
_NO_PLAIN = (NotBegun, ToolRetry, ToolDenied, ToolNegative, NeedsApproval, *_ODD)


@contextmanager
def _reading(tool: str) -> Generator[None]:
    """Around a look at an error, whose attributes may raise."""
    try:
        with foreign_code:
            yield
    except Exception as worse:
        log.warning("an error cannot be read", tool=tool, exc_info=worse)


def _denied(reason: str) -> _End:
    return _End(f"Permission denied: {reason}", "denied", "denied", failure="refusal")
