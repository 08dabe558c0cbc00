"""Agents as data: the profile of an agent, its team, and the store of agents."""

from __future__ import annotations

from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from motet.protocols.limits import Limits
from motet.protocols.messages import Request
from motet.protocols.policy import ToolRules

AgentType: TypeAlias = Literal["plain", "open", "predefined"]
"""``plain``: instructions only; ``open``: every user has files of their own; ``predefined``: all
users share the files of the agent, and each has a profile besides."""
PromptMode: TypeAlias = Literal["full", "minimal"]
"""``minimal``: for sub-agents and scheduled runs."""
WorkspaceMode: TypeAlias = Literal["auto", "shared", "per_user"]
AgentStatus: TypeAlias = Literal["active", "inactive"]

WINDOW = 200_000
"""The default context window in tokens (seed 002)."""


D_contra = TypeVar("D_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)


class AgentLike(Generic[D_contra, Out_co]):
    """An agent as tools see it: it takes ``deps`` of the one type and returns the other.

    A base class and not a Protocol: no attribute of an agent has these types, so that a checker
    could not find them by structure.
    """

    name: str


AnyAgentLike: TypeAlias = AgentLike[Any, Any]


class Sharing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The users who share one folder although the workspace is per user.

    Attributes:
        dm: all users who talk with the agent directly.
        group: all group chats.
        users: these users, such as ``telegram:386246614`` or ``group:telegram:-100``.
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
        workspace: the shared folder of the team inside the host's workspace. A lead works in it, a
            member in its own. Empty: none.
        shared: whether all chats use that folder; else each has one below it.
    """

    name: str
    role: Literal["lead", "member"] = "member"
    members: tuple[Member, ...] = ()
    workspace: str = ""
    shared: bool = False


class AgentProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files, the workspace and the prompt of an agent. The default is a plain agent.

    Attributes:
        prompt_mode: of its main runs.
        bootstrap: whether each user is given files; None: if it has ``files`` and is not plain.
        files: folder of its bootstrap files and of the templates for those of its users.
        workspace: one folder for all users, or one for each; ``auto``: one for each as soon as the
            gateway has tokens of several users.
        sharing: exceptions from ``per_user``.
        window: tokens of its model's context window; 0 or less: 200,000.
        skills: folders of skills that come before those in ``files`` and of the host; None: only
            those; empty: no skills at all.
    """

    type: AgentType = "plain"
    prompt_mode: PromptMode = "full"
    bootstrap: bool | None = None
    files: str | None = None
    workspace: WorkspaceMode = "auto"
    sharing: Sharing = Sharing()
    window: int = WINDOW
    team: Team | None = None
    skills: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.window <= 0:
            msgspec.structs.force_setattr(self, "window", WINDOW)

    @property
    def acts_as(self) -> AgentType:
        """The effective type: a plain agent with ``bootstrap`` is an open one."""
        return "open" if self.type == "plain" and self.bootstrap else self.type

    @property
    def seeds(self) -> bool:
        """Whether its users get files of their own. By default they do not."""
        if self.bootstrap is not None:
            return self.bootstrap
        return self.type != "plain" and self.files is not None


PLAIN = AgentProfile()
"""An agent of instructions only."""


class AgentRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stored agent.

    Attributes:
        provider: name of a model provider; unknown or empty: the first one.
        model: the provider's name of the model, or ``provider:model``, or ``demo``.
        tools: names of built-in tools and groups.
        iterations: model requests in one run; 0 or less: those of ``limits``.
        limits: None: those of the host.
        policy: the tools that it may call; rules of the host apply as well.
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
    """All agents, by name."""


class PutAgent(Request[None], frozen=True, tag="agents.put"):
    """Store an agent, or replace the one of its name; answered after COMMIT."""

    record: AgentRecord


class RemoveAgent(Request[bool], frozen=True, tag="agents.remove"):
    """Delete an agent; its sessions stay. False: there was none."""

    name: str


class AgentSource(Protocol):
    """A store of agents: SQLite, or another database. Every method may raise and wait."""

    async def get(self, name: str) -> AgentRecord | None: ...

    async def records(self) -> tuple[AgentRecord, ...]:
        """All agents, by name."""
        ...

    async def put(self, record: AgentRecord) -> None: ...

    async def remove(self, name: str) -> bool:
        """False: there was none."""
        ...


AgentProtocol: TypeAlias = GetAgent | ListAgents | PutAgent | RemoveAgent
