"""The input of a system prompt from what is known when a run begins: pure translation."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

import msgspec

from motet.actors.agent.prompt.equipment import is_small
from motet.actors.agent.prompt.given import PromptInput, PromptTool, Sandbox
from motet.actors.agents.workbench import Prepared, mode_of
from motet.actors.sessions.keys import parse_key
from motet.protocols.agents import AgentProfile, PromptMode
from motet.protocols.config import ShellConfig
from motet.protocols.tools import ToolSpec

SHELL = "shell"
SPAWN = "spawn"
USE_SKILL = "use_skill"


class Occasion(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its prompt sees it.

    Attributes:
        mode: as somebody asked for; None: as the session's key and the profile say.
        shell: how the host runs commands.
        owners, programs, mcp, price: as :class:`PromptInput` says.
        recalled: what the memory found, complete with its tags.
    """

    agent: str
    instructions: str
    profile: AgentProfile
    prepared: Prepared
    today: date
    session: str = ""
    user: str = ""
    model: str = ""
    tools: tuple[ToolSpec, ...] = ()
    memory: bool = False
    recalled: str = ""
    extra: str = ""
    shell: ShellConfig | None = None
    owners: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    mcp: tuple[PromptTool, ...] = ()
    price: str = ""
    mode: PromptMode | None = None


def prompt_input(run: Occasion) -> PromptInput:
    """What :func:`motet.actors.agent.prompt.assemble` is given for a run.

    A plain agent's prompt has none of its tools in it: they travel beside it anyway. Nor does it
    say whose session it is, so that all its sessions have one prompt.
    """
    profile, chat = run.profile, parse_key(run.session)
    hosted = profile.acts_as != "plain"
    names = {tool.name for tool in run.tools}
    return PromptInput(
        today=run.today,
        instructions=run.instructions,
        agent=run.agent,
        type=profile.acts_as,
        mode=run.mode or mode_of(profile, run.session),
        tools=_offered(run.tools) if hosted else (),
        programs=run.programs,
        skills=run.prepared.skills if USE_SKILL in names else (),
        mcp=run.mcp if hosted or (run.mcp and not is_small(run.mcp)) else (),
        files=run.prepared.files,
        soul=run.prepared.soul,
        workspace=str(run.prepared.workspace) if hosted and names else "",
        team=run.prepared.team,
        sandbox=_sandbox(run.shell) if hosted and SHELL in names else None,
        user=run.user if hosted else "",
        owners=run.owners,
        channel=chat.channel if chat else "",
        chat=chat.kind if chat else "",
        extra=run.extra,
        recalled=run.recalled,
        spawn_tool=SPAWN if SPAWN in names else "",
        session=run.session if hosted else "",
        model=run.model if hosted else "",
        price=run.price,
        memory=run.memory,
    )


def _offered(tools: Iterable[ToolSpec]) -> tuple[PromptTool, ...]:
    return tuple(PromptTool(tool.name, tool.description) for tool in tools)


def _sandbox(shell: ShellConfig | None) -> Sandbox | None:
    if shell is None or shell.mode != "sandbox":
        return None
    return Sandbox(network=shell.network, timeout=shell.timeout)
