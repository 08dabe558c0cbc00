"""Rules, tools and subjects for tests of policies."""

from __future__ import annotations

from hypothesis import strategies as st

from motet.actors.tools.policy.rules import Rules, configured
from motet.protocols.policy import Effect, PolicyRule, Profile, Subject, ToolFacts, ToolRules
from motet.protocols.sessions import Role

TOOLS = (
    ToolFacts("read_file", ("group:fs", "group:builtin"), aliases=("read",)),
    ToolFacts("write_file", ("group:fs", "group:builtin"), "write"),
    ToolFacts("shell", ("group:shell", "group:builtin"), "write", ("bash", "exec")),
    ToolFacts("deploy", ("group:own",), "write"),
    ToolFacts("mcp__git__status", ("mcp:git",)),
    ToolFacts("get_tool_result", ("group:results", "group:builtin")),
)
NAMES = (
    "read_file", "write_file", "shell", "bash", "deploy", "get_tool_result", "group:fs",
    "group:shell", "group:own", "group:results", "group:builtin", "mcp:git", "mcp:*", "*_file",
    "mcp__git__*", "*",
)  # fmt: skip

tool_names = st.sampled_from(NAMES)
effects: st.SearchStrategy[Effect] = st.sampled_from(["allow", "ask", "deny"])
roles: st.SearchStrategy[Role] = st.sampled_from(["viewer", "operator", "admin"])
profiles: st.SearchStrategy[Profile] = st.sampled_from(["minimal", "messaging", "coding", "full"])
agents = st.sampled_from(["lead", "coder", "clerk"])
subjects = st.builds(
    Subject, agents, st.sampled_from(["alice", "bob"]), roles, st.sampled_from(["dm", "group"])
)
few = st.lists(tool_names, max_size=2).map(tuple)
own_rules = st.builds(ToolRules, st.none() | profiles, allow=few, ask=few, deny=few)
rules = st.builds(
    PolicyRule,
    tool=tool_names,
    effect=effects,
    roles=st.lists(roles, max_size=1).map(tuple),
    users=st.lists(st.sampled_from(["alice", "b*"]), max_size=1).map(tuple),
    agents=st.lists(agents, max_size=1).map(tuple),
    sessions=st.lists(st.sampled_from(["dm", "gr*"]), max_size=1).map(tuple),
)
policies = st.builds(
    Rules,
    st.lists(rules, max_size=6).map(configured),
    profiles,
    agents=st.dictionaries(agents, own_rules, max_size=2),
)


def whom(agent: str = "lead", user: str = "alice", role: Role = "operator") -> Subject:
    return Subject(agent, user, role, "dm")


def rule(tool: str, effect: Effect = "deny", *who: Role) -> PolicyRule:
    return PolicyRule(tool=tool, effect=effect, roles=who)


def fact(name: str) -> ToolFacts:
    return next(tool for tool in TOOLS if tool.name == name)
