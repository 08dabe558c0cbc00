"""A busy host that is killed at random instants loses nothing, and does nothing twice (G7, G15)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.kills import Kills


def test_ten_kills_leave_every_promise_kept(tmp_path: Path) -> None:
    outcome = Kills(tmp_path, seed=20_261).run(10)
    assert outcome.problems == []
    assert len(outcome.kills) == 10
    assert outcome.acked


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
def test_many_kills_leave_every_promise_kept(tmp_path: Path, seed: int) -> None:
    outcome = Kills(tmp_path, seed).run(100)
    assert outcome.problems == []
