"""Bootstrap files: which there are for which agent, where each is, and which a user is given.

Pure rules; :mod:`motet.actors.agents.workbench` reads and writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

from motet.actors.agent.prompt.given import ContextFile
from motet.protocols.agents import AgentProfile, AgentType, PromptMode, Team

Home: TypeAlias = Literal["agent", "user"]
"""``agent``: the agent's own folder, for all users; ``user``: the folder of one user."""

ORDER = (
    "SOUL.md",
    "IDENTITY.md",
    "AGENTS.md",
    "TOOLS.md",
    "BOOTSTRAP.md",
    "USER_PREDEFINED.md",
    "USER.md",
    "MEMORY.md",
    "DELEGATION.md",
    "TEAM.md",
    "AVAILABILITY.md",
)
"""All bootstrap files; the first ones have the first claim to the room in a prompt."""

BOOTSTRAP = "BOOTSTRAP.md"
BOOTSTRAP_TURNS = 3
"""Turns of a user after which it is no first conversation any more."""

_OF_USER: Mapping[AgentType, frozenset[str]] = MappingProxyType(
    {
        "plain": frozenset(),
        "open": frozenset(
            {"AGENTS.md", "SOUL.md", "IDENTITY.md", "USER.md", BOOTSTRAP, "MEMORY.md"}
        ),
        "predefined": frozenset({"USER.md", BOOTSTRAP, "MEMORY.md"}),
    }
)
_ABSENT: Mapping[AgentType, frozenset[str]] = MappingProxyType(
    {
        # Nobody's first conversation: these speak of a user that a plain agent does not know.
        "plain": frozenset({BOOTSTRAP, "USER_PREDEFINED.md"}),
        "open": frozenset({"USER_PREDEFINED.md"}),
        "predefined": frozenset(),
    }
)
SEEDED: Mapping[AgentType, tuple[str, ...]] = MappingProxyType(
    {
        "plain": (),
        "open": ("AGENTS.md", "SOUL.md", "IDENTITY.md", "USER.md", BOOTSTRAP),
        "predefined": ("USER.md", BOOTSTRAP),
    }
)
"""What a user is given at the first turn."""
MINIMAL = ("AGENTS.md", "TOOLS.md")


class Wanted(msgspec.Struct, frozen=True):
    """A file to read, if it is there."""

    name: str
    home: Home


def wanted(profile: AgentProfile, mode: PromptMode) -> tuple[Wanted, ...]:
    """The files of a prompt, in order; none for an agent that nobody gave files."""
    if profile.files is None and not profile.seeds:
        return ()
    kind = profile.acts_as
    names = MINIMAL if mode == "minimal" else ORDER
    found = [
        Wanted(name, "user" if name in _OF_USER[kind] else "agent")
        for name in names
        if name not in _ABSENT[kind]
    ]
    return tuple(file for file in found if file.home == "user" or profile.files is not None)


def with_team(
    files: tuple[ContextFile, ...], profile: AgentProfile, mode: PromptMode
) -> tuple[ContextFile, ...]:
    """The files with what the agent is told of its team: its own words, or those made here.

    Exactly one of TEAM.md and AVAILABILITY.md stays; a plain agent without a team gets neither.
    """
    if mode == "minimal":
        return files
    team, name = profile.team, "TEAM.md" if profile.team else "AVAILABILITY.md"
    other = "AVAILABILITY.md" if team else "TEAM.md"
    files = tuple(file for file in files if file.name != other)
    if any(file.name == name for file in files):
        return files
    if team is not None:
        return (*files, ContextFile(name, team_text(team)))
    return (*files, ContextFile(name, _ALONE)) if files and profile.type != "plain" else files


_ALONE = "You work alone: there is no team, and no task board. Do what is asked yourself."


def team_text(team: Team) -> str:
    """Who is in the team, and what a lead and a member have to do."""
    duty = (
        "You lead it: cut work into tasks, give each to the member it suits, look at what comes "
        "back, and answer for the whole."
        if team.role == "lead"
        else "You are a member: do the tasks you are given, and report what you did and found."
    )
    who = [f"- {m.name}: {m.description}" if m.description else f"- {m.name}" for m in team.members]
    return "\n".join([f"# Team {team.name}", duty, *(["Its other members:"] if who else []), *who])


def still_first(turns: int) -> bool:
    """Whether a user who has had so many turns is still being got to know."""
    return turns < BOOTSTRAP_TURNS


def template(name: str, kind: AgentType) -> str:
    """What a user's file begins with, where the agent's folder has no template of that name."""
    return _PREDEFINED_BOOTSTRAP if name == BOOTSTRAP and kind == "predefined" else _TEMPLATES[name]


_TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "AGENTS.md": """\
# How to work here

- Before you begin, read what you know: USER.md about the person, MEMORY.md about what was before.
- Write down what you will need again; what is in no file is forgotten when the talk ends.
- Ask before you delete, send or publish anything.
- In a group speak when you are asked, or when you can help. Otherwise be silent.
""",
        "SOUL.md": """\
# Soul

- Be of use: do the work, then say in short what you did.
- Have a view and give its reasons. Say what you do not know.
- Be careful with what belongs to others.

This file is yours: change it as you learn who you are.
""",
        "IDENTITY.md": """\
# Identity

- Name:
- What you are:
- How you sound:
""",
        "USER.md": """\
# The user

- Name:
- How to address them:
- Language and time zone:
- What they are working on:
- What they like and what they do not:
""",
        BOOTSTRAP: """\
# A first conversation

You and this person have not met before. Greet them, and find out in a few easy questions, one at
a time, what they want to call you, how you should sound, who they are and what they need.

Write the answers down as you get them: yourself in IDENTITY.md and SOUL.md, them in USER.md.
When that is done, this file has done its work.
""",
    }
)

_PREDEFINED_BOOTSTRAP = """\
# A first conversation

This person talks with you for the first time. Greet them as who you are, and help with what they
came for. On the way learn their name, their language and what they need, and write it into
USER.md. Do not ask for what they have not come to tell.
"""
