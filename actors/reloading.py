"""The part of a host that its operator uses: a look at its actors, another configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from motet.actors.answering import Answering
from motet.actors.config import load_config
from motet.actors.config_view import config_hash
from motet.actors.log import logger
from motet.actors.reload.change import change
from motet.actors.reload.plan import changes, in_force
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError, MotetError
from motet.protocols.events import HOST_STREAM, ConfigChanged, Publish, Warned
from motet.protocols.host_records import LiveActor
from motet.protocols.reload import Reloaded
from motet.runtime import ActorDead, StartFailed

if TYPE_CHECKING:
    from motet.protocols.events import AnyEvent

_log = logger("motet.config")


class Reloading(Answering):
    """See :class:`motet.Host`."""

    async def reload(
        self, config: HostConfig | str | Path | None = None, *, expect_hash: str | None = None
    ) -> Reloaded:
        """Put a configuration in force; None: what the file of this host says now. The files of a
        gateway's certificate are read again.

        Runs that go on keep their agents, tools and models; each change says when it counts.
        ``expect_hash``: refuse unless that of the configuration in force is this one. A wrong
        configuration changes nothing. Raises ``ConfigError`` naming all its problems, and
        ``UnknownName``, ``MissingExtra``, ``StartFailed``. Cancelled before it is in
        force, nothing has changed.
        """
        async with self._tree.ground.lock:
            try:
                self._expect(expect_hash)
                return await self._reload(self._asked(config))
            except (MotetError, StartFailed) as error:
                _log.error("the configuration stays as it is", problem=str(error))
                await self._tell(Warned("config", str(error)))
                raise

    def plan_reload(self, config: HostConfig | str | Path | None = None) -> Reloaded:
        """What :meth:`reload` would change; nothing is changed. Raises ``ConfigError``."""
        return self._plan(self._asked(config))

    def actors(self) -> tuple[LiveActor, ...]:
        """Every actor that is there now, parents first, siblings in start order."""
        return tuple(
            LiveActor(one.path, one.state, one.queued, one.age_s, one.waiting_on, one.paused)
            for one in self._tree.system.snapshot()
        )

    def _plan(self, asked: HostConfig) -> Reloaded:
        before = self._tree.config
        return Reloaded(config_hash(in_force(before, asked)), changes(before, asked))

    def _expect(self, expected: str | None) -> None:
        if expected not in (None, config_hash(self._tree.config)):
            raise ConfigError(
                f"the configuration in force is not the one with the hash {expected!r} any more: "
                "look at it again"
            )

    async def _reload(self, asked: HostConfig) -> Reloaded:
        tree, plan = self._tree, self._plan(asked)
        if tree.gateway is not None:
            tree.gateway.renew()
        for one in plan.changes:
            _log.info(str(one))
        if any(one.how != "restart" for one in plan.changes):
            await change(tree, in_force(tree.config, asked))
            for agent in tree.registry.names():
                self._parking.agent_known(agent)
        if plan.changes:
            await self._tell(ConfigChanged(plan.hash, plan.changes))
        return plan

    def _asked(self, config: HostConfig | str | Path | None) -> HostConfig:
        origin = self._tree.ground.origin
        if config is None:
            return origin.read()
        return origin.whole(config if isinstance(config, HostConfig) else load_config(config))

    async def _tell(self, event: AnyEvent) -> None:
        try:
            await self._tree.services.bus.tell(Publish(HOST_STREAM, event))
        except ActorDead:
            _log.warning("the journal is not there: nobody is told of the configuration")
