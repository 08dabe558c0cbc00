"""Findings of ``motet doctor`` in a state directory that something is wrong with."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio

import motet
from motet.cli import doctor
from motet.cli.doctor import examine, examined, orphans

QUIET = 'workspace = "."\n[tools.shell]\nmode = "off"\n'


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory in which one session was talked to."""

    async def talk() -> None:
        agent = motet.Agent("a", model="demo")
        place, folder = tmp_path / "st", tmp_path / "w"
        async with motet.open_host(place, agents=[agent], workspace=folder) as host:
            await host.run(agent, "wait 0.01", session="s")

    trio.run(talk)
    return tmp_path / "st"


def found(state: Path, owner: int | None = None) -> dict[str, tuple[str, str]]:
    return {one.topic: (one.verdict, one.text) for one in examined(state, owner)}


def changed(state: Path, sql: str) -> None:
    connection = sqlite3.connect(state / "motet.db")
    connection.executescript(sql)
    connection.close()


def test_a_run_without_progress_is_reported_while_a_host_runs(state: Path) -> None:
    changed(state, "UPDATE runs SET status = 'running', updated = 1, open = 1")
    assert found(state, owner=1)["stuck"][0] == "note"
    assert "stuck" not in found(state), "without a host it is cut off, which is told elsewhere"


def test_a_session_in_quarantine_is_reported(state: Path) -> None:
    changed(state, "INSERT INTO resumptions VALUES ('s', 3, 5.0)")
    verdict, text = found(state)["session"]
    assert (verdict, text[:17]) == ("note", "s took the host d")


def test_a_damaged_database_is_broken(
    state: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given pages of the file that are overwritten, then something is found to be broken."""
    changed(state, "PRAGMA wal_checkpoint(TRUNCATE)")
    file = state / "motet.db"
    whole = bytearray(file.read_bytes())
    for page in range(2, len(whole) // 4096):
        whole[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    file.write_bytes(whole)
    (here / "motet.toml").write_text(QUIET)
    assert examine(None, state) == 1
    assert "✗" in capsys.readouterr().out


def test_a_sound_directory_is_in_order(
    state: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "motet.toml").write_text(QUIET)
    assert examine(None, state) == 0
    assert "the database is sound" in capsys.readouterr().out


def test_the_host_that_is_tried_out_says_nothing_of_its_temporary_folder(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = [f'[[gateway.tokens]]\ntoken = "mtt_{n:032x}"\nuser = "u{n}"\n' for n in (1, 2)]
    (here / "motet.toml").write_text("\n".join([QUIET, *tokens, '[agents.a]\nmodel = "demo"\n']))
    assert examine(None, here / "st") == 0
    assert caplog.messages == []


def test_a_tool_without_its_host_is_found(tmp_path: Path) -> None:
    from motet.runtime.processes import GUARD

    for pid, parent in ((70, 1), (71, 60)):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes(b"\0".join([b"python", GUARD.encode(), b"sleep"]))
        (folder / "stat").write_text(f"{pid} (a ) b) S {parent} 1 1")
    (told,) = orphans(60, tmp_path)
    assert (told.verdict, told.text[-2:]) == ("note", "70")
    (none,) = orphans(1, tmp_path)
    assert none.verdict == "ok"


def test_a_full_disk_is_broken_and_a_nearly_full_one_is_noted(
    state: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (here / "motet.toml").write_text(QUIET)
    monkeypatch.setattr(doctor, "SCARCE", 1 << 62)
    assert examine(None, state) == 0
    assert "it will be full soon" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "FULL", 1 << 62)
    assert examine(None, state) == 1
    assert "hosts will soon store nothing more" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "EMPTY", 1 << 62)
    assert examine(None, state) == 1
    assert "hosts store nothing more" in capsys.readouterr().out


def test_the_motet_that_has_opened_the_database_last_is_named(
    state: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "motet.toml").write_text(QUIET)
    with closing(sqlite3.connect(state / "motet.db")) as writes, writes:
        writes.execute("UPDATE upkeep SET motet = '0.0.7'")
    assert examine(None, state) == 0
    assert "last opened by motet 0.0.7" in capsys.readouterr().out


def test_a_log_that_no_checkpoint_empties_is_noted(
    state: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (here / "motet.toml").write_text(QUIET)
    monkeypatch.setattr(doctor, "LONG_LOG", 1_000_000)
    with closing(sqlite3.connect(state / "motet.db")) as writes:
        writes.execute("PRAGMA wal_autocheckpoint = 0")
        for _ in range(4):
            writes.execute("UPDATE runs SET detail = hex(zeroblob(500000))")
            writes.commit()
        assert examine(None, state) == 0
    assert "keeps it from being folded in" in capsys.readouterr().out


async def test_a_host_whose_database_was_moved_or_deleted_is_broken(
    tmp_path: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "motet.toml").write_text(QUIET)
    async with (
        motet.open_host(tmp_path / "st", workspace=tmp_path / "w"),
        motet.open_host(tmp_path / "other", workspace=tmp_path / "w"),
    ):
        (tmp_path / "other" / "motet.db").unlink()
        assert await trio.to_thread.run_sync(examine, None, tmp_path / "st") == 0
        file, moved = tmp_path / "st" / "motet.db", tmp_path / "moved" / "motet.db"
        moved.parent.mkdir()
        file.rename(moved)
        assert await trio.to_thread.run_sync(examine, None, tmp_path / "st") == 1
        moved.rename(file)
        assert await trio.to_thread.run_sync(examine, None, tmp_path / "st") == 0
        file.unlink()
        assert await trio.to_thread.run_sync(examine, None, tmp_path / "st") == 1
    assert capsys.readouterr().out.count("holds files that were deleted or moved") == 2
