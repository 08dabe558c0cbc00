"""The hooks of one run, from its input to its end.

Everything here returns at once, without a checkpoint, where no hook is registered. Raises
``Aborted`` (and ``InputValidation`` for a denied input), which end the run as failed.
"""

from __future__ import annotations

import trio
from msgspec.structs import replace

from motet.actors.hooks.chain import HooksClient
from motet.actors.runs.run import Run
from motet.protocols import hooks
from motet.protocols.errors import Aborted, AgentError, InputValidation
from motet.protocols.hooks import AnyDecision, AnyHookEvent, Verdict
from motet.protocols.models import ModelRequest, ModelResponse, Usage
from motet.protocols.sessions import Principal, RunStatus

END_BUDGET = 5.0
"""Seconds that the hooks at a run's end, or at a session's, may take together."""


class RunHooks:
    """Asks the hooks on behalf of a run."""

    def __init__(self, run: Run, client: HooksClient) -> None:
        self._run = run
        self._client = client
        self._hooks = client.hooks
        self._continued = 0

    @property
    def _base(self) -> tuple[str, str, str, Principal]:
        """The first fields of every event; a hand-over changes the agent."""
        run = self._run
        return run.id, run.session, run.agent.name, run.input.principal

    @property
    def guard_input(self) -> bool:
        """Whether a hook decides before the input becomes a row."""
        points = self._hooks.points
        return "before_input" in points or "session_start" in points

    @property
    def guard_answers(self) -> bool:
        """Whether a hook must allow an answer before it is shown."""
        blocking = self._hooks.blocking
        return "after_model" in blocking or "before_output" in blocking

    @property
    def watch_end(self) -> bool:
        """Whether a hook watches the end of a run."""
        return "run_end" in self._hooks.points or "error" in self._hooks.points

    async def start(self, *, resumed: bool) -> None:
        """The session begins with this run."""
        await self._decided(hooks.SessionStart(*self._base, resumed))

    async def input(self, text: str) -> str | ModelResponse:
        """The input as it may enter the transcript, or the answer to give at once."""
        match await self._decided(hooks.BeforeInput(*self._base, text)):
            case hooks.Allow():
                return text
            case hooks.Replace(text=str(text)):
                return text
            case hooks.Respond(text=answer):
                return ModelResponse(text=answer)
            case _:
                return text

    async def request(self, request: ModelRequest, iteration: int) -> ModelRequest | ModelResponse:
        """The request to send, or the response to take instead of sending it."""
        if "before_model" not in self._hooks.points:
            return request
        match await self._decided(hooks.BeforeModel(*self._base, request, iteration)):
            case hooks.Allow():
                return request
            case hooks.Replace(request=ModelRequest() as request):
                return request
            case hooks.Respond(text=answer):
                return ModelResponse(text=answer)
            case _:
                return request

    async def response(self, response: ModelResponse, iteration: int) -> ModelResponse:
        """The response to go on with."""
        if "after_model" not in self._hooks.points:
            return response
        match await self._decided(hooks.AfterModel(*self._base, response, iteration)):
            case hooks.Allow():
                return response
            case hooks.Replace(response=ModelResponse() as response):
                return response
            case _:
                return response

    async def output(self, response: ModelResponse) -> ModelResponse | hooks.Continue:
        """The last answer as hooks allow it, or a text for the model so that it continues."""
        if "before_output" not in self._hooks.points:
            return response
        match await self._decided(hooks.BeforeOutput(*self._base, response.text, self._continued)):
            case hooks.Allow():
                return response
            case hooks.Replace(text=str(text)):
                return replace(response, text=text)
            case hooks.Continue() as go_on:
                self._continued += 1
                return go_on
            case _:
                return response

    async def compact(self, rows: int, tokens: int) -> bool:
        """Whether so many rows may be summarised, in a request of so many tokens."""
        if "before_compact" not in self._hooks.points:
            return True
        event = hooks.BeforeCompact(*self._base, rows, tokens)
        verdict = await self._client.ask(event)
        if isinstance(verdict.decision, hooks.Abort):
            raise _ending(event, verdict, verdict.decision.reason)
        return not isinstance(verdict.decision, hooks.Deny)

    def compacted(self, rows: int, summary: str) -> None:
        """Notify the hooks of a summary of so many rows."""
        self._client.notify(hooks.AfterCompact(*self._base, rows, summary))

    async def end(self, status: RunStatus, output: str, detail: str, usage: Usage) -> None:
        """Show the end to the hooks. Shielded, for at most :data:`END_BUDGET` seconds."""
        if "run_end" in self._hooks.points:
            await self._at_end(hooks.RunEnd(*self._base, status, output, detail, usage))

    async def failed(self, kind: str, message: str, error_id: str | None) -> None:
        """Show the failure to the hooks. Shielded, for at most :data:`END_BUDGET` seconds."""
        if "error" in self._hooks.points:
            await self._at_end(hooks.RunError(*self._base, kind, message, error_id))

    async def _at_end(self, event: AnyHookEvent) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + END_BUDGET):
            await self._client.ask(event)

    async def _decided(self, event: AnyHookEvent) -> AnyDecision:
        verdict = await self._client.ask(event)
        decision = verdict.decision
        if type(decision) is hooks.Abort or type(decision) is hooks.Deny:
            raise _ending(event, verdict, decision.reason)
        return decision


def _ending(event: AnyHookEvent, verdict: Verdict, reason: str) -> AgentError:
    if isinstance(event, hooks.BeforeInput) and isinstance(verdict.decision, hooks.Deny):
        return InputValidation(f"the input was not accepted: {reason}")
    return Aborted(verdict.hook, reason, cause=verdict.cause)
