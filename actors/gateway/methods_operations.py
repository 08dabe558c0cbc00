"""The methods of ``motet.v1`` for who operates a host: see gateway.md, section 3."""

from __future__ import annotations

from typing import Final

from motet.actors.gateway.method import Answer, Caller, Method, method
from motet.protocols import gateway_operations as wire
from motet.protocols.gateway import NoParams


async def _reload(caller: Caller, params: wire.ConfigReloadParams) -> Answer:
    if params.dry_run:
        return Answer(caller.api.plan_reload())
    return Answer(await caller.api.reload(expect_hash=params.expect_hash))


async def _actors(caller: Caller, _params: NoParams) -> Answer:
    return Answer(wire.ActorsList(caller.api.actors()))


OPERATIONS: Final[tuple[Method, ...]] = (
    method("config.reload", "admin", wire.ConfigReloadParams, _reload),
    method("actors.list", "admin", NoParams, _actors),
)
