"""A busy host whose storage goes away, and that is killed, does nothing twice and loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.storage import StorageKills, Trouble, small_disk


@pytest.mark.extended
@pytest.mark.parametrize("trouble", ["lock", "full"])
def test_two_kills_without_storage_leave_every_promise_kept(
    tmp_path: Path, trouble: Trouble
) -> None:
    outcome = StorageKills(tmp_path, 20_261, [trouble]).run(2)
    assert outcome.problems == []
    assert outcome.acked


@pytest.mark.sweep
@pytest.mark.parametrize("trouble", ["lock", "full"])
def test_a_hundred_kills_without_storage_leave_every_promise_kept(
    tmp_path: Path, trouble: Trouble
) -> None:
    assert StorageKills(tmp_path, 7, [trouble]).run(100).problems == []


@pytest.mark.sweep
def test_a_hundred_kills_with_a_really_full_disk_leave_every_promise_kept(tmp_path: Path) -> None:
    with small_disk(tmp_path) as mounted:
        if not mounted:
            pytest.skip("only root can mount a small disk")
        assert StorageKills(tmp_path, 7, ["disk"]).run(100).problems == []
