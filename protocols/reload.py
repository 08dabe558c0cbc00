"""A change of the configuration of a running host, and its outcome."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

How: TypeAlias = Literal["hot", "drain", "restart"]
"""When a changed value counts.

``hot``: at once, also for what goes on. ``drain``: runs that go on keep the old value, all that
begin later have the new one. ``restart``: the host has to be started anew for it.
"""


class Change(msgspec.Struct, frozen=True):
    """One key that has another value, such as ``agents.helper`` or ``gateway.listen``."""

    key: str
    how: How

    def __str__(self) -> str:
        told = {
            "hot": "takes effect at once",
            "drain": "takes effect with the next run; active runs keep the old value",
            "restart": "takes effect after a restart",
        }
        return f"{self.key}: {told[self.how]}"


class Reloaded(msgspec.Struct, frozen=True):
    """A configuration that was read and put in force.

    Attributes:
        hash: of the configuration in force now, as ``config.get`` tells it.
        changes: what was different, by key; those that need a restart are not in force.
    """

    hash: str
    changes: tuple[Change, ...] = ()

    @property
    def restart(self) -> tuple[str, ...]:
        """The keys whose new values wait for a restart."""
        return tuple(change.key for change in self.changes if change.how == "restart")
