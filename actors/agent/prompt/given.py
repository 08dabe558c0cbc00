"""What a system prompt is assembled from: one frozen struct, and the parts it holds.

Everything in it is a value that can be hashed and compared: equal inputs give equal prompts.
"""

from __future__ import annotations

from datetime import date
from typing import Literal, TypeAlias

import msgspec

from motet.protocols.agents import AgentType, PromptMode, Team

ChatKind: TypeAlias = Literal["", "direct", "group"]


class PromptTool(msgspec.Struct, frozen=True):
    """A tool by its name and what it is for; its parameters travel beside the prompt."""

    name: str
    description: str = ""


class Skill(msgspec.Struct, frozen=True):
    """Instructions for one kind of task, which are read when they are needed."""

    name: str
    description: str = ""


class ContextFile(msgspec.Struct, frozen=True):
    """A bootstrap file. ``path``: where the agent's tools find it, empty if they do not."""

    name: str
    text: str
    path: str = ""


class Sandbox(msgspec.Struct, frozen=True):
    """How shell commands are confined. ``workdir``: the workspace as they see it."""

    workdir: str = ""
    network: bool = False
    timeout: float = 0.0
    notes: str = ""


class PromptInput(msgspec.Struct, frozen=True, kw_only=True):
    """All that a prompt can speak of. What is empty is not mentioned.

    Attributes:
        today: the date; there is no clock, since it would defeat the provider's prompt cache.
        tools: those that the policy leaves.
        programs: command-line programs that are signed in without the model seeing a key.
        soul: where the agent's tools find its SOUL.md, when it may change that.
        workspace: the folder of the tools, as the model shall call it.
        owners: who may change settings and permissions.
        channel: the platform, such as ``telegram``.
        extra: more context for this run, from the host.
        recalled: what the memory found, complete with its tags.
        spawn_tool: name of the tool that starts sub-agents.
        price: of the model, as a person would write it.
        memory: whether the agent remembers its users.
    """

    today: date
    instructions: str = ""
    agent: str = ""
    type: AgentType = "plain"
    mode: PromptMode = "full"
    tools: tuple[PromptTool, ...] = ()
    programs: tuple[str, ...] = ()
    skills: tuple[Skill, ...] = ()
    mcp: tuple[PromptTool, ...] = ()
    files: tuple[ContextFile, ...] = ()
    soul: str = ""
    workspace: str = ""
    team: Team | None = None
    sandbox: Sandbox | None = None
    user: str = ""
    owners: tuple[str, ...] = ()
    channel: str = ""
    chat: ChatKind = ""
    extra: str = ""
    recalled: str = ""
    spawn_tool: str = ""
    session: str = ""
    model: str = ""
    price: str = ""
    memory: bool = False
