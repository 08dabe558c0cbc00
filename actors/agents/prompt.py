"""Puts a prompt together: 23 sections in the order of seed 002, each there or without a trace.

Pure: equal inputs give equal prompts, and what changes often stands late, so that the providers'
prompt caches keep the beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from itertools import product
from typing import TypeAlias, get_args

import attrs
import msgspec

from motet.actors.agents import (
    prompt_sections as closing,
)
from motet.actors.agents import (
    prompt_sections as equipment,
)
from motet.actors.agents import (
    prompt_sections as opening,
)
from motet.actors.agents.prompt_sections import (
    ContextFile,
    PromptInput,
    Sandbox,
    Skill,
    fitted,
)
from motet.actors.tools.mcp.tool_search import PromptTool
from motet.actors.transcript.history import CHARS_PER_TOKEN, overhead
from motet.protocols.agents import AgentType, PromptMode
from motet.protocols.tools import ToolSpec

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


# The system prompt: sections in a fixed order, assembled from what is known of an agent.


__all__ = [
    "SECTIONS",
    "ContextFile",
    "Prompt",
    "PromptInput",
    "PromptTool",
    "Sandbox",
    "Section",
    "Skill",
    "assemble",
    "system_prompt",
]


def system_prompt(instructions: str, today: date, context: str = "") -> str:
    """The prompt of a plain agent: its instructions, the date, what is remembered."""
    given = PromptInput(instructions=instructions, today=today, recalled=context)
    return assemble(given).text


# The system prompts that runs are given: each agent's last one, as long as it still holds.
#
# Most requests of an agent have one prompt, and to see that is cheaper than to write it anew.
# Invariant: what is given equals what :func:`assemble` makes of the same input.


PromptInput_in_prompts = PromptInput


class CachedPrompt(msgspec.Struct, frozen=True):
    """A system prompt. ``around``: estimated tokens of it and of the tools that go with it."""

    given: PromptInput_in_prompts
    tools: tuple[ToolSpec, ...]
    text: str
    around: int


@attrs.define(eq=False)
class PromptCache:
    """The prompts of one host, one for each agent."""

    _last: dict[str, CachedPrompt] = attrs.field(factory=dict[str, CachedPrompt], init=False)

    def write(self, given: PromptInput_in_prompts, tools: tuple[ToolSpec, ...]) -> CachedPrompt:
        """The prompt for an input, with these tools beside it."""
        last = self._last.get(given.agent)
        if last is None or last.given != given or last.tools != tools:
            text = assemble(given).text
            last = self._last[given.agent] = CachedPrompt(given, tools, text, overhead(text, tools))
        return last
