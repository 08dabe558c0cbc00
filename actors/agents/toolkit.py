"""The tools, servers, skills, rules and models of one configuration, as one object.

Invariant: a run looks its tools, servers and model up in its own toolkit only, so that a change of
the configuration never takes away under it what its model has been told of.
"""

from __future__ import annotations

import attrs

from motet.actors.agents.registry import AgentRegistry
from motet.actors.agents.skills import SkillCatalog
from motet.actors.agents.workspace import Workspaces
from motet.actors.models.catalog import ModelCatalog
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.mcp.directory import McpDirectory
from motet.actors.tools.policy.engine import PolicyEngine
from motet.protocols.config import GuardAction, ShellConfig


@attrs.frozen(eq=False)
class Toolkit:
    """The plain objects that agents, sessions and the tool executor share.

    Attributes:
        workspaces: folders and files of agents and their users.
        shell: how commands are run, for the system prompt.
        guard: what happens to a text that looks like an attempt to take the agent over.
        generation: of the configuration of models that says how each is reached.
    """

    catalog: ToolCatalog
    mcp: McpDirectory
    skills: SkillCatalog
    policy: PolicyEngine
    registry: AgentRegistry
    models: ModelCatalog
    shell: ShellConfig
    workspaces: Workspaces
    guard: GuardAction
    generation: int = 0
