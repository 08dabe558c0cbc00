"""Where the skills of agents are, and what is there now.

A skill is a folder with a SKILL.md, in one of these, and where a name is twice the first counts:
the folders that the agent's configuration names, ``skills/`` in the folder of its files, and
those of the host. They are read anew for each run, so that a change counts from the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from motet.actors.skills.front import MAX_HEAD, BadSkill, front_of
from motet.actors.tools.builtin.paths import open_file
from motet.actors.tools.tool import ToolFailure
from motet.protocols.agents import AgentProfile

SKILL_FILE = "SKILL.md"
FOLDER = "skills"
MAX_SKILLS = 1_000
"""Folders that one place is searched for: a wrong path must not cost every run a minute."""


@attrs.frozen
class Skill:
    """A skill on disk. ``folder`` has no symbolic links in it."""

    name: str
    description: str
    folder: Path


@attrs.frozen
class Found:
    """What an agent can use, by name, and sentences about what is broken."""

    skills: tuple[Skill, ...] = ()
    problems: tuple[str, ...] = ()

    def get(self, name: str) -> Skill | None:
        return next((skill for skill in self.skills if skill.name == name), None)


@attrs.frozen
class Shelf:
    """The skills of one host. ``host``: folders for all agents that do not refuse any."""

    host: tuple[Path, ...] = ()

    def offers(self, profile: AgentProfile) -> bool:
        """Whether an agent has a place for skills. Looks at the disk, briefly."""
        return any(folder.is_dir() for folder, _ in self.places(profile))

    def find(self, profile: AgentProfile) -> Found:
        """The skills of an agent. Blocks for disk access; raises nothing."""
        skills: dict[str, Skill] = {}
        problems: list[str] = []
        for folder, chosen in self.places(profile):
            try:
                entries = sorted(folder.iterdir())
            except OSError as error:
                if chosen:
                    problems.append(f"the skills in {str(folder)!r}: {error.strerror or error}")
                continue
            if len(entries) > MAX_SKILLS:
                problems.append(f"{str(folder)!r}: only its first {MAX_SKILLS} entries are read")
            for skill in _skills(folder, entries[:MAX_SKILLS], problems):
                skills.setdefault(skill.name, skill)
        return Found(tuple(sorted(skills.values(), key=lambda skill: skill.name)), tuple(problems))

    def places(self, profile: AgentProfile) -> tuple[tuple[Path, bool], ...]:
        """The folders, whether or not they are there, and of each whether somebody named it."""
        if profile.skills is not None and not profile.skills:
            return ()
        named = [(Path(folder), True) for folder in profile.skills or ()]
        own = [] if profile.files is None else [(Path(profile.files, FOLDER), False)]
        return (*named, *own, *((folder, True) for folder in self.host))


def _skills(place: Path, entries: list[Path], problems: list[str]) -> Iterator[Skill]:
    root = place.resolve()
    for entry in entries:
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        try:
            skill = _skill(root, entry)
        except (BadSkill, ToolFailure, OSError) as error:
            problems.append(f"the skill {str(entry)!r} is not used: {error}")
        else:
            yield skill


def _skill(root: Path, entry: Path) -> Skill:
    """Raises ``BadSkill``, ``ToolFailure`` and ``OSError`` for what is none, or out of reach."""
    folder = entry.resolve()
    if not folder.is_relative_to(root):
        raise BadSkill(f"it leads out of {str(root)!r}")
    with open_file(folder, SKILL_FILE) as file:
        front = front_of(file.read(MAX_HEAD).decode("utf-8", "replace"))
    return Skill(front.name, front.description, folder)
