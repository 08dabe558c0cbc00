"""Answers of a declared type: asked for, read, and repaired.

Where the model's provider holds answers to a form, the answer is the text; elsewhere the model
calls ``final_answer``, whose arguments are the answer. Either way the transcript has the answer as
the text of the last row, as JSON, so that later turns read it whatever model they have (G7): the
call that brought it is no row. An answer that cannot be read is one, with what is wrong with it.

Invariants: an answer is taken only when it can be read; there are at most ``rounds`` repairs, then
the run has failed with ``OutputSerialization``; calls of other tools are always run first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import attrs
import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from motet.actors.agents.output import OutputForm, Reading, Unreadable
from motet.actors.runs.run import Run
from motet.actors.runs.services import Services
from motet.actors.runs.turn import CallModel, Decision, Finish, Turn, is_cut
from motet.actors.transcript.grammar import EMPTY_ANSWER
from motet.protocols.chat import AssistantMessage, Call, ToolMessage, UserMessage
from motet.protocols.errors import OutputSerialization
from motet.protocols.models import Model, ModelResponse, NativeOutput, OutputSchema
from motet.protocols.tools import ToolSpec

FINAL_ANSWER = "final_answer"
_DESCRIPTION = (
    "Give your final answer, which ends your turn. Call it alone, once, when you have all you "
    "need. Your answer is its arguments; text beside it is not read."
)


class Refused(msgspec.Struct, frozen=True):
    """An answer that could not be read: its rows, and what is wrong with it.

    ``final``: it was the last there may be.
    """

    answer: AssistantMessage
    told: UserMessage | ToolMessage
    text: str
    problems: tuple[str, ...]
    final: bool


Settled: TypeAlias = "ModelResponse | Refused"


@attrs.define
class Answering:
    """The form that one run asks its model for, and the reading of its answers.

    Attributes:
        rounds: repairs that are left.
        native: whether the provider holds answers to the form.
        tool: what the model calls where it does not.
    """

    form: OutputForm
    rounds: int
    native: bool
    tool: str = FINAL_ANSWER
    _reading: Reading | None = None
    _tools: tuple[ToolSpec, ...] | None = None
    _offered: tuple[ToolSpec, ...] = ()

    @property
    def asked(self) -> OutputSchema | None:
        """The output schema for a request; None where a tool carries it."""
        return self.form.asked if self.native else None

    def offered(self, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        """The tools of a request; for the same tools the same object."""
        if self.native:
            return tools
        if tools is not self._tools:
            self._tools = tools
            self._offered = (*tools, ToolSpec(self.tool, _DESCRIPTION, self.form.schema))
        return self._offered

    def settled(self, response: ModelResponse) -> Settled:
        """The meaning of a response: calls to run, an answer, or an unreadable one."""
        call = next((call for call in response.calls if call.name == self.tool), None)
        others = tuple(one for one in response.calls if one.name != self.tool)
        if self.native or call is None:
            return response if response.calls else self._read(response, None)
        if others:
            # It was made before it could know what they bring.
            return replace(response, calls=others)
        return self._read(replace(response, calls=()), call)

    def given(self, text: str) -> object:
        """The value of the answer with this text, if that was read; else ``UNSET``."""
        reading = self._reading
        return reading.value if reading is not None and reading.text == text else UNSET

    def reread(self, response: ModelResponse) -> ModelResponse:
        """An answer that a gate has given. Raises ``Unreadable``: the model cannot repair it."""
        if self.given(response.text) is not UNSET:
            return response
        self._reading = self.form.read(response.text)
        return replace(response, text=self._reading.text)

    def _read(self, response: ModelResponse, call: Call | None) -> Settled:
        text = response.text if call is None else call.arguments
        cut = is_cut(response)
        try:
            if cut and not text.rstrip().endswith(("}", "]", '"')):
                raise Unreadable(())  # the beginning of a word or a number is one as well
            self._reading = self.form.read(text)
        except Unreadable as error:
            return self._refused(response.text, call, text, _why(error, text, cut=cut))
        return replace(response, text=self._reading.text, stop_reason="stop")

    def _refused(
        self, said: str, call: Call | None, text: str, problems: tuple[str, ...]
    ) -> Refused:
        told = self._advice(problems, call)
        self._reading = None
        final, self.rounds = self.rounds <= 0, self.rounds - 1
        if call is None:
            row = AssistantMessage(text or EMPTY_ANSWER, note="silent")
            return Refused(row, UserMessage(told, note="hint"), text, problems, final)
        row = AssistantMessage(said, (call,))
        return Refused(row, ToolMessage(call.id, call.name, told, "denied"), text, problems, final)

    def _advice(self, problems: tuple[str, ...], call: Call | None) -> str:
        listed = "\n".join(f"- {problem}" for problem in problems)
        if self.native:
            how = "Answer again with all of it, as JSON of the form that is asked for."
        elif call is None:
            how = f"Give your answer by a call of {self.tool}: a text is not read."
        else:
            how = f"Nothing was answered. Call {self.tool} again with all of it."
        return f"Your answer does not have the form that is asked for:\n{listed}\n{how}"


def answering(
    form: OutputForm, rounds: int, model: Model | None, tools: Sequence[ToolSpec]
) -> Answering:
    """How a run with this model and these tools comes by its answer."""
    native = isinstance(model, NativeOutput) and model.takes_output(form.asked, tools=bool(tools))
    return Answering(form, rounds, native, _free(FINAL_ANSWER, {tool.name for tool in tools}))


def _why(error: Unreadable, text: str, *, cut: bool) -> tuple[str, ...]:
    if not text.strip() and not cut:
        return ("the answer is empty",)
    if cut:
        return ("the answer was cut off at its greatest length; make it shorter",)
    return error.problems


def _free(name: str, taken: set[str]) -> str:
    number, free = 2, name
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


class RunOutput:
    """The output of one run: repairs are asked for and journalled, failed answers are stored.

    The form is that of the agent that was asked, also after a hand-over: the caller's type stays
    the same. Where that agent has none, the next agent answers in its own form, and the caller
    gets that as a text.

    Attributes:
        declared: whether the agent that was asked gives outputs of a type of its own.
        withheld: whether text is not for people while it is being made: it is data to be checked.
        error_id: the stored error of an answer that could not be read.
    """

    def __init__(self, run: Run, services: Services, turn: Turn) -> None:
        self.declared = run.agent.form is not None
        self.error_id: str | None = None
        self._form = run.agent.form
        self._run = run
        self._services = services
        self._turn = turn
        self._answering: Answering | None = None
        self.change_agent()

    def change_agent(self) -> None:
        """The run's agent is another one now, which may have another model and other tools."""
        agent, services = self._run.agent, self._services
        form = self._form if self.declared else agent.form
        self._turn.verbatim = form is not None
        if form is None:
            self._answering = None
            return
        model = services.toolkits.current.registry.model(self._run.model_name)
        tools = services.toolkits.of(self._run).catalog.specs(agent.name)
        self._answering = answering(form, agent.output_retries, model, tools)

    @property
    def withheld(self) -> bool:
        return self._answering is not None

    @property
    def closing(self) -> str:
        """Said with the last request, where tools are withdrawn but for the one of the answer."""
        if self._answering is None or self._answering.native:
            return ""
        return f"[System: {self._answering.tool} is still there: your answer is a call of it.]"

    def asking(
        self, tools: tuple[ToolSpec, ...]
    ) -> tuple[tuple[ToolSpec, ...], OutputSchema | None]:
        """The tools of a request that offers these, and the form it asks for."""
        if self._answering is None:
            return tools, None
        return self._answering.offered(tools), self._answering.asked

    async def settled(self, response: ModelResponse) -> ModelResponse | Decision:
        """The response to go on with, or what to do about an answer that cannot be read.

        Raises ``OutputSerialization`` when there is to be no other.
        """
        if self._answering is None:
            return response
        settled = self._answering.settled(response)
        return await self._repair(settled) if isinstance(settled, Refused) else settled

    async def passed(self, response: ModelResponse) -> ModelResponse:
        """The last answer as its gates have given it. Raises ``OutputSerialization``."""
        if self._answering is None:
            return response
        try:
            return self._answering.reread(response)
        except Unreadable as error:
            failure = await self._unreadable(response.text, error.problems, "that a gate gave")
            raise failure from error

    def value(self, finish: Finish) -> object:
        """The output of a run that ended so; ``UNSET`` when there is none."""
        ended = finish.status in ("completed", "limited")
        if self._answering is None or not self.declared or not ended:
            return UNSET
        return self._answering.given(finish.output)

    async def _repair(self, refused: Refused) -> Decision:
        if refused.final:
            raise await self._unreadable(refused.text, refused.problems, "of the model")
        step = len(self._turn.rows)
        decision = self._turn.refused(refused.text, refused.answer, refused.told)
        if isinstance(decision, CallModel):
            for row in (refused.answer, refused.told):
                await self._services.journal.note(self._run.id, step, row)
                step += 1
        return decision

    async def _unreadable(
        self, text: str, problems: Sequence[str], whose: str
    ) -> OutputSerialization:
        """The error to raise; the whole answer is in the error store."""
        run = self._run
        message = f"the answer {whose} does not have the form that is declared: {problems[0]}"
        stored = {"message": message, "problems": list(problems), "text": text}
        report = await self._services.errors.report(run.origin(FINAL_ANSWER), stored)
        self.error_id = report.error_id
        where = f" [Error ID: {self.error_id}]" if self.error_id else ""
        return OutputSerialization(message + where)
