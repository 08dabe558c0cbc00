"""Teams: members, folders, the task board, and their isolation from other users."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.hosting.config import build_agents, load_config
from motet.protocols.chat import JsonObject, ToolMessage
from motet.protocols.teams import TeamWorkspace
from tests.scripted import Scripted, call, say

ALICE, BOB = motet.Principal("alice"), motet.Principal("bob")


def press(lead: Scripted, writer: Scripted, workspace: TeamWorkspace = "isolated") -> motet.Team:
    return motet.Team(
        "press",
        lead=motet.Agent("editor", model=lead, tools=["group:fs"]),
        members=[
            motet.Agent("writer", model=writer, description="Writes.", tools=["group:fs"]),
            motet.Agent("checker", model=Scripted(name="checker"), description="Checks."),
        ],
        workspace=workspace,
    )


def write(path: str, text: str = "x") -> tuple[str, JsonObject]:
    return "write_file", {"path": path, "content": text}


def results(result: motet.RunResult[str]) -> list[str]:
    return [row.text for row in result.rows if isinstance(row, ToolMessage)]


async def test_agents_of_a_team_know_of_it_and_have_its_tools(tmp_path: Path) -> None:
    lead, writer = Scripted(say("hello"), name="l"), Scripted(say("hello"), name="w")
    team = press(lead, writer)
    async with motet.open_host(agents=team.agents, workspace=tmp_path) as host:
        await host.run(team.lead, "go")
        await host.run("writer", "go")
    assert "# Team press\nYou lead it" in lead.requests[0].system
    assert "- writer: Writes.\n- checker: Checks." in lead.requests[0].system
    assert "You are a member" in writer.requests[0].system
    mine, its = ({tool.name for tool in m.requests[0].tools} for m in (lead, writer))
    assert mine - its == {"spawn", "subagents"}
    assert its >= {"task_create", "task_list", "task_claim", "task_update"}


async def test_the_lead_and_its_members_work_in_the_folder_of_the_team(tmp_path: Path) -> None:
    lead = Scripted(
        call(("spawn", {"agent": "writer", "task": "write it"})),
        say("I wait"),
        call(write("plan.txt")),
        say("done"),
        name="l",
    )
    team = press(lead, Scripted(call(write("text.txt")), say("written"), name="w"))
    async with motet.open_host(agents=team.agents, workspace=tmp_path) as host:
        await host.run(team.lead, "go", principal=ALICE)
    folder = tmp_path / "teams" / "press"
    found = {path.name: path.parent for path in folder.rglob("*.txt")}
    assert set(found) == {"plan.txt", "text.txt"}
    (home,) = set(found.values())
    assert home != folder  # it is Alice's


@pytest.mark.parametrize("workspace", ["isolated", "shared"])
async def test_users_read_each_other_s_files_only_in_a_shared_folder(
    tmp_path: Path, workspace: TeamWorkspace
) -> None:
    lead = Scripted(
        call(write("notes.txt", "of alice")),
        say("done"),
        call(("read_file", {"path": "notes.txt"}), ("task_list", {"all": True})),
        say("done"),
    )
    team = press(lead, Scripted(name="w"), workspace)
    async with motet.open_host(agents=team.agents, workspace=tmp_path) as host:
        await host.run(team.lead, "go", principal=ALICE)
        read, _ = results(await host.run(team.lead, "go", principal=BOB))
    assert ("of alice" in read) == (workspace == "shared")


async def test_a_member_that_a_user_talks_with_works_in_its_own_folder(tmp_path: Path) -> None:
    team = press(Scripted(name="l"), Scripted(call(write("mine.txt")), say("done"), name="w"))
    async with motet.open_host(agents=team.agents, workspace=tmp_path) as host:
        await host.run("writer", "go")
    assert (tmp_path / "mine.txt").exists()


@pytest.mark.parametrize("path", ["../../../escape.txt", "/tmp/escape.txt", "out/escape.txt"])
async def test_nothing_leads_out_of_the_folder_of_a_team(tmp_path: Path, path: str) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    outside.mkdir()
    team_folder = work / "teams" / "press"
    lead = Scripted(call(write("first.txt")), say("there"), call(write(path)), say("no"))
    team = press(lead, Scripted(name="w"), "shared")
    async with motet.open_host(agents=team.agents, workspace=work) as host:
        await host.run(team.lead, "go")
        (team_folder / "out").symlink_to(outside)
        result = await host.run(team.lead, "go")
    assert "leads out of the workspace" in results(result)[0]
    assert not list(outside.iterdir())


async def test_a_folder_that_is_a_link_to_elsewhere_is_no_workspace(tmp_path: Path) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    outside.mkdir()
    (work / "teams").mkdir(parents=True)
    (work / "teams" / "press").symlink_to(outside)
    team = press(Scripted(call(write("a.txt")), say("x")), Scripted(name="w"))
    async with motet.open_host(agents=team.agents, workspace=work) as host:
        result = await host.run(team.lead, "go", check=False)
    assert (result.status, "not a folder inside of" in result.detail) == ("failed", True)
    assert not list(outside.iterdir())


async def test_a_lead_starts_members_and_nobody_else(tmp_path: Path) -> None:
    lead = Scripted(call(("spawn", {"agent": "stranger", "task": "x"})), say("well"))
    team = press(lead, Scripted(name="w"))
    stranger = motet.Agent("stranger", model=Scripted(name="s"))
    async with motet.open_host(agents=[*team.agents, stranger], workspace=tmp_path) as host:
        result = await host.run(team.lead, "go")
    assert results(result) == ["Your team has no 'stranger'. Its members: writer, checker"]


async def test_members_share_the_board_of_their_user(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    lead = Scripted(
        call(("task_create", {"title": "a"}), ("task_create", {"title": "b", "needs": [1]})),
        call(("spawn", {"agent": "writer", "task": "claim and do a task"})),
        say("I wait"),
        call(("task_list", {"all": True})),
        say("done"),
        call(("task_list", {"all": True})),
        say("nothing"),
        name="l",
    )
    work = [
        call(("task_claim", {})),
        call(("task_update", {"number": 1, "state": "done", "result": "in a.txt"})),
        call(("task_claim", {})),
        say("I leave b as it is"),
    ]
    team = press(lead, Scripted(*work, name="w"))
    async with motet.open_host(agents=team.agents, workspace=tmp_path) as host:
        result = await host.run(team.lead, "go", principal=ALICE)
        other = await host.run(team.lead, "go", principal=BOB)
    first, second = msgspec.json.decode(results(result)[-1], type=list[dict[str, object]])
    assert (first["state"], first["result"], first["agent"]) == ("done", "in a.txt", "writer")
    assert second["state"] == "open"  # who had claimed it has ended
    assert results(other) == ["[]"]
    del autojump_clock


async def test_a_stop_leaves_no_task_claimed(autojump_clock: MockClock, tmp_path: Path) -> None:
    busy = Scripted(call(("task_claim", {})), None, name="w")
    lead = Scripted(
        call(("task_create", {"title": "a"}), ("spawn", {"agent": "writer", "task": "do it"})),
        say("I wait"),
        call(("task_list", {})),
        say("done"),
        name="l",
    )
    team = press(lead, busy)
    async with motet.open_host(agents=team.agents, workspace=tmp_path) as host:
        async with host.stream(team.lead, "go", session="s"):
            while len(busy.requests) < 2:
                await trio.sleep(0.01)
            await host.stop(session="s")
        result = await host.run(team.lead, "and now?", session="s")
    assert '"state": "open"' in results(result)[0]
    del autojump_clock


async def test_an_agent_without_a_team_has_no_board() -> None:
    alone = motet.Agent(
        "alone", model=Scripted(call(("task_list", {})), say("oh")), tools=["group:tasks"]
    )
    async with motet.open_host() as host:
        result = await host.run(alone, "go")
    assert "is in no team" in results(result)[0]


def test_an_agent_is_in_one_team_at_most() -> None:
    agent = motet.Agent("a", model=Scripted())
    motet.Team("one", lead=agent, members=[])
    with pytest.raises(motet.ConfigError, match="in the team 'one' already"):
        motet.Team("two", lead=motet.Agent("b", model=Scripted()), members=[agent])
    with pytest.raises(motet.ConfigError, match="two agents named 'a'"):
        motet.Team("three", lead=agent, members=[motet.Agent("a", model=Scripted())])
    with pytest.raises(motet.ConfigError, match=r"team name '\.\./x'"):
        motet.Team("../x", lead=agent, members=[])


CONFIG = """
[agents.editor]
handoffs = ["checker"]

[agents.writer]
description = "Writes."

[agents.checker]

[teams.press]
members = ["editor", "writer"]
workspace = "shared"
"""


def test_teams_and_handoffs_are_configured(tmp_path: Path) -> None:
    file = tmp_path / "motet.toml"
    file.write_text(CONFIG)
    editor, writer, checker = build_agents(load_config(file), source=file.name, root=tmp_path)
    assert editor.profile.team is not None
    assert writer.profile.team is not None
    assert checker.profile.team is None
    assert (editor.profile.team.role, writer.profile.team.role) == ("lead", "member")
    assert (editor.profile.team.workspace, editor.profile.team.shared) == ("teams/press", True)
    names = [tool if isinstance(tool, str) else tool.name for tool in editor.tools]
    assert {"transfer_to_checker", "group:agents", "group:tasks"} <= set(names)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('"checker"]', '"chekcer"]'), r"agents.editor.handoffs\[0\]: .*checker"),
        (('"writer"]', '"writre"]'), "teams.press: .*writer"),
        (('"shared"', '"open"'), "teams.press.workspace: expected one of isolated, shared"),
        (('["editor", "writer"]', "[]"), "teams.press.members: must name at least one agent"),
    ],
)
def test_the_errors_of_a_team_are_reported(
    tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    file = tmp_path / "motet.toml"
    file.write_text(CONFIG.replace(*change))
    with pytest.raises(motet.ConfigError, match=says):
        build_agents(load_config(file), source=file.name, root=tmp_path)
