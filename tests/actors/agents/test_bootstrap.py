"""Bootstrap files: the rules of each type of agent, and the end of the first conversation."""

from __future__ import annotations

from typing import get_args

import pytest

from motet.actors.agents.bootstrap import (
    ORDER,
    SEEDED,
    in_first_conversation,
    team_text,
    template,
    wanted,
)
from motet.protocols.agents import AgentProfile, AgentType, Member, Team

STATIC = {"TOOLS.md", "DELEGATION.md", "TEAM.md", "AVAILABILITY.md"}
PERSONAL = {"USER.md", "BOOTSTRAP.md", "MEMORY.md"}


def homes(profile: AgentProfile) -> dict[str, str]:
    return {file.name: file.home for file in wanted(profile, "full")}


def test_an_agent_without_files_reads_none() -> None:
    for kind in get_args(AgentType):
        assert wanted(AgentProfile(type=kind), "full") == ()
        assert not AgentProfile(type=kind).seeds


def test_every_user_of_an_open_agent_has_all_its_files() -> None:
    found = homes(AgentProfile(type="open", files="f"))
    mine = {"AGENTS.md", "SOUL.md", "IDENTITY.md", *PERSONAL}
    assert {name for name, home in found.items() if home == "user"} == mine
    assert {name for name, home in found.items() if home == "agent"} == STATIC


def test_users_of_a_predefined_agent_share_its_files_but_their_own() -> None:
    found = homes(AgentProfile(type="predefined", files="f"))
    assert {name for name, home in found.items() if home == "user"} == PERSONAL
    assert set(found) == set(ORDER)


def test_a_plain_agent_with_files_has_no_first_conversation() -> None:
    found = homes(AgentProfile(files="f"))
    assert set(found.values()) == {"agent"}
    assert set(found) == set(ORDER) - {"BOOTSTRAP.md", "USER_PREDEFINED.md"}


def test_bootstrap_makes_a_plain_agent_an_open_one() -> None:
    profile = AgentProfile(bootstrap=True)
    assert profile.acts_as == "open"
    assert set(homes(profile).values()) == {"user"}
    assert not AgentProfile(type="open", files="f", bootstrap=False).seeds


def test_a_minimal_prompt_has_the_files_for_work_only() -> None:
    for kind in get_args(AgentType):
        found = wanted(AgentProfile(type=kind, files="f"), "minimal")
        assert [file.name for file in found] == ["AGENTS.md", "TOOLS.md"]


@pytest.mark.parametrize("kind", ["open", "predefined"])
def test_every_file_that_is_given_has_a_template(kind: AgentType) -> None:
    for name in SEEDED[kind]:
        assert template(name, kind).startswith("# ")
    assert template("BOOTSTRAP.md", "open") != template("BOOTSTRAP.md", "predefined")


def test_a_first_conversation_has_three_turns() -> None:
    assert [in_first_conversation(turns) for turns in range(5)] == [True, True, True, False, False]


def test_a_lead_and_a_member_are_told_different_duties() -> None:
    members = (Member("bo", "digs"), Member("cy"))
    lead = team_text(Team("red", role="lead", members=members))
    assert lead.startswith("# Team red\nYou lead it")
    assert lead.endswith("- bo: digs\n- cy")
    assert "You are a member" in team_text(Team("red"))
    assert "other members" not in team_text(Team("red"))
