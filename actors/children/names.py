"""Names of the tools of an agent that has others work beside it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SPAWN = "spawn"
LOOK = "subagents"
CHILD_TOOLS = (SPAWN, LOOK)
GROUP: Mapping[str, tuple[str, ...]] = MappingProxyType({"group:agents": CHILD_TOOLS})
"""Both by one name, as a configuration can say it."""
