"""The agents of one host, and what their names of tools and models stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from motet.actors.agent.definition import AnyAgent
from motet.actors.agent.prompt.equipment import MCP_SEARCH
from motet.actors.models.catalog import ModelCatalog
from motet.actors.policy.desk import PolicyDesk
from motet.actors.skills.shelf import Shelf
from motet.actors.skills.tools import GROUP as SKILLS_GROUP
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.tool import Tool
from motet.protocols.errors import ConfigError, UnknownName
from motet.protocols.host import AgentInfo
from motet.protocols.models import Model

ALWAYS_OFFERED = ("get_error_detail", "get_tool_result")
"""To every agent that has tools: results of calls name them."""
MEMORY = "group:memory"


class AgentRegistry:
    """Agents by name. An agent is complete when it is added: its tools and model are known.

    ``builtin`` are the tools an agent may name, ``groups`` the names of several at once;
    ``offered``, models that people may choose beside those of the agents.
    """

    def __init__(
        self,
        catalog: ToolCatalog,
        models: ModelCatalog,
        builtin: Mapping[str, Tool],
        groups: Mapping[str, tuple[str, ...]],
        policy: PolicyDesk | None = None,
        shelf: Shelf | None = None,
        offered: Iterable[str] = (),
    ) -> None:
        self._catalog = catalog
        self._policy = policy or PolicyDesk(catalog)
        self._shelf = shelf or Shelf()
        self._models = models
        self._offered = tuple(offered)
        for name in self._offered:
            models.get(name)
        self._builtin = builtin
        self._groups = groups
        self._agents: dict[str, AnyAgent] = {}
        self._tool_names: dict[str, tuple[str, ...]] = {}
        self._keys: dict[str, Model] = {}
        self._stored: set[str] = set()

    def add(self, agent: AnyAgent) -> None:
        """Make an agent known. Adding the same one again changes nothing.

        It takes the place of a stored agent of its name. Raises ``ConfigError`` when another
        agent has its name, ``UnknownName`` for a model provider or a built-in tool that does not
        exist.
        """
        known = self._agents.get(agent.name)
        if known is agent:
            return
        if known is not None and agent.name not in self._stored:
            raise ConfigError(f"this host has another agent named {agent.name!r}: rename one")
        self._set(agent)
        self._stored.discard(agent.name)

    def put(self, agent: AnyAgent) -> None:
        """Make a stored agent known, or replace it: new runs get this one, live ones keep theirs.

        What it may call changes for live runs too: a tool that was taken away is gone at once.
        Raises as :meth:`add`.
        """
        if agent.name in self._agents and agent.name not in self._stored:
            raise ConfigError(f"this host has an agent of its own named {agent.name!r}")
        self._set(agent)
        self._stored.add(agent.name)

    def drop(self, name: str) -> None:
        """Forget a stored agent. Its live runs go on without tools."""
        if name in self._stored:
            self._stored.discard(name)
            del self._agents[name], self._tool_names[name]
            self._catalog.remove(name)
            self._policy.drop_agent(name)

    def check(self, agent: AnyAgent) -> None:
        """Raise what :meth:`put` would for the agent's model, tools and policy."""
        self._add_model(agent)
        tools = [tool.name for tool in self._complete(agent)]
        self._policy.check_agent(agent.name, agent.policy, tools)

    def own(self, name: str) -> AnyAgent | None:
        """The agent of that name, if it came from code or configuration and not from a store."""
        return None if name in self._stored else self._agents.get(name)

    def has(self, agent: AnyAgent) -> bool:
        """Whether it is this very agent that is known by its name."""
        return self._agents.get(agent.name) is agent

    def own_agents(self) -> tuple[AnyAgent, ...]:
        """All but those that came from a store, in the order in which they became known."""
        return tuple(agent for name, agent in self._agents.items() if name not in self._stored)

    def names(self) -> tuple[str, ...]:
        return tuple(self._agents)

    def get(self, name: str) -> AnyAgent:
        """Raises ``UnknownName`` with the nearest known name."""
        try:
            return self._agents[name]
        except KeyError:
            raise UnknownName("agent", name, tuple(self._agents)) from None

    def first(self) -> AnyAgent:
        """The agent that answers where none is named."""
        if not self._agents:
            raise ConfigError("this host has no agents: give open_host(agents=...) one")
        return next(iter(self._agents.values()))

    def model(self, key: str) -> Model:
        """The model behind the name that :attr:`Agent.model_name` gives."""
        return self._keys.get(key) or self._models.get(key)

    def models(self) -> tuple[str, ...]:
        """The names of the models that a session may have: those of agents, and what is offered."""
        names = (agent.model_name for agent in self._agents.values())
        return tuple(dict.fromkeys((*names, *self._offered)))

    def infos(self) -> tuple[AgentInfo, ...]:
        return tuple(
            AgentInfo(agent.name, agent.model_name, agent.description, self._tool_names[name])
            for name, agent in self._agents.items()
        )

    def _set(self, agent: AnyAgent) -> None:
        self._add_model(agent)
        tools = self._complete(agent)
        self._policy.set_agent(agent.name, agent.policy, [tool.name for tool in tools])
        sources = self._sources(agent)
        self._catalog.put(agent.name, tools, sources)
        names = (*(tool.name for tool in tools), *sources)
        self._tool_names[agent.name] = tuple(sorted(names))
        self._agents[agent.name] = agent
        for tool in tools:
            if tool.agent is not None:
                # Tools know nothing of agents, whose module needs theirs.
                self.add(cast("AnyAgent", tool.agent))

    def _complete(self, agent: AnyAgent) -> list[Tool]:
        """The tools that an agent is offered."""
        tools = self._resolve((*agent.tools, *((MEMORY,) if agent.memory else ())))
        if sources := self._sources(agent):
            tools += [tool for tool in (self._builtin[MCP_SEARCH],) if tool not in tools]
        if self._shelf.offers(agent.profile):
            skills = [self._builtin[name] for name in SKILLS_GROUP["group:skills"]]
            tools += [tool for tool in skills if tool not in tools]
        if tools or sources:
            # From the start, since a stable list keeps the provider's cache.
            offered = [self._builtin[name] for name in ALWAYS_OFFERED if name in self._builtin]
            tools += [tool for tool in offered if tool not in tools]
        return tools

    def _add_model(self, agent: AnyAgent) -> None:
        if isinstance(agent.model, str):
            self._models.get(agent.model)
            return
        known = self._keys.setdefault(agent.model.name, agent.model)
        if known is not agent.model:
            raise ConfigError(
                f"agent {agent.name!r}: this host has another model object named "
                f"{agent.model.name!r}: give each its own name"
            )

    def _resolve(self, tools: Iterable[Tool | str]) -> list[Tool]:
        found: dict[str, Tool] = {}
        for item in tools:
            for tool in [item] if isinstance(item, Tool) else self._named(item):
                if found.setdefault(tool.name, tool) is not tool:
                    raise ConfigError(f"two tools are named {tool.name!r}: rename one")
        return list(found.values())

    def _named(self, name: str) -> list[Tool]:
        if name in self._groups:
            return [self._builtin[member] for member in self._groups[name]]
        if name in self._builtin:
            return [self._builtin[name]]
        if name in self._catalog.declared:
            return []
        known = (*self._builtin, *self._groups, *self._catalog.declared)
        raise UnknownName("tool", name, known)

    def _sources(self, agent: AnyAgent) -> tuple[str, ...]:
        """The MCP servers that an agent names: what they offer is known when they are asked."""
        declared = self._catalog.declared
        named = (name for name in agent.tools if isinstance(name, str) and name in declared)
        return tuple(dict.fromkeys(named))
