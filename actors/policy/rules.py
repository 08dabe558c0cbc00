"""The rules of a host on its tools. Pure: a table and the order in which it is read.

Laws: a tool that a rule denies is denied, whatever other rules say and in whatever order they
stand; another ``deny`` never makes a tool callable; every ruling names the rule that made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import attrs

from motet.actors.policy.names import RESULTS, fits, names
from motet.actors.policy.profiles import PROFILES
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

Layer: TypeAlias = Literal["global", "agent", "own", "group"]
LAYERS: tuple[Layer, ...] = ("global", "agent", "own", "group")
"""In this order; ``own`` is what the agent's definition says. Each can only take away."""
STRENGTH: Mapping[Effect, int] = {"allow": 0, "ask": 1, "deny": 2}


@attrs.frozen
class Rule:
    """A rule with its place: ``where`` is what people find it by."""

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
    """The strongest of them, the first of equals. There has to be one."""
    return max(rulings, key=lambda ruling: STRENGTH[ruling.effect])


def configured(rules: Sequence[PolicyRule]) -> tuple[Rule, ...]:
    """The rules of a host, each in the layer that its conditions put it in."""
    return tuple(
        Rule(_layer(rule), rule.effect, rule.tool, f"policy[{place}]", rule)
        for place, rule in enumerate(rules)
    )


def own(agent: str, rules: ToolRules) -> tuple[Rule, ...]:
    """What the definition of an agent says."""
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
        profile: of agents that have none of their own.
        agents: the rules of those whose definition has some.
    """

    rules: Sequence[Rule] = ()
    profile: Profile = "full"
    profiles: Mapping[Profile, tuple[str, ...]] = PROFILES
    agents: dict[str, ToolRules] = attrs.field(factory=dict[str, ToolRules])

    @property
    def is_open(self) -> bool:
        """Whether nobody has said anything, so that all is allowed."""
        return not self.rules and self.profile == "full" and not self.agents

    def decide(self, subject: Subject, tool: ToolFacts) -> Ruling:
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
        """Whether a list of what is allowed, the profile's first, does not have it."""
        if RESULTS in tool.groups:
            return None
        if not any(names(text, tool) for text in self.profiles[profile]):
            return Ruling("deny", f"profile {profile}", "the profile does not have it")
        for layer in LAYERS:
            lists = [rule for rule in rules if rule.layer == layer and rule.effect == "allow"]
            if lists and not any(names(rule.tool, tool) for rule in lists):
                return Ruling("deny", _all_of(lists), "not among what is allowed")
        return None

    def _allowed(self, profile: Profile, about: Sequence[Rule]) -> Ruling:
        """Which rule allows it: that of the innermost layer that does."""
        by_layer = sorted(about, key=lambda rule: LAYERS.index(rule.layer))
        if by_layer:
            return by_layer[-1].ruling()
        return Ruling("allow", f"profile {profile}" if profile != "full" else "default")


def _all_of(rules: Sequence[Rule]) -> str:
    places = ", ".join(dict.fromkeys(rule.where for rule in rules))
    return f"{places}: allow {', '.join(rule.tool for rule in rules)}"
