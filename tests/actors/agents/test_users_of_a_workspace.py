"""Whose files an agent shows: one folder for all, or one for each user, as there are users."""

from __future__ import annotations

from pathlib import Path

import pytest

import motet
from motet.actors.agents.workspace import Users, Workspaces
from motet.protocols.agents import AgentProfile, AgentRecord, WorkspaceMode
from motet.protocols.config import GatewayConfig, HostConfig, TokenConfig
from tests.scripted import Scripted, call, say


def token(user: str, *, impersonate: bool = False) -> TokenConfig:
    digits = user.encode().hex().ljust(32, "0")[:32]
    return TokenConfig(token=f"mtt_{digits}", user=user, impersonate=impersonate)


def config(*users: str) -> HostConfig:
    return HostConfig(gateway=GatewayConfig(tokens=tuple(map(token, users))))


def reader(workspace: WorkspaceMode = "auto") -> motet.Agent[None, str]:
    """An agent that writes a file with its user's text, or reads the file."""
    write: dict[str, object] = {"path": "notes.txt", "content": "of ann"}
    steps = [
        call(("write_file", write)),
        say("written"),
        call(("read_file", {"path": "notes.txt"})),
    ]
    profile = AgentProfile(workspace=workspace)
    model = Scripted(*steps, say("read"), name="reader")
    return motet.Agent("reader", model=model, tools=["group:fs"], profile=profile)


async def shown_to_ben(host: motet.Host, agent: motet.Agent[None, str]) -> str:
    await host.run(agent, "write", principal=motet.Principal("ann"))
    await host.run(agent, "read", session="b", principal=motet.Principal("ben"))
    return str(await host.history("b", principal=motet.Principal("ben")))


@pytest.mark.parametrize(
    ("users", "mode", "apart"),
    [
        (("ann", "ben"), "auto", True),
        (("ann", "ben"), "shared", False),
        (("ann",), "auto", False),
        ((), "auto", False),
        (("ann",), "per_user", True),
    ],
)
async def test_users_of_one_gateway_have_files_of_their_own(
    users: tuple[str, ...], mode: WorkspaceMode, apart: bool, tmp_path: Path
) -> None:
    agent = reader(mode)
    async with motet.open_host(config=config(*users), agents=[agent], workspace=tmp_path) as host:
        assert ("of ann" in await shown_to_ben(host, agent)) is not apart


async def test_a_token_that_is_made_meanwhile_makes_it_several_users(tmp_path: Path) -> None:
    agent = reader()
    async with motet.open_host(config=config("ann"), agents=[agent], workspace=tmp_path) as host:
        assert await host.workspace_notes() == ()
        made = await host.new_token("ben")
        assert "of ann" not in await shown_to_ben(host, agent)
        await host.revoke_token(made.info.id)
        assert await host.workspace_notes() != ()


async def test_a_user_who_was_here_before_counts_when_there_are_tokens(tmp_path: Path) -> None:
    state, work = tmp_path / "state", tmp_path / "work"
    agent = reader()
    async with motet.open_host(state, config=config("ann", "ben"), workspace=work) as host:
        await shown_to_ben(host, agent)
    async with motet.open_host(state, config=config("ann"), agents=[agent], workspace=work) as host:
        assert await host.workspace_notes() != ()
    async with motet.open_host(state, agents=[agent], workspace=work) as host:
        assert await host.workspace_notes() == ()


def test_a_bridge_speaks_for_any_number_of_users() -> None:
    users = Users()
    users.note([token("bridge", impersonate=True)])
    assert users.several


async def test_the_operator_is_told_who_shares_and_what_is_left_from_before(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("of nobody")
    (tmp_path / "reader").mkdir()
    users = Users()
    workspaces = Workspaces(tmp_path, users=users)
    agents = [("reader", AgentProfile()), ("open", AgentProfile(workspace="shared"))]
    assert workspaces.notes(agents) == ()
    users.note([token("ann"), token("ben")])
    own, left, shared = workspaces.notes(agents)
    assert "<agent>/<user>" in own
    assert "old.txt" in left
    assert "reader" not in left.partition("(")[2].partition(")")[0]
    assert "all users of open share" in shared


async def test_a_mode_that_is_chosen_for_a_stored_agent_stays(tmp_path: Path) -> None:
    record = AgentRecord("old", profile=AgentProfile(workspace="shared"))
    async with motet.open_host(tmp_path / "state", workspace=tmp_path / "work") as host:
        await host.put_agent(record)
        (kept,) = await host.stored_agents()
        assert kept.profile.workspace == "shared"
