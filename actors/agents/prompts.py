"""The system prompts that runs are given: each agent's last one, as long as it still holds.

Most requests of an agent have one prompt, and to see that is cheaper than to write it anew.
Invariant: what is given equals what :func:`assemble` makes of the same input.
"""

from __future__ import annotations

import attrs
import msgspec

from motet.actors.agent.prompt import PromptInput, assemble
from motet.actors.agent.tokens import overhead
from motet.protocols.tools import ToolSpec


class Written(msgspec.Struct, frozen=True):
    """A system prompt. ``around``: estimated tokens of it and of the tools that go with it."""

    given: PromptInput
    tools: tuple[ToolSpec, ...]
    text: str
    around: int


@attrs.define(eq=False)
class Prompts:
    """The prompts of one host, one for each agent."""

    _last: dict[str, Written] = attrs.field(factory=dict[str, Written], init=False)

    def write(self, given: PromptInput, tools: tuple[ToolSpec, ...]) -> Written:
        """The prompt for an input, with these tools beside it."""
        last = self._last.get(given.agent)
        if last is None or last.given != given or last.tools != tools:
            text = assemble(given).text
            last = self._last[given.agent] = Written(given, tools, text, overhead(text, tools))
        return last
