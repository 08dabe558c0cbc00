"""One call in, one result out: find the tool, check it all, ask the gates, run, report.

Invariants: every call has exactly one result, whatever the tool, its gates, its observers and the
stores do; a tool runs only after the verdict on this very call (G10), with the arguments the
verdict was given on; every text that a model is given went through the one rule for results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import attrs
import msgspec
import trio
from msgspec.structs import replace

from motet.actors.errors.classify import fallback_text
from motet.actors.errors.log import logger
from motet.actors.errors.text import message_of
from motet.actors.hooks.chain import HooksClient
from motet.actors.tools.arguments import ArgumentError
from motet.actors.tools.breakers import Attempt, Breakers
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.context import Context
from motet.actors.tools.policy.engine import PolicyEngine
from motet.actors.tools.results import INLINE_LIMIT, inline, readable
from motet.actors.tools.tool import Tool, ToolDenied, ToolFailure, ToolRetry, asked_by_tool
from motet.protocols.approvals import LATER, Asking, NeedsApproval, Permission
from motet.protocols.chat import Call, JsonObject, Outcome
from motet.protocols.errors import UnknownName
from motet.protocols.events import AnyEvent, Warned
from motet.protocols.hooks import Abort, AfterTool, Allow, Ask, BeforeTool, Deny, Replace, Respond
from motet.protocols.policy import Subject
from motet.protocols.results import ResultProtocol
from motet.protocols.tools import CallResult, ExecuteCall
from motet.runtime import Actor, ActorRef, handles
from motet.runtime.errors import only_error

log = logger(__name__)

AT_ONCE = 1 << 20
"""Calls of all runs together: no bound. What bounds them is how many runs there are and how many
calls each makes at once. Any number that can be reached could be filled by calls that run another
agent, and wait for calls of its that have no place."""

MakeContext: TypeAlias = Callable[[ExecuteCall], Context[object]]
Warn: TypeAlias = Callable[[str, AnyEvent], None]
"""Publishes an event of a run; never waits, never fails."""


class Rules(Protocol):
    """The tools that the calls of a run may name, and the policy that allows them."""

    @property
    def catalog(self) -> ToolCatalog: ...
    @property
    def policy(self) -> PolicyEngine: ...


RulesOf: TypeAlias = Callable[[str], Rules | None]
"""The rules of a run, by its id. None: those that the executor was made with."""


class Approver(Protocol):
    """Lets calls begin that a person has to approve.

    ``call_scopes``: the time-outs of running calls, by (run, call). A wait for a person extends
    those of the calls that wait for its run.
    """

    @property
    def call_scopes(self) -> dict[tuple[str, str], trio.CancelScope]: ...

    async def authorize(
        self, request: ExecuteCall, args: JsonObject, asked: Sequence[Asking], /
    ) -> Permission:
        """Wait until the call may begin, or may not. Raises nothing but a cancellation."""
        ...


class Report(Protocol):
    """What was made of an error: the text for the model, the stored error's id, its class."""

    @property
    def text(self) -> str: ...
    @property
    def error_id(self) -> str | None: ...
    @property
    def kind(self) -> str: ...


class Reporter(Protocol):
    """Stores a whole error and says what the model is told instead."""

    async def report(
        self,
        *,
        session: str,
        run_id: str,
        tool: str,
        error: object,
        code: str = "",
        call_id: str = "",
    ) -> Report: ...


class _End(msgspec.Struct, frozen=True):
    """How a call ended. ``value`` is for the model, whatever its type and size."""

    value: object
    outcome: Outcome
    kind: str = ""
    error_id: str | None = None

    def of(self, call: Call, text: str, result_id: str | None = None) -> CallResult:
        """The result, where ``text`` is what the model is given of the value."""
        return CallResult(
            call.id, call.name, text, self.outcome, self.kind, self.error_id, result_id=result_id
        )


NOT_YET = "Not run: it was stopped while a person was asked to approve it."
CUT_OFF = _End("Cancelled.", "cancelled_while_running", "cancelled")


class _Work(msgspec.Struct):
    """One call under way.

    Attributes:
        catalog: the tools of its run; ``policy``: what rules on them, for ``subjects``.
        started: on Trio's clock.
        args: those it runs with, once they are known to be valid.
        limit: bytes of its result that fit in the transcript.
        asked: who wants a person to approve it, and why.
        later: it waits for a person, and will be run when its run is taken up again.
    """

    request: ExecuteCall
    context: Context[object]
    catalog: ToolCatalog
    policy: PolicyEngine
    subjects: tuple[Subject, ...]
    started: float
    args: JsonObject = {}
    limit: int = INLINE_LIMIT
    asked: list[Asking] = []
    later: bool = False

    def before(self) -> BeforeTool:
        ctx, call = self.context, self.request.call
        return BeforeTool(
            ctx.run_id, ctx.session, ctx.agent, ctx.principal, call.id, call.name, self.args
        )

    def after(self, result: CallResult) -> AfterTool:
        ctx = self.context
        return AfterTool(
            run_id=ctx.run_id,
            session=ctx.session,
            agent=ctx.agent,
            principal=ctx.principal,
            call_id=result.call_id,
            name=result.name,
            args=self.args,
            ok=result.ok,
            text=result.text,
            duration_ms=result.ms,
            error_id=result.error_id,
        )


class ToolExecutor(Actor[ExecuteCall]):
    """Executes calls, many at once.

    Cancelling the ask cancels the tool and waits for its clean-up (G1); observers are told of
    that call too. ``context`` says for whom a call runs; ``results`` keeps what does not fit
    in a transcript, and without it that is lost. ``rules_of``: the catalog and policy of a
    run, in place of ``catalog`` and ``policy``. Without ``policy`` all is allowed; without
    ``approvals`` nobody can be asked, and what needs an approval is denied.
    """

    def __init__(
        self,
        catalog: ToolCatalog,
        hooks: HooksClient,
        reporter: Reporter,
        context: MakeContext,
        *,
        results: ActorRef[ResultProtocol] | None = None,
        breakers: Breakers | None = None,
        warn: Warn | None = None,
        policy: PolicyEngine | None = None,
        approvals: Approver | None = None,
        rules_of: RulesOf | None = None,
    ) -> None:
        self._catalog = catalog
        self._rules_of = rules_of or _no_rules
        self._hooks = hooks
        self._reporter = reporter
        self._context = context
        self._results = results
        self._breakers = breakers or Breakers()
        self._warn = warn or _tell_nobody
        self._policy = policy or PolicyEngine(catalog)
        self._approvals = approvals
        self._timed = approvals.call_scopes if approvals is not None else {}

    @handles(ExecuteCall, concurrent=AT_ONCE)
    async def execute(self, request: ExecuteCall) -> CallResult:
        try:
            rules, context = self._rules_of(request.run_id), self._context(request)
        except Exception as error:
            end = await self._failed(request, error)
            return end.of(request.call, str(end.value))
        catalog = self._catalog if rules is None else rules.catalog
        policy = self._policy if rules is None else rules.policy
        work = _Work(request, context, catalog, policy, context.subjects, trio.current_time())
        result: CallResult | None = None
        try:
            result = await self._shown(work, await self._settle(work))
        finally:
            ms = (trio.current_time() - work.started) * 1000
            ended = replace(result or CUT_OFF.of(request.call, str(CUT_OFF.value)), ms=ms)
            if result is None:
                self._hooks.notify(work.after(ended))
        if work.later or not self._hooks.any_at("after_tool"):
            return ended
        return await self._passed(work, ended)

    async def _shown(self, work: _Work, end: _End) -> CallResult:
        """What the model is given of it. Shielded: the call has had its effect already (G1)."""
        request, call = work.request, work.request.call
        read = readable(end.value)
        if read.fits(work.limit):
            return end.of(call, read.text)
        with trio.CancelScope(shield=True):
            shown = await inline(
                self._results,
                session=request.session,
                tool=call.name,
                read=read,
                limit=work.limit,
            )
            if shown.problem:
                self._degraded(work, "results", f"not stored whole: {shown.problem}")
            return end.of(call, shown.text, shown.result_id)
        raise AssertionError("nobody cancels this scope")

    def _degraded(self, work: _Work, source: str, message: str) -> None:
        request = work.request
        log.warning(message, source=source, run=request.run_id, session=request.session)
        self._warn(request.run_id, Warned(source, message))

    async def _passed(self, work: _Work, result: CallResult) -> CallResult:
        """What the hooks behind the call make of its result; they cannot undo the call.

        Cancelled meanwhile: the result is lost, as that of a call which was cut off.
        """
        verdict = await self._hooks.ask(work.after(result))
        match verdict.decision:
            case Replace(text=str(text)):
                value = text
            case Abort(reason=reason):
                value = f"[The result of this call is withheld by {verdict.hook!r}: {reason}]"
            case _:
                return result
        end = _End(value, result.outcome, result.kind, result.error_id)
        return replace(await self._shown(work, end), ms=result.ms)

    async def _settle(self, work: _Work) -> _End:
        request, call = work.request, work.request.call
        try:
            tool = work.catalog.get(request.agent, call.name)
        except UnknownName as unknown:
            return _End(self._no_tool(work, unknown.name), "failed", "not_found")
        work.limit = min(tool.max_output, INLINE_LIMIT)
        if (refused := self._by_policy(work, tool)) is not None:
            return refused
        try:
            work.args = tool.accepts.parse(call.arguments)
        except ArgumentError as error:
            text = f"Invalid arguments for {tool.name!r}, nothing was done:\n{error}"
            return _End(text, "failed", "validation")
        return await self._attempt(work, tool)

    def _by_policy(self, work: _Work, tool: Tool) -> _End | None:
        """Whether it may be called at all, and now. What is denied does not exist for the model."""
        ruling = work.policy.ruling(work.subjects, tool)
        if ruling.effect == "deny":
            request = work.request
            log.info("denied by policy", tool=tool.name, rule=ruling.rule, run=request.run_id)
            return _End(self._no_tool(work, tool.name), "denied", "denied")
        if ruling.effect == "ask":
            reason = ruling.reason or f"the policy wants a person to decide ({ruling.rule})"
            work.asked.append(Asking("policy", reason))
        call = f"{work.request.run_id}/{work.request.call.id}"
        if late := work.policy.wait(work.subjects, tool, call, work.started):
            return _End(late, "denied", "rate_limit")  # the tool has not failed
        return None

    def _no_tool(self, work: _Work, name: str) -> str:
        allowed = work.policy.allowed_names(work.subjects)
        near = work.catalog.nearest_first(work.request.agent, name, allowed)
        return f"There is no tool {name!r}. Available tools, nearest first: {near}"

    async def _attempt(self, work: _Work, tool: Tool) -> _End:
        """Run it, if its breaker has a place for it and then its gates allow it."""
        attempt, end = self._breakers.attempt(work.request.agent, tool.name), None
        if attempt.refusal:
            return _End(attempt.refusal, "failed", "unavailable")
        try:
            if self._hooks.any_at("before_tool"):
                end = await self._refused(work, tool)
            end = end or await self._approved(work, tool, attempt)
        finally:
            opened = self._breakers.end(attempt)
        if opened:
            self._degraded(work, "tools", opened)
        return end

    async def _refused(self, work: _Work, tool: Tool) -> _End | None:
        """Ask the gates. None is their permission, given for ``work.args``."""
        verdict = await self._hooks.ask(work.before())
        match verdict.decision:
            case Allow(args=replaced):
                return None if replaced is None else _replace_args(work, tool, replaced)
            case Ask():
                work.asked += [Asking(f"hook {name}", why) for name, why in verdict.asked]
                return None if verdict.args is None else _replace_args(work, tool, verdict.args)
            case Respond(text=text):
                return _End(text, "answered")
            case Deny(reason=reason) | Abort(reason=reason):
                return _denied(reason)
            case other:
                return _denied(f"{type(other).__name__} is no verdict on a call")

    async def _approved(self, work: _Work, tool: Tool, attempt: Attempt) -> _End:
        """Run it, once those who want a person to decide have got their way."""
        if tool.approval is not False:
            work.asked += await asked_by_tool(tool, work.context, work.args)
        while (refused := await self._by_person(work)) is None:
            try:
                return await self._run(work, tool, attempt)
            except NeedsApproval as needs:
                if work.context.approved:
                    text = f"{tool.name!r} asks for an approval that it has: see ctx.approved"
                    return await self._failed(work.request, RuntimeError(text))
                work.asked.append(Asking("call", str(needs)))
        return refused

    async def _by_person(self, work: _Work) -> _End | None:
        """None is the permission to begin now, with ``work.args`` as they are."""
        if self._approvals is None:
            if not work.asked:
                return None
            reasons = "; ".join(one.reason for one in work.asked)
            return _denied(f"a person has to decide, and there is nobody to ask: {reasons}")
        permission = await self._approvals.authorize(work.request, work.args, work.asked)
        if not permission.refusal:
            if permission.approved != work.context.approved:
                work.context = attrs.evolve(work.context, approved=permission.approved)
            return None
        work.later = permission.kind == LATER
        if work.later:
            return _End(NOT_YET, "cancelled_before_start", LATER)
        return replace(_denied(permission.refusal), kind=permission.kind)

    async def _run(self, work: _Work, tool: Tool, attempt: Attempt) -> _End:
        """``attempt`` learns what this says of the tool; a mistake of the model says nothing.

        Raises ``NeedsApproval`` when the tool does.
        """
        call = work.request.run_id, work.request.call.id
        try:
            with trio.CancelScope(relative_deadline=tool.timeout) as scope:
                # The time in which a run that works for this call asks a person is not its.
                self._timed[call] = scope
                try:
                    value = await tool.run(work.context, work.args)
                finally:
                    del self._timed[call]
                attempt.ending = "succeeded"
                return _End(value, "done")
        except (Exception, SystemExit) as raised:
            error = only_error(raised)
            if isinstance(error, ToolRetry):
                return _End(str(error), "failed", "retry")
            if isinstance(error, ToolDenied):
                return _denied(str(error))
            if isinstance(error, NeedsApproval):
                raise error from None
            attempt.ending = "failed"
            return await self._failed(work.request, error)
        attempt.ending = "failed"
        late = TimeoutError(f"no result within {tool.timeout:g} s; it was stopped")
        return await self._failed(work.request, late, kind="timeout")

    async def _failed(self, request: ExecuteCall, error: BaseException, kind: str = "") -> _End:
        """Store the error; the model gets what the reporter makes of it."""
        code = ""
        if isinstance(error, ToolFailure):
            code, kind = error.code, error.kind
        try:
            report = await self._reporter.report(
                session=request.session,
                run_id=request.run_id,
                tool=request.call.name,
                error=_whole(error),
                code=code,
                call_id=request.call.id,
            )
        except Exception:  # an error about an error helps nobody: the first one is told
            return _End(fallback_text(message_of(error), code), "failed", kind or "unknown")
        return _End(report.text, "failed", kind or report.kind, report.error_id)


def _replace_args(work: _Work, tool: Tool, replaced: JsonObject) -> _End | None:
    """Strictly: what a gate after the replacement saw is what the tool gets."""
    try:
        work.args = tool.accepts.check(replaced, strict=True)
    except ArgumentError as error:
        return _denied(f"a gate replaced the arguments by invalid ones:\n{error}")
    return None


def _denied(reason: str) -> _End:
    return _End(f"Permission denied: {reason}", "denied", "denied")


def _whole(error: BaseException) -> object:
    """What is stored: the exception, or the structure the tool gave with it."""
    if isinstance(error, ToolFailure) and error.detail is not None:
        return {**error.detail, "message": str(error)}
    return error


def _no_rules(_run_id: str) -> Rules | None:
    """All runs share the catalog and the policy of the executor."""
    return None


def _tell_nobody(_run_id: str, _event: AnyEvent) -> None:
    """Without a host there is nobody to warn."""
