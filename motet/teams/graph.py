"""Graphs of agents: who speaks after whom, under which condition, and who waits for whom.

A graph is a policy of speakers: a person's message starts it anew, and it ends when no node has to
speak. Which nodes are ready is a pure function of the messages of the round, so that a restart
changes nothing. Invariants: an edge with several sources (a join) lets its target speak once for
each time that all of them have spoken; a condition is asked once for each message of its source; a
graph with a cycle ends at the limits of its room at the latest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Self, TypeAlias

import attrs

from motet.actors.agents.spec import AgentSpec
from motet.actors.rooms.definition import Member, Room
from motet.protocols.errors import ConfigError
from motet.protocols.limits import Limits
from motet.protocols.room_conditions import Condition
from motet.protocols.room_speakers import AskModel, NoChoice, Speakers
from motet.protocols.rooms import RoomMode, RoomView
from motet.teams.member import room_agent

Node: TypeAlias = AgentSpec[Any, Any] | Room | str
"""An agent, the name of one, or a room, which works as one node."""
When: TypeAlias = Callable[[str], bool] | str | None
"""A function of a source's text, or words that it must contain; None: always."""

MAX_TURNS = 50


@attrs.frozen
class Edge:
    """When all ``sources`` have spoken, with texts that ``when`` accepts, ``target`` speaks.

    ``otherwise``: only for a text that no other edge of the same source accepts.
    """

    sources: tuple[str, ...]
    target: str
    when: When = None
    otherwise: bool = False

    @property
    def asks(self) -> bool:
        """Whether it depends on a text."""
        return self.otherwise or self.when is not None

    def accepts(self, text: str) -> bool:
        if isinstance(self.when, str):
            return self.when in text
        return self.when is None or self.when(text)


def ready_nodes(
    edges: Sequence[Edge], starts: Sequence[str], said: Iterable[tuple[str, str | None]]
) -> tuple[str, ...]:
    """The nodes that have to speak now. Pure.

    ``said``: authors and texts of the round, oldest first; None: it was withdrawn. Nodes speak in
    steps: those that are ready speak side by side, and what they say decides the next step. A
    message of a node that was not to speak moves nothing.
    """
    now, later = list(starts), list[str]()
    arrived: dict[int, set[str]] = {}
    known = list(said)
    for at, (author, text) in enumerate(known, 1):
        if author not in now:
            continue
        now.remove(author)
        spoken = _since(known, at) if text is None else ()
        for number in _taken(edges, author, text, spoken):
            found = arrived.setdefault(number, set())
            found.add(author)
            if found.issuperset(edges[number].sources):
                found.clear()
                if edges[number].target not in later:
                    later.append(edges[number].target)
        if not now:
            now, later = later, []
    return tuple(now)


def _since(said: Sequence[tuple[str, str | None]], at: int) -> set[str]:
    """The nodes that have spoken behind message ``at``, before its own spoke again."""
    own, _ = said[at - 1]
    return {author for author, _ in takewhile(lambda one: one[0] != own, said[at:])}


def _taken(
    edges: Sequence[Edge], author: str, text: str | None, spoken: Collection[str]
) -> list[int]:
    """The edges that a message of a node goes along.

    That of a withdrawn one is no more known than by the nodes that have ``spoken`` since.
    """
    own = [(number, edge) for number, edge in enumerate(edges) if author in edge.sources]
    if text is None:
        return [number for number, edge in own if not edge.asks or edge.target in spoken]
    first = [number for number, edge in own if not edge.otherwise and edge.accepts(text)]
    chosen = any(edges[number].when is not None for number in first)
    rest = (number for number, edge in own if edge.otherwise and not chosen)
    return [*first, *rest]


@attrs.frozen
class GraphSpeakers(Speakers):
    """The policy of a graph's room. Calls by name are plain text there."""

    edges: tuple[Edge, ...]
    starts: tuple[str, ...]

    async def pick(self, view: RoomView, ask: AskModel) -> Sequence[str]:  # noqa: ARG002
        own = [one for one in view.round if one.kind == "agent"]
        said = [(one.author, None if one.deleted else one.text) for one in own]
        if names := ready_nodes(self.edges, self.starts, said):
            return names
        for at, one in enumerate(own, 1):
            next_ = {edge.target for edge in self.edges if one.author in edge.sources if edge.asks}
            if one.deleted and next_ and next_.isdisjoint(_since(said, at)):
                raise NoChoice(
                    f"the graph has ended: message {one.seq} of {one.author} was withdrawn, and who"
                    " speaks next depends on its text"
                )
        return ()


class Graph:
    """A small graph of agents, made edge by edge::

        flow = motet.Graph("press")
        flow.edge(writer, checker)
        flow.edge(writer, lawyer)
        flow.edge([checker, lawyer], editor)            # once, when both have spoken
        flow.edge(editor, writer, when="REVISE")
        room = flow.room(max_turns=12)

    Raises ``ConfigError`` for two nodes of one name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: dict[str, Node] = {}
        self._members: dict[str, AgentSpec[Any, Any] | str] = {}
        self._edges: list[Edge] = []
        self._starts: list[str] = []

    def __repr__(self) -> str:
        return f"<Graph {self.name} nodes={len(self._nodes)} edges={len(self._edges)}>"

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes by name, in the order in which they were first named."""
        return self._nodes

    @property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(self._edges)

    def edge(
        self,
        source: Node | Sequence[Node],
        target: Node,
        *,
        when: When = None,
        otherwise: bool = False,
    ) -> Self:
        """Let ``target`` speak after ``source``; several sources: when all of them have spoken.

        ``when``: a text that the message of each source contains, or a function of that message;
        ``otherwise``: for a message that no other edge with a ``when`` accepts. A function that
        raises ends the round with the reason ``failed``.
        """
        if otherwise and when is not None:
            raise ConfigError(f"graph {self.name!r}: an edge has `when` or `otherwise`, not both")
        several = [source] if isinstance(source, str | AgentSpec | Room) else source
        sources = tuple(map(self._name, several))
        if not sources or len(set(sources)) < len(sources):
            raise ConfigError(f"graph {self.name!r}: an edge needs sources, each of them once")
        self._edges.append(Edge(sources, self._name(target), when, otherwise))
        return self

    def start(self, *nodes: Node) -> Self:
        """Let these nodes speak first; without it, those to which no edge leads."""
        self._starts += map(self._name, nodes)
        return self

    @property
    def starts(self) -> tuple[str, ...]:
        """The nodes that speak first. Raises ``ConfigError`` if there are none."""
        targets = {edge.target for edge in self._edges}
        found = self._starts or [name for name in self._nodes if name not in targets]
        if not found:
            raise ConfigError(f"graph {self.name!r}: an edge leads to each node: name a start()")
        return tuple(dict.fromkeys(found))

    def room(
        self,
        *,
        max_turns: int = MAX_TURNS,
        until: Condition | None = None,
        limits: Limits | None = None,
        history: int = 50,
        mode: RoomMode = "collect",
        people: Sequence[str] = (),
    ) -> Room:
        """The room in which the graph is walked, once for each message of a person.

        The parameters are those of :class:`motet.Room`; ``max_turns`` ends cycles. Nodes that are
        ready together speak at once. A node that fails or passes is asked again, at most as often
        as there are nodes. Raises ``ConfigError`` for a graph without a start.
        """
        return Room(
            self.name,
            members=[Member(one) for one in self._members.values()],
            speakers=GraphSpeakers(self.edges, self.starts),
            until=until,
            max_turns=max_turns,
            concurrency=len(self._nodes),
            history=history,
            mode=mode,
            limits=limits or Limits(),
            people=tuple(people),
        )

    def _name(self, node: Node) -> str:
        """The name of a node, which a text only refers to if it is there already."""
        name = node if isinstance(node, str) else node.name
        known = self._nodes.get(name, name)
        if isinstance(known, str):
            self._nodes[name] = node
            self._members[name] = room_agent(node) if isinstance(node, Room) else node
        elif known is not node and node != name:
            raise ConfigError(f"graph {self.name!r} has two nodes named {name!r}")
        return name
