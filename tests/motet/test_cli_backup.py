"""``motet backup``: a copy of a state directory, which is one itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.storage.location import Location
from motet.cli import main
from motet.cli.backup import backup
from motet.protocols.errors import ConfigError, NotFound
from motet.protocols.storage import StorageError


def agent() -> motet.Agent[None, str]:
    return motet.Agent("a", model=mt.FunctionModel(lambda _: mt.say("word " * 300)))


async def test_a_backup_of_a_host_at_work_is_a_state_with_all_that_was_answered(
    tmp_path: Path,
) -> None:
    state, copy, own = tmp_path / "st", tmp_path / "deep" / "copy", agent()
    async with (
        motet.open_host(state, agents=[own], workspace=tmp_path / "w") as host,
        trio.open_nursery() as nursery,
    ):
        for number in range(5):
            await host.run(own, "hello", session=f"before{number}")
        for number in range(5):
            nursery.start_soon(host.run, own, f"meanwhile {number}")
        assert await trio.to_thread.run_sync(backup, state, copy) == 0
    assert copy.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in copy.iterdir()} == {0o600}
    assert (copy / "redaction.key").read_bytes() == (state / "redaction.key").read_bytes()
    assert [one.name for one in copy.parent.iterdir()] == ["copy"]
    async with motet.open_host(copy, agents=[own], workspace=tmp_path / "w") as host:
        sessions = {one.session for one in await host.sessions()}
        assert {f"before{number}" for number in range(5)} <= sessions
        assert len(await host.history("before4")) == 2
        assert (await host.run(own, "again", session="before1")).status == "completed"


def test_nothing_is_left_of_a_backup_that_could_not_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, copy = tmp_path / "st", tmp_path / "copy"
    with pytest.raises(NotFound):
        backup(state, copy)
    Location.directory(state).close()
    with pytest.raises(SystemExit) as ended:
        main(["backup", str(copy), "--state", str(state)])
    assert (ended.value.code, str(copy) in capsys.readouterr().out) == (0, True)
    with pytest.raises(ConfigError, match="exists"):
        backup(state, copy)
    (state / "motet.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StorageError, match="damaged"):
        backup(state, tmp_path / "other")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        backup(state, tmp_path / "file" / "copy")
    assert {one.name for one in tmp_path.iterdir()} == {"st", "copy", "file"}
