"""Areas of tool policy: what somebody may call, by what name, how often, and with which role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import attrs
import trio

from motet.actors.gateway import methods
from motet.actors.gateway.auth import may
from motet.actors.gateway.method import Refusal
from motet.actors.gateway.methods import Caller
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.context import Context
from motet.actors.tools.policy.engine import CallRates, PolicyEngine, build_policy
from motet.actors.tools.policy.rules import PROFILES, stripped
from motet.actors.tools.tool import Tool
from motet.protocols.chat import JsonObject
from motet.protocols.config import parse_config
from motet.protocols.errors import ConfigError
from motet.protocols.gateway import RequestFrame
from motet.protocols.policy import Profile, Subject, ToolFacts
from motet.protocols.sessions import Principal, Role
from motet.runtime.rates import SlidingWindow
from tests.vectors.cases import MAIN, Facts, Given

AGENT, SESSION = "agent", "agent:agent:chat:group:1"
WHO = (Subject(AGENT, "somebody", "operator", SESSION),)

# The groups and profiles of the original; ours have the tools that there are here.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "group:fs": ("read_file", "write_file", "list_files", "edit"),
    "group:runtime": ("exec",),
    "group:web": ("web_search", "web_fetch"),
    "group:memory": ("memory_search", "memory_get"),
    "group:sessions": ("sessions_list", "sessions_history", "sessions_send", "session_status"),
    "group:messaging": ("message", "create_forum_topic"),
    "group:rest": (
        "browser", "cron", "spawn", "read_image", "create_image", "skill_search", "team_tasks",
        "team_message", "tts",
    ),
}  # fmt: skip
COMPOSITE = "group:goclaw"
THEIRS: Mapping[Profile, tuple[str, ...]] = {
    "minimal": ("session_status",),
    "messaging": (
        "group:messaging", "group:web", "group:sessions", "read_image", "skill_search",
    ),
    "coding": (
        "group:fs", "group:runtime", "group:web", "group:memory", "group:sessions", "spawn",
        "read_image", "create_image", "skill_search",
    ),
    "full": PROFILES["full"],
}  # fmt: skip
METHODS = {
    "chat.history": "sessions.history",
    "health": "status",
    "exec.approval.approve": "approvals.resolve",
}
"""What methods of the original are called here."""


def allowed(given: Given) -> Facts:
    """The tools that the agent may call, or why its configuration is refused."""
    try:
        desk = _desk(given)
    except ConfigError as error:
        return {MAIN: [], "error": str(error)}
    return {MAIN: list(desk.allowed_names(WHO)), "error": ""}


def prefix(given: Given) -> Facts:
    return {MAIN: stripped(given.text("template"), given.text("name"))}


def role(given: Given) -> Facts:
    if isinstance(given.value, str):
        return {MAIN: _role_of(METHODS.get(given.value, given.value))}
    if "role" in given:
        # Any text, as it may come from elsewhere.
        return {MAIN: may(cast("Role", given.text("role")), cast("Role", given.text("required")))}
    return {MAIN: "tokens have a role, no scopes"}


def rate(given: Given) -> Facts:
    if "calls_at_ms" in given:
        one = SlidingWindow(given.number("max"), given.number("window_ms") / 1000)
        times = [cast("int", at) / 1000 for at in given.items("calls_at_ms")]
        return {MAIN: [one.take(at) == 0 for at in times]}
    limit = given.number("max_per_hour")
    if "calls" not in given:
        return {MAIN: "limited" if CallRates(limit).limit(ToolFacts("tool")) else "no limiter"}
    rates = CallRates(limit)
    limit = rates.limit(ToolFacts("tool"))
    return {MAIN: [rates.take(user, "tool", limit, 0.0) == 0 for user in given.texts("calls")]}


def _desk(given: Given) -> PolicyEngine:
    names = given.texts("all_tools")
    tools = [_tool(name) for name in names]
    config = parse_config(_config(given))
    desk = build_policy(config, ToolCatalog(), names, (*GROUPS, COMPOSITE), None)
    desk.rules.profiles = THEIRS
    desk.names = attrs.evolve(desk.names, aliases={})
    desk.set_agent(AGENT, config.agents[AGENT].policy, names)
    desk.catalog.put(AGENT, tools)
    desk.check([AGENT])
    return desk


def _config(given: Given) -> JsonObject:
    """The same said here. An agent has one model, so what is said of a provider is of its agents;
    for ``also_allow`` there are no words.
    """
    everywhere, mine = given.sub("global"), given.sub("agent")
    provider = everywhere.sub("by_provider").sub(given.text("provider"))
    own: JsonObject = {"allow": mine.items("allow"), "deny": mine.items("deny")}
    if "profile" in provider:
        own["profile"] = provider.text("profile")
    tools = {"profile": everywhere.text("profile")} if "profile" in everywhere else {}
    return {
        "tools": tools,
        "policy": [
            *_rules(everywhere, "allow", {}),
            *_rules(everywhere, "deny", {}),
            *_rules(provider, "allow", {"agents": [AGENT]}),
            *_rules(Given({"allow": given.items("group_allow")}), "allow", {"sessions": [SESSION]}),
        ],
        "agents": {AGENT: {"policy": own}},
    }


def _rules(given: Given, effect: str, condition: JsonObject) -> Iterator[JsonObject]:
    return ({"tool": tool, "effect": effect, **condition} for tool in given.items(effect))


def _tool(name: str) -> Tool:
    groups = [group for group, members in GROUPS.items() if name in members]
    both = (*groups, COMPOSITE) if groups else ("mcp:github",)
    return Tool(name=name, description="", parameters={}, run=_nothing, groups=both)


async def _nothing(_ctx: Context[object], _args: JsonObject) -> object:
    return None


def _role_of(method: str) -> str:
    known = methods.METHODS.get(method)
    if known is not None:
        return known.role
    try:
        # Only who calls is looked at before it is refused.
        trio.run(methods.call, cast("Caller", _Admin()), RequestFrame("1", method))
    except Refusal as refusal:
        return refusal.code
    return "done"


class _Admin:
    """A connection of somebody who may do everything that there is."""

    principal = Principal("root", "admin")
