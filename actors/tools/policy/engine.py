"""The policy engine of a host: which tools an agent may see and call, and how often.

Invariants: a list and a call get the same ruling; of the rules, the other engines and all the runs
above a run, the strictest ruling counts, so that a child never gains a tool; an engine that fails
denies. Rates: in any hour no more calls pass than the limit; a refused call does not count, and a
call that is tried again, because a person had to be asked, counts once; a session that has not
called for an hour takes no memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import TypeVar

import attrs
import msgspec
from msgspec.structs import replace

from motet.actors.errors.log import logger
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.policy.cedar import CedarPolicy
from motet.actors.tools.policy.rules import (
    BUILTIN,
    OWN,
    RESULTS,
    Names,
    Rules,
    configured,
    names,
    strictest,
)
from motet.actors.tools.tool import Tool
from motet.protocols.chat import Call
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError, UnknownName
from motet.protocols.policy import (
    ALL_TOOLS,
    PER_HOUR,
    Judged,
    Policy,
    Ruling,
    Subject,
    ToolFacts,
    ToolRules,
)
from motet.protocols.tools import ToolSpec
from motet.runtime.outside import foreign_code
from motet.runtime.rates import SlidingWindows

HOUR = 3600.0
CACHED = 4_096
"""Rulings, and lists of tools, in each cache."""


@attrs.define
class CallRates:
    """Sliding windows of an hour, one for each session and tool.

    Kept in memory: a session that is passivated keeps its count, a restart forgets it.

    Attributes:
        per_hour: the limit of tools that ``limits`` does not name.
        limits: of tools, groups and MCP servers by name. A tool's own limit overrides that of its
            group; of several groups the lowest counts.
    """

    per_hour: int = PER_HOUR
    limits: Mapping[str, int] = attrs.field(factory=dict[str, int])
    _windows: SlidingWindows[tuple[str, str]] = attrs.field(
        factory=lambda: SlidingWindows[tuple[str, str]](HOUR), init=False
    )

    def __len__(self) -> int:
        return len(self._windows)

    def continue_from(self, before: CallRates) -> None:
        """Share the counts of another configuration."""
        self._windows = before._windows

    def limit(self, tool: ToolFacts) -> int:
        """Calls in an hour; 0: unlimited."""
        about = {text: limit for text, limit in self.limits.items() if names(text, tool)}
        exact = [about[name] for name in (tool.name, *tool.aliases) if name in about]
        if exact:
            return max(0, exact[0])
        wide = list(about.values())
        return min((n for n in wide if n > 0), default=0) if wide else max(0, self.per_hour)

    def take(self, session: str, tool: str, limit: int, now: float, call: object = None) -> float:
        """Count a call and return 0, or count none and return the seconds to wait.

        ``call``: identifies it, so that it is counted once.
        """
        return 0.0 if limit <= 0 else self._windows.take((session, tool), limit, now, call)


K = TypeVar("K")
V = TypeVar("V")
_log = logger("motet.policy")


@attrs.define(eq=False)
class PolicyEngine:
    """The policy of one host. Nothing here waits.

    The subjects of a run are the runs above it, outermost first, and itself.

    Attributes:
        rules: of the configuration and of the agents.
        engines: further policies, such as Cedar.
        groups: names of groups and MCP servers that rules may use, connected or not.
        builtin: names of tools that rules may use although no agent has them.
    """

    catalog: ToolCatalog = attrs.field(factory=ToolCatalog)
    rules: Rules = attrs.field(factory=Rules)
    engines: Sequence[Policy] = ()
    rates: CallRates = attrs.field(factory=CallRates)
    names: Names = attrs.field(factory=Names)
    groups: Sequence[str] = ()
    builtin: Sequence[str] = ()
    _rulings: OrderedDict[tuple[tuple[Subject, ...], ToolFacts], Ruling] = attrs.field(
        factory=OrderedDict["tuple[tuple[Subject, ...], ToolFacts]", Ruling], init=False, repr=False
    )
    _lists: OrderedDict[tuple[Subject, ...], tuple[tuple[ToolSpec, ...], tuple[ToolSpec, ...]]] = (
        attrs.field(
            factory=OrderedDict[
                "tuple[Subject, ...]", "tuple[tuple[ToolSpec, ...], tuple[ToolSpec, ...]]"
            ],
            init=False,
            repr=False,
        )
    )

    @property
    def is_open(self) -> bool:
        """Whether no policy is configured, so that all is allowed."""
        rules = self.rules
        return not (self.engines or rules.rules or rules.agents) and rules.profile == "full"

    def facts(self, tool: Tool, agent: str) -> ToolFacts:
        return self.names.facts(tool, self.catalog.names(agent))

    def ruling(self, subjects: tuple[Subject, ...], tool: Tool) -> Ruling:
        """Whether the last subject may call it; all the others must be allowed to, too."""
        if self.is_open:
            return _OPEN
        facts = self.facts(tool, subjects[-1].agent)
        found = self._rulings.get((subjects, facts))
        if found is None:
            found = strictest(self._rulings_of(subjects, facts))
            _keep(self._rulings, (subjects, facts), found)
        return found

    def offered(
        self, subjects: tuple[Subject, ...], specs: tuple[ToolSpec, ...]
    ) -> tuple[ToolSpec, ...]:
        """The specs that the last subject may call; the same object for the same list."""
        if self.is_open:
            return specs
        kept = self._lists.get(subjects)
        if kept is None or kept[0] is not specs:
            names = set(self.allowed_names(subjects))
            allowed = tuple(spec for spec in specs if spec.name in names)
            kept = (specs, specs if len(allowed) == len(specs) else allowed)
            _keep(self._lists, subjects, kept)
        return kept[1]

    def allowed_names(self, subjects: tuple[Subject, ...]) -> tuple[str, ...]:
        """The tools that the last subject may call, with or without a person's approval."""
        tools = self.catalog.tools(subjects[-1].agent)
        return tuple(t.name for t in tools if self.ruling(subjects, t).effect != "deny")

    def judged(self, subjects: tuple[Subject, ...]) -> tuple[Judged, ...]:
        """All tools of the last subject's agent, by name, with the ruling on each."""
        agent, found = subjects[-1].agent, list[Judged]()
        for tool in self.catalog.tools(agent):
            ruling, facts = self.ruling(subjects, tool), self.facts(tool, agent)
            limit = self.rates.limit(facts)
            about = (ruling.effect, ruling.rule, ruling.reason)
            found.append(Judged(tool.name, facts.groups, *about, limit))
        return tuple(found)

    def called(self, agent: str, calls: tuple[Call, ...]) -> tuple[Call, ...]:
        """A model's calls with aliases resolved; the same object if there are none."""
        known = self.catalog.names(agent)
        if {call.name for call in calls}.issubset(known):
            return calls
        return tuple(replace(call, name=self.names.called(call.name, known)) for call in calls)

    def wait(self, subjects: tuple[Subject, ...], tool: Tool, call: str, now: float) -> str:
        """Count a call; returns the refusal for the model if the limit is reached, else "".

        Calls of children count for the session of the outermost run. ``call``: its id, so that it
        is counted once, also when it is tried again; ``now``: on Trio's clock.
        """
        rates = self.rates
        limit = (
            rates.limit(self.facts(tool, subjects[-1].agent)) if rates.limits else rates.per_hour
        )
        seconds = rates.take(subjects[0].session, tool.name, limit, now, call)
        return _too_often(tool.name, limit, seconds) if seconds > 0 else ""

    def set_agent(self, agent: str, rules: ToolRules, tools: Iterable[str]) -> None:
        """Set the rules in an agent's definition. Raises as :meth:`check_agent`."""
        self.check_agent(agent, rules, tools)
        known = self.rules.agents
        if known.get(agent, ALL_TOOLS) != rules:
            self.forget()
        if rules:
            known[agent] = rules
        else:
            known.pop(agent, None)  # so that a host without policies stays ``is_open``

    def drop_agent(self, agent: str) -> None:
        if self.rules.agents.pop(agent, None):
            self.forget()

    def adopt(self, other: PolicyEngine) -> None:
        """Take over the configuration of ``other``; the catalog and the agents' rules stay."""
        self.rules = attrs.evolve(self.rules, rules=other.rules.rules, profile=other.rules.profile)
        self.engines, self.rates, self.names = other.engines, other.rates, other.names
        self.forget()

    def forget(self) -> None:
        """Clear the caches, after a change of rules or groups."""
        self._rulings.clear()
        self._lists.clear()

    def check_agent(self, agent: str, rules: ToolRules, tools: Iterable[str]) -> None:
        """Raises ``ConfigError`` for an unknown name in the agent's rules."""
        lists = {"allow": rules.allow, "ask": rules.ask, "deny": rules.deny}
        texts = {
            f"agents.{agent}.policy.{key}[{place}]": name
            for key, named in lists.items()
            for place, name in enumerate(named)
        }
        _refuse(self._unknown(texts, tools))

    def check(self, agents: Sequence[str]) -> None:
        """Raises ``ConfigError`` for unknown names in the configuration.

        ``agents``: the names of all agents.
        """
        texts = {f"{rule.where}.tool": rule.tool for rule in self.rules.rules}
        texts |= {f"tools.per_hour.{name}": name for name in self.rates.limits}
        texts |= {f"tools.aliases.{alias}": name for alias, name in self.names.aliases.items()}
        problems = [*self._unknown(texts)]
        for rule in self.rules.rules:
            for name in rule.condition.agents if rule.condition else ():
                if "*" not in name and name not in agents:
                    problems.append(f"{rule.where}.agents: {UnknownName('agent', name, agents)}")
        _refuse(problems)

    def _unknown(self, texts: Mapping[str, str], tools: Iterable[str] = ()) -> Iterable[str]:
        """The problems of the names of tools and groups at these places."""
        if not texts:
            return
        groups = (*self.groups, *self.catalog.declared)
        known = (*self.catalog.all_names(), *self.builtin, *tools)
        for where, text in texts.items():
            try:
                self.names.check(text, known, groups)
            except UnknownName as unknown:
                yield f"{where}: {unknown}"

    def _rulings_of(self, subjects: Sequence[Subject], facts: ToolFacts) -> Iterable[Ruling]:
        """The run's own ruling first: of equal rulings, the nearest is reported."""
        for subject in reversed(subjects):
            of = "" if subject is subjects[-1] else f" (of {subject.agent}, which it works for)"
            for ruling in self._each(subject, facts):
                yield Ruling(ruling.effect, ruling.rule + of, ruling.reason)

    def _each(self, subject: Subject, facts: ToolFacts) -> Iterable[Ruling]:
        for engine in self.engines:
            yield _decided(engine, subject, facts)
        yield self.rules.decide(subject, facts)


_OPEN = Ruling("allow", "default")


def build_policy(
    config: HostConfig,
    catalog: ToolCatalog,
    builtin: Iterable[str],
    groups: Iterable[str],
    engine: Policy | None,
) -> PolicyEngine:
    """The policy of a configuration, with ``engine`` as a further one.

    ``builtin``: names of tools; ``groups``: names of groups and of MCP servers. Raises
    ``ConfigError`` for Cedar that cannot be read, ``MissingExtra``.
    """
    tools, names = config.tools, Names()
    names = Names({**names.aliases, **tools.aliases}, (*tools.prefixes, *names.prefixes))
    rules = Rules(configured(config.policy), tools.profile)
    rates = CallRates(tools.calls_per_hour, tools.per_hour)
    known = (*groups, OWN, BUILTIN, RESULTS)
    engines = [] if engine is None else [engine]
    if config.tools.cedar is not None:
        engines.append(CedarPolicy.from_file(config.tools.cedar))
    return PolicyEngine(catalog, rules, engines, rates, names, known, tuple(builtin))


def _decided(engine: Policy, subject: Subject, facts: ToolFacts) -> Ruling:
    """The engine's ruling; a failure, and any other value, denies."""
    name = type(engine).__name__
    try:
        with foreign_code:
            ruling = _checked(engine.decide(subject, facts))
    except Exception as error:
        _log.error("a policy engine failed: denied", engine=name, tool=facts.name, exc_info=error)
        return Ruling("deny", f"{name} failed", type(error).__name__)
    return ruling


def _checked(ruling: object) -> Ruling:
    """The ruling, checked field by field. Raises ``ValidationError``, ``TypeError``."""
    return msgspec.convert(msgspec.to_builtins(ruling), Ruling)


def _refuse(problems: Iterable[str]) -> None:
    found = list(problems)
    if found:
        one = found[0] if len(found) == 1 else "\n  ".join(["the policy has problems:", *found])
        raise ConfigError(one)


def _too_often(tool: str, limit: int, seconds: float) -> str:
    minutes = ceil(seconds / 60)
    when = f"{minutes} min" if minutes > 1 else f"{ceil(seconds)} s"
    return (
        f"Rate limit: {tool!r} may be called {limit} times an hour in one session. Nothing was "
        f"done; try again in {when}, or go on without it."
    )


def _keep(kept: OrderedDict[K, V], key: K, value: V) -> None:
    kept[key] = value
    if len(kept) > CACHED:
        kept.popitem(last=False)
