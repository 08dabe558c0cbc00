"""What another configuration of the host makes of its open rooms.

Invariant: all that can be wrong is found before any of them changes. Who may see one changes at
once, what it is from its next round on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from msgspec.structs import replace

from motet.actors.rooms.definition import Room
from motet.actors.rooms.opening import configured_room
from motet.actors.rooms.place import Place
from motet.protocols.errors import UnknownName
from motet.protocols.rooms import FindRoom, MemberInfo

if TYPE_CHECKING:
    from motet.actors.registry import AgentRegistry
    from motet.actors.tree import Tree
    from motet.protocols.config import HostConfig


@attrs.frozen
class Renewal:
    """One open room. ``planned`` None: it is not configured any more, and only admins see it."""

    place: Place
    planned: tuple[Room, tuple[MemberInfo, ...]] | None
    people: frozenset[str]

    def commit(self) -> None:
        """Nothing here can fail or wait."""
        self.place.people = self.people
        if self.planned is not None:
            self.place.planned = self.planned
            if self.place.waits:
                self.place.adopt()


async def renewals(tree: Tree, registry: AgentRegistry, config: HostConfig) -> list[Renewal]:
    """Of all open rooms that are or were configured. Raises ``ConfigError``, ``UnknownName``.

    ``registry``: of the agents that there will be.
    """
    found: list[Renewal] = []
    for name, place in tuple(tree.places.known.items()):
        if name in config.rooms:
            room = configured_room(name, config.rooms[name])
            record = await tree.rooms_store.ask(FindRoom(name, 0))
            people = frozenset(room.people).union(record.people if record else ())
            found.append(Renewal(place, (room, await _members(tree, registry, room)), people))
        elif name in tree.config.rooms:
            found.append(Renewal(place, None, frozenset()))
    return found


async def _members(tree: Tree, registry: AgentRegistry, room: Room) -> tuple[MemberInfo, ...]:
    stored = {one.name: one.description for one in await tree.resolver.records()}
    known = stored | {one.name: one.description for one in registry.infos()}
    for member in room.members:
        if member.name not in known:
            raise UnknownName("agent", member.name, tuple(known))
    return tuple(replace(one.info, description=known[one.name]) for one in room.members)
