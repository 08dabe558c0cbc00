"""Skills: folders with a SKILL.md, which agents find, read and follow.

Invariant: the skill tools read only files in the folder of a skill of that agent, by their resolved
paths.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import attrs
import msgspec
import msgspec.yaml

from motet.actors.tools.builtin.files import read_lines
from motet.actors.tools.builtin.paths import open_file
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Length, Range, Tool, tool
from motet.protocols.agents import AgentProfile
from motet.protocols.chat import JsonObject
from motet.protocols.errors import nearest
from motet.protocols.tools import ToolFailure, ToolRetry

MAX_HEAD = 16_384
"""Bytes of a SKILL.md in which its front matter must end."""
MAX_DESCRIPTION = 1_024

_HEAD = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.S | re.M)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class FrontMatter(msgspec.Struct, frozen=True):
    """The front matter of a SKILL.md: YAML between two lines of three hyphens.

    YAML is a large language, and files in the wild use more of it than ``key: value``: quotes,
    folded texts, nested tables. So PyYAML reads it, through msgspec, with its safe loader. Other
    keys are ignored.
    """

    name: str
    description: str


class BadSkill(ValueError):
    """A SKILL.md that cannot be used; the message says why."""


def front_matter(text: str) -> FrontMatter:
    """Read the front matter of a SKILL.md. Raises :class:`BadSkill`."""
    head = _HEAD.match(text)
    if head is None:
        raise BadSkill("it does not begin with a head between two lines of '---'")
    try:
        front = msgspec.yaml.decode(head[1].encode(), type=FrontMatter)
    except msgspec.ValidationError as error:
        raise BadSkill(f"in its head: {error}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadSkill(f"its head is not YAML: {' '.join(str(error).split())}") from None
    if not _NAME.fullmatch(front.name):
        raise BadSkill(f"name {front.name!r}: use 1 to 64 letters, digits, '_', '.' or '-'")
    description = " ".join(front.description.split())
    if not 0 < len(description) <= MAX_DESCRIPTION:
        raise BadSkill(f"description: use 1 to {MAX_DESCRIPTION} characters")
    return FrontMatter(front.name, description)


# The catalog


SKILL_FILE = "SKILL.md"
FOLDER = "skills"
MAX_SKILLS = 1_000
"""Folders of one place that are read: a wrong path must not cost every run a minute."""


@attrs.frozen
class Skill:
    """A skill on disk. ``folder`` has no symbolic links in it."""

    name: str
    description: str
    folder: Path


@attrs.frozen
class FoundSkills:
    """The skills of an agent by name, and sentences about the broken ones."""

    skills: tuple[Skill, ...] = ()
    problems: tuple[str, ...] = ()

    def get(self, name: str) -> Skill | None:
        return next((skill for skill in self.skills if skill.name == name), None)


@attrs.frozen
class SkillCatalog:
    """Finds the skills of a host's agents. ``host``: folders for all agents that do not refuse any.

    A name that exists twice belongs to the first of these: the folders of the agent's
    configuration, ``skills/`` in the folder of its files, the folders of the host. They are read
    anew for each run, so that a change takes effect with the next one.
    """

    host: tuple[Path, ...] = ()

    def offers(self, profile: AgentProfile) -> bool:
        """Whether an agent has a folder for skills. Looks at the disk, briefly."""
        return any(folder.is_dir() for folder, _ in self.folders(profile))

    def find(self, profile: AgentProfile) -> FoundSkills:
        """The skills of an agent. Blocks for disk access; raises nothing."""
        skills: dict[str, Skill] = {}
        problems: list[str] = []
        for folder, chosen in self.folders(profile):
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
        return FoundSkills(
            tuple(sorted(skills.values(), key=lambda skill: skill.name)), tuple(problems)
        )

    def folders(self, profile: AgentProfile) -> tuple[tuple[Path, bool], ...]:
        """The folders, which may be missing, and for each whether a configuration names it."""
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
    """Raises ``BadSkill``, ``ToolFailure`` and ``OSError``."""
    folder = entry.resolve()
    if not folder.is_relative_to(root):
        raise BadSkill(f"it leads out of {str(root)!r}")
    with open_file(folder, SKILL_FILE) as file:
        front = front_matter(file.read(MAX_HEAD).decode("utf-8", "replace"))
    return Skill(front.name, front.description, folder)


# Search


_WORD = re.compile(r"\w+")
_SHORT = 3
"""Letters of the shortest word that matches longer ones: ``deploy``, ``deployment``."""
_IN_NAME = 2.0


def best(skills: Sequence[Skill], query: str, limit: int) -> list[Skill]:
    """The skills that have a word of the query, best match first; equal ones by name.

    A rare word weighs more than one that many skills have, and twice in a name.
    """
    words = {word.casefold() for word in _WORD.findall(query)}
    texts = [(_words(skill.name), _words(skill.description)) for skill in skills]
    scores = [0.0] * len(skills)
    for word in words:
        hits = [max(_hit(word, name) * _IN_NAME, _hit(word, rest)) for name, rest in texts]
        found = sum(1 for hit in hits if hit)
        weight = math.log(1 + len(skills) / found) if found else 0.0
        scores = [score + hit * weight for score, hit in zip(scores, hits, strict=True)]
    ranked = sorted(zip(scores, skills, strict=True), key=lambda pair: (-pair[0], pair[1].name))
    return [skill for score, skill in ranked if score > 0][:limit]


def _words(text: str) -> set[str]:
    # Names are written with hyphens and underscores between their words.
    return {word.casefold() for word in _WORD.findall(text.replace("_", " "))}


def _hit(word: str, words: set[str]) -> float:
    if word in words:
        return 1.0
    pairs = (sorted((word, other), key=len) for other in words)
    begins = any(len(short) >= _SHORT and long.startswith(short) for short, long in pairs)
    return 0.5 if begins else 0.0


# Tools


USE = "use_skill"
SEARCH = "skill_search"
SKILL_TOOL_GROUP: Mapping[str, tuple[str, ...]] = MappingProxyType({"group:skills": (USE, SEARCH)})
"""Both tools by one name."""

MAX_FILES = 50

_USE = (
    "Read the instructions of a skill before a task that it fits, and follow them. With file, "
    "read another file of it that they mention."
)
_SEARCH = "Find the skills for a task by any words of it. The best fit comes first."


def skill_tools(skills: SkillCatalog, profile_of: Callable[[str], AgentProfile]) -> list[Tool]:
    """``use_skill`` and ``skill_search``. ``profile_of``: the profile behind the id of a run."""

    def found(ctx: Context[object]) -> FoundSkills:
        return skills.find(profile_of(ctx.run_id))

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


def _chosen(found: FoundSkills, name: str) -> Skill:
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
