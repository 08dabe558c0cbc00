"""Sections 8 to 14: skills, external tools, and the place where the agent works."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from motet.actors.agent.prompt.given import PromptInput, PromptTool, Skill
from motet.actors.agent.prompt.opening import lines
from motet.actors.agent.tokens import CHARS_PER_TOKEN

INLINE = 15
"""Skills, or external tools, that are listed; with more, the agent searches them."""
INLINE_TOKENS = 5_000
"""Estimated tokens that a list may take."""
SKILL_SEARCH = "skill_search"
SKILL_USE = "use_skill"
MCP_SEARCH = "mcp_tool_search"


def skills_inline(given: PromptInput) -> str:
    """A small set of skills, and how one is used."""
    listed = _skill_lines(given.skills)
    if not _is_small(listed):
        return ""
    head = f"When a task fits one of these, read it first with {SKILL_USE} and follow it."
    return "\n".join(["# Skills", head, *listed])


def skills_search(given: PromptInput) -> str:
    """A large set of skills: how to find the one."""
    count = len(given.skills)
    if not count or _is_small(_skill_lines(given.skills)):
        return ""
    return (
        f"# Skills\nThere are {count} skills. Before a task that is not plain talk, look with "
        f"{SKILL_SEARCH} whether one fits, then read it with {SKILL_USE} and follow it."
    )


def mcp_inline(given: PromptInput) -> str:
    """A few tools of external servers."""
    listed = lines(given.mcp)
    if not _is_small(listed):
        return ""
    return "\n".join(["# External tools", "Of connected services.", *listed])


def mcp_search(given: PromptInput) -> str:
    """Many tools of external servers: how to find the one."""
    count = len(given.mcp)
    if not count or _is_small(lines(given.mcp)):
        return ""
    return (
        f"# External tools\nConnected services offer {count} more tools. Find one with "
        f"{MCP_SEARCH}; after that it can be called."
    )


def workspace(given: PromptInput) -> str:
    """Where files are."""
    if not given.workspace:
        return ""
    inside = given.sandbox.workdir if given.sandbox else ""
    seen = f" Shell commands see it as {inside}." if inside and inside != given.workspace else ""
    return (
        f"# Workspace\nYour folder is {given.workspace}. Paths of file tools count from it, and "
        f"nothing outside of it can be opened.{seen}"
    )


def team_workspace(given: PromptInput) -> str:
    """The folder that a team has in common."""
    team = given.team
    if team is None or not team.workspace:
        return ""
    who = "all its chats" if team.shared else "this chat"
    use = "It is your own folder too." if team.role == "lead" else "Your lead works there."
    return f"# Team workspace\n{team.workspace} belongs to the team {team.name}, for {who}. {use}"


def sandbox(given: PromptInput) -> str:
    """What confines shell commands."""
    found = given.sandbox
    if found is None:
        return ""
    net = "have network access" if found.network else "have no network"
    time = f" One may take {found.timeout:g} s." if found.timeout > 0 else ""
    note = f"\n{found.notes.strip()}" if found.notes.strip() else ""
    return (
        f"# Sandbox\nShell commands run confined: they write only in the workspace and {net}."
        f"{time} If something is refused, say so and do not work around it.{note}"
    )


def _skill_lines(skills: Iterable[Skill]) -> list[str]:
    listed: list[str] = []
    for skill in sorted(skills, key=lambda skill: skill.name):
        # Whole: it says when the skill is to be used. Its author keeps it short.
        what = " ".join(skill.description.split())
        listed.append(f"- {skill.name}" + (f": {what}" if what else ""))
    return listed


def is_small(tools: Iterable[PromptTool]) -> bool:
    """Whether external tools are few enough to be listed, or none."""
    listed = lines(tools)
    return not listed or _is_small(listed)


def _is_small(listed: Sequence[str]) -> bool:
    """Whether there is a list, and it is worth its tokens in every request."""
    size = sum(len(line) + 1 for line in listed)
    return 0 < len(listed) <= INLINE and size <= INLINE_TOKENS * CHARS_PER_TOKEN
