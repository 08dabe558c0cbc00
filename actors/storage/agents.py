"""Store of agents: an actor over the table ``agents``, and its :class:`AgentSource`.

Invariant: a record that this version cannot read costs its own agent, never the list.
"""

from __future__ import annotations

import attrs
import msgspec

from motet.actors.errors.log import logger
from motet.actors.storage.tables import TableStore, to_json
from motet.protocols.agents import (
    AgentProtocol,
    AgentRecord,
    GetAgent,
    ListAgents,
    PutAgent,
    RemoveAgent,
)
from motet.protocols.storage import SqlValue, Statement, StorageError
from motet.runtime import Actor, ActorRef, handles

_ONE = "SELECT body FROM agents WHERE name = ?"
_ALL = "SELECT name, body FROM agents ORDER BY name"
_PUT = (
    "INSERT INTO agents (name, body, created, updated) VALUES (?1, ?2, ?3, ?3)"
    " ON CONFLICT (name) DO UPDATE SET body = excluded.body, updated = excluded.updated"
)
_REMOVE = "DELETE FROM agents WHERE name = ? RETURNING name"

_log = logger("motet.agents")


class AgentStore(TableStore, Actor[AgentProtocol]):
    """Handles the requests of ``motet.protocols.agents``."""

    @handles(GetAgent, concurrent=16)
    async def get(self, request: GetAgent) -> AgentRecord | None:
        rows = await self._readers.point(_ONE, (request.name,))
        return _record(request.name, rows[0][0]) if rows else None

    @handles(ListAgents, concurrent=16)
    async def records(self, _: ListAgents) -> tuple[AgentRecord, ...]:
        found: list[AgentRecord] = []
        for name, body in await self._readers.read(_ALL):
            try:
                found.append(_record(str(name), body))
            except StorageError as error:
                _log.error(str(error))
        return tuple(found)

    @handles(PutAgent, concurrent=16)
    async def put(self, request: PutAgent) -> None:
        params = (request.record.name, to_json(request.record), self._clock())
        await self._write((Statement(_PUT, params),))

    @handles(RemoveAgent, concurrent=16)
    async def remove(self, request: RemoveAgent) -> bool:
        (rows,) = await self._write((Statement(_REMOVE, (request.name,)),))
        return bool(rows)


@attrs.frozen
class StoredAgents:
    """The store actor as a :class:`motet.protocols.agents.AgentSource`."""

    store: ActorRef[AgentProtocol]

    async def get(self, name: str) -> AgentRecord | None:
        return await self.store.ask(GetAgent(name))

    async def records(self) -> tuple[AgentRecord, ...]:
        return await self.store.ask(ListAgents())

    async def put(self, record: AgentRecord) -> None:
        await self.store.ask(PutAgent(record))

    async def remove(self, name: str) -> bool:
        return await self.store.ask(RemoveAgent(name))


def _record(name: str, body: SqlValue) -> AgentRecord:
    """Raises ``StorageError`` for a body that this version does not understand."""
    try:
        return msgspec.json.decode(str(body), type=AgentRecord)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StorageError(
            f"the stored agent {name!r} cannot be read: {error}; store it again, or remove it"
        ) from error
