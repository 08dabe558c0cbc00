"""Puts a prompt together: 23 sections in the order of seed 002, each there or without a trace.

Pure: equal inputs give equal prompts, and what changes often stands late, so that the providers'
prompt caches keep the beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TypeAlias, get_args

import msgspec

from motet.actors.agent.prompt import closing, equipment, opening
from motet.actors.agent.prompt.files import fitted
from motet.actors.agent.prompt.given import PromptInput
from motet.actors.agent.tokens import CHARS_PER_TOKEN
from motet.protocols.agents import AgentType, PromptMode

Builder: TypeAlias = Callable[[PromptInput], str]

MINIMAL_FILES = ("AGENTS.md", "TOOLS.md")
_HOSTED: tuple[AgentType, ...] = ("open", "predefined")
_TYPES: tuple[AgentType, ...] = get_args(AgentType)
_MODES: tuple[PromptMode, ...] = get_args(PromptMode)
_FULL: tuple[PromptMode, ...] = ("full",)


class Rule(msgspec.Struct, frozen=True):
    """A section: its name, what writes it, and for which modes and types of agents it is on."""

    name: str
    build: Builder
    modes: tuple[PromptMode, ...] = _MODES
    types: tuple[AgentType, ...] = _TYPES


class Section(msgspec.Struct, frozen=True):
    """A section that has something to say."""

    name: str
    text: str

    @property
    def chars(self) -> int:
        return len(self.text)

    @property
    def tokens(self) -> int:
        """An estimate, rounded up."""
        return -(-len(self.text) // CHARS_PER_TOKEN)


class Prompt(msgspec.Struct, frozen=True):
    """A system prompt: the text that is sent, and the sections it was made of."""

    sections: tuple[Section, ...]
    text: str


SECTIONS: tuple[Rule, ...] = (
    Rule("identity", opening.identity),
    Rule("bootstrap", opening.bootstrap, modes=_FULL, types=_HOSTED),
    Rule("persona", opening.persona, modes=_FULL),
    Rule("tooling", opening.tooling, types=_HOSTED),
    Rule("credentialed_cli", opening.programs),
    Rule("safety", opening.safety, types=_HOSTED),
    Rule("self_evolution", opening.self_evolution, modes=_FULL, types=("predefined",)),
    Rule("skills_inline", equipment.skills_inline, modes=_FULL),
    Rule("skills_search", equipment.skills_search, modes=_FULL),
    Rule("mcp_inline", equipment.mcp_inline),
    Rule("mcp_search", equipment.mcp_search),
    Rule("workspace", equipment.workspace, types=_HOSTED),
    Rule("team_workspace", equipment.team_workspace),
    Rule("sandbox", equipment.sandbox, types=_HOSTED),
    Rule("user_identity", closing.user_identity, modes=_FULL),
    Rule("time", closing.time),
    Rule("channel_formatting", closing.channel_formatting, modes=_FULL),
    Rule("extra_context", closing.extra_context),
    Rule("project_context", closing.project_context),
    Rule("sub_agents", closing.sub_agents),
    Rule("runtime", closing.runtime, types=_HOSTED),
    Rule("persona_reminder", closing.persona_reminder, modes=_FULL),
    Rule("memory_reminders", closing.memory_reminders, modes=_FULL, types=_HOSTED),
)
"""In build order."""

_PLANS: dict[tuple[PromptMode, AgentType], tuple[Rule, ...]] = {
    (mode, kind): tuple(rule for rule in SECTIONS if mode in rule.modes and kind in rule.types)
    for mode, kind in product(_MODES, _TYPES)
}


def assemble(given: PromptInput) -> Prompt:
    """The prompt for an input. Some 5 us for a plain agent: it may be made for every request."""
    if given.files:
        minimal = given.mode == "minimal"
        files = (file for file in given.files if not minimal or file.name in MINIMAL_FILES)
        given = msgspec.structs.replace(given, files=fitted(files))
    sections = tuple(
        Section(rule.name, text)
        for rule in _PLANS[given.mode, given.type]
        if (text := rule.build(given).strip())
    )
    return Prompt(sections, "\n\n".join(section.text for section in sections))
