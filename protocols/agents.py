"""Agents as data: how one is set up beyond its instructions, and where stored ones come from."""

from __future__ import annotations

from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from motet.protocols.limits import Limits
from motet.protocols.messages import Request
from motet.protocols.policy import ToolRules

AgentType: TypeAlias = Literal["plain", "open", "predefined"]
"""``plain``: its instructions and nothing else; ``open``: files of its own for every user;
``predefined``: files of the agent for all users, and a profile of each user beside them."""
PromptMode: TypeAlias = Literal["full", "minimal"]
"""``minimal``: for sub-agents and scheduled runs."""
WorkspaceMode: TypeAlias = Literal["shared", "per_user"]
AgentStatus: TypeAlias = Literal["active", "inactive"]

WINDOW = 200_000
"""Tokens of a context window, where nothing else is said (seed 002)."""


D_contra = TypeVar("D_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)


class AgentLike(Generic[D_contra, Out_co]):
    """An agent as tools see it: it takes ``deps`` of the one type and gives outputs of the other.

    A base class and not a Protocol: no attribute of an agent has these types, so that a checker
    could not find them by structure.
    """

    name: str


AnyAgentLike: TypeAlias = AgentLike[Any, Any]


class Sharing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who shares one folder although the workspace is per user.

    Attributes:
        dm: everybody who talks with the agent directly.
        group: every group chat.
        users: these, such as ``telegram:386246614`` or ``group:telegram:-100``.
    """

    dm: bool = False
    group: bool = False
    users: tuple[str, ...] = ()


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another agent of a team."""

    name: str
    description: str = ""


class Team(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The team of an agent, as it sees it.

    Attributes:
        workspace: the folder that the team has in common, inside of the host's workspace; a lead
            works in it, a member in its own. Empty: none.
        shared: whether all its chats share that folder; else each has one below it.
    """

    name: str
    role: Literal["lead", "member"] = "member"
    members: tuple[Member, ...] = ()
    workspace: str = ""
    shared: bool = False


class AgentProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an agent is set up beyond its instructions. The default is a plain agent.

    Attributes:
        prompt_mode: of its main runs.
        bootstrap: whether files are seeded for each user; None: unless it is plain, when it has
            ``files``.
        files: folder of its bootstrap files, and of the templates for those of its users.
        workspace: whether its tools see one folder for all users, or one for each.
        sharing: exceptions from ``per_user``.
        window: tokens of its model's context window; 0 or less: 200,000.
        skills: folders of skills that come before those in ``files`` and of the host; None: only
            those; empty: no skills at all.
    """

    type: AgentType = "plain"
    prompt_mode: PromptMode = "full"
    bootstrap: bool | None = None
    files: str | None = None
    workspace: WorkspaceMode = "shared"
    sharing: Sharing = Sharing()
    window: int = WINDOW
    team: Team | None = None
    skills: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.window <= 0:
            msgspec.structs.force_setattr(self, "window", WINDOW)

    @property
    def acts_as(self) -> AgentType:
        """A plain agent that was given the bootstrap of users is an open one."""
        return "open" if self.type == "plain" and self.bootstrap else self.type

    @property
    def seeds(self) -> bool:
        """Whether its users get files of their own: never unless somebody asked for it."""
        if self.bootstrap is not None:
            return self.bootstrap
        return self.type != "plain" and self.files is not None


PLAIN = AgentProfile()
"""An agent that is its instructions and nothing else."""


class AgentRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent as a store keeps it.

    Attributes:
        provider: name of a model provider; one that is not registered, or none: the first one.
        model: the provider's name of the model, or ``provider:model``, or ``demo``.
        tools: names of built-in tools and groups.
        iterations: model requests in one run; 0 or less: as ``limits`` say.
        limits: None: those of the host.
        policy: which of its tools it may call; rules of the host come on top.
    """

    name: str
    provider: str = ""
    model: str = "demo"
    instructions: str = ""
    description: str = ""
    tools: tuple[str, ...] = ()
    memory: bool = False
    iterations: int = 0
    limits: Limits | None = None
    profile: AgentProfile = AgentProfile()
    policy: ToolRules = ToolRules()
    status: AgentStatus = "active"


class GetAgent(Request[AgentRecord | None], frozen=True, tag="agents.get"):
    name: str


class ListAgents(Request[tuple[AgentRecord, ...]], frozen=True, tag="agents.list"):
    """All of them, by name."""


class PutAgent(Request[None], frozen=True, tag="agents.put"):
    """Store an agent, or replace the one of its name; answered after COMMIT."""

    record: AgentRecord


class RemoveAgent(Request[bool], frozen=True, tag="agents.remove"):
    """Forget an agent; its sessions stay. False: there was none."""

    name: str


class AgentSource(Protocol):
    """Where stored agents are: SQLite, or another database. Every method may raise and wait."""

    async def get(self, name: str) -> AgentRecord | None: ...

    async def records(self) -> tuple[AgentRecord, ...]:
        """All of them, by name."""
        ...

    async def put(self, record: AgentRecord) -> None: ...

    async def remove(self, name: str) -> bool:
        """False: there was none."""
        ...


AgentProtocol: TypeAlias = GetAgent | ListAgents | PutAgent | RemoveAgent
