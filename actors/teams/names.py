"""Names of the tools of a team's task board."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

GROUP: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"group:tasks": ("task_create", "task_list", "task_claim", "task_update")}
)
"""All of the board by one name, as a configuration can say it."""
