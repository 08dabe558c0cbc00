"""Containment: no path reaches anything outside of the workspace."""

import os
import string
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.tools.builtin.paths import locate, open_file, open_folder
from motet.protocols.tools import ToolFailure


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    file = tmp_path / "secret.txt"
    file.write_text("secret")
    return file


def refused(root: Path, path: str) -> ToolFailure:
    with pytest.raises(ToolFailure) as caught, open_file(root, path):
        pass
    return caught.value


def always(found: os.stat_result) -> Callable[..., os.stat_result]:
    def stat(*_arguments: object, **_options: object) -> os.stat_result:
        return found

    return stat


@pytest.mark.parametrize(
    "path",
    ["../secret.txt", "a/../../secret.txt", "/etc/passwd", "//etc/passwd", "/", "..", "./.."],
)
def test_a_path_that_leads_out_is_refused_with_the_allowed_ones(workspace: Path, path: str) -> None:
    failure = refused(workspace, path)
    assert "leads out of the workspace" in str(failure)
    assert str(workspace) in str(failure)
    assert failure.kind == "validation"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "is empty"),
        ("a\0b", "NUL"),
        ("~/x", "'~' is not expanded"),
        ("~root/x", "'~' is not expanded"),
        ("\ud800", "cannot be in a file name"),
        ("x" * 300, "too long"),
        ("x/" * 3000, "too long"),
        (".", "is a folder"),
    ],
)
def test_an_invalid_path_is_refused_with_a_reason(workspace: Path, path: str, words: str) -> None:
    assert words in str(refused(workspace, path))


def test_a_sibling_that_begins_like_the_workspace_is_outside(workspace: Path) -> None:
    sibling = workspace.with_name(workspace.name + "-2")
    sibling.mkdir()
    assert "leads out" in str(refused(workspace, str(sibling / "x")))


def test_an_absolute_path_inside_is_allowed(workspace: Path) -> None:
    assert locate(workspace, str(workspace / "a" / "b")) == ("a", "b")


@pytest.mark.parametrize("link", ["link", "folder/link"])
def test_a_link_that_leads_out_is_refused(workspace: Path, outside: Path, link: str) -> None:
    (workspace / "folder").mkdir()
    (workspace / link).symlink_to(outside)
    assert "leads out" in str(refused(workspace, link))


def test_a_linked_folder_that_leads_out_is_refused(workspace: Path, outside: Path) -> None:
    (workspace / "folder").symlink_to(outside.parent)
    assert "leads out" in str(refused(workspace, "folder/secret.txt"))


def test_a_dangling_link_that_leads_out_is_refused(workspace: Path, tmp_path: Path) -> None:
    (workspace / "link").symlink_to(tmp_path / "not there")
    assert "leads out" in str(refused(workspace, "link"))


def test_a_link_inside_the_workspace_is_followed(workspace: Path) -> None:
    (workspace / "real.txt").write_text("text")
    (workspace / "link").symlink_to("real.txt")
    with open_file(workspace, "link") as file:
        assert file.read() == b"text"


def test_links_in_a_circle_are_refused(workspace: Path) -> None:
    (workspace / "a").symlink_to("b")
    (workspace / "b").symlink_to("a")
    assert "symbolic link in a circle" in str(refused(workspace, "a"))


def test_a_workspace_may_itself_be_behind_a_link(workspace: Path, tmp_path: Path) -> None:
    (workspace / "x").write_text("text")
    (tmp_path / "alias").symlink_to(workspace)
    with open_file(tmp_path / "alias", "x") as file:
        assert file.read() == b"text"


def test_a_file_swapped_for_a_link_after_the_check_is_not_followed(
    workspace: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "x").write_text("harmless")
    found = os.stat(workspace / "x")
    (workspace / "x").unlink()
    (workspace / "x").symlink_to(outside)
    monkeypatch.setattr(os.path, "realpath", str)
    monkeypatch.setattr(os, "stat", always(found))
    assert "circle or changed" in str(refused(workspace, "x"))


def test_a_folder_swapped_for_a_link_after_the_check_is_not_followed(
    workspace: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "folder").symlink_to(outside.parent)
    monkeypatch.setattr(os.path, "realpath", str)
    assert refused(workspace, "folder/secret.txt").code in ("ELOOP", "ENOTDIR")


def test_a_pipe_is_refused_without_waiting_for_a_writer(workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    assert "is a named pipe" in str(refused(workspace, "pipe"))


def test_a_pipe_that_has_just_replaced_a_file_does_not_hang(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "x").write_text("")
    found = os.stat(workspace / "x")
    (workspace / "x").unlink()
    os.mkfifo(workspace / "x")
    monkeypatch.setattr(os, "stat", always(found))
    assert "is a named pipe" in str(refused(workspace, "x"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_is_refused(workspace: Path) -> None:
    try:
        os.mknod(workspace / "null", 0o20666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this root may not make devices")
    assert "is a device" in str(refused(workspace, "null"))


def test_a_missing_file_names_the_nearest_ones(workspace: Path) -> None:
    (workspace / "notes").mkdir()
    (workspace / "notes" / "plan.md").write_text("")
    failure = refused(workspace, "notes/plam.md")
    assert failure.kind == "not_found"
    assert "did you mean 'plan.md'?" in str(failure)


def test_a_missing_folder_is_reported_with_the_entries_that_exist(workspace: Path) -> None:
    (workspace / "notes").mkdir()
    assert "no 'zzz' in folder '.'; there are: notes" in str(refused(workspace, "zzz/plan.md"))


def test_a_file_used_as_a_folder_is_refused_with_a_reason(workspace: Path) -> None:
    (workspace / "x").write_text("")
    assert "should be a folder" in str(refused(workspace, "x/y"))


def test_no_descriptor_is_left_open(workspace: Path) -> None:
    (workspace / "a").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a", "a/b", "a/b/c", "../x"):
        refused(workspace, path)
    assert len(os.listdir("/proc/self/fd")) == before


parts = st.sampled_from(["..", ".", "a", "b", "out", "in", "", "/", "~", "a\0"])


@given(st.lists(parts | st.text(string.printable, max_size=4), max_size=6))
def test_any_opened_path_lies_inside(pieces: list[str]) -> None:
    """Law: a located path, opened, is a descriptor whose real path is in the workspace."""
    with TemporaryDirectory() as top:
        root = Path(top, "root")
        (root / "a" / "b").mkdir(parents=True)
        (root / "a" / "out").symlink_to(top)
        (root / "in").symlink_to("a/b")
        (root / "out").symlink_to("/")
        try:
            found = locate(root, "/".join(pieces))
            with open_folder(root, found) as folder:
                real = os.readlink(f"/proc/self/fd/{folder}")
        except (ToolFailure, OSError):
            return
        assert Path(real).is_relative_to(root.resolve())
