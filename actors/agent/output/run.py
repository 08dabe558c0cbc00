"""The output of one run: repairs are asked for and journalled, what cannot be repaired is stored.

The form is that of the agent that was asked, also when another takes the run over: the caller's
type is the same then. Where that agent has none, one that takes over answers in its own form, and
the caller gets that as a text.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from motet.actors.agent.output.answering import FINAL_ANSWER, Answering, Refused, answering
from motet.actors.agent.output.form import Unreadable
from motet.actors.agent.turn import CallModel, Decision, Finish, Turn
from motet.actors.services import Services
from motet.actors.sessions.run import Run
from motet.protocols.errors import OutputSerialization
from motet.protocols.models import ModelResponse, OutputSchema
from motet.protocols.tools import ToolSpec


class RunOutput:
    """What a run's answers come to.

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
        model = services.find_model(self._run.model_name) if services.find_model else None
        tools = services.of(self._run).catalog.specs(agent.name)
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
                await self._services.note(self._run, step, row)
                step += 1
        return decision

    async def _unreadable(
        self, text: str, problems: Sequence[str], whose: str
    ) -> OutputSerialization:
        """The error to raise; the whole answer is in the error store."""
        run = self._run
        message = f"the answer {whose} does not have the form that is declared: {problems[0]}"
        stored = {"message": message, "problems": list(problems), "text": text}
        report = await self._services.errors.report(
            session=run.session, run_id=run.id, tool=FINAL_ANSWER, error=stored
        )
        self.error_id = report.error_id
        where = f" [Error ID: {self.error_id}]" if self.error_id else ""
        return OutputSerialization(message + where)
