"""Names in policies and in calls: what each stands for, and which of them nobody has. Pure.

Invariant: a name is resolved in one way only, for lists and for calls. A pattern knows ``*`` and
nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType

import attrs

from motet.actors.tools.tool import Tool
from motet.protocols.errors import UnknownName
from motet.protocols.policy import ToolFacts

OWN = "group:own"
"""The tools that a program or a file gives an agent, as far as they say no other group."""
BUILTIN = "group:builtin"
"""All that come with motet."""
RESULTS = "group:results"
"""What reads results and errors of calls, or finds tools: only a ``deny`` takes these away."""
GROUP, MCP = "group:", "mcp:"

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "bash": "shell",
        "exec": "shell",
        "read": "read_file",
        "write": "write_file",
        "edit": "edit_file",
        "ls": "list_files",
        "fetch": "http_fetch",
        "web_fetch": "http_fetch",
    }
)
"""Names by which models call tools that have another one here."""
PREFIXES = ("functions.", "default_api.")
"""What some models put before the names of tools."""
_PLACE = "{tool_name}"


@cache
def pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)


def fits(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns is, or stands for, the name."""
    return any(name == one or ("*" in one and pattern(one).fullmatch(name)) for one in patterns)


def names(text: str, tool: ToolFacts) -> bool:
    """Whether a name of a rule, group or pattern is about this tool."""
    if text.startswith((GROUP, MCP)):
        return any(fits(group, (text,)) for group in tool.groups)
    return any(fits(name, (text,)) for name in (tool.name, *tool.aliases))


def stripped(template: str, name: str) -> str:
    """The name without what a template has around it; as it was if it is not like that.

    A template without ``{tool_name}`` is a prefix; an underscore that joins it goes as well.
    """
    before, place, after = template.partition(_PLACE)
    if not name.startswith(before) or not name.endswith(after):
        return name
    inner = name[len(before) : len(name) - len(after)]
    if not place:
        inner = inner.removeprefix("_")
    return inner if inner and len(before) + len(after) < len(name) else name


@attrs.frozen
class Names:
    """How the tools of a host are called.

    Attributes:
        aliases: other names of tools.
        prefixes: templates of what is put around names; see :func:`stripped`.
    """

    aliases: Mapping[str, str] = ALIASES
    prefixes: Sequence[str] = PREFIXES

    def facts(self, tool: Tool, others: Iterable[str]) -> ToolFacts:
        """A tool of an agent; ``others``: the names of all its tools, which no alias can take."""
        taken = frozenset(others)
        also = [a for a, name in self.aliases.items() if name == tool.name and a not in taken]
        groups = tool.groups or (_implied(tool.name),)
        return ToolFacts(tool.name, groups, tool.effects, tuple(also))

    def called(self, name: str, known: Iterable[str]) -> str:
        """Which of the known tools a model means; the same name when none."""
        tools = frozenset(known)
        for said in (name, *(stripped(template, name) for template in self.prefixes)):
            for one in (said, self.aliases.get(said, said), self.aliases.get(said.lower(), said)):
                if one in tools:
                    return one
        return name

    def check(self, text: str, tools: Iterable[str], groups: Iterable[str]) -> None:
        """Raises ``UnknownName`` for a name that stands for nothing.

        A pattern may be of tools that there will be, and a server has tools that nobody knows yet.
        """
        known = (*tools, *self.aliases, *groups)
        future = "*" in text and not text.startswith(GROUP)
        if not future and text not in known and _implied(text) not in {*groups} - {OWN}:
            raise UnknownName("tool or group", text, known)


def _implied(name: str) -> str:
    """The group of a tool that says none; ``mcp__git__status`` is one of the server git."""
    front, _, rest = name.partition("__")
    server, tail, _ = rest.partition("__")
    return f"{MCP}{server}" if front == "mcp" and tail else OWN


def grouped(tools: Mapping[str, Tool], groups: Mapping[str, Sequence[str]]) -> dict[str, Tool]:
    """The built-in tools, which know their groups then."""
    of = {
        name: tuple(group for group, members in groups.items() if name in members) for name in tools
    }
    return {name: attrs.evolve(tool, groups=(*of[name], BUILTIN)) for name, tool in tools.items()}
