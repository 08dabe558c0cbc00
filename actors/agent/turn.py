"""The turn: think, act, observe, as a state machine without I/O.

The shell feeds it observations (a model's answer, the results of calls) and carries out the
decision it returns. The turn owns the rows the run adds to the transcript, and keeps them
closable at every moment (G7): whatever happens, ``finish`` and ``stop`` leave valid rows.
Source: seed 002, phases 3 to 6.

    ready --begin--> model --answered--> tools --observed--> model ... --> ended
                       |                   '--observed (too many failures)--> ended
                       '--answered (no calls)--> ended
    any --stop / fail / limit--> ended
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import attrs
import msgspec
from msgspec.structs import replace

from motet.actors.agent.transcript import close_calls, gap
from motet.actors.errors.failures import Failures, failures_before
from motet.actors.errors.tracker import Escalation
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.escalations import NewEscalation
from motet.protocols.limits import Limits
from motet.protocols.models import ModelResponse, Usage
from motet.protocols.sessions import RunStatus
from motet.protocols.tools import CallResult

State: TypeAlias = Literal["ready", "model", "tools", "ended"]

EMPTY_ANSWER = "[The model gave an empty answer]"
STOPPED = "[Stopped by user]"


class TurnStateError(Exception):
    """The shell fed an observation that the turn was not waiting for: a bug in the shell."""


class CallModel(msgspec.Struct, frozen=True):
    """Ask the model. ``hint`` is shown to it after the rows and never stored."""

    iteration: int
    offer_tools: bool = True
    hint: str = ""


class RunCalls(msgspec.Struct, frozen=True):
    """Run these calls, then give back one result for each, in this order."""

    calls: tuple[Call, ...]


class Finish(msgspec.Struct, frozen=True):
    """The turn has ended. ``detail`` is the limit's name, or what failed, or who stopped it.

    ``escalation`` is what a person is told of a turn that ended as ``escalated``.
    """

    status: RunStatus
    output: str = ""
    detail: str = ""
    escalation: NewEscalation | None = None


Decision: TypeAlias = CallModel | RunCalls | Finish


def _none_before(turn: Turn) -> Failures:
    return failures_before((), turn.limits)


@attrs.define
class Turn:
    """One user input to one final answer.

    Attributes:
        rows: what this run adds to the transcript, closed after the turn has ended.
        iteration: model requests so far.
        usage: sum over this run's model requests.
        failures: the session's failed calls so far; set them before the first results.
    """

    limits: Limits
    state: State = "ready"
    rows: list[ChatMessage] = attrs.field(factory=list[ChatMessage])
    iteration: int = 0
    tool_calls: int = 0
    usage: Usage = attrs.field(factory=Usage)
    results: list[CallResult] = attrs.field(factory=list[CallResult])
    failures: Failures = attrs.field(default=attrs.Factory(_none_before, takes_self=True))
    _closing: str = ""

    def begin(self, text: str, author: str | None = None) -> Decision:
        """Take the user's input; the text is cut at ``limits.message_chars`` with a notice."""
        self._expect("ready")
        self.rows.append(UserMessage(clip(text, self.limits.message_chars), author))
        return self._think()

    def answered(self, response: ModelResponse) -> Decision:
        """Take the model's answer to the last :class:`CallModel`."""
        self._expect("model")
        self.usage += response.usage
        if not response.calls:
            return self._conclude(response.text)
        self.rows.append(AssistantMessage(response.text, response.calls))
        if self._closing:
            return self._end("limited", response.text, self._closing)
        if self._over_budget(len(response.calls)):
            self._closing = "tool_calls"
            self._observe([_refusal(call, self.limits) for call in response.calls])
            return self._think()
        self.state = "tools"
        self.tool_calls += len(response.calls)
        return RunCalls(response.calls)

    def observed(self, results: Sequence[CallResult], now: float = 0.0) -> Decision:
        """Take the results of the last :class:`RunCalls`, one for each call, in call order.

        ``now``: Unix seconds, for the record of what failed.
        """
        self._expect("tools")
        calls = self._open_calls()
        if [result.call_id for result in results] != [call.id for call in calls]:
            raise TurnStateError(f"results {results!r} do not match calls {calls!r}")
        judged = [self._judge(*pair, now) for pair in zip(calls, results, strict=True)]
        self._observe([result for result, _ in judged])
        escalation = next((found for _, found in judged if found), None)
        return self._escalate(escalation) if escalation else self._think()

    def continued(self, response: ModelResponse, text: str) -> Decision:
        """Take an answer that a gate does not accept as the last: the model gets ``text`` next.

        When no request is left, the answer is the last one all the same.
        """
        self._expect("model")
        self.usage += response.usage
        if self._closing or self.iteration >= self.limits.turns:
            self._closing = self._closing or "turns"
            return self._conclude(response.text)
        self.rows += [AssistantMessage(response.text or EMPTY_ANSWER), UserMessage(text)]
        return self._think()

    def stop(self, partial: str = "", done: Sequence[CallResult] = ()) -> Finish:
        """End at once, whatever was going on. Valid in every state but ``ended``.

        ``partial`` is text the model had streamed, ``done`` the results that are known; the other
        calls are closed as not started.
        """
        return self._cut(
            "cancelled", AssistantMessage(_join(partial, STOPPED), note="stopped"), done
        )

    def fail(self, message: str, partial: str = "", done: Sequence[CallResult] = ()) -> Finish:
        """End because the model, a gate or motet itself failed."""
        note = AssistantMessage(_join(partial, f"[Failed: {message}]"), note="failed")
        return self._cut("failed", note, done, message)

    def limit(self, name: str, partial: str = "", done: Sequence[CallResult] = ()) -> Finish:
        """End because a limit that the shell watches (wall time) is used up."""
        note = AssistantMessage(_join(partial, f"[Ended by the limit: {name}]"), note="limited")
        return self._cut("limited", note, done, name, partial)

    def _think(self) -> Decision:
        if self.limits.tokens is not None and self.usage.total_tokens >= self.limits.tokens:
            return self._end("limited", "", "tokens")
        if self.iteration >= self.limits.turns:
            return self._end("limited", "", "turns")
        self.state = "model"
        self.iteration += 1
        if self.iteration == self.limits.turns and self.iteration > 1:
            self._closing = self._closing or "turns"
        return CallModel(self.iteration, not self._closing, self._hint())

    def _judge(
        self, call: Call, result: CallResult, now: float
    ) -> tuple[CallResult, Escalation | None]:
        """Count a result, here and nowhere else, and put the advice it earns behind its text."""
        self.failures, advice = self.failures.ended(
            call, result.outcome, result.text, result.kind, now
        )
        if advice:
            result = replace(result, text=f"{result.text}\n{advice}")
        return result, self.failures.tracker.escalation

    def _escalate(self, escalation: Escalation) -> Finish:
        reason = escalation.explanation
        self.rows.append(AssistantMessage(f"[Handed to a person: {reason}]", note="escalated"))
        self.state = "ended"
        handed = NewEscalation(escalation.tool_name, reason)
        return Finish("escalated", detail=reason, escalation=handed)

    def _hint(self) -> str:
        if self._closing:
            return (
                f"[The limit of this run is reached ({self._closing}). "
                "No tools are available any more: give your final answer now.]"
            )
        left = self.limits.turns - self.iteration + 1
        for share in (0.7, 0.9):
            if self.iteration == int(self.limits.turns * share) + 1 and self.iteration > 2:
                return f"[{left} of {self.limits.turns} model requests are left in this run.]"
        return ""

    def _over_budget(self, calls: int) -> bool:
        allowed = self.limits.tool_calls
        return allowed is not None and self.tool_calls + calls > allowed

    def _conclude(self, text: str) -> Finish:
        self.rows.append(AssistantMessage(text or EMPTY_ANSWER))
        self.state = "ended"
        status: RunStatus = "limited" if self._closing else "completed"
        return Finish(status, text, self._closing)

    def _observe(self, results: Sequence[CallResult]) -> None:
        self.results += results
        self.rows += [row_of(result) for result in results]

    def _open_calls(self) -> tuple[Call, ...]:
        last = self.rows[-1] if self.rows else None
        return last.calls if isinstance(last, AssistantMessage) else ()

    def _end(self, status: RunStatus, output: str, detail: str) -> Finish:
        self.rows += [gap(call, "cancelled_before_start") for call in self._open_calls()]
        self.rows.append(AssistantMessage(f"[Ended by the limit: {detail}]", note="limited"))
        self.state = "ended"
        return Finish(status, output, detail)

    def _cut(
        self,
        status: RunStatus,
        note: AssistantMessage,
        done: Sequence[CallResult],
        detail: str = "",
        output: str = "",
    ) -> Finish:
        if self.state == "ended":
            raise TurnStateError("the turn has ended already")
        known = {call.id for call in self._open_calls()}
        self._observe([result for result in done if result.call_id in known])
        self.rows = list(close_calls(self.rows, "cancelled_before_start"))
        if self.rows:
            self.rows.append(note)
        self.state = "ended"
        return Finish(status, output, detail)

    def _expect(self, state: State) -> None:
        if self.state != state:
            raise TurnStateError(f"the turn is {self.state!r}, not {state!r}")


def row_of(result: CallResult) -> ToolMessage:
    """The transcript row of a call's result."""
    return ToolMessage(result.call_id, result.name, result.text, result.outcome)


def clip(text: str, limit: int) -> str:
    """At most ``limit`` code points of the text, with a notice behind when something is gone."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[Message cut: {len(text)} characters, {limit} kept]"


def _refusal(call: Call, limits: Limits) -> CallResult:
    text = f"[Not run: the limit of {limits.tool_calls} tool calls in one run is reached]"
    return CallResult(call.id, call.name, text, "denied", kind="limit")


def _join(partial: str, note: str) -> str:
    return f"{partial.rstrip()}\n\n{note}" if partial.strip() else note
