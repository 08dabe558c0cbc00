"""The target of a program, the way inputs reach it, and the odds of faults.

Invariant: agents are unchanged when a program is over, so that one object serves all examples.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
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

__all__ = ["Faults", "Receive", "Subject", "Target", "dressed"]


Subject: TypeAlias = AnyAgent | Room

Receive: TypeAlias = Callable[[Host, str, str, str, str | None], Awaitable[object]]
"""The program's own door: ``async def receive(host, user, session, text, key)``.

What a web handler or a bot does with a message. When it returns, its user believes that the
message has arrived.
"""


@attrs.frozen
class Target:
    """What is under test.

    Attributes:
        subject: an agent, or a room with its members.
        receive: how an input comes in; None: by ``Host.submit``.
        own_models: the agents ask their own models, and not the script of the program.
    """

    subject: Subject
    receive: Receive | None = None
    own_models: bool = False

    @property
    def room(self) -> Room | None:
        return self.subject if isinstance(self.subject, Room) else None

    @property
    def agent(self) -> AnyAgent | None:
        """The agent that users talk to; None in a room."""
        return self.subject if isinstance(self.subject, AgentSpec) else None

    @property
    def approved(self) -> bool:
        """Whether a tool of an agent has a person asked, as far as can be known."""
        tools = (tool for agent in self.agents for tool in agent.tools)
        return any(isinstance(tool, Tool) and tool.approval is not False for tool in tools)

    @property
    def agents(self) -> Sequence[AnyAgent]:
        """All agents that can come to work: members, and those whom tools and handoffs name."""
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
def dressed(
    agents: Sequence[AnyAgent],
    model: Callable[[AnyAgent], Model | str],
    tool: Callable[[Tool], Tool],
) -> Generator[None]:
    """For the time of the block the agents have other models, and their tools are watched."""
    with ExitStack() as stack:
        for agent in agents:
            stack.callback(_dress, agent, agent.model, list(agent.tools))
            tools = [one if isinstance(one, str) else tool(one) for one in agent.tools]
            _dress(agent, model(agent), tools)
        yield


def _dress(agent: AnyAgent, model: Model | str, tools: list[Tool | str]) -> None:
    agent.model = model
    # An agent gains tools and loses none in public; the harness gives it other ones for a while.
    agent._tools = tools  # pyright: ignore[reportPrivateUsage]


def _has_agent(tool: Tool | str) -> bool:
    return isinstance(tool, Tool) and isinstance(tool.agent, AgentSpec)


def _agent_of(tool: Tool | str) -> AnyAgent:
    assert isinstance(tool, Tool)
    return cast("AnyAgent", tool.agent)  # `_has_agent` has looked


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The chance of each fault, from 0 to 1, wherever it could happen.

    Attributes:
        stall: a model lets a request wait, up to some minutes.
        rate_limit: a provider answers 429, with or without the time to wait.
        server: a provider fails, or is not reached.
        cut: a model's stream ends in the middle.
        malformed: a model calls what is not there, or with arguments that are wrong or no JSON.
        late: a tool takes longer.
        failing: a tool fails, before or after it has done its work.
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
    crash: float = 0.08
    schedule: float = 0.5

    NONE: ClassVar[Faults]

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            chance: float = getattr(self, name)
            if not 0 <= chance <= 1:
                raise ValueError(f"faults.{name} is a chance from 0 to 1, not {chance!r}")


Faults.NONE = Faults(
    stall=0, rate_limit=0, server=0, cut=0, malformed=0, late=0, failing=0, crash=0, schedule=0
)
