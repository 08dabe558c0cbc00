"""The tools with which an agent finds a skill, and reads it and the files that belong to it.

Invariant: what is read lies in the folder of a skill of that agent, by its resolved path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from motet.actors.skills.rank import best
from motet.actors.skills.shelf import SKILL_FILE, Found, Shelf, Skill
from motet.actors.tools.builtin.file_read import read_lines
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Length, Range, Tool, ToolRetry, tool
from motet.protocols.agents import AgentProfile
from motet.protocols.chat import JsonObject
from motet.protocols.errors import nearest

USE = "use_skill"
SEARCH = "skill_search"
GROUP: Mapping[str, tuple[str, ...]] = MappingProxyType({"group:skills": (USE, SEARCH)})
"""Both by one name, as a policy can say it."""

MAX_FILES = 50

_USE = (
    "Read the instructions of a skill before a task that it fits, and follow them. With file, "
    "read another file of it that they mention."
)
_SEARCH = "Find the skills for a task by any words of it. The best fit comes first."


def skill_tools(shelf: Shelf, profile_of: Callable[[str], AgentProfile]) -> list[Tool]:
    """``use_skill`` and ``skill_search``; ``profile_of`` is asked with the id of a run."""

    def found(ctx: Context[object]) -> Found:
        return shelf.find(profile_of(ctx.run_id))

    def use_skill(
        ctx: Context[object],
        name: Annotated[str, Length(1)],
        file: str = SKILL_FILE,
        offset: Annotated[int, Range(1)] = 1,
        limit: Annotated[int, Range(1, 10_000)] = 2_000,
    ) -> str:
        skill = _chosen(found(ctx), name)
        text = read_lines(skill.folder, file, offset, limit)
        others = _files(skill.folder) if file == SKILL_FILE and offset == 1 else []
        if not others:
            return text
        return f"{text.rstrip()}\n\n[Other files of this skill: {', '.join(others)}]"

    def skill_search(
        ctx: Context[object],
        query: Annotated[str, Length(1)],
        limit: Annotated[int, Range(1, 20)] = 5,
    ) -> list[JsonObject]:
        hits = best(found(ctx).skills, query, limit)
        return [{"name": skill.name, "description": skill.description} for skill in hits]

    return [
        tool(use_skill, description=_USE, effects="read"),
        tool(skill_search, description=_SEARCH, effects="read"),
    ]


def _chosen(found: Found, name: str) -> Skill:
    skill = found.get(name)
    if skill is None:
        near = nearest(name, [skill.name for skill in found.skills])
        hint = f"did you mean {near!r}?" if near else f"look with {SEARCH}"
        raise ToolRetry(f"there is no skill {name!r}; {hint}")
    return skill


def _files(folder: Path) -> list[str]:
    """The other files of a skill; links to folders are not followed."""
    names: list[str] = []
    for where, below, files in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        names += [str(Path(where, name).relative_to(folder)) for name in sorted(files)]
        if len(names) > MAX_FILES:
            names[MAX_FILES:] = ["..."]
            break
    return [name for name in names if name != SKILL_FILE]
