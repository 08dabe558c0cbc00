"""The profiles: which groups of tools each begins with. Pure data.

A profile is a closed list: a tool of a group that it does not name is not in it, and no ``allow``
brings it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from motet.actors.policy.names import OWN
from motet.protocols.policy import Profile

_TALK = ("group:agents", "group:memory", "group:skills", "group:tasks", "group:web")

PROFILES: Mapping[Profile, tuple[str, ...]] = MappingProxyType(
    {
        "minimal": (),
        "messaging": (*_TALK, OWN),
        "coding": (*_TALK, "group:fs", "group:shell", OWN),
        "full": ("*",),
    }
)
