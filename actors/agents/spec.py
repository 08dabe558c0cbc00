"""Agents as data: a name, a model, instructions, tools, limits, and handoffs between them.

An agent runs nothing by itself; any number of hosts can share it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, Unpack, overload

import attrs
import msgspec
from typing_extensions import TypeForm, TypeVar

from motet.actors.agents.output import form_of
from motet.actors.tools.context import Context, ToolOptions
from motet.actors.tools.tool import Tool, tool
from motet.protocols.agents import PLAIN, AgentLike, AgentProfile, Team
from motet.protocols.chat import FailureClass
from motet.protocols.errors import ConfigError
from motet.protocols.limits import Limits
from motet.protocols.models import Model
from motet.protocols.policy import ALL_TOOLS, ToolRules
from motet.protocols.run import RunResult
from motet.protocols.tools import Effects, ToolDenied, ToolFailure

D_contra = TypeVar("D_contra", contravariant=True, default=None)
O_co = TypeVar("O_co", covariant=True, default=str)
Out = TypeVar("Out")
P = ParamSpec("P")
R = TypeVar("R")

ToolLike: TypeAlias = "Tool | str | Callable[..., object]"
"""A tool, a plain type-hinted function, or the name of a built-in (``read_file``, ``group:fs``)."""

CHILD_TIMEOUT = 600.0
"""Seconds of a run that a tool call starts."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

PREFIX = "transfer_to_"
_NAME_CHARS = 64


class AgentSpec(AgentLike[D_contra, O_co]):
    """An agent as the inside of a host passes it around: it runs nothing by itself.

    :class:`motet.Agent` is the public class. It has the same fields, and documents them.
    """

    def __init__(
        self,
        name: str,
        *,
        model: str | Model = "demo",
        instructions: str = "",
        description: str = "",
        tools: Sequence[ToolLike] = (),
        handoffs: Sequence[AnyAgent | Handoff] = (),
        # The defaults are those of the two type variables, which mypy does not compare.
        deps_type: TypeForm[D_contra] = None,  # type: ignore[assignment]  # noqa: RUF013
        output_type: TypeForm[O_co] = str,  # type: ignore[assignment]
        output_retries: int = 2,
        limits: Limits | None = None,
        memory: bool = False,
        window: int | None = None,
        history: int = 0,
        profile: AgentProfile = PLAIN,
        skills: Sequence[str | Path] | None = None,
        policy: ToolRules = ALL_TOOLS,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"agent name {name!r}: use 1 to 64 letters, digits, '_', '.' or '-'")
        self.name = name
        self.model = model
        self.instructions = instructions
        self.description = description
        self.deps_type: object = deps_type
        self.form = form_of(output_type)
        self.output_retries = output_retries
        self.limits = limits or Limits()
        self.memory = memory
        self.window = window or profile.window
        self.history = history
        self.profile = profile
        if skills is not None:
            self.profile = msgspec.structs.replace(profile, skills=tuple(map(str, skills)))
        self.policy = policy
        self._tools = [one if isinstance(one, Tool | str) else tool(one) for one in tools]
        for target in handoffs:
            self.may_hand_to(target)

    def __repr__(self) -> str:
        return f"<Agent {self.name} model={self.model_name}>"

    @property
    def model_name(self) -> str:
        return self.model if isinstance(self.model, str) else self.model.name

    @property
    def tools(self) -> tuple[Tool | str, ...]:
        """Its tools; a string stands for a built-in tool or group that the host provides."""
        return tuple(self._tools)

    @overload
    def tool(self, fn: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def tool(
        self, /, **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def tool(
        self, fn: Callable[P, R] | None = None, /, **options: Unpack[ToolOptions]
    ) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
        """Give the agent a type-hinted function as a tool. The function itself is unchanged.

        Raises ``TypeError`` when the signature cannot be described to a model.
        """
        make = tool(**options)

        def add(function: Callable[P, R]) -> Callable[P, R]:
            self._tools.append(make(function))
            return function

        return add if fn is None else add(fn)

    def may_hand_to(self, agent: AnyAgent | Handoff) -> None:
        """Let it hand its conversation to another agent, before a host first runs it."""
        self._tools.append(handoff_tool(agent))

    def join(self, team: Team, *tools: str) -> None:
        """Make it a member of a team, with the tools that go with it; see :class:`motet.Team`."""
        self.profile = msgspec.structs.replace(self.profile, team=team)
        self._tools += [name for name in tools if name not in self._tools]

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float = CHILD_TIMEOUT,
        effects: Effects = "read",
    ) -> Tool:
        """This agent as a tool of another: each call is a run below the run that calls.

        It gets the task and the caller's ``deps``, and nothing of the conversation. It has its own
        limits; what it spends the caller spends too. A run that did not complete is a failed call.
        """

        async def delegate(ctx: Context[Any], task: str) -> str:
            """Args:
            task: what is to be done, with all that has to be known for it.
            """
            return _answer(await ctx.run(self, task))

        made = tool(
            delegate,
            name=name or self.name,
            description=description or self.description or f"Ask the agent {self.name}.",
            timeout=timeout,
            effects=effects,
        )
        return attrs.evolve(made, agent=self)


AnyAgent: TypeAlias = AgentSpec[Any, Any]


@attrs.frozen
class Handoff:
    """An agent that another one may hand its conversation to: the run goes on as that agent.

    A run has one agent at a time, and the calls of an answer are those of the agent that gave it.
    From the next request on the target has the whole conversation, the session, the budget and the
    run's id. Of several transfers in one answer the first counts. Agents cannot hand a conversation
    round for ever: each transfer is a call, and costs a request.

    Attributes:
        description: when to do it; None: the agent's own description.
        name: of the tool; None: ``transfer_to_`` and the agent's name.
    """

    agent: AnyAgent
    description: str | None = None
    name: str | None = None


def handoff_tool(to: AnyAgent | Handoff) -> Tool:
    """The tool of a handoff. Raises ``TypeError`` for a name that cannot be one."""
    handoff = to if isinstance(to, Handoff) else Handoff(to)
    agent = handoff.agent
    about = agent.description or f"It is {agent.name!r}."
    name = PREFIX + re.sub(r"[^A-Za-z0-9_-]", "_", agent.name)[: _NAME_CHARS - 12]

    async def transfer(ctx: Context[Any], reason: str = "") -> str:  # noqa: ARG001  # it is in the transcript
        """Args:
        reason: why, in one sentence, for whoever takes over.
        """
        return ctx.hand_over_to(agent)

    made = tool(
        transfer,
        name=handoff.name or name,
        description=handoff.description
        or f"Hand this whole conversation to the agent {agent.name}, who answers it. {about}",
        effects="write",  # so that of several in one answer the first one counts
        idempotent=True,
    )
    return attrs.evolve(made, agent=agent)


def _answer(result: RunResult[Any]) -> str:
    """The answer for the caller of a child run. Raises ``ToolFailure`` if it did not complete.

    A refusal is no fault of the tool: ``ToolDenied``.
    """
    if result.status == "completed":
        return result.text or "[It has nothing to say]"
    if result.status == "refused":
        raise ToolDenied(f"agent {result.agent!r} refused to answer: {result.detail}")
    said = f" It said: {result.text}" if result.text else ""
    why = f": {result.detail}" if result.detail else ""
    # A budget or a person has ended it, or it broke: only that is a fault.
    failure: FailureClass = "fault" if result.status in ("failed", "escalated") else "refusal"
    text = f"agent {result.agent!r} did not finish, {result.status}{why}.{said}"
    raise ToolFailure(text, failure=failure)
