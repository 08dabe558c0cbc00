"""The policy of a host: rulings, lists and rates."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.context import Context
from motet.actors.tools.policy.engine import HOUR, CallRates, PolicyEngine
from motet.actors.tools.policy.rules import Rules, configured
from motet.actors.tools.tool import Tool
from motet.protocols.chat import Call, JsonObject
from motet.protocols.errors import ConfigError
from motet.protocols.policy import Effect, Policy, PolicyRule, Ruling, Subject, ToolFacts, ToolRules
from tests.actors.tools.policy.builders import TOOLS, fact, policies, rule, subjects, whom

chains = st.lists(subjects, min_size=1, max_size=3).map(tuple)


async def nothing(_ctx: Context[object], _args: JsonObject) -> object:
    return None


def catalog() -> ToolCatalog:
    made = ToolCatalog()
    for agent in ("lead", "coder", "clerk"):
        tools = [
            Tool(name=t.name, description="", parameters={}, run=nothing, groups=t.groups)
            for t in TOOLS
        ]
        made.put(agent, tools)
    return made


CATALOG = catalog()


class Fixed:
    """An engine with a fixed ruling for each tool."""

    def __init__(self, said: Mapping[str, Effect | None]) -> None:
        self.said = said
        self.asked = 0

    def decide(self, subject: Subject, tool: ToolFacts) -> Ruling:
        self.asked += 1
        effect = self.said.get(tool.name, "allow")
        if effect is None:
            raise RuntimeError("the engine is out of order")
        return Ruling(effect, f"fixed for {subject.user}")


engines = st.lists(
    st.builds(
        Fixed,
        st.dictionaries(
            st.sampled_from([tool.name for tool in TOOLS]),
            st.none() | st.sampled_from(["allow", "ask", "deny"]),
        ),
    ),
    max_size=2,
)


def callable_(host_policy: PolicyEngine, who: tuple[Subject, ...]) -> set[str]:
    tools = host_policy.catalog.tools(who[-1].agent)
    return {tool.name for tool in tools if host_policy.ruling(who, tool).effect != "deny"}


@given(policies, engines, chains)
def test_the_list_and_the_calls_agree(
    policy: Rules, engine: list[Policy], who: tuple[Subject, ...]
) -> None:
    """For every policy and lineage: a tool is offered exactly when its call is not denied."""
    host_policy = PolicyEngine(CATALOG, policy, engine)
    specs = CATALOG.specs(who[-1].agent)
    offered = [spec.name for spec in host_policy.offered(who, specs)]
    assert set(offered) == callable_(host_policy, who) == set(host_policy.allowed_names(who))
    assert offered == sorted(offered)
    assert host_policy.offered(who, specs) is host_policy.offered(who, specs)
    judged = {one.name: one.effect for one in host_policy.judged(who)}
    assert {name for name, effect in judged.items() if effect != "deny"} == set(offered)


@given(policies, engines, chains)
def test_a_child_never_gains_a_tool(
    policy: Rules, engine: list[Policy], who: tuple[Subject, ...]
) -> None:
    """A run may call a tool if it may alone, and if each run above it may."""
    host_policy = PolicyEngine(CATALOG, policy, engine)
    alone = [callable_(host_policy, (subject,)) for subject in who]
    assert callable_(host_policy, who) == {tool.name for tool in TOOLS}.intersection(*alone)
    for tool in CATALOG.tools(who[-1].agent):
        asked = [host_policy.ruling((subject,), tool).effect for subject in who]
        if "ask" in asked and "deny" not in asked:
            assert host_policy.ruling(who, tool).effect == "ask"


def test_an_engine_that_fails_denies() -> None:
    host_policy = PolicyEngine(CATALOG, Rules(), [Fixed({"shell": None, "deploy": "ask"})])
    assert not host_policy.is_open
    assert host_policy.allowed_names((whom(),)) == tuple(
        name for name in CATALOG.names("lead") if name != "shell"
    )
    shell = CATALOG.get("lead", "shell")
    assert host_policy.ruling((whom(),), shell) == Ruling("deny", "Fixed failed", "RuntimeError")


@pytest.mark.parametrize("said", [None, True, "allow", Ruling("maybe", "x")])  # type: ignore[arg-type]
def test_an_answer_that_is_no_ruling_denies(said: object) -> None:
    class Odd:
        def decide(self, _subject: Subject, _tool: ToolFacts) -> Ruling:
            return said  # type: ignore[return-value]  # that is what is odd

    host_policy = PolicyEngine(CATALOG, Rules(), [Odd()])
    assert host_policy.allowed_names((whom(),)) == ()


def test_a_ruling_is_cached_until_the_rules_change() -> None:
    engine = Fixed({})
    host_policy = PolicyEngine(CATALOG, Rules(), [engine])
    for _ in range(3):
        host_policy.allowed_names((whom(),))
    assert engine.asked == len(TOOLS)
    host_policy.set_agent("lead", ToolRules(deny=("shell",)), [])
    assert "shell" not in host_policy.allowed_names((whom(),))
    host_policy.drop_agent("lead")
    assert "shell" in host_policy.allowed_names((whom(),))


def test_a_list_follows_the_tools_of_its_agent() -> None:
    made = catalog()
    host_policy = PolicyEngine(made, Rules(configured([rule("shell")])))
    assert "deploy" in [spec.name for spec in host_policy.offered((whom(),), made.specs("lead"))]
    made.put("lead", [made.get("lead", "shell"), made.get("lead", "read_file")])
    left = host_policy.offered((whom(),), made.specs("lead"))
    assert [spec.name for spec in left] == ["read_file"]


def test_the_ruling_names_the_agent_above() -> None:
    host_policy = PolicyEngine(CATALOG, Rules(agents={"lead": ToolRules(deny=("shell",))}))
    ruling = host_policy.ruling((whom(), whom("coder")), CATALOG.get("coder", "shell"))
    assert ruling.rule == "agents.lead.policy: deny shell (of lead, which it works for)"


def test_aliases_in_calls_are_resolved() -> None:
    host_policy = PolicyEngine(CATALOG)
    calls = (Call("1", "functions.Bash"), Call("2", "deploy"), Call("3", "rm"))
    assert [call.name for call in host_policy.called("lead", calls)] == ["shell", "deploy", "rm"]
    assert host_policy.called("lead", calls[1:2]) is not None
    same = (Call("1", "shell"),)
    assert host_policy.called("lead", same) is same


def test_all_unknown_names_of_a_configuration_are_reported_at_once() -> None:
    some = (
        rule("shel"),
        rule("group:own"),
        PolicyRule(tool="*", effect="ask", agents=("led", "c*", "clerk")),
    )
    host_policy = PolicyEngine(CATALOG, Rules(configured(some)), groups=("group:own",))
    host_policy.rates.limits = {"read_fil": 3}
    host_policy.names = type(host_policy.names)(aliases={"sh": "shellx"})
    with pytest.raises(ConfigError) as raised:
        host_policy.check(["lead", "coder", "clerk"])
    assert [line.partition("; ")[0] for line in str(raised.value).splitlines()] == [
        "the policy has problems:",
        "  policy[0].tool: unknown tool or group 'shel'",
        "  tools.per_hour.read_fil: unknown tool or group 'read_fil'",
        "  tools.aliases.sh: unknown tool or group 'shellx'",
        "  policy[2].agents: unknown agent 'led'",
    ]
    with pytest.raises(ConfigError, match=r"agents.lead.policy.ask\[0\]: unknown .* 'deplo'"):
        host_policy.set_agent("lead", ToolRules(ask=("deplo",)), [])


SHELL, READ = fact("shell"), fact("read_file")


def test_sessions_and_tools_are_counted_separately() -> None:
    some = CallRates()
    assert some.take("a", "shell", 1, 0.0) == 0
    assert some.take("a", "shell", 1, 600.0) == HOUR - 600
    assert some.take("b", "shell", 1, 600.0) == 0
    assert some.take("a", "read_file", 1, 600.0) == 0


def test_a_call_that_is_tried_again_is_counted_once() -> None:
    some, tries = CallRates(), ("1", "1", "2", "1", "2")
    assert [some.take("a", "shell", 2, 0.0, call) for call in tries] == [0.0] * 5
    assert some.take("a", "shell", 2, 0.0, "3") == HOUR
    assert some.take("a", "shell", 2, HOUR, "3") == 0.0


def test_an_idle_session_takes_no_memory() -> None:
    some = CallRates()
    for number in range(20):
        some.take(f"s{number}", "shell", 5, 0.0)
    assert len(some) == 20
    for step in range(20):
        some.take("s", "shell", 5, HOUR + step * HOUR)
    assert len(some) == 1


@pytest.mark.parametrize(
    ("limits", "tool", "limit"),
    [
        ({}, SHELL, 150),
        ({"shell": 3, "group:shell": 9}, SHELL, 3),
        ({"bash": 3}, SHELL, 3),
        ({"group:shell": 9, "group:builtin": 4}, SHELL, 4),
        ({"group:shell": 0, "*": 4}, SHELL, 4),
        ({"group:shell": 0}, SHELL, 0),
        ({"shell": 0, "*": 4}, SHELL, 0),
        ({"mcp:*": 7}, ToolFacts("mcp__git__log", ("mcp:git",)), 7),
        ({"mcp:*": 7}, READ, 150),
    ],
)
def test_a_limit_of_the_tool_comes_before_that_of_a_group(
    limits: dict[str, int], tool: ToolFacts, limit: int
) -> None:
    assert CallRates(150, limits).limit(tool) == limit


def test_no_limit_keeps_nothing() -> None:
    some = CallRates()
    assert all(some.take("a", "shell", 0, 0.0) == 0 for _ in range(200))
    assert len(some) == 0
    assert CallRates(-5).limit(SHELL) == 0
