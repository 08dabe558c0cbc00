"""The methods of ``motet.v1`` for who operates a host: its configuration and its actors."""

from __future__ import annotations

import msgspec

from motet.protocols.host_records import LiveActor


class ConfigReloadParams(msgspec.Struct, frozen=True):
    """``expect_hash``: refuse unless it is that of the configuration in force, as it was read.

    ``dry_run``: only tell what would change.
    """

    expect_hash: str | None = None
    dry_run: bool = False


class ActorsList(msgspec.Struct, frozen=True):
    """Parents first."""

    actors: tuple[LiveActor, ...]
