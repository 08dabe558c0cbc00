"""Which tools of servers a model is shown: all of a few, and those it has found of many. Pure.

A tool that is not shown can still be called: to show it saves tokens, to allow it is the policy's
business. What a conversation has called before stays in sight.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from motet.actors.agent.prompt.equipment import MCP_SEARCH, is_small
from motet.actors.agent.prompt.given import PromptTool
from motet.protocols.chat import AssistantMessage, ChatMessage
from motet.protocols.tools import ToolSpec

PREFIX = "mcp__"
BY_NAME, BY_TEXT = 3, 1
"""What a word is worth that is found in a tool's name, or in its description."""


def foreign(specs: Iterable[ToolSpec]) -> tuple[PromptTool, ...]:
    """Those that come from servers, as the prompt tells of them."""
    return tuple(PromptTool(s.name, s.description) for s in specs if s.name.startswith(PREFIX))


def shown(specs: tuple[ToolSpec, ...], found: frozenset[str]) -> tuple[ToolSpec, ...]:
    """What of ``specs`` goes to the model; the same object where that is all of it."""
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


def search(tools: Iterable[PromptTool], query: str, limit: int) -> Sequence[PromptTool]:
    """The tools that a query is about, best first; equal ones by name."""
    words = [word for word in re.split(r"[^a-z0-9]+", query.lower()) if word]
    scored = [(_score(tool, words), tool) for tool in tools]
    best = sorted((-score, tool.name, tool) for score, tool in scored if score)
    return [tool for _, _, tool in best[:limit]]


def _score(tool: PromptTool, words: Iterable[str]) -> int:
    name, text = tool.name.lower(), tool.description.lower()
    return sum(BY_NAME * (word in name) + BY_TEXT * (word in text) for word in words)
