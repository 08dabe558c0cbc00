"""What the agents of a host can be given: tools, MCP servers, skills, and the rules on them."""

from __future__ import annotations

from pathlib import Path

import attrs

from motet.actors.children.names import GROUP as AGENTS_GROUP
from motet.actors.children.start import Children
from motet.actors.children.tools import child_tools
from motet.actors.errors.detail import error_detail
from motet.actors.mcp.directory import McpDirectory
from motet.actors.memory.tools import GROUP as MEMORY_GROUP
from motet.actors.memory.tools import memory_tools
from motet.actors.models.catalog import ModelCatalog
from motet.actors.policy.desk import PolicyDesk, desk_of
from motet.actors.policy.names import RESULTS, grouped
from motet.actors.registry import ALWAYS_OFFERED, AgentRegistry
from motet.actors.results.detail import result_page
from motet.actors.results.tool import tool_result_tools
from motet.actors.rooms.tools import GROUP as ROOMS_GROUP
from motet.actors.rooms.tools import floor_tool
from motet.actors.sessions.table import RunTable
from motet.actors.skills.shelf import Shelf
from motet.actors.skills.tools import GROUP as SKILLS_GROUP
from motet.actors.skills.tools import skill_tools
from motet.actors.stores import Stores
from motet.actors.teams.names import GROUP as TASKS_GROUP
from motet.actors.teams.tools import task_tools
from motet.actors.tools.builtin import GROUPS, builtin_tools
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool
from motet.protocols.chat import JsonObject
from motet.protocols.config import HostConfig, ShellConfig
from motet.protocols.policy import Policy

ALL_GROUPS = {
    **GROUPS,
    **MEMORY_GROUP,
    **AGENTS_GROUP,
    **TASKS_GROUP,
    **SKILLS_GROUP,
    **ROOMS_GROUP,
}


@attrs.frozen(eq=False)
class Equipment:
    """The plain objects that agents, sessions and the executor of tools share: a ``Kit``."""

    catalog: ToolCatalog
    mcp: McpDirectory
    shelf: Shelf
    policy: PolicyDesk
    registry: AgentRegistry
    models: ModelCatalog
    shell: ShellConfig
    generation: int = 0


def equipped(
    config: HostConfig,
    *,
    stores: Stores,
    children: Children,
    table: RunTable,
    models: ModelCatalog,
    engine: Policy | None,
    generation: int = 0,
) -> Equipment:
    """All of it, with nothing started yet. Raises ``ConfigError``, ``MissingExtra``."""
    catalog = ToolCatalog()
    mcp = McpDirectory(config.mcp, catalog, table)
    shelf = Shelf(tuple(map(Path, config.skills or ())))
    skills = skill_tools(shelf, lambda run_id: table.runs[run_id].agent.profile)
    builtin = _builtin(config, stores, children, skills) | mcp.tools()
    policy = mcp.policy = desk_of(config, catalog, builtin, (*ALL_GROUPS, *mcp.sources), engine)
    offered = config.models.offered
    registry = AgentRegistry(catalog, models, builtin, ALL_GROUPS, policy, shelf, offered)
    shell = config.tools.shell
    return Equipment(catalog, mcp, shelf, policy, registry, models, shell, generation)


def _builtin(
    config: HostConfig, stores: Stores, children: Children, skills: list[Tool]
) -> dict[str, Tool]:
    async def find_error(ctx: Context[object], error_id: object) -> JsonObject:
        wanted = error_id if isinstance(error_id, str) else None
        trace = stores.tracer.of(ctx.run_id)
        with trace.store("get", error_id=wanted, call_id=ctx.call_id) as span:
            return await error_detail(stores.errors, ctx.session, error_id, span)

    async def read_result(
        session: str, result_id: object, offset: object, limit: object
    ) -> JsonObject:
        return await result_page(stores.results, session, result_id, offset, limit)

    builtin = builtin_tools(config.tools.shell, config.tools.http, find_error)
    more = [*tool_result_tools(read_result), *memory_tools(stores.memory), *skills]
    more += [*child_tools(children), *task_tools(stores.boards, children.team), floor_tool()]
    together = builtin | {tool.name: tool for tool in more}
    return grouped(together, {**ALL_GROUPS, RESULTS: ALWAYS_OFFERED})
