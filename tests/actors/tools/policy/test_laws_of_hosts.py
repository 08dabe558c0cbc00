"""The laws of policy in a whole host: offered tools, calls, and the tools of children."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import motet
from motet.actors.tools.tool import Tool, tool
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.chat import JsonObject, ToolMessage
from motet.protocols.config import HostConfig, ToolsConfig
from motet.protocols.policy import (
    Effect,
    PolicyRule,
    Profile,
    Ruling,
    Subject,
    ToolFacts,
    ToolRules,
)
from motet.protocols.sessions import Role
from tests.scripted import Scripted, call, say

WORK = ("look", "note", "wipe")
NAMES = (*WORK, "read_file", "*i*", "group:fs")
CALLED = (*WORK, "read_file", "functions.look", "rm")

names = st.sampled_from(NAMES)
some_names = st.lists(names, max_size=2).map(tuple)
own = st.builds(
    ToolRules,
    st.none() | st.sampled_from(["coding", "full"]),
    allow=st.sampled_from([(), (), ("child", "look", "note"), ("*",)]),
    ask=some_names,
    deny=some_names,
)
effects: st.SearchStrategy[Effect] = st.sampled_from(["allow", "ask", "deny"])
rules = st.builds(
    PolicyRule,
    tool=names,
    effect=effects,
    roles=st.sampled_from([(), ("viewer",)]),
    agents=st.sampled_from([(), ("lead",), ("child",)]),
)


@attrs.frozen
class Says:
    """An engine that fails on some tools and denies others."""

    broken: str
    denied: str

    def decide(self, _subject: Subject, about: ToolFacts) -> Ruling:
        if about.name == self.broken:
            raise RuntimeError("out of order")
        return Ruling("deny" if about.name == self.denied else "allow", "engine")


@attrs.define
class House:
    """Two scripted agents, the one below the other; ``ran``: the agents whose tools have run."""

    lead: motet.Agent
    below: motet.Agent
    above_model: Scripted
    below_model: Scripted
    ran: list[str]


def house(above: ToolRules, beneath: ToolRules) -> House:
    ran: list[str] = []

    def tools(who: str) -> list[Tool]:
        return [tool(_work(f"{who} {name}", ran), name=name) for name in WORK]

    path: JsonObject = {"path": "x"}
    calls = [(name, path if name == "read_file" else dict[str, object]()) for name in CALLED]
    lower = Scripted(call(*calls), say("well"), name="lower")
    child = motet.Agent("child", model=lower, tools=[*tools("child"), "read_file"], policy=beneath)
    upper = Scripted(call(*calls, ("child", {"task": "go"})), say("well"), name="upper")
    lead = motet.Agent(
        "lead", model=upper, tools=[*tools("lead"), "read_file", child.as_tool()], policy=above
    )
    return House(lead, child, upper, lower, ran)


def _work(name: str, ran: list[str]) -> Callable[..., object]:
    async def work() -> str:
        ran.append(name)
        return "done"

    return work


def offered(model: Scripted) -> set[str]:
    return {spec.name for spec in model.requests[0].tools}


async def live(
    built: House,
    some: list[PolicyRule],
    profile: Profile,
    role: Role,
    engine: Says | None,
) -> list[ToolMessage]:
    """The results of the calls of the lead; there is no person to ask."""
    config = HostConfig(
        policy=tuple(some),
        tools=ToolsConfig(profile=profile),
        approvals=ApprovalsConfig(ask=False),
    )
    async with motet.open_host(config=config, agents=[built.lead], policy=engine) as host:
        result = await host.run(
            built.lead, "go", principal=motet.Principal("vera", role), check=False
        )
        return [row for row in result.rows if isinstance(row, ToolMessage)]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(rules, max_size=4),
    st.sampled_from(["coding", "full"]),
    st.sampled_from(["viewer", "operator"]),
    st.none() | st.builds(Says, st.sampled_from(["none", *WORK]), st.sampled_from(WORK)),
    own,
    own,
)
def test_only_what_is_offered_runs_and_a_child_gains_nothing(
    some: list[PolicyRule],
    profile: Profile,
    role: Role,
    engine: Says | None,
    above: ToolRules,
    beneath: ToolRules,
) -> None:
    """A tool runs only where it was offered, a call of another one reads as one of a tool that
    does not exist, and what runs below an agent the agent itself was offered.
    """
    built = house(above, beneath)
    results = trio.run(live, built, some, profile, role, engine)

    upper = offered(built.above_model)
    for said, row in zip(CALLED, results, strict=False):
        name = said.removeprefix("functions.")
        hidden = row.text.startswith(f"There is no tool {name!r}.")
        assert hidden is (name not in upper)
    ran = [tuple(one.split()) for one in built.ran]
    assert {name for who, name in ran if who == "lead"} <= upper
    if built.below_model.requests:
        lower = offered(built.below_model)
        assert lower <= upper
        assert {name for who, name in ran if who == "child"} <= lower
    else:
        assert not [who for who, _ in ran if who == "child"]
