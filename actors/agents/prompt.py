"""The system prompt of an agent: 23 sections in the order of seed 002, each whole or absent.

Equal inputs give equal prompts, and the parts that change often stand late, so that the providers'
prompt caches keep the beginning. Pure, but for the cache of the prompts that were written last.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TypeAlias, get_args

import attrs
import msgspec

from motet.actors.agents import prompt_sections as sections
from motet.actors.agents.prompt_sections import PromptInput, fitted
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
    """A section: its name, its builder, and the modes and types of agents that it is for."""

    name: str
    build: Builder
    modes: tuple[PromptMode, ...] = _MODES
    types: tuple[AgentType, ...] = _TYPES


class Section(msgspec.Struct, frozen=True):
    """A section with a text."""

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
    """A system prompt: the text that is sent, and its sections."""

    sections: tuple[Section, ...]
    text: str


SECTIONS: tuple[Rule, ...] = (
    Rule("identity", sections.identity),
    Rule("bootstrap", sections.bootstrap, modes=_FULL, types=_HOSTED),
    Rule("persona", sections.persona, modes=_FULL),
    Rule("tooling", sections.tooling, types=_HOSTED),
    Rule("credentialed_cli", sections.programs),
    Rule("safety", sections.safety, types=_HOSTED),
    Rule("self_evolution", sections.self_evolution, modes=_FULL, types=("predefined",)),
    Rule("skills_inline", sections.skills_inline, modes=_FULL),
    Rule("skills_search", sections.skills_search, modes=_FULL),
    Rule("mcp_inline", sections.mcp_inline),
    Rule("mcp_search", sections.mcp_search),
    Rule("workspace", sections.workspace, types=_HOSTED),
    Rule("team_workspace", sections.team_workspace),
    Rule("sandbox", sections.sandbox, types=_HOSTED),
    Rule("user_identity", sections.user_identity, modes=_FULL),
    Rule("time", sections.time),
    Rule("channel_formatting", sections.channel_formatting, modes=_FULL),
    Rule("extra_context", sections.extra_context),
    Rule("project_context", sections.project_context),
    Rule("sub_agents", sections.sub_agents),
    Rule("runtime", sections.runtime, types=_HOSTED),
    Rule("persona_reminder", sections.persona_reminder, modes=_FULL),
    Rule("memory_reminders", sections.memory_reminders, modes=_FULL, types=_HOSTED),
)
"""In build order."""

_PLANS: dict[tuple[PromptMode, AgentType], tuple[Rule, ...]] = {
    (mode, kind): tuple(rule for rule in SECTIONS if mode in rule.modes and kind in rule.types)
    for mode, kind in product(_MODES, _TYPES)
}


def assemble(given: PromptInput) -> Prompt:
    """The prompt for an input. It takes some 5 us for a plain agent."""
    if given.files:
        minimal = given.mode == "minimal"
        files = (file for file in given.files if not minimal or file.name in MINIMAL_FILES)
        given = msgspec.structs.replace(given, files=fitted(files))
    built = tuple(
        Section(rule.name, text)
        for rule in _PLANS[given.mode, given.type]
        if (text := rule.build(given).strip())
    )
    return Prompt(built, "\n\n".join(section.text for section in built))


class CachedPrompt(msgspec.Struct, frozen=True):
    """A written prompt. ``around``: estimated tokens of it and of the tools that go with it."""

    given: PromptInput
    tools: tuple[ToolSpec, ...]
    text: str
    around: int


@attrs.define(eq=False)
class PromptCache:
    """The last prompt of each agent of a host, as long as it still holds.

    Most requests of an agent have the same prompt, and comparing inputs is cheaper than writing.
    Invariant: a cached prompt equals the one that :func:`assemble` makes of the same input.
    """

    _last: dict[str, CachedPrompt] = attrs.field(factory=dict[str, CachedPrompt], init=False)

    def write(self, given: PromptInput, tools: tuple[ToolSpec, ...]) -> CachedPrompt:
        """The prompt for an input, with these tools beside it."""
        last = self._last.get(given.agent)
        if last is None or last.given != given or last.tools != tools:
            text = assemble(given).text
            last = self._last[given.agent] = CachedPrompt(given, tools, text, overhead(text, tools))
        return last
