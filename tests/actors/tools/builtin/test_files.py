"""The file tools, on real files."""

import errno
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.tools.builtin import file_write
from motet.actors.tools.builtin.file_write import line_of, no_match, positions
from motet.actors.tools.builtin.files import MAX_CHARS, file_tools, matches, printable
from motet.actors.tools.builtin.paths import NOBODY, owner_of
from motet.protocols.tools import ToolFailure

Call = Callable[..., Awaitable[str]]
TOOLS = {tool.name: tool for tool in file_tools()}
READ, WRITE = TOOLS["read_file"], TOOLS["write_file"]
EDIT, LIST = TOOLS["edit_file"], TOOLS["list_files"]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def lines(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(1, count + 1))


class TestReading:
    async def test_a_small_file_is_given_as_it_is(self, call: Call, workspace: Path) -> None:
        (workspace / "a.txt").write_bytes(b"one\r\ntwo \xff\nthree")
        assert await call(READ, path="a.txt") == "one\r\ntwo \ufffd\nthree"

    async def test_a_part_of_a_file_says_how_to_read_on(self, call: Call, workspace: Path) -> None:
        (workspace / "a.txt").write_text(lines(10))
        text = await call(READ, path="a.txt", offset=3, limit=2)
        assert text.startswith("line 3\nline 4\n[lines 3 to 4; go on with offset=5;")

    async def test_the_last_part_has_no_note(self, call: Call, workspace: Path) -> None:
        (workspace / "a.txt").write_text(lines(10))
        assert await call(READ, path="a.txt", offset=9, limit=2) == "line 9\nline 10\n"

    async def test_pages_end_with_a_whole_line(self, call: Call, workspace: Path) -> None:
        (workspace / "a.txt").write_text(lines(9000))
        seen, offset = "", 1
        while True:
            page = await call(READ, path="a.txt", offset=offset, limit=5000)
            assert len(page) < READ.max_output
            text, _, note = page.rpartition("[lines ")
            if not note.endswith("bytes]"):
                break
            seen += text
            offset = int(note.partition("offset=")[2].partition(";")[0])
        assert seen + page == lines(9000)

    async def test_an_endless_line_is_cut_with_a_note(self, call: Call, workspace: Path) -> None:
        (workspace / "a.txt").write_text("first\n" + "é" * 3_000_000)
        text = await call(READ, path="a.txt", offset=2)
        assert text.count("é") == MAX_CHARS
        assert text.endswith("characters; the file has 6,000,006 bytes]")

    async def test_a_huge_sparse_file_is_binary(self, call: Call, workspace: Path) -> None:
        with (workspace / "big.bin").open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(ToolFailure, match=r"binary data .*1,099,511,627,776 bytes"):
            await call(READ, path="big.bin")

    @pytest.mark.parametrize(
        ("name", "data", "words"),
        [
            ("x.png", b"\x89PNG\r\n\x1a\n", "a PNG image, 8 bytes"),
            ("x.dat", b"text\0text", "binary data"),
            ("x.wasm", b"\0asm", "application/wasm"),
            ("x.txt", "text".encode("utf-16"), "UTF-16 text"),
        ],
    )
    async def test_a_binary_file_is_refused_with_its_type(
        self, call: Call, workspace: Path, name: str, data: bytes, words: str
    ) -> None:
        (workspace / name).write_bytes(data)
        with pytest.raises(ToolFailure, match=words):
            await call(READ, path=name)

    async def test_an_empty_file_is_reported_as_empty(self, call: Call, workspace: Path) -> None:
        (workspace / "a").write_text("")
        assert await call(READ, path="a") == "['a' is empty]"

    @pytest.mark.parametrize("arguments", [{"offset": 0}, {"limit": 0}, {"offset": 3}])
    async def test_an_impossible_offset_or_limit_is_refused(
        self, call: Call, workspace: Path, arguments: dict[str, int]
    ) -> None:
        (workspace / "a").write_text("one\ntwo\n")
        with pytest.raises(ToolFailure) as caught:
            await call(READ, path="a", **arguments)
        assert caught.value.kind == "validation"

    async def test_a_cancelled_read_of_a_large_file_stops(
        self, call: Call, workspace: Path
    ) -> None:
        with (workspace / "a").open("wb") as file:
            file.write(b"x\n" * 8192)
            file.truncate(1 << 40)
        with trio.move_on_after(0.05) as scope:
            await call(READ, path="a", offset=1 << 50)
        assert scope.cancelled_caught


class TestWriting:
    async def test_a_new_file_gets_its_folders(self, call: Call, workspace: Path) -> None:
        said = await call(WRITE, path="a/b/c.txt", content="täxt")
        assert (workspace / "a/b/c.txt").read_text() == "täxt"
        assert said == "created a/b/c.txt: 5 bytes"

    async def test_a_replaced_file_keeps_its_mode(self, call: Call, workspace: Path) -> None:
        script = workspace / "run.sh"
        script.write_text("old")
        script.chmod(0o750)
        assert "replaced" in await call(WRITE, path="run.sh", content="new")
        assert script.read_text() == "new"
        assert stat.S_IMODE(script.stat().st_mode) == 0o750

    async def test_a_hard_link_to_the_old_content_is_left_alone(
        self, call: Call, workspace: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "outside").write_text("old")
        os.link(tmp_path / "outside", workspace / "inside")
        await call(WRITE, path="inside", content="new")
        assert (tmp_path / "outside").read_text() == "old"

    async def test_writing_through_a_link_keeps_the_link(self, call: Call, workspace: Path) -> None:
        (workspace / "real").write_text("old")
        (workspace / "link").symlink_to("real")
        await call(WRITE, path="link", content="new")
        assert (workspace / "link").is_symlink()
        assert (workspace / "real").read_text() == "new"

    @pytest.mark.parametrize("path", [".", "folder", "folder/", "new/", "pipe", "../x", "file/x"])
    async def test_only_a_regular_file_inside_can_be_written(
        self, call: Call, workspace: Path, path: str
    ) -> None:
        (workspace / "folder").mkdir()
        (workspace / "file").write_text("")
        os.mkfifo(workspace / "pipe")
        before = sorted(workspace.rglob("*"))
        with pytest.raises(ToolFailure):
            await call(WRITE, path=path, content="x")
        assert sorted(workspace.rglob("*")) == before

    async def test_a_cancelled_write_leaves_the_old_content_and_no_trace(
        self, call: Call, workspace: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (workspace / "a").write_text("old")
        monkeypatch.setattr(file_write, "CHUNK", 1)
        with trio.move_on_after(0.05) as scope:
            await call(WRITE, path="a", content="x" * 50_000_000)
        assert scope.cancelled_caught
        assert [path.name for path in workspace.iterdir()] == ["a"]
        assert (workspace / "a").read_text() == "old"

    async def test_a_full_disk_leaves_the_old_content_and_no_trace(
        self, call: Call, workspace: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_fd: int) -> None:
            raise OSError(errno.ENOSPC, "full")

        (workspace / "a").write_text("old")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(ToolFailure, match="no space is left"):
            await call(WRITE, path="a", content="new")
        assert [path.name for path in workspace.iterdir()] == ["a"]
        assert (workspace / "a").read_text() == "old"

    async def test_content_that_no_file_can_hold_is_refused(self, call: Call) -> None:
        with pytest.raises(ToolFailure, match="surrogate pair at 1"):
            await call(WRITE, path="a", content="x\ud800")

    @as_root
    async def test_new_files_of_root_belong_to_the_owner_of_the_workspace(
        self, call: Call, workspace: Path
    ) -> None:
        os.chown(workspace, 1234, 1234)
        await call(WRITE, path="folder/file", content="")
        assert (workspace / "folder").stat().st_uid == 1234
        assert (workspace / "folder/file").stat().st_uid == 1234

    @as_root
    async def test_only_an_empty_workspace_of_root_is_given_away(
        self, workspace: Path, tmp_path: Path
    ) -> None:
        full = tmp_path / "full"
        full.mkdir()
        (full / "file").write_text("")
        owner = owner_of(workspace)
        assert owner is not None
        assert owner.uid == workspace.stat().st_uid == NOBODY
        assert owner_of(full) is None
        assert full.stat().st_uid == (full / "file").stat().st_uid == 0


class TestEditing:
    async def test_one_exact_match_is_replaced(self, call: Call, workspace: Path) -> None:
        (workspace / "a").write_bytes(b"one\r\ntwo\r\n\xff")
        said = await call(EDIT, path="a", old="two", new="2")
        assert (workspace / "a").read_bytes() == b"one\r\n2\r\n\xff"
        assert said == "edited a: 1 replacement, the first in line 2"

    async def test_several_matches_are_counted_and_nothing_is_done(
        self, call: Call, workspace: Path
    ) -> None:
        (workspace / "a").write_text("x\ny\nx\n")
        with pytest.raises(ToolFailure, match=r"2 times in 'a' \(lines 1, 3\)"):
            await call(EDIT, path="a", old="x", new="z")
        assert (workspace / "a").read_text() == "x\ny\nx\n"

    async def test_overlapping_matches_are_ambiguous(self, call: Call, workspace: Path) -> None:
        (workspace / "a").write_text("aaa")
        with pytest.raises(ToolFailure, match="2 times"):
            await call(EDIT, path="a", old="aa", new="b")

    async def test_all_replaces_every_match(self, call: Call, workspace: Path) -> None:
        (workspace / "a").write_text("x\ny\nx\n")
        assert "2 replacements" in await call(EDIT, path="a", old="x", new="z", all=True)
        assert (workspace / "a").read_text() == "z\ny\nz\n"

    async def test_a_difference_in_white_space_is_shown(self, call: Call, workspace: Path) -> None:
        (workspace / "a").write_text("def f():\n\treturn 1\n")
        with pytest.raises(ToolFailure) as caught:
            await call(EDIT, path="a", old="def f():\n    return 1\n", new="")
        assert "line 1 to 2 differs in white space only" in str(caught.value)
        assert r"'def f():\n\treturn 1'" in str(caught.value)

    async def test_line_ends_of_windows_are_named(self, call: Call, workspace: Path) -> None:
        (workspace / "a").write_bytes(b"one\r\ntwo\r\n")
        with pytest.raises(ToolFailure, match=r"lines end with \\r\\n"):
            await call(EDIT, path="a", old="one\ntwo", new="x")

    async def test_no_match_at_all_says_to_read_again(self, call: Call, workspace: Path) -> None:
        (workspace / "a").write_text("one\n")
        with pytest.raises(ToolFailure, match="0 matches"):
            await call(EDIT, path="a", old="three", new="x")

    @pytest.mark.parametrize(("old", "new"), [("", "x"), ("x", "x")])
    async def test_an_edit_of_nothing_is_refused(
        self, call: Call, workspace: Path, old: str, new: str
    ) -> None:
        (workspace / "a").write_text("x")
        with pytest.raises(ToolFailure, match="nothing to replace"):
            await call(EDIT, path="a", old=old, new=new)

    async def test_a_missing_file_is_not_made(self, call: Call, workspace: Path) -> None:
        with pytest.raises(ToolFailure) as caught:
            await call(EDIT, path="a", old="x", new="y")
        assert caught.value.kind == "not_found"
        assert list(workspace.iterdir()) == []


class TestListing:
    async def test_entries_are_sorted_with_sizes_and_targets(
        self, call: Call, workspace: Path
    ) -> None:
        (workspace / "b.txt").write_text("x" * 1234)
        (workspace / "a").mkdir()
        (workspace / "c").symlink_to("/etc")
        os.mkfifo(workspace / "d")
        assert (await call(LIST)).splitlines() == [
            "a/",
            "b.txt  1,234 bytes",
            "c -> /etc",
            "d  (not a regular file)",
        ]

    async def test_a_recursive_listing_enters_neither_links_nor_caches(
        self, call: Call, workspace: Path
    ) -> None:
        for folder in ("src/deep", ".git", "node_modules"):
            (workspace / folder).mkdir(parents=True)
            (workspace / folder / "x.py").write_text("")
        (workspace / "link").symlink_to("/etc")
        text = await call(LIST, recursive=True)
        assert text.splitlines() == [
            ".git/",
            "link -> /etc",
            "node_modules/",
            "src/",
            "src/deep/",
            "src/deep/x.py  0 bytes",
        ]
        assert await call(LIST, pattern="**/*.py") == "src/deep/x.py  0 bytes"

    async def test_a_cut_listing_says_so(self, call: Call, workspace: Path) -> None:
        for number in range(30):
            (workspace / f"{number:02}").write_text("")
        text = await call(LIST, limit=3)
        assert text.splitlines()[2:] == [
            "02  0 bytes",
            "[3 of 30 entries; narrow the pattern or the folder]",
        ]

    async def test_long_names_are_cut_before_the_result_is(
        self, call: Call, workspace: Path
    ) -> None:
        for number in range(200):
            (workspace / f"{number:03}{'x' * 200}").write_text("")
        text = await call(LIST)
        assert len(text) < LIST.max_output
        assert "of 200 entries" in text

    async def test_a_file_name_that_is_no_text_is_shown_as_text(
        self, call: Call, workspace: Path
    ) -> None:
        with open(os.fsencode(workspace) + b"/a\xff\n\x1b", "wb"):
            pass
        assert await call(LIST) == "a\ufffd\\n\\x1b  0 bytes"

    async def test_the_temporary_files_of_a_host_are_not_listed(
        self, call: Call, workspace: Path
    ) -> None:
        (workspace / ".motet-0123456789abcdef.tmp").write_text("half of it")
        (workspace / "a").mkdir()
        (workspace / "a" / ".motet-0123456789abcdef.tmp").write_text("half of it")
        (workspace / ".motet-mine.tmp").write_text("a user's own")
        listed = await call(LIST, recursive=True)
        assert ".motet-mine.tmp" in listed
        assert "0123456789abcdef" not in listed

    async def test_an_empty_listing_says_so(self, call: Call, workspace: Path) -> None:
        assert await call(LIST) == "[the folder is empty]"
        (workspace / "a").write_text("")
        assert await call(LIST, pattern="*.py") == "[no entry matches '*.py']"

    async def test_a_missing_folder_is_not_found(self, call: Call, workspace: Path) -> None:
        (workspace / "source").mkdir()
        with pytest.raises(ToolFailure, match="did you mean 'source'") as caught:
            await call(LIST, path="sources")
        assert caught.value.kind == "not_found"


texts = st.text("ab \t\n", max_size=12)


@given(texts, texts.filter(bool))
def test_every_place_and_no_other_is_a_match(text: str, wanted: str) -> None:
    """Law: the positions are exactly those of the wanted bytes."""
    data, piece = text.encode(), wanted.encode()
    assert positions(data, piece) == [i for i in range(len(data)) if data.startswith(piece, i)]


@given(texts, texts)
def test_a_hint_never_fails_and_never_claims_an_exact_match(text: str, old: str) -> None:
    """Law: every miss has a one-line reason that names the file."""
    assert "'a'" in no_match("a", text.encode(), old)


@given(st.binary(max_size=40), st.integers(0, 40))
def test_a_line_number_counts_the_line_ends_before(data: bytes, position: int) -> None:
    """Law: one more than the number of line ends before the position."""
    assert line_of(data, position) == len(data[:position].split(b"\n"))


@given(st.binary(min_size=1, max_size=20))
def test_any_name_is_printable(name: bytes) -> None:
    """Law: a shown name is one line of valid text."""
    shown = printable(os.fsdecode(name))
    assert shown.isprintable()
    shown.encode()


def test_a_pattern_with_a_slash_is_about_the_whole_path() -> None:
    assert matches("src/a.py", "*.py")
    assert matches("src/a.py", "src/*.py")
    assert not matches("test/a.py", "src/*.py")
