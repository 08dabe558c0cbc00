"""A place for state: made private, used by one host, free again when that host is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from motet.actors.storage.location import DATABASE_FILE, LOCK_FILE, Location
from motet.announced import lock_owner
from motet.protocols.storage import StateInUse, StorageError
from tests import forks


def test_a_missing_directory_is_made_for_the_owner_only(tmp_path: Path) -> None:
    with Location.directory(tmp_path / "deep" / "state") as location:
        assert location.path is not None
        assert location.path.stat().st_mode & 0o777 == 0o700


def test_a_second_host_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with Location.directory(tmp_path), pytest.raises(StateInUse) as refused:
        Location.directory(tmp_path)
    assert (refused.value.directory, refused.value.pid) == (tmp_path, os.getpid())
    assert str(tmp_path) in str(refused.value)
    assert str(os.getpid()) in str(refused.value)


@pytest.mark.parametrize("left", [(), (LOCK_FILE,)])
def test_a_directory_stays_its_hosts_when_files_in_it_are_deleted(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    """Law: a directory has one host, whichever of its files are deleted meanwhile."""
    with Location.directory(tmp_path) as first:
        first.connect().close()
        for file in tmp_path.iterdir():
            if file.name not in left:
                file.unlink()
        for _ in range(2):
            with pytest.raises(StateInUse):
                Location.directory(tmp_path)
            assert lock_owner(tmp_path) == (os.getpid() if left else 0)
    assert lock_owner(tmp_path) is None
    Location.directory(tmp_path).close()


def test_a_database_stays_its_hosts_when_a_new_directory_is_made_around_it(tmp_path: Path) -> None:
    """The lock file and the locked directory are another one's then."""
    state, old = tmp_path / "state", tmp_path / "old"
    with Location.directory(state) as first:
        first.connect().close()
        state.rename(old)
        state.mkdir()
        for file in old.glob(f"{DATABASE_FILE}*"):
            file.rename(state / file.name)
        with pytest.raises(StateInUse):
            Location.directory(state)
        code = (
            "import sys; from motet.actors.storage.location import Location\n"
            "Location.directory(sys.argv[1])"
        )
        other = forks.ran("-c", code, str(state), cwd=tmp_path, timeout=30)
        assert (other.returncode, "StateInUse" in other.stderr) == (1, True)
    Location.directory(state).close()


@pytest.mark.parametrize("log", [b"", b"of a host that was killed"])
def test_an_empty_file_in_place_of_a_database_is_told_and_its_log_is_kept(
    tmp_path: Path, log: bytes
) -> None:
    file, beside = tmp_path / DATABASE_FILE, tmp_path / f"{DATABASE_FILE}-wal"
    file.touch()
    beside.write_bytes(log)
    with pytest.raises(StorageError, match="is an empty file: what was in it is gone"):
        Location.directory(tmp_path)
    assert beside.read_bytes() == log
    file.unlink()
    Location.directory(tmp_path).close()


def test_a_closed_place_is_free(tmp_path: Path) -> None:
    first = Location.directory(tmp_path)
    first.close()
    first.close()
    Location.directory(tmp_path).close()


def test_the_lock_ends_with_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from motet.actors.storage.location import Location\n"
        "held = Location.directory(sys.argv[1]); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"held\n"
        with pytest.raises(StateInUse) as refused:
            Location.directory(tmp_path)
        assert refused.value.pid == host.pid
        host.send_signal(signal.SIGKILL)
    Location.directory(tmp_path).close()


def test_a_path_that_is_no_directory_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StorageError, match="file cannot be used"):
        Location.directory(file)


def test_two_memory_places_do_not_see_each_other() -> None:
    with Location.memory() as one, Location.memory() as other:
        writer = one.connect()
        writer.run("CREATE TABLE t (x)")
        assert one.connect(read_only=True).run("SELECT count(*) FROM t") == ((0,),)
        assert other.connect().run("SELECT count(*) FROM sqlite_schema") == ((0,),)


def test_memory_outlives_its_connections_until_it_is_closed() -> None:
    with Location.memory() as location:
        writer = location.connect()
        writer.run("CREATE TABLE t (x)")
        writer.close()
        assert location.connect().run("SELECT count(*) FROM t") == ((0,),)


def test_a_file_that_is_no_database_is_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "motet.db").write_bytes(b"not a database at all" * 100)
    with Location.directory(tmp_path) as location, pytest.raises(StorageError, match="damaged"):
        location.connect()


def test_the_key_of_masks_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        first = location.redaction_key()
    with Location.directory(tmp_path) as location:
        assert location.redaction_key() == first is not None
    assert (tmp_path / "redaction.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "redaction.key").write_bytes(b"")  # as a power cut may leave it
    with Location.directory(tmp_path) as location:
        assert location.redaction_key() not in (first, None, b"")
    with Location.memory() as location:
        assert location.redaction_key() is None
