"""The tools of MCP servers that a model is shown: all of a few, or those that it has searched for.

A tool that is not shown can still be called: showing fewer saves tokens, and only the policy
forbids calls. A tool that the conversation has called before stays visible. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from motet.actors.transcript.history import CHARS_PER_TOKEN
from motet.protocols.chat import AssistantMessage, ChatMessage
from motet.protocols.tools import ToolSpec

MCP_SEARCH = "mcp_tool_search"
PREFIX = "mcp__"
INLINE = 15
"""Skills, or tools of servers, that a prompt lists; of more, the agent searches."""
INLINE_TOKENS = 5_000
"""Estimated tokens that such a list may take."""
SUMMARY_CHARS = 160
"""Characters of the line about a tool."""
NAME_SCORE, TEXT_SCORE = 3, 1
"""The score of a word that is found in a tool's name, or in its description."""


class PromptTool(msgspec.Struct, frozen=True):
    """A tool's name and purpose; its parameters are sent beside the prompt."""

    name: str
    description: str = ""


def tool_lines(tools: Iterable[PromptTool]) -> list[str]:
    """One line for each tool, by name: a stable list keeps the provider's cache."""
    return [
        f"- {tool.name}: {use}" if (use := _first_sentence(tool.description)) else f"- {tool.name}"
        for tool in sorted(tools, key=lambda tool: tool.name)
    ]


def _first_sentence(text: str) -> str:
    line = text.strip().partition("\n")[0].rstrip()
    sentence = line.partition(". ")[0]
    short = len(sentence) <= SUMMARY_CHARS
    cut = sentence if short else sentence[:SUMMARY_CHARS].rstrip() + "…"
    return cut if cut == line or cut.endswith(("…", ".")) else f"{cut}."


def is_listed(lines: Sequence[str]) -> bool:
    """Whether there is a list, and it is short enough for every request."""
    size = sum(len(line) + 1 for line in lines)
    return 0 < len(lines) <= INLINE and size <= INLINE_TOKENS * CHARS_PER_TOKEN


def is_small(tools: Iterable[PromptTool]) -> bool:
    """Whether all of the tools can be listed, so that there is nothing to search."""
    lines = tool_lines(tools)
    return not lines or is_listed(lines)


def foreign(specs: Iterable[ToolSpec]) -> tuple[PromptTool, ...]:
    """The tools of servers among ``specs``, as the prompt lists them."""
    return tuple(PromptTool(s.name, s.description) for s in specs if s.name.startswith(PREFIX))


def shown(specs: tuple[ToolSpec, ...], found: frozenset[str]) -> tuple[ToolSpec, ...]:
    """The specs that go to the model; the same object where that is all of them."""
    if is_small(foreign(specs)):
        kept = tuple(spec for spec in specs if spec.name != MCP_SEARCH)
    else:
        kept = tuple(
            spec for spec in specs if not spec.name.startswith(PREFIX) or spec.name in found
        )
    return specs if len(kept) == len(specs) else kept


def called(rows: Iterable[ChatMessage]) -> frozenset[str]:
    """The tools of servers that a conversation has called."""
    return frozenset(
        call.name
        for row in rows
        if isinstance(row, AssistantMessage)
        for call in row.calls
        if call.name.startswith(PREFIX)
    )


def search(tools: Iterable[PromptTool], query: str, limit: int) -> list[PromptTool]:
    """The tools that match words of the query, best first; equal ones by name."""
    words = [word for word in re.split(r"[^a-z0-9]+", query.lower()) if word]

    def score(tool: PromptTool) -> int:
        name, text = tool.name.lower(), tool.description.lower()
        return sum(NAME_SCORE * (word in name) + TEXT_SCORE * (word in text) for word in words)

    scored = sorted((-score(tool), tool.name, tool) for tool in tools)
    return [tool for rank, _, tool in scored if rank][:limit]
