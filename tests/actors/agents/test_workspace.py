"""Folders and files of users on a real disk: given once, tried again, kept apart."""

from __future__ import annotations

import errno
import json
import os
from functools import partial
from pathlib import Path

import pytest
import trio
from hypothesis import assume, given
from hypothesis import strategies as st

from motet.actors.agents.bootstrap import LARGEST, RECORD, Write, create
from motet.actors.agents.workspace import (
    LONGEST,
    SHARED,
    Workspace,
    Workspaces,
    folder_names,
    shares,
    text_of,
    user_folder,
)
from motet.protocols.agents import AgentProfile, Sharing, Team
from motet.protocols.errors import Internal
from motet.runtime.sandbox import Owner

TEXT = st.text(st.characters(exclude_categories=()), max_size=40) | st.text(
    "./%\\ aA\0", max_size=9
)
LONG = st.text("abé%/", min_size=150, max_size=700)
PER_USER = AgentProfile(workspace="per_user", sharing=Sharing(dm=True, users=("ann",)))


@given(TEXT | LONG)
def test_a_folder_name_can_be_decoded(text: str) -> None:
    """Law: reading is the inverse of writing, for every text that Python can hold."""
    assert text_of(folder_names(text)) == text


@given(TEXT | LONG)
def test_a_folder_is_inside_and_can_be_made(text: str) -> None:
    """Law: each name is one plain step down, and short enough for a file system."""
    names = folder_names(text)
    for name in names:
        assert 0 < len(name.encode()) <= 255
        assert name not in (".", "..")
        assert not set(name) & {"/", "\\", "\0", "="}
        assert name == name.lower()
    assert os.path.normpath("/base/" + "/".join(names)).startswith("/base/")


@given(TEXT, TEXT)
def test_no_two_texts_share_a_folder_even_if_case_is_ignored(a: str, b: str) -> None:
    """Law: the escape is injective, also after folding."""
    assume(a != b)
    assert "/".join(folder_names(a)).casefold() != "/".join(folder_names(b)).casefold()


@given(LONG, LONG)
def test_no_folder_lies_in_the_folder_of_another_text(a: str, b: str) -> None:
    """Law: what a user sees below their folder is theirs."""
    assume(a != b)
    one, other = folder_names(a), folder_names(b)
    assert one != other[: len(one)]


def test_simple_names_stay_what_they_are(tmp_path: Path) -> None:
    assert folder_names("user_1-x.y") == ("user_1-x.y",)
    assert folder_names("group:telegram:-100") == ("group%3atelegram%3a-100",)
    assert folder_names("..") == ("%2e.",)
    deep = folder_names("é" * 300)
    assert all(len(name) <= LONGEST + 1 for name in deep)
    tmp_path.joinpath(*deep).mkdir(parents=True)


def test_a_shared_folder_is_no_user_s() -> None:
    sharing = Sharing(group=True, users=("ann",))
    assert shares(sharing, "ann", "direct")
    assert not shares(sharing, "bob", "direct")
    assert shares(sharing, "bob", "group")
    assert user_folder("Bo", "bob", PER_USER, "direct") == ("%42o", SHARED)
    assert user_folder("Bo", "bob", PER_USER, "group") == ("%42o", "bob")
    assert user_folder("Bo", "ann", AgentProfile(sharing=sharing), "direct") == ("%42o", "ann")


OPEN = AgentProfile(type="open", bootstrap=True, workspace="per_user")
SEEDED = ["AGENTS.md", "BOOTSTRAP.md", "IDENTITY.md", "SOUL.md", "USER.md"]
GROUP = "agent:rex:telegram:group:-100"


async def prepared(
    root: Path, profile: AgentProfile = OPEN, *, user: str = "ann", session: str = "s"
) -> Workspace:
    return await Workspaces(root).prepare("rex", profile, user=user, session=session)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != RECORD)


def names(found: Workspace) -> list[str]:
    return [file.name for file in found.files]


async def test_a_plain_agent_leaves_nothing_on_disk(tmp_path: Path) -> None:
    found = await prepared(tmp_path, AgentProfile())
    assert found == Workspace(tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_an_open_agent_without_files_is_not_seeded_by_itself(tmp_path: Path) -> None:
    assert (await prepared(tmp_path, AgentProfile(type="open"))).files == ()
    assert list(tmp_path.iterdir()) == []


async def test_a_new_user_gets_files_once_and_keeps_their_changes(tmp_path: Path) -> None:
    first = await prepared(tmp_path)
    home = tmp_path / "rex" / "ann"
    assert first.folder == home
    assert files_in(home) == SEEDED
    assert set(names(first)) == {*SEEDED, "AVAILABILITY.md"}

    (home / "SOUL.md").write_text("mine")
    (home / "IDENTITY.md").unlink()
    again = await prepared(tmp_path)
    assert {file.name: file.text for file in again.files}["SOUL.md"] == "mine"
    assert "IDENTITY.md" not in files_in(home)


async def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    home = tmp_path / "rex" / "ann"
    home.mkdir(parents=True)
    (home / "USER.md").write_text("Ann, a gardener")
    await prepared(tmp_path)
    assert (home / "USER.md").read_text() == "Ann, a gardener"
    assert files_in(home) == SEEDED


def failing_at(number: int) -> Write:
    """A disk that is full after so many files."""
    left = iter(range(number))

    def write(folder: int, name: str, data: bytes, owner: Owner | None) -> bool:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return create(folder, name, data, owner)

    return write


@pytest.mark.parametrize("number", range(6))
async def test_a_seeding_that_failed_anywhere_is_finished_at_the_next_turn(
    tmp_path: Path, number: int
) -> None:
    workspaces = Workspaces(tmp_path, failing_at(number))
    broken = await workspaces.prepare("rex", OPEN, user="ann", session="s")
    assert broken.problems == (
        "the user's files could not be made and will be at the next turn: No space left on device",
    )
    assert len(files_in(tmp_path / "rex" / "ann")) == min(number, 5)

    whole = await prepared(tmp_path)
    assert whole.problems == ()
    assert files_in(tmp_path / "rex" / "ann") == SEEDED
    assert (tmp_path / "rex" / "ann" / RECORD).exists()


async def test_a_hundred_turns_at_once_seed_a_user_once(tmp_path: Path) -> None:
    workspaces = Workspaces(tmp_path)
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(
                partial(workspaces.prepare, "rex", OPEN, user="ann", session="s"), name="turn"
            )
    assert files_in(tmp_path / "rex" / "ann") == SEEDED


async def test_bootstrap_is_removed_after_three_turns(tmp_path: Path) -> None:
    workspaces, home = Workspaces(tmp_path), tmp_path / "rex" / "ann"
    there: list[bool] = []
    for _ in range(5):
        found = await workspaces.prepare("rex", OPEN, user="ann", session="s")
        there.append("BOOTSTRAP.md" in names(found))
        assert await workspaces.count_turn("rex", OPEN, user="ann", session="s") == ""
    assert there == [True, True, True, False, False]
    assert json.loads((home / RECORD).read_text())["turns"] == 3


async def test_scheduled_runs_neither_seed_nor_count(tmp_path: Path) -> None:
    workspaces, session = Workspaces(tmp_path), "agent:rex:cron:daily"
    assert (await workspaces.prepare("rex", OPEN, user="ann", session=session)).files == ()
    for _ in range(4):
        await workspaces.count_turn("rex", OPEN, user="ann", session=session)
    assert "BOOTSTRAP.md" in names(await prepared(tmp_path))


async def test_a_turn_that_cannot_be_counted_is_a_problem_and_no_failure(tmp_path: Path) -> None:
    problem = await Workspaces(tmp_path).count_turn("rex", OPEN, user="nobody", session="s")
    assert problem == "the turn of the user could not be counted: No such file or directory"


async def test_an_unreadable_record_counts_as_none(tmp_path: Path) -> None:
    await prepared(tmp_path)
    record = tmp_path / "rex" / "ann" / RECORD
    record.write_text("garbage")
    assert (await prepared(tmp_path)).problems == ()
    assert json.loads(record.read_text())["turns"] == 0


async def test_the_agent_s_folder_holds_its_files_and_the_templates(tmp_path: Path) -> None:
    files, root = tmp_path / "files", tmp_path / "work"
    files.mkdir()
    root.mkdir()
    for name in ("SOUL.md", "TOOLS.md", "USER.md"):
        (files / name).write_text(f"agent's {name}")
    profile = AgentProfile(type="predefined", files=str(files))
    found = await prepared(root, profile)

    texts = {file.name: file.text for file in found.files}
    assert list(texts) == ["SOUL.md", "TOOLS.md", "BOOTSTRAP.md", "USER.md", "AVAILABILITY.md"]
    assert texts["USER.md"] == "agent's USER.md"
    assert found.folder == root
    assert found.soul == ""
    paths = {file.name: file.path for file in found.files}
    assert paths["USER.md"] == "rex/ann/USER.md"
    assert paths["SOUL.md"] == ""
    assert files_in(root / "rex" / "ann") == ["BOOTSTRAP.md", "USER.md"]


async def test_an_agent_may_change_its_soul_where_its_tools_reach(tmp_path: Path) -> None:
    files = tmp_path / "setup"
    files.mkdir()
    (files / "SOUL.md").write_text("dry")
    found = await prepared(tmp_path, AgentProfile(type="predefined", files=str(files)))
    assert found.soul == "setup/SOUL.md"


async def test_a_missing_folder_of_files_is_named(tmp_path: Path) -> None:
    found = await prepared(tmp_path, AgentProfile(files=str(tmp_path / "nowhere")))
    assert found.problems == (f"the folder of the agent's files '{tmp_path}/nowhere' is not there",)


async def test_a_team_is_described_unless_a_file_does(tmp_path: Path) -> None:
    (tmp_path / "AVAILABILITY.md").write_text("alone")
    team = Team("red", role="lead")
    found = await prepared(tmp_path, AgentProfile(files=str(tmp_path), team=team))
    assert names(found) == ["TEAM.md"]
    (tmp_path / "TEAM.md").write_text("ours")
    found = await prepared(tmp_path, AgentProfile(files=str(tmp_path), team=team))
    assert [file.text for file in found.files] == ["ours"]


async def test_a_lead_works_in_the_folder_of_the_team_and_a_member_in_its_own(
    tmp_path: Path,
) -> None:
    lead = AgentProfile(team=Team("red", role="lead", workspace="teams/red"))
    found = await prepared(tmp_path, lead, session=GROUP)
    place = tmp_path / "teams" / "red" / "group%3atelegram%3a-100"
    assert found.folder == place
    assert place.is_dir()
    assert found.team is not None
    assert found.team.workspace == str(place)

    member = AgentProfile(
        workspace="per_user", team=Team("red", workspace="teams/red", shared=True)
    )
    found = await prepared(tmp_path, member, user="ann")
    assert found.folder == tmp_path / "rex" / "ann"
    assert found.team is not None
    assert found.team.workspace == str(tmp_path / "teams" / "red")


@pytest.mark.parametrize("place", ["/etc", "../out", "teams/../..", ".", "link"])
async def test_the_folder_of_a_team_is_inside_of_the_workspace(tmp_path: Path, place: str) -> None:
    root = tmp_path / "work"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    profile = AgentProfile(team=Team("red", role="lead", workspace=place))
    with pytest.raises(Internal, match="is not a folder inside"):
        await prepared(root, profile)


# Isolation


async def test_users_that_look_alike_have_their_own_folders(tmp_path: Path) -> None:
    users = ["a/b", "a b", "a_b", "A_b", "../ann", "é", "e\u0301", ".", ""]
    places = [(await prepared(tmp_path, user=user)).folder for user in users]
    assert len({str(place).lower() for place in places}) == len(users)
    for place in places:
        assert place.resolve().is_relative_to(tmp_path / "rex")


async def test_a_group_has_one_folder_and_sharing_users_too(tmp_path: Path) -> None:
    ann = await prepared(tmp_path, user="ann", session=GROUP)
    bob = await prepared(tmp_path, user="bob", session=GROUP)
    assert ann.folder == bob.folder == tmp_path / "rex" / "group%3atelegram%3a-100"

    profile = AgentProfile(type="open", workspace="per_user", sharing=Sharing(users=("ann",)))
    shared = await prepared(tmp_path, profile, user="ann")
    assert shared.folder == tmp_path / "rex" / "=shared"


async def test_links_are_not_followed_to_other_users(tmp_path: Path) -> None:
    await prepared(tmp_path, user="bob")
    await prepared(tmp_path, user="ann")
    home = tmp_path / "rex" / "ann"
    (home / "USER.md").unlink()
    (home / "USER.md").symlink_to("../bob/USER.md")
    os.mkfifo(home / "MEMORY.md")
    found = await prepared(tmp_path, user="ann")
    assert "USER.md" not in names(found)
    assert found.problems == (
        "USER.md of the user: not a regular file",
        "MEMORY.md of the user: not a regular file",
    )


async def test_a_folder_that_became_a_link_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "rex").mkdir()
    (tmp_path / "rex" / "ann").symlink_to(other)
    with pytest.raises(Internal, match="workspace 'rex/ann' cannot be made"):
        await prepared(tmp_path)
    assert list(other.iterdir()) == []


async def test_a_file_too_large_to_read_is_left_out(tmp_path: Path) -> None:
    await prepared(tmp_path)
    with open(tmp_path / "rex" / "ann" / "MEMORY.md", "wb") as file:
        file.truncate(LARGEST + 1)
    found = await prepared(tmp_path)
    assert found.problems == ("MEMORY.md of the user: MEMORY.md has more than 4 MB",)


async def test_a_preview_shows_the_files_of_a_new_user_and_writes_nothing(tmp_path: Path) -> None:
    shown = await Workspaces(tmp_path).preview("rex", OPEN, user="ann", session="s")
    assert list(tmp_path.iterdir()) == []
    assert shown == await prepared(tmp_path)
