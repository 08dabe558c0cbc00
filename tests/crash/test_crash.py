"""A busy host that is killed at random instants loses nothing, and does nothing twice (G7, G15)."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.actors.storage.location import DATABASE_FILE
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage
from tests.crash.checks import Checker
from tests.crash.kills import Kills


@pytest.mark.extended
def test_ten_kills_leave_every_promise_kept(tmp_path: Path) -> None:
    outcome = Kills(tmp_path, seed=20_261).run(10)
    assert outcome.problems == []
    assert len(outcome.kills) == 10
    assert outcome.acked


@pytest.mark.parametrize("left", [DATABASE_FILE, f"{DATABASE_FILE}-journal"])
def test_a_database_that_is_being_made_holds_nothing_and_promises_nothing(
    tmp_path: Path, left: str
) -> None:
    """A host that is killed in the first instants of a directory leaves one of these."""
    (tmp_path / "state").mkdir()
    for name in (DATABASE_FILE, left):
        (tmp_path / "state" / name).touch()
    assert Checker(tmp_path).problems() == []
    (tmp_path / "acks").write_text("3/0 run_1\n", "utf-8")
    assert Checker(tmp_path).problems() == [
        "input 3/0 run_1 was acknowledged before it could be stored"
    ]


@pytest.mark.parametrize("name", ["read", "put", "write", "delete"])
def test_only_a_read_of_an_earlier_host_may_be_missing_on_record(tmp_path: Path, name: str) -> None:
    """A call that has had its effect is not on record as one that never began, unless it reads, and
    an earlier host has begun it that could not store it."""
    call, effect = Call("c", name, '{"effect":"m1/0.0"}'), {f"{name} m1/0.0"}
    rows: list[tuple[str, ChatMessage]] = [
        ("r", AssistantMessage("", (call,))),
        ("r", ToolMessage("c", name, "", "cancelled_before_start")),
    ]
    assert len([*Checker(tmp_path).recorded("m1", rows, effect)]) == 1
    earlier = Checker(tmp_path)
    earlier.effects = effect
    assert len([*earlier.recorded("m1", rows, effect)]) == (name != "read")


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
def test_many_kills_leave_every_promise_kept(tmp_path: Path, seed: int) -> None:
    outcome = Kills(tmp_path, seed).run(100)
    assert outcome.problems == []
