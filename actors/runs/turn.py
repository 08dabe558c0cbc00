"""The turn: think, act, observe, as a state machine without I/O.

The shell feeds it observations (a model's answer, the results of calls) and carries out the
decision it returns. The turn owns the rows the run adds to the transcript, and keeps them
closable at every moment (G7): whatever happens, ``finish`` and ``stop`` leave valid rows.
Source: seed 002, phases 3 to 6; agent loop specification, sections 1 and 10.

    ready --begin--> model --answered--> tools --observed--> model ... --> ended
                       |                   '--observed (too many failures)--> ended
                       |--answered (cut off, or a message is waiting)--> model
                       '--answered (no calls)--> ended
    any --stop / fail / limit--> ended
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from motet.actors.errors.tracker import Escalation, Failures, counts_as, failures_before
from motet.actors.transcript import grammar as closing
from motet.actors.transcript import guards as hints
from motet.actors.transcript.grammar import close_calls, missing_result
from motet.actors.transcript.guards import Loop, LoopDetector, truncate_injected, truncate_message
from motet.protocols.approvals import TurnState
from motet.protocols.budget import NOTHING, Budget
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, JsonObject, UserMessage
from motet.protocols.errors import CompactError
from motet.protocols.escalations import NewEscalation, history_of
from motet.protocols.limits import Limits
from motet.protocols.model_answers import unique_ids
from motet.protocols.models import ModelResponse, Usage
from motet.protocols.sanitize import sanitize
from motet.protocols.sessions import RunStatus
from motet.protocols.tools import CallResult

# Answers that were cut off. A model writes from beginning to end, so only the last part can be
# incomplete; but servers stream calls in any order, so every call of such an answer is checked.

CONTINUATIONS = 3
"""How many times in a row a model may go on with an answer that was cut off."""


def is_cut(response: ModelResponse) -> bool:
    """Whether the answer was cut off at its greatest length."""
    return response.stop_reason == "length"


def goes_on(response: ModelResponse) -> bool:
    """Whether more of the answer follows with the next request: it was cut off or paused."""
    return response.stop_reason in ("length", "paused")


def incomplete(response: ModelResponse) -> frozenset[str]:
    """The ids of the calls of a cut answer whose arguments may not be all that was meant.

    The last one's empty arguments may be arguments that had not begun.
    """
    if not is_cut(response) or not response.calls:
        return frozenset()
    last = response.calls[-1]
    broken = {call.id for call in response.calls if _arguments(call) is None}
    return frozenset(broken if _arguments(last) else broken | {last.id})


def with_unique_ids(response: ModelResponse) -> ModelResponse:
    """The same answer; calls that share an id, or have none, get one of their own."""
    if not response.calls:
        return response
    ids = [call.id for call in response.calls]
    if all(ids) and len(set(ids)) == len(ids):
        return response
    pairs = zip(response.calls, unique_ids(ids), strict=True)
    return replace(response, calls=tuple(replace(call, id=id) for call, id in pairs))


def _arguments(call: Call) -> JsonObject | None:
    try:
        return msgspec.json.decode(call.arguments or "{}", type=JsonObject)
    except (msgspec.DecodeError, RecursionError):
        return None


State: TypeAlias = Literal["ready", "model", "tools", "ended"]


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

    ``output`` is empty when the model had nothing to say, or said that it will not reply.
    ``escalation`` is what a person is told of a turn that ended as ``escalated``.
    """

    status: RunStatus
    output: str = ""
    detail: str = ""
    escalation: NewEscalation | None = None


Decision: TypeAlias = CallModel | RunCalls | Finish


class Turn:
    """One user input to one final answer.

    Attributes:
        rows: what this run adds to the transcript, closed after the turn has ended.
        budget: what the run may spend, of its own and of the runs above it.
        loops: what shows that the run goes in circles.
        usage: sum over this run's model requests.
        failures: the session's failed calls so far; set them before the first results. None: none.
        waiting: messages that came in and have not entered the rows; after the end, too late. None
            is stored with the turn: the end of a child, which is one, is on disk as that child's.
        offered: texts that may enter with the next decision, and with no later one.
        finish: how it has ended; None: it goes on.
        verbatim: answers are data: nothing is taken out of them, and none means silence.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        budget: Budget | None = None,
        loops: LoopDetector | None = None,
        verbatim: bool = False,
    ) -> None:
        self.limits = limits
        self.budget = budget or Budget(limits)
        self.loops = loops or LoopDetector()
        self.state: State = "ready"
        self.finish: Finish | None = None
        self.rows: list[ChatMessage] = []
        self.usage = NOTHING
        self.results: list[CallResult] = []
        self.failures: Failures | None = None
        self.waiting: list[UserMessage] = []
        self.offered: tuple[UserMessage, ...] = ()
        self.verbatim = verbatim
        self._closing = ""  # the limit for which tools are withdrawn
        self.not_run: dict[str, CallResult] = {}  # of the last answer's calls that were cut off
        self._cuts = 0  # answers in a row that were cut off
        self._drafting = False  # whether the last row is an answer that the model goes on with

    @property
    def iteration(self) -> int:
        """Model requests so far."""
        return self.budget.turns

    @property
    def spent(self) -> Usage:
        """The usage of this run and of those below it."""
        return self.budget.usage

    @property
    def draft(self) -> str:
        """The text so far of an answer that was cut off and continues."""
        return self.rows[-1].text if self._drafting else ""

    @property
    def last_answer(self) -> int:
        """The place of the last row that the model has said; 0 when there is none."""
        said = (at for at, row in enumerate(self.rows) if isinstance(row, AssistantMessage))
        return max(said, default=0)

    def begin(self, text: str, sender: str = "") -> Decision:
        """Take the user's input; the text is cut at ``limits.message_chars`` with a notice."""
        self._expect("ready")
        text = truncate_message(text, self.limits.message_chars)
        self.rows.append(UserMessage(text, sender=sender))
        return self._think()

    def inject(self, *messages: UserMessage) -> None:
        """Take messages that came in while the turn goes on.

        They enter after the results of the calls that are going on, or else after the next answer,
        which is then not the last. Those that find no request left stay in :attr:`waiting`.
        """
        self.waiting += self._injected(messages)

    def offer(self, *messages: UserMessage) -> None:
        """Let texts enter with the next decision, as :meth:`inject` does, or else not at all.

        Call :meth:`withdraw` in the same step: until they are in the rows, they are not the turn's.
        """
        self.offered = self._injected(messages)

    def withdraw(self) -> bool:
        """End the offer; whether its texts have entered the rows, all of them."""
        entered, self.offered = not self.offered, ()
        return entered

    def _injected(self, messages: Sequence[UserMessage]) -> tuple[UserMessage, ...]:
        if self.state == "ended":
            raise TurnStateError("the turn has ended already")
        limit = self.limits.message_chars
        return tuple(replace(one, text=truncate_injected(one.text, limit)) for one in messages)

    def is_last(self, response: ModelResponse, *, more: bool = False) -> bool:
        """Whether the turn would end with this answer, which is :attr:`draft` and its text.

        ``more``: there are texts to offer.
        """
        if response.calls:
            return bool(self._closing)
        unfinished = goes_on(response) and self._may_continue(response)
        return not unfinished and not self._more_came_in(more=more)

    def may_wait(self, response: ModelResponse) -> bool:
        """Whether what comes in before the turn ends with this answer would let it go on."""
        cut_short = goes_on(response) or bool(self._closing or self.budget.exhausted())
        return self.is_last(response) and not response.calls and not cut_short

    def answered(self, response: ModelResponse, *, whole: bool = False) -> Decision:
        """Take the model's answer to the last :class:`CallModel`.

        ``whole``: its text has the draft in it, as gates have let it pass.
        """
        self._expect("model")
        draft = self.take_draft()
        text = response.text if whole else draft + response.text
        if not response.calls:
            return self._said(response, text)
        response = with_unique_ids(response)
        self.rows.append(AssistantMessage(text, response.calls))
        return self._end(self._closing, text) if self._closing else self._act(response)

    def observed(self, results: Sequence[CallResult], now: float = 0.0) -> Decision:
        """Take the results of the last :class:`RunCalls`, one for each, in their order.

        ``now``: Unix seconds, for the record of what failed.
        """
        self._expect("tools")
        calls = [call for call in self._open_calls() if call.id not in self.not_run]
        if [result.call_id for result in results] != [call.id for call in calls]:
            raise TurnStateError(f"results {results!r} do not match calls {calls!r}")
        judged: list[CallResult] = []
        advised: set[str] = set()
        escalation: Escalation | None = None
        self.failures = (self.failures or failures_before((), self.limits)).new_batch()
        for call, result in zip(calls, results, strict=True):
            self.failures, advice = self.failures.ended(call, result, now)
            told = replace(result, text=f"{result.text}\n{advice}") if advice else result
            judged.append(told)
            escalation = escalation or self.failures.tracker.escalation
            if told is not result:
                advised.add(told.name)
        self._observe(judged)
        if escalation is not None:
            return self._escalate(escalation, self.failures.tracker.history)
        return self._think(finding=self._circle(calls, results, advised))

    def continued(self, response: ModelResponse, text: str) -> Decision:
        """Take an answer that a gate does not accept as the last: the model gets ``text`` next.

        When no request is left, the answer is the last one all the same.
        """
        self._expect("model")
        said = self.take_draft() + response.text
        if self._closing or self.iteration >= self.limits.turns:
            self._closing = self._closing or "turns"
            return self._conclude(said)
        self.rows += [self._answer_row(said)[0], UserMessage(text)]
        return self._think()

    def refuse(self, reason: str, said: str = "") -> Finish:
        """End because the model or its provider refuses to answer; its calls are not run.

        ``said``: the text of the refused answer with its draft, as far as people may see it.
        """
        self._expect("model")
        self.take_draft()
        finish = Finish("refused", sanitize(said), reason)
        return self._close(closing.refused_row(said, reason), finish)

    def state_of_calls(self) -> TurnState:
        """The state to store beside the rows of a turn whose calls wait for a person."""
        self._expect("tools")
        return TurnState(
            turns=self.budget.turns,
            tool_calls=self.budget.tool_calls,
            usage=self.usage,
            spent=self.budget.usage,
            usd=self.budget.usd,
            closing=self._closing,
            cuts=self._cuts,
            not_run=self.not_run,
        )

    def resume(self, rows: Sequence[ChatMessage], state: TurnState) -> Decision:
        """Go on where a turn was left: while the calls of the last row were being run, or else
        before the model was asked.
        """
        self._expect("ready")
        self.rows, self.usage = list(rows), state.usage
        self._closing, self._cuts, self.not_run = state.closing, state.cuts, dict(state.not_run)
        if not self._open_calls():
            return self._think()
        self.state = "tools"
        return RunCalls(tuple(c for c in self._open_calls() if c.id not in self.not_run))

    def refused(self, text: str, *rows: ChatMessage) -> Decision:
        """Take an answer that cannot be read, as rows that say so; the model is asked again.

        ``text``: what there is of it when no request is left.
        """
        self._expect("model")
        if self._closing:
            return self.limit(self._closing, text)
        self.rows += rows
        return self._think()

    def watch(self, ended: Iterable[tuple[Call, CallResult]]) -> Loop | None:
        """Let the detector of loops see ended calls; faults are left to their limit, if any."""
        limited = self.limits.tool_errors is not None or self.limits.total_errors is not None
        return self.loops.observe_batch(
            one
            for one in ended
            if not limited
            or one[1].outcome == "done"
            or counts_as(one[1].outcome, one[1].failure, one[0].name) != "error"
        )

    def spend(self, usage: Usage) -> None:
        """Count what a request used, as soon as that is known: also one whose answer is refused,
        or that is none of the turn's own.
        """
        self.usage += usage
        self.budget.spend(usage)

    def stop(self, partial: str = "", done: Sequence[CallResult] = (), cause: str = "") -> Finish:
        """End at once, whatever was going on. Valid in every state but ``ended``.

        ``partial`` is text the model had streamed, ``done`` the results that are known; the other
        calls are closed as not started. ``cause``: what has ended it when no person has.
        """
        said = self._interrupt(partial, done)
        return self._close(closing.stopped_row(said, cause), Finish("cancelled"))

    def fail(self, message: str, partial: str = "", done: Sequence[CallResult] = ()) -> Finish:
        """End because the model, a gate or motet itself failed."""
        said = self._interrupt(partial, done, hints.NOT_RUN_FAILED)
        return self._close(closing.failed_row(said, message), Finish("failed", detail=message))

    def limit(self, name: str, partial: str = "", done: Sequence[CallResult] = ()) -> Finish:
        """End because of a limit that the shell watches: the wall time, or what a request costs."""
        said = self._interrupt(partial, done, hints.not_run(name))
        return self._close(closing.limited_row(said, name), Finish("limited", said, name))

    # Think

    def _think(self, first: str = "", finding: Loop | None = None) -> Decision:
        if (spent := self.budget.exhausted()) is not None:
            return self._end(self._closing or spent, self.draft)
        if self.waiting or self.offered:
            self._enter()
        self.state = "model"
        turns, iteration = self.limits.turns, self.budget.spend_turn()
        if iteration == turns and iteration > 1:
            self._closing = self._closing or "turns"
        hint = hints.before_request(iteration, turns, self._closing, finding, first)
        return CallModel(iteration, not self._closing, hint)

    def _said(self, response: ModelResponse, text: str) -> Decision:
        """An answer without calls: the last one, unless more follows or something came in."""
        if goes_on(response):
            if self._may_continue(response):
                self._cuts += 1 if is_cut(response) else 0
                return self._go_on(text)
            self._closing = self._closing or ("length" if is_cut(response) else "turns")
        if not self._more_came_in():
            return self._conclude(text)
        self._cuts = 0
        self.rows.append(self._answer_row(text)[0])
        return self._think()

    def _go_on(self, text: str) -> Decision:
        """Let the model go on with its answer, which is one row however often it was cut off."""
        if not text.strip():
            return self._think(hints.BEGIN_AGAIN)
        self.rows.append(AssistantMessage(text))
        self._drafting = True
        return self._think(hints.CONTINUE)

    def _enter(self) -> None:
        """Let in what is waiting; not in the middle of an answer, and not behind a user's row."""
        if not self._drafting and not isinstance(self.rows[-1], UserMessage):
            self.rows.append(closing.injected_row((*self.waiting, *self.offered)))
            self.waiting, self.offered = [], ()

    def take_draft(self) -> str:
        """Take :attr:`draft` out of the rows."""
        if not self._drafting:
            return ""
        self._drafting = False
        return self.rows.pop().text

    def _may_continue(self, response: ModelResponse) -> bool:
        """Whether the model may go on with an answer that was cut off, or paused."""
        cuts_left = self._cuts < CONTINUATIONS or not is_cut(response)
        return cuts_left and self.iteration < self.limits.turns

    def _more_came_in(self, *, more: bool = False) -> bool:
        came_in = more or bool(self.waiting or self.offered)
        return came_in and not self._closing and not self.budget.exhausted()

    # Act and observe

    def _act(self, response: ModelResponse) -> Decision:
        """Let the calls be run: those that were not cut off, as many as there may be."""
        broken = incomplete(response)
        self._cuts = self._cuts + 1 if broken else 0
        whole = [call for call in response.calls if call.id not in broken]
        calls = tuple(whole[: self.budget.calls_left()])
        if len(calls) < len(whole):
            self._closing = "tool_calls"
        elif self._cuts > CONTINUATIONS:
            self._closing = "length"
        self.not_run = {
            call.id: closing.refusal(
                call, hints.CUT_CALL if call.id in broken else hints.not_run(self._closing)
            )
            for call in response.calls
            if call not in calls
        }
        if not calls:
            self._observe(())
            return self._think()
        self.state = "tools"
        self.budget.spend_calls(len(calls))
        return RunCalls(calls)

    def _circle(
        self, calls: Sequence[Call], results: Sequence[CallResult], advised: set[str]
    ) -> Loop | None:
        """A loop that the model has to be told of: none that it was advised on just now."""
        finding = self.watch(zip(calls, results, strict=True))
        if finding and finding.level == "critical":
            self._closing = "tool_loop"
        elif finding and finding.detector != "reads" and finding.tool in advised:
            return None
        return finding

    def _observe(self, results: Sequence[CallResult]) -> None:
        """The rows of results in call order, those of calls that were not run among them."""
        found = self.not_run | {result.call_id: result for result in results}
        self.not_run = {}
        ordered = [found[call.id] for call in self._open_calls() if call.id in found]
        self.results += ordered
        self.rows += map(closing.row_of, ordered)

    def _open_calls(self) -> tuple[Call, ...]:
        last = self.rows[-1] if self.rows else None
        return last.calls if isinstance(last, AssistantMessage) else ()

    # End

    def _answer_row(self, text: str) -> tuple[AssistantMessage, str]:
        return (AssistantMessage(text), text) if self.verbatim else closing.answer_row(text)

    def _conclude(self, text: str) -> Finish:
        row, output = self._answer_row(text)
        status: RunStatus = "limited" if self._closing else "completed"
        return self._close(row, Finish(status, output, self._closing))

    def _end(self, limit: str, output: str) -> Finish:
        text = hints.not_run(limit)
        self.rows += [
            missing_result(call, "cancelled_before_start", text) for call in self._open_calls()
        ]
        row = closing.limited_row(self.take_draft(), limit)
        return self._close(row, Finish("limited", output, limit))

    def _escalate(self, escalation: Escalation, history: Sequence[CompactError]) -> Finish:
        """``history``: with the errors of the batch that came after the last one that counted."""
        reason = escalation.explanation
        handed = NewEscalation(escalation.tool_name, reason, history_of(history))
        finish = Finish("escalated", detail=reason, escalation=handed)
        return self._close(closing.escalated_row(reason), finish)

    def _interrupt(self, partial: str, done: Sequence[CallResult], why: str = "") -> str:
        """Make the rows whole wherever the turn is; what was said of the answer going on.

        ``why``: the text of the calls that were not run, when no stop has ended the turn.
        """
        if self.state == "ended":
            raise TurnStateError("the turn has ended already")
        said = self.take_draft() + partial
        self._observe(done)
        self.rows = list(close_calls(self.rows, "cancelled_before_start", why))
        return said

    def _close(self, row: AssistantMessage, finish: Finish) -> Finish:
        if self.rows:
            self.rows.append(row)
        self.state = "ended"
        self.finish = finish
        return finish

    def _expect(self, state: State) -> None:
        if self.state != state:
            raise TurnStateError(f"the turn is {self.state!r}, not {state!r}")
