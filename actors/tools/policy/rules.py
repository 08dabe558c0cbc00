"""The rules of a host on its tools: names, groups, profiles, and their order of precedence. Pure.

Laws: a tool that a rule denies is denied, whatever the other rules and their order; another
``deny`` never makes a tool callable; every ruling names the rule that made it. A name is resolved
in one way only, for lists and for calls. Patterns know ``*`` and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Literal, TypeAlias

import attrs

from motet.actors.tools.tool import Tool
from motet.protocols.errors import UnknownName
from motet.protocols.policy import (
    ALL_TOOLS,
    Effect,
    PolicyRule,
    Profile,
    Ruling,
    Subject,
    ToolFacts,
    ToolRules,
)

OWN = "group:own"
"""Tools that a program or a file gives an agent without naming a group."""
BUILTIN = "group:builtin"
"""All tools that come with motet."""
RESULTS = "group:results"
"""Tools that read results and errors of calls, or find tools: only a ``deny`` removes these."""
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
        "get_error_details": "get_error_detail",
    }
)
"""Names that models use for tools with another name here."""
PREFIXES = ("functions.", "default_api.")
"""Prefixes that some models put before the names of tools."""
_PLACE = "{tool_name}"


@cache
def pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)


def fits(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns equals or matches the name."""
    return any(name == one or ("*" in one and pattern(one).fullmatch(name)) for one in patterns)


def names(text: str, tool: ToolFacts) -> bool:
    """Whether the text of a rule, a name, group or pattern, covers this tool."""
    if text.startswith((GROUP, MCP)):
        return any(fits(group, (text,)) for group in tool.groups)
    return any(fits(name, (text,)) for name in (tool.name, *tool.aliases))


def stripped(template: str, name: str) -> str:
    """The name without the text of a template around it; unchanged if it does not match.

    A template without ``{tool_name}`` is a prefix; an underscore after it is removed, too.
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
    """Resolves the names that rules and models use for tools.

    Attributes:
        aliases: other names of tools.
        prefixes: templates of the text around names; see :func:`stripped`.
    """

    aliases: Mapping[str, str] = ALIASES
    prefixes: Sequence[str] = PREFIXES

    def facts(self, tool: Tool, others: Iterable[str]) -> ToolFacts:
        """The facts of a tool. ``others``: the agent's names of tools, which override aliases."""
        taken = frozenset(others)
        also = [a for a, name in self.aliases.items() if name == tool.name and a not in taken]
        groups = tool.groups or (_implied(tool.name),)
        return ToolFacts(tool.name, groups, tool.effects, tuple(also))

    def called(self, name: str, known: Iterable[str]) -> str:
        """The known tool that a model means; the same name if there is none."""
        tools = frozenset(known)
        for bare in (name, *(stripped(template, name) for template in self.prefixes)):
            for one in (bare, self.aliases.get(bare, bare), self.aliases.get(bare.lower(), bare)):
                if one in tools:
                    return one
        return name

    def check(self, text: str, tools: Iterable[str], groups: Iterable[str]) -> None:
        """Raises ``UnknownName`` for a name that matches nothing.

        A pattern may match future tools, and the tools of a server are not known in advance.
        """
        known = (*tools, *self.aliases, *groups)
        future = "*" in text and not text.startswith(GROUP)
        if not future and text not in known and _implied(text) not in {*groups} - {OWN}:
            raise UnknownName("tool or group", text, known)


def _implied(name: str) -> str:
    """The group of a tool that names none; ``mcp__git__status`` is a tool of the server git."""
    front, _, rest = name.partition("__")
    server, tail, _ = rest.partition("__")
    return f"{MCP}{server}" if front == "mcp" and tail else OWN


def grouped(tools: Mapping[str, Tool], groups: Mapping[str, Sequence[str]]) -> dict[str, Tool]:
    """The built-in tools with their groups set."""
    of = {
        name: tuple(group for group, members in groups.items() if name in members) for name in tools
    }
    return {name: attrs.evolve(tool, groups=(*of[name], BUILTIN)) for name, tool in tools.items()}


_TALK = ("group:agents", "group:memory", "group:skills", "group:tasks", "group:web")

PROFILES: Mapping[Profile, tuple[str, ...]] = MappingProxyType(
    {
        "minimal": (),
        "messaging": (*_TALK, OWN),
        "coding": (*_TALK, "group:fs", "group:shell", OWN),
        "full": ("*",),
    }
)
"""The groups of each profile. A closed list: no ``allow`` adds a tool of another group."""

Layer: TypeAlias = Literal["global", "agent", "own", "group"]
LAYERS: tuple[Layer, ...] = ("global", "agent", "own", "group")
"""In this order; ``own``: the rules in the agent's definition. Each layer can only restrict."""
STRENGTH: Mapping[Effect, int] = {"allow": 0, "ask": 1, "deny": 2}


@attrs.frozen
class Rule:
    """A rule and its place in the configuration: ``where``, for messages."""

    layer: Layer
    effect: Effect
    tool: str
    where: str
    condition: PolicyRule | None = None

    @property
    def name(self) -> str:
        return f"{self.where}: {self.effect} {self.tool}"

    @property
    def reason(self) -> str:
        return self.condition.reason if self.condition else ""

    def holds(self, subject: Subject) -> bool:
        rule = self.condition
        if rule is None:
            return True
        return (
            (not rule.roles or subject.role in rule.roles)
            and (not rule.users or fits(subject.user, rule.users))
            and (not rule.agents or fits(subject.agent, rule.agents))
            and (not rule.sessions or fits(subject.session, rule.sessions))
        )

    def ruling(self) -> Ruling:
        return Ruling(self.effect, self.name, self.reason)


def strictest(rulings: Iterable[Ruling]) -> Ruling:
    """The strictest ruling, the first of equals. There must be one."""
    return max(rulings, key=lambda ruling: STRENGTH[ruling.effect])


def configured(rules: Sequence[PolicyRule]) -> tuple[Rule, ...]:
    """The rules of a host's configuration; the conditions of a rule choose its layer."""
    return tuple(
        Rule(_layer(rule), rule.effect, rule.tool, f"policy[{place}]", rule)
        for place, rule in enumerate(rules)
    )


def own(agent: str, rules: ToolRules) -> tuple[Rule, ...]:
    """The rules in an agent's definition."""
    lists: tuple[tuple[Effect, tuple[str, ...]], ...] = (
        ("deny", rules.deny),
        ("ask", rules.ask),
        ("allow", rules.allow),
    )
    where = f"agents.{agent}.policy"
    return tuple(Rule("own", effect, tool, where) for effect, tools in lists for tool in tools)


def _layer(rule: PolicyRule) -> Layer:
    if rule.sessions:
        return "group"
    return "agent" if rule.agents else "global"


@attrs.define
class Rules:
    """A ``Policy``: the configured rules, and those of each agent's definition.

    Attributes:
        profile: of agents without one of their own.
        agents: the rules of agents whose definition has some.
    """

    rules: Sequence[Rule] = ()
    profile: Profile = "full"
    profiles: Mapping[Profile, tuple[str, ...]] = PROFILES
    agents: dict[str, ToolRules] = attrs.field(factory=dict[str, ToolRules])

    def decide(self, subject: Subject, tool: ToolFacts) -> Ruling:
        # The order makes the laws: a deny first, then the closed lists, then an ask, then an allow.
        given = self.agents.get(subject.agent, ALL_TOOLS)
        rules = [rule for rule in self.rules if rule.holds(subject)]
        rules += own(subject.agent, given)
        about = [rule for rule in rules if names(rule.tool, tool)]
        for rule in about:
            if rule.effect == "deny":
                return rule.ruling()
        return (
            self._left_out(given.profile or self.profile, rules, tool)
            or next((rule.ruling() for rule in about if rule.effect == "ask"), None)
            or self._allowed(given.profile or self.profile, about)
        )

    def _left_out(self, profile: Profile, rules: Sequence[Rule], tool: ToolFacts) -> Ruling | None:
        """A deny if an allow list, the profile's first, does not have the tool."""
        if RESULTS in tool.groups:
            return None
        if not any(names(text, tool) for text in self.profiles[profile]):
            return Ruling("deny", f"profile {profile}", "the profile does not have it")
        for layer in LAYERS:
            lists = [rule for rule in rules if rule.layer == layer and rule.effect == "allow"]
            if lists and not any(names(rule.tool, tool) for rule in lists):
                where = ", ".join(dict.fromkeys(rule.where for rule in lists))
                allowed = f"{where}: allow {', '.join(rule.tool for rule in lists)}"
                return Ruling("deny", allowed, "not among what is allowed")
        return None

    def _allowed(self, profile: Profile, about: Sequence[Rule]) -> Ruling:
        """The ruling of the innermost layer that allows it."""
        by_layer = sorted(about, key=lambda rule: LAYERS.index(rule.layer))
        if by_layer:
            return by_layer[-1].ruling()
        return Ruling("allow", f"profile {profile}" if profile != "full" else "default")
