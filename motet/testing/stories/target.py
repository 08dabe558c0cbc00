"""The target of a program, the way inputs reach it, and the odds of faults.

Invariant: agents are unchanged when a program is over, so that one object serves all examples.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import ClassVar, TypeAlias, cast

import attrs
import msgspec

from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.host import Host
from motet.actors.rooms.definition import Room
from motet.actors.tools.tool import Tool
from motet.protocols.errors import ConfigError
from motet.protocols.models import Model
from motet.testing.stories.vocabulary import Rule

__all__ = ["Faults", "Receive", "Subject", "Target", "instrumented"]


Subject: TypeAlias = AnyAgent | Room

Receive: TypeAlias = Callable[[Host, str, str, str, str | None], Awaitable[object]]
"""The program's own entry for messages: ``async def receive(host, user, session, text, key)``.

It does the work of a web handler or bot. When it returns, the user takes the message as delivered.
"""


@attrs.frozen
class Target:
    """The agent or room under test.

    Attributes:
        subject: an agent, or a room with its members.
        receive: the way of inputs into the host; None: ``Host.submit``.
        own_models: the agents use their own models in place of the program's script.
        rules: the steps of the project, by name.
        unused: tools and other things that the test does not mean to reach.
    """

    subject: Subject
    receive: Receive | None = None
    own_models: bool = False
    rules: Mapping[str, Rule] = attrs.field(factory=dict[str, Rule])
    unused: Sequence[str] = ()

    @property
    def room(self) -> Room | None:
        return self.subject if isinstance(self.subject, Room) else None

    @property
    def agent(self) -> AnyAgent | None:
        """The agent that gets the users' messages; None in a room."""
        return self.subject if isinstance(self.subject, AgentSpec) else None

    @property
    def tools(self) -> Sequence[str]:
        """The names of the project's own tools."""
        names = [tool.name for a in self.agents for tool in a.tools if isinstance(tool, Tool)]
        return list(dict.fromkeys(names))

    @property
    def may_ask(self) -> bool:
        """True if a call may need an approval: hooks and policies may demand one for any tool."""
        return any(agent.tools for agent in self.agents)

    @property
    def approved(self) -> bool:
        """True if a tool of an agent is declared to need an approval."""
        tools = (tool for agent in self.agents for tool in agent.tools)
        return any(isinstance(tool, Tool) and tool.approval is not False for tool in tools)

    @property
    def escalated(self) -> bool:
        """True if failures of a tool may hand a run to a person."""
        bounds = (a.limits for a in self.agents if a.tools)
        return any(one.tool_errors is not None or one.total_errors is not None for one in bounds)

    @property
    def agents(self) -> Sequence[AnyAgent]:
        """All agents that may run: members, and those of tools and handoffs."""
        room = self.room
        waiting = list(room.agents) if room is not None else [cast("AnyAgent", self.subject)]
        if room is not None and len(waiting) < len(room.members):
            names = [member.name for member in room.members if isinstance(member.agent, str)]
            raise ConfigError(
                f"the members {names} of room {room.name!r} are only names: "
                "give the agents themselves to a room that is tested"
            )
        found: dict[int, AnyAgent] = {}
        while waiting:
            agent = waiting.pop(0)
            if id(agent) not in found:
                found[id(agent)] = agent
                waiting += [_agent_of(tool) for tool in agent.tools if _has_agent(tool)]
        return tuple(found.values())


@contextmanager
def instrumented(
    agents: Sequence[AnyAgent],
    model: Callable[[AnyAgent], Model | str],
    tool: Callable[[Tool], Tool],
) -> Generator[None]:
    """Replace the models of the agents and wrap their tools for the block."""
    with ExitStack() as stack:
        for agent in agents:
            stack.callback(_instrument, agent, agent.model, list(agent.tools))
            tools = [one if isinstance(one, str) else tool(one) for one in agent.tools]
            _instrument(agent, model(agent), tools)
        yield


def _instrument(agent: AnyAgent, model: Model | str, tools: list[Tool | str]) -> None:
    agent.model = model
    # The public API can only add tools.
    agent._tools = tools  # pyright: ignore[reportPrivateUsage]


def _has_agent(tool: Tool | str) -> bool:
    return isinstance(tool, Tool) and isinstance(tool.agent, AgentSpec)


def _agent_of(tool: Tool | str) -> AnyAgent:
    assert isinstance(tool, Tool)
    return cast("AnyAgent", tool.agent)  # `_has_agent` has looked


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The probability of each fault, from 0 to 1, wherever it could happen.

    Attributes:
        stall: a model delays an answer, up to some minutes.
        rate_limit: a provider answers 429, with or without the time to wait.
        server: a provider fails, or cannot be reached.
        cut: a model's stream ends in the middle.
        malformed: a model calls an unknown tool, or with invalid arguments or invalid JSON.
        late: a tool takes longer.
        failing: a tool fails, before or after its work.
        inside: at an await inside of a tool or hook it takes longer, a time-out strikes, or the
            client that it waits for fails.
        http: a request to a service of :func:`motet.testing.fake_http` is refused, late, lost, cut
            off after the work was done, repeated, or finds a busy service.
        crash: the power is cut, at each step.
        schedule: tasks run in another order than they became ready.
    """

    stall: float = 0.04
    rate_limit: float = 0.03
    server: float = 0.03
    cut: float = 0.03
    malformed: float = 0.1
    late: float = 0.05
    failing: float = 0.05
    inside: float = 0.05
    http: float = 0.1
    crash: float = 0.08
    schedule: float = 0.9

    NONE: ClassVar[Faults]

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            chance: float = getattr(self, name)
            if not 0 <= chance <= 1:
                raise ValueError(f"faults.{name} is a chance from 0 to 1, not {chance!r}")


Faults.NONE = Faults(
    stall=0,
    rate_limit=0,
    server=0,
    cut=0,
    malformed=0,
    late=0,
    failing=0,
    inside=0,
    http=0,
    crash=0,
    schedule=0,
)
