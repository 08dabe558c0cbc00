"""One call in, one result out: find the tool, check the arguments, ask the gates, run, report.

Invariants: every call has exactly one result, whatever the tool, its gates, its observers and the
error store do; a tool runs only after the verdict on this very call (G10), with the arguments
the verdict was given on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import attrs
import trio
from msgspec.structs import replace

from motet.actors.hooks.actor import Gate, Observe
from motet.actors.hooks.client import HooksClient
from motet.actors.hooks.hookset import HookSet
from motet.actors.tools.arguments import ArgumentError
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.context import Context
from motet.actors.tools.output import cut, render, safe
from motet.actors.tools.tool import Tool, ToolFailure, ToolRetry
from motet.protocols.chat import JsonObject, Outcome
from motet.protocols.errors import UnknownName
from motet.protocols.hooks import AfterTool, Allow, BeforeTool, Respond
from motet.protocols.tools import CallResult, ExecuteCall
from motet.runtime import Actor, ActorRef, handles
from motet.runtime.errors import only_error

AT_ONCE = 256
"""Calls of all runs together. Generous: a call that runs another agent keeps its place while that
agent's calls need places too."""

FALLBACK_CHARS = 500

MakeContext: TypeAlias = Callable[[ExecuteCall], Context[object]]


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
        self, *, session: str, run_id: str, tool: str, error: object, code: str = ""
    ) -> Report: ...


@attrs.define
class _Work:
    """One call under way. ``args`` are those it runs with, once they are known to be valid."""

    request: ExecuteCall
    context: Context[object]
    args: JsonObject = attrs.field(factory=dict[str, object])

    def ended(
        self, text: str, outcome: Outcome, kind: str = "", error_id: str | None = None
    ) -> CallResult:
        call = self.request.call
        return CallResult(call.id, call.name, text, outcome, kind, error_id)

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
    that call too. ``context`` says for whom a call runs; ``hooks_ref`` is the Hooks actor.
    """

    def __init__(
        self,
        catalog: ToolCatalog,
        hooks: HookSet,
        hooks_ref: ActorRef[Gate | Observe] | None,
        reporter: Reporter,
        context: MakeContext,
    ) -> None:
        self._catalog = catalog
        self._hooks = HooksClient(hooks, hooks_ref)
        self._reporter = reporter
        self._context = context

    @handles(ExecuteCall, concurrent=AT_ONCE)
    async def execute(self, request: ExecuteCall) -> CallResult:
        try:
            work = _Work(request, self._context(request))
        except Exception as error:
            return await self._failed(request, error)
        started = trio.current_time()
        result = work.ended("Cancelled.", "cancelled_while_running", "cancelled")
        try:
            result = await self._settle(work)
        finally:
            result = replace(result, ms=(trio.current_time() - started) * 1000)
            self._hooks.notify(work.after(result))
        return result

    async def _settle(self, work: _Work) -> CallResult:
        request, call = work.request, work.request.call
        try:
            tool = self._catalog.get(request.agent, call.name)
        except UnknownName as unknown:
            near = self._catalog.nearest_first(request.agent, call.name)
            text = f"There is no tool {unknown.name!r}. Available tools, nearest first: {near}"
            return work.ended(safe(text), "failed", "not_found")
        try:
            work.args = tool.accepts.parse(call.arguments)
        except ArgumentError as error:
            text = f"Invalid arguments for {tool.name!r}, nothing was done:\n{error}"
            return work.ended(cut(safe(text), tool.max_output), "failed", "validation")
        return await self._refused(work, tool) or await self._run(work, tool)

    async def _refused(self, work: _Work, tool: Tool) -> CallResult | None:
        """Ask the gates. None is their permission, given for ``work.args``."""
        match await self._hooks.verdict(work.before()):
            case Allow(args=replaced):
                return None if replaced is None else _replace_args(work, tool, replaced)
            case Respond(text=text):
                return work.ended(render(text, tool.max_output), "done")
            case verdict:
                return _denied(work, tool, verdict.reason)

    async def _run(self, work: _Work, tool: Tool) -> CallResult:
        try:
            with trio.move_on_after(tool.timeout):
                value = await tool.run(work.context, work.args)
                return work.ended(render(value, tool.max_output), "done")
        except (Exception, SystemExit) as raised:
            error = only_error(raised)
            if isinstance(error, ToolRetry):
                return work.ended(cut(safe(str(error)), tool.max_output), "failed", "retry")
            return await self._failed(work.request, error)
        late = TimeoutError(f"no result within {tool.timeout:g} s; it was stopped")
        return await self._failed(work.request, late, kind="timeout")

    async def _failed(
        self, request: ExecuteCall, error: BaseException, kind: str = ""
    ) -> CallResult:
        """Store the error; the model gets what the reporter makes of it."""
        call, code = request.call, ""
        if isinstance(error, ToolFailure):
            code, kind = error.code, error.kind
        try:
            report = await self._reporter.report(
                session=request.session,
                run_id=request.run_id,
                tool=call.name,
                error=_whole(error),
                code=code,
            )
        except Exception:  # an error about an error helps nobody: the first one is told
            text = cut(safe(f"Tool {call.name!r} failed: {_message(error)}"), FALLBACK_CHARS)
            return CallResult(call.id, call.name, text, "failed", kind or "unknown")
        return CallResult(
            call.id, call.name, safe(report.text), "failed", kind or report.kind, report.error_id
        )


def _replace_args(work: _Work, tool: Tool, replaced: JsonObject) -> CallResult | None:
    """Strictly: what a gate after the replacement saw is what the tool gets."""
    try:
        work.args = tool.accepts.check(replaced, strict=True)
    except ArgumentError as error:
        return _denied(work, tool, f"a gate replaced the arguments by invalid ones:\n{error}")
    return None


def _denied(work: _Work, tool: Tool, reason: str) -> CallResult:
    text = cut(safe(f"Permission denied: {reason}"), tool.max_output)
    return work.ended(text, "denied", "denied")


def _whole(error: BaseException) -> object:
    """What is stored: the exception, or the structure the tool gave with it."""
    if isinstance(error, ToolFailure) and error.detail is not None:
        return {**error.detail, "message": str(error)}
    return error


def _message(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # the tool's own exception class
        return type(error).__name__
