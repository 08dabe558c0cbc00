"""The tools of each agent, by name.

Invariants: an agent has one tool per name; lists are sorted by name, since a stable list keeps
the provider's prompt cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from motet.actors.tools.tool import Tool
from motet.actors.transcript.guards import Kind
from motet.protocols.chat import Call
from motet.protocols.errors import ConfigError, UnknownName
from motet.protocols.tools import ToolSpec

LISTED = 40
_NAME_CHARS = 64


class ToolCatalog:
    """The tools of all agents of one host. An unknown agent has no tools."""

    def __init__(self) -> None:
        self._agents: dict[str, dict[str, Tool]] = {}
        self._specs: dict[str, tuple[ToolSpec, ...]] = {}
        self._kinds: dict[str, dict[str, Kind]] = {}
        self._own: dict[str, tuple[Tool, ...]] = {}
        self._sources: dict[str, tuple[str, ...]] = {}
        self._provided: dict[str, tuple[Tool, ...]] = {}
        self.declared: tuple[str, ...] = ()
        """The sources that agents may name."""

    def __repr__(self) -> str:
        return f"<ToolCatalog { ({agent: len(tools) for agent, tools in self._agents.items()}) }>"

    def add(self, agent: str, tools: Iterable[Tool]) -> None:
        """Give an agent tools, all or none. Raises ``ConfigError`` for a name it already has."""
        known = {tool.name: tool for tool in self._own.get(agent, ())}
        for tool in tools:
            if tool.name in known:
                raise ConfigError(f"agent {agent!r} has two tools named {tool.name!r}: rename one")
            known[tool.name] = tool
        self.put(agent, known.values(), self.sources(agent))

    def put(self, agent: str, tools: Iterable[Tool], sources: Iterable[str] = ()) -> None:
        """Replace an agent's tools, also for its live runs.

        ``sources``: it also has the current tools of these.
        """
        self._own[agent], self._sources[agent] = tuple(tools), tuple(sources)
        self._list(agent)

    def declare(self, sources: Iterable[str]) -> None:
        self.declared = tuple(sources)

    def provide(self, source: str, tools: Iterable[Tool]) -> None:
        """Set the tools of a source, such as ``mcp:git``."""
        self._provided[source] = tuple(tools)
        for agent, sources in self._sources.items():
            if source in sources:
                self._list(agent)

    def provided_by(self, source: str) -> tuple[Tool, ...] | None:
        """The tools of a source; None: it has not listed them yet."""
        return self._provided.get(source)

    def sources(self, agent: str) -> tuple[str, ...]:
        return self._sources.get(agent, ())

    def _list(self, agent: str) -> None:
        foreign = [tool for name in self._sources[agent] for tool in self._provided.get(name, ())]
        named = {tool.name: tool for tool in (*foreign, *self._own[agent])}
        known = sorted(named.values(), key=lambda tool: tool.name)
        self._agents[agent] = {tool.name: tool for tool in known}
        self._specs[agent] = tuple(tool.spec for tool in known)
        kinds = self._kinds.setdefault(agent, {})  # changed in place: live runs hold this object
        kinds.clear()
        kinds.update({tool.name: "polling" if tool.polling else tool.effects for tool in known})

    def remove(self, agent: str) -> None:
        for known in (self._agents, self._specs, self._kinds, self._own, self._sources):
            known.pop(agent, None)

    def get(self, agent: str, name: str) -> Tool:
        """Raises ``UnknownName`` with the nearest name that the agent has."""
        tools = self._agents.get(agent, {})
        if name not in tools:
            raise UnknownName("tool", name[:_NAME_CHARS], list(tools))
        return tools[name]

    def by_name(self, agent: str) -> Mapping[str, Tool]:
        return self._agents.get(agent, {})

    def names(self, agent: str) -> tuple[str, ...]:
        return tuple(self._agents.get(agent, ()))

    def tools(self, agent: str) -> tuple[Tool, ...]:
        """Sorted by name."""
        return tuple(self._agents.get(agent, {}).values())

    def all_names(self) -> frozenset[str]:
        """The names of the tools of all agents."""
        return frozenset(name for tools in self._agents.values() for name in tools)

    def specs(self, agent: str) -> tuple[ToolSpec, ...]:
        """The specs for the model, sorted by name; the same object until the tools change."""
        return self._specs.get(agent, ())

    def nearest_first(self, agent: str, name: str, allowed: Sequence[str] | None = None) -> str:
        """The names of an agent's tools, nearest to an unknown ``name`` first.

        ``allowed``: the names that may be shown.
        """
        from difflib import SequenceMatcher  # here: only mistakes need it

        wanted = name[:_NAME_CHARS].lower()
        names = sorted(
            self.names(agent) if allowed is None else allowed,
            key=lambda known: (-SequenceMatcher(None, wanted, known.lower()).ratio(), known),
        )
        rest = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        return ", ".join(names[:LISTED]) + rest if names else "none"

    def in_order(self, agent: str, calls: Iterable[Call]) -> bool:
        """Whether a batch has to run in call order, one call at a time (G8)."""
        tools = self._agents.get(agent, {})
        for call in calls:
            tool = tools.get(call.name)
            if tool is not None and (tool.effects == "write" or not tool.parallel):
                return True
        return False

    def only_read(self, agent: str, calls: Iterable[Call]) -> bool:
        """Whether no call of a batch may have effects. An unknown tool has none."""
        tools = self._agents.get(agent, {})
        return all(call.name not in tools or tools[call.name].only_reads for call in calls)

    def kinds(self, agent: str) -> Mapping[str, Kind]:
        """The kind of each tool, for the detection of loops in calls."""
        return self._kinds.get(agent, {})
