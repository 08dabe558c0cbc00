"""Parameters and results of the gateway's methods for operators: configuration and actors."""

from __future__ import annotations

import msgspec

from motet.protocols.host_records import LiveActor


class ConfigReloadParams(msgspec.Struct, frozen=True):
    """``expect_hash``: refuse unless the configuration in force has this hash.

    ``dry_run``: only report the changes.
    """

    expect_hash: str | None = None
    dry_run: bool = False


class ActorsList(msgspec.Struct, frozen=True):
    """Parents first."""

    actors: tuple[LiveActor, ...]
