"""A policy in Cedar: its request, and that only a permit without errors allows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import motet
from motet.actors.tools.policy.cedar import CedarPolicy, Entity
from motet.protocols.errors import ConfigError, MissingExtra
from motet.protocols.policy import Ruling, ToolFacts
from tests.actors.tools.policy.builders import fact, whom

READ, SHELL, STATUS = fact("read_file"), fact("shell"), fact("mcp__git__status")


def test_users_roles_tools_and_groups_are_entities() -> None:
    policy = CedarPolicy(
        """
        @id("readers") permit(principal, action == Action::"call", resource in Group::"group:fs");
        permit(principal in Role::"admin", action, resource == Tool::"shell");
        @id("bob") permit(principal == User::"bob", action, resource in Group::"mcp:git");
        """
    )
    assert policy.decide(whom(), READ) == Ruling("allow", "cedar: readers")
    assert policy.decide(whom(), SHELL) == Ruling("deny", "cedar: no permit")
    assert policy.decide(whom(role="admin"), SHELL).effect == "allow"
    assert policy.decide(whom(user="bob"), STATUS) == Ruling("allow", "cedar: bob")
    assert policy.decide(whom(), STATUS).effect == "deny"


def test_a_forbid_wins_and_sees_agent_session_and_effects() -> None:
    policy = CedarPolicy(
        """
        permit(principal, action, resource);
        @id("clerks look") forbid(principal, action, resource)
            when { context.agent == "clerk" && resource.effects == "write" };
        """
    )
    assert policy.decide(whom("clerk"), SHELL) == Ruling("deny", "cedar: clerks look")
    assert policy.decide(whom("clerk"), READ).effect == "allow"
    assert policy.decide(whom("lead"), SHELL).effect == "allow"


def test_a_forbid_that_cannot_be_evaluated_denies() -> None:
    policy = CedarPolicy(
        "permit(principal, action, resource);"
        "forbid(principal, action, resource) when { resource.owner == principal };"
    )
    ruling = policy.decide(whom(), READ)
    assert (ruling.effect, ruling.rule) == ("deny", "cedar: error")
    assert "owner" in ruling.reason


def test_further_entities_may_be_given() -> None:
    entities: list[Entity] = [
        {
            "uid": {"type": "User", "id": "alice"},
            "attrs": {"level": 3},
            "parents": [{"type": "Team", "id": "ops"}],
        },
        {"uid": {"type": "Tool", "id": "shell"}, "attrs": {"level": 2}, "parents": []},
    ]
    policy = CedarPolicy(
        """
        permit(principal in Team::"ops", action, resource in Group::"group:shell")
            when { principal.level >= resource.level };
        """,
        entities=entities,
    )
    assert policy.decide(whom(), SHELL).effect == "allow"
    assert policy.decide(whom(user="bob"), SHELL).effect == "deny"


def test_odd_names_are_names() -> None:
    policy = CedarPolicy('permit(principal == User::"a", action, resource);')
    for user in ('a"', "a\n", 'a" || true || "', "", "é"):
        assert policy.decide(whom(user=user), ToolFacts("x")).effect == "deny"


def test_a_text_that_is_no_cedar_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cedar"):
        CedarPolicy("permit(everybody)")
    with pytest.raises(ConfigError, match="cannot be read"):
        CedarPolicy.from_file(tmp_path / "none.cedar")
    file = tmp_path / "policy.cedar"
    file.write_text("permit(principal, action, resource);")
    assert CedarPolicy.from_file(file).decide(whom(), READ).effect == "allow"


async def test_a_configuration_may_name_policies_that_apply_besides_the_rules(
    tmp_path: Path,
) -> None:
    (tmp_path / "tools.cedar").write_text(
        'permit(principal, action, resource in Group::"group:fs");'
    )
    (tmp_path / "motet.toml").write_text(
        """
        [tools]
        cedar = "tools.cedar"
        [agents.helper]
        tools = ["group:fs", "group:shell"]
        policy = { deny = ["write_file"] }
        """
    )
    async with motet.open_host(config=tmp_path / "motet.toml", workspace=tmp_path / "w") as host:
        judged = await host.tools("helper")
    allowed = {one.name for one in judged if one.effect == "allow"}
    assert allowed == {"read_file", "edit_file", "list_files"}

    (tmp_path / "tools.cedar").unlink()
    with pytest.raises(ConfigError, match=r"tools\.cedar cannot be read"):
        async with motet.open_host(config=tmp_path / "motet.toml", workspace=tmp_path / "w"):
            pass


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cedarpy", None)
    with pytest.raises(MissingExtra, match=r"motet\[cedar\]"):
        CedarPolicy("")
