"""Names in rules and calls, and the order in which rules count."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.tools.policy.rules import (
    BUILTIN,
    OWN,
    Names,
    Rules,
    configured,
    fits,
    grouped,
    names,
    strictest,
    stripped,
)
from motet.actors.tools.tool import Tool, tool
from motet.protocols.errors import UnknownName
from motet.protocols.policy import PolicyRule, Profile, Ruling, Subject, ToolFacts, ToolRules
from tests.actors.tools.policy.builders import (
    TOOLS,
    fact,
    own_rules,
    policies,
    rule,
    rules,
    subjects,
    tool_names,
    whom,
)


@tool
def shell() -> str:
    return ""


@tool(name="bash")
def own_bash() -> str:
    return ""


GIT = Tool(name="mcp__git__status", description="", parameters={}, run=shell.run)


@given(st.text("ab*.[", max_size=6), st.text("ab*.[", max_size=6))
def test_a_star_is_the_only_wildcard(text: str, other: str) -> None:
    """A text without a star matches itself only; a star is any text; nothing else is special."""
    assert fits(text, (text,))
    assert fits(f"{text}{other}", (f"{text}*",))
    if "*" not in text:
        assert fits(other, (text,)) == (other == text)


@given(st.text("ab_", max_size=4), st.text("ab_", min_size=1, max_size=4), st.text("ab_"))
def test_the_text_of_a_template_is_removed(before: str, name: str, after: str) -> None:
    """``stripped`` removes the text that a proxy with this template adds to a name."""
    assert stripped(f"{before}{{tool_name}}{after}", f"{before}{name}{after}") == name


def test_a_name_that_is_only_a_prefix_stays() -> None:
    assert stripped("proxy_", "proxy_") == "proxy_"
    assert stripped("a{tool_name}a", "a") == "a"
    assert stripped("functions.", "functions.shell") == "shell"


def test_groups_servers_and_patterns_name_tools() -> None:
    facts = ToolFacts("mcp__git__status", ("mcp:git",))
    for text in ("mcp:git", "mcp:*", "mcp__git__*", "*", "mcp__git__status"):
        assert names(text, facts), text
    for text in ("mcp:gi", "git", "group:fs", "mcp__git__", "mcp:git*x"):
        assert not names(text, facts), text


def test_a_tool_without_a_group_is_the_programs_own_or_a_servers() -> None:
    assert Names().facts(shell, ["shell"]).groups == (OWN,)
    assert Names().facts(GIT, []).groups == ("mcp:git",)
    assert grouped({"shell": shell}, {"group:shell": ("shell",)})["shell"].groups == (
        "group:shell",
        BUILTIN,
    )


def test_an_alias_is_another_name_unless_a_tool_has_it() -> None:
    assert "bash" in Names().facts(shell, ["shell"]).aliases
    assert "bash" not in Names().facts(shell, ["shell", "bash"]).aliases
    assert Names().facts(own_bash, ["shell", "bash"]).aliases == ()


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("shell", "shell"),
        ("bash", "shell"),
        ("Bash", "shell"),
        ("functions.shell", "shell"),
        ("functions.bash", "shell"),
        ("default_api.read", "read_file"),
        ("proxy_shell", "shell"),
        ("mcp__git__status", "mcp__git__status"),
        ("rm", "rm"),
        ("functions.rm", "functions.rm"),
        ("ls", "ls"),
    ],
)
def test_a_model_may_call_a_tool_by_other_names(said: str, meant: str) -> None:
    known = ["shell", "read_file", "mcp__git__status"]
    assert Names(prefixes=("proxy", *Names().prefixes)).called(said, known) == meant


def test_a_tool_of_that_name_comes_before_an_alias() -> None:
    assert Names().called("bash", ["bash", "shell"]) == "bash"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    groups = ("group:fs", "mcp:git", OWN)
    for text in ("shell", "bash", "group:fs", "mcp:git", "mcp__git__log", "delete_*", "mcp:*"):
        Names().check(text, ["shell"], groups)
    for text, near in (("shel", "shell"), ("group:f", "group:fs"), ("mcp:gut", "mcp:git")):
        with pytest.raises(UnknownName, match=f"did you mean '{near}'"):
            Names().check(text, ["shell"], groups)
    for text in ("group:*", "mcp__hub__list", "own"):
        with pytest.raises(UnknownName):
            Names().check(text, ["shell"], groups)


def effects(policy: Rules, subject: Subject) -> list[str]:
    return [policy.decide(subject, tool).effect for tool in TOOLS]


def allowed(policy: Rules, subject: Subject) -> set[str]:
    return {tool.name for tool in TOOLS if policy.decide(subject, tool).effect != "deny"}


def of(*some: PolicyRule, profile: Profile = "full", **own: ToolRules) -> Rules:
    return Rules(configured(some), profile, agents=own)


in_two_orders = st.lists(rules, max_size=5).flatmap(
    lambda some: st.tuples(st.just(some), st.permutations(some))
)


@given(policies, in_two_orders, subjects)
def test_no_order_of_rules_lets_a_denied_tool_through(
    policy: Rules, some: tuple[list[PolicyRule], list[PolicyRule]], subject: Subject
) -> None:
    """A tool that one rule denies is denied among all others; no effect depends on their order."""
    one, other = (attrs.evolve(policy, rules=configured(order)) for order in some)
    assert effects(one, subject) == effects(other, subject)
    for single in some[0]:
        if single.effect == "deny":
            denied = {tool.name for tool in TOOLS} - allowed(of(single), subject)
            assert not denied & allowed(one, subject)


@given(policies, rules, subjects)
def test_another_deny_never_adds_a_tool(
    policy: Rules, another: PolicyRule, subject: Subject
) -> None:
    """The tools under a policy with one more ``deny`` are among those under the policy."""
    more = configured([attrs.evolve(another, effect="deny")])
    assert allowed(attrs.evolve(policy, rules=(*policy.rules, *more)), subject) <= allowed(
        policy, subject
    )


@given(policies, tool_names, subjects)
def test_a_deny_of_the_agent_never_adds_a_tool(policy: Rules, name: str, subject: Subject) -> None:
    """The same for the rules of an agent's definition."""
    before = policy.agents.get(subject.agent, ToolRules())
    after = ToolRules(before.profile, before.allow, before.ask, (*before.deny, name))
    stricter = attrs.evolve(policy, agents={**policy.agents, subject.agent: after})
    assert allowed(stricter, subject) <= allowed(policy, subject)


@given(policies, own_rules, subjects)
def test_the_rules_of_an_agent_only_restrict(
    policy: Rules, mine: ToolRules, subject: Subject
) -> None:
    """The lists of an agent never add a tool that the host's rules and profile deny."""
    free = attrs.evolve(policy, agents={})
    bound = attrs.evolve(policy, agents={subject.agent: ToolRules(None, *_lists(mine))})
    assert allowed(bound, subject) <= allowed(free, subject)


@given(policies, subjects)
def test_every_ruling_names_its_rule(policy: Rules, subject: Subject) -> None:
    """Every ruling has the name of a rule that exists."""
    places = {one.where for one in policy.rules} | {f"agents.{subject.agent}.policy"}
    for each in TOOLS:
        found = policy.decide(subject, each).rule
        if found != "default" and not found.startswith("profile "):
            assert set(found.partition(": ")[0].split(", ")) <= places


def _lists(one: ToolRules) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    return one.allow, one.ask, one.deny


def test_without_rules_everything_is_allowed_by_default() -> None:
    assert {Ruling("allow", "default")} == {of().decide(whom(), tool) for tool in TOOLS}


def test_a_deny_wins_over_an_allow_wherever_it_stands() -> None:
    allow, deny = rule("shell", "allow"), rule("group:shell", "deny")
    for policy in (of(allow, deny), of(deny, allow)):
        assert policy.decide(whom(), fact("shell")).effect == "deny"
    mine = of(rule("shell", "deny"), lead=ToolRules(allow=("shell",)))
    assert mine.decide(whom(), fact("shell")) == Ruling("deny", "policy[0]: deny shell")


def test_ask_is_stronger_than_allow_and_weaker_than_deny() -> None:
    policy = of(rule("*", "allow"), rule("group:fs", "ask"), rule("write_*", "deny"))
    assert policy.decide(whom(), fact("deploy")).effect == "allow"
    assert policy.decide(whom(), fact("read_file")).rule == "policy[1]: ask group:fs"
    assert policy.decide(whom(), fact("write_file")).effect == "deny"


def test_an_allow_list_denies_all_other_tools() -> None:
    policy = of(rule("group:fs", "allow"), lead=ToolRules(allow=("read_file", "shell")))
    assert allowed(policy, whom()) == {"read_file", "get_tool_result"}
    left_out = policy.decide(whom(), fact("shell"))
    assert left_out == Ruling("deny", "policy[0]: allow group:fs", "not among what is allowed")
    assert policy.decide(whom(), fact("read_file")).rule == "agents.lead.policy: allow read_file"
    assert allowed(policy, whom("clerk")) == {"read_file", "write_file", "get_tool_result"}


def test_conditions_all_have_to_hold() -> None:
    one = PolicyRule(
        tool="shell", effect="deny", roles=("viewer",), users=("al*",), sessions=("d*",)
    )
    policy = of(one)
    assert policy.decide(whom(role="viewer"), fact("shell")).effect == "deny"
    assert policy.decide(whom(role="operator"), fact("shell")).effect == "allow"
    assert policy.decide(whom(user="bob", role="viewer"), fact("shell")).effect == "allow"
    elsewhere = Subject("lead", "alice", "viewer", "group")
    assert policy.decide(elsewhere, fact("shell")).effect == "allow"


def test_a_group_chat_may_have_a_list_of_its_own() -> None:
    policy = of(PolicyRule(tool="group:fs", effect="allow", sessions=("agent:*:telegram:group:*",)))
    group = Subject("lead", "alice", "operator", "agent:lead:telegram:group:-100")
    assert allowed(policy, group) == {"read_file", "write_file", "get_tool_result"}
    assert len(allowed(policy, whom())) == len(TOOLS)


def test_a_profile_is_a_closed_list() -> None:
    assert allowed(of(profile="minimal"), whom()) == {"get_tool_result"}
    assert "shell" not in allowed(of(profile="messaging"), whom())
    assert allowed(of(profile="coding"), whom()) == {tool.name for tool in TOOLS} - {
        "mcp__git__status"
    }
    wider = of(rule("mcp:git", "allow"), profile="coding")
    assert wider.decide(whom(), fact("mcp__git__status")).rule == "profile coding"
    own = of(profile="minimal", lead=ToolRules(profile="full"))
    assert len(allowed(own, whom())) == len(TOOLS)


def test_tools_that_read_results_stay_until_they_are_denied() -> None:
    assert "get_tool_result" in allowed(of(rule("shell", "allow"), profile="minimal"), whom())
    assert "get_tool_result" not in allowed(of(rule("group:results")), whom())


def test_an_alias_is_denied_and_allowed_like_its_tool() -> None:
    assert of(rule("bash")).decide(whom(), fact("shell")).effect == "deny"
    assert allowed(of(rule("bash", "allow")), whom()) == {"shell", "get_tool_result"}


def test_the_strictest_ruling_counts_and_the_first_of_equals_is_reported() -> None:
    ask, deny, too = Ruling("ask", "a"), Ruling("deny", "b"), Ruling("deny", "c")
    assert strictest([Ruling("allow", "x"), ask]) is ask
    assert strictest([ask, deny, too]) is deny


@pytest.mark.parametrize(
    "wrong",
    [
        {"tool": "", "effect": "deny"},
        {"tool": "shell", "effect": "forbid"},
        {"tool": "shell", "effect": "deny", "roles": ("vewer",)},
        {"tool": "shell", "effect": "deny", "users": "alice"},
    ],
)
def test_an_invalid_rule_in_code_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        PolicyRule(**wrong)  # type: ignore[arg-type]  # what a program may do all the same
