"""Replay files, the first difference of two runs, and reports of traces."""

from __future__ import annotations

import builtins
import json
import re
import sys
from pathlib import Path

import pytest

from motet.runtime.testing import Fault, ReplayDiverged, Simulation, run, save
from motet.runtime.testing.replay import replay
from motet.runtime.testing.strategies import HypothesisMissing, faults, schedules
from motet.runtime.testing.trace import Event, normalised, report
from tests.runtime.testing.worlds import graph, lost_update

CRASH = Fault("crash", 40, "/system/node2")


def test_a_saved_run_is_replayed(tmp_path: Path) -> None:
    outcome = run(graph, seed=11, faults=[CRASH])
    path = save(tmp_path / "case.json", graph, outcome)

    again = replay(path)

    assert again.hash == outcome.hash
    assert again.struck == outcome.struck == (CRASH,)
    record = json.loads(path.read_text())
    assert record["world"] == "tests.runtime.testing.worlds:graph"
    assert set(record["versions"]) == {"python", "trio", "motet"}
    assert record["hash"] == outcome.hash


def test_the_replay_of_a_run_that_was_ended_ends_at_the_same_step(tmp_path: Path) -> None:
    outcome = run(graph, seed=1, max_steps=60)
    assert outcome.error is not None
    again = replay(save(tmp_path / "case.json", graph, outcome))
    assert type(again.error) is type(outcome.error)


def test_the_first_differing_line_is_named_and_so_are_the_versions(tmp_path: Path) -> None:
    path = save(tmp_path / "case.json", lost_update, run(lost_update, seed=3))
    record = json.loads(path.read_text())
    record["trace"][4] = "5 0.000000 somebody: begins"
    record["hash"] = "0" * 64
    record["versions"]["trio"] = "0.1"
    path.write_text(json.dumps(record))

    with pytest.raises(ReplayDiverged, match=r"line 5.*\n.*somebody") as caught:
        replay(path)

    assert caught.value.line == 5
    assert "trio was 0.1" in str(caught.value)


def test_a_world_that_has_become_shorter_differs_where_it_ends(tmp_path: Path) -> None:
    path = save(tmp_path / "case.json", lost_update, run(lost_update, seed=3))
    record = json.loads(path.read_text())
    record["trace"].append("99 0.000000 world: ends")
    record["hash"] = "0" * 64
    path.write_text(json.dumps(record))
    with pytest.raises(ReplayDiverged, match="the trace has ended"):
        replay(path)


def test_an_impossible_replay_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def local(sim: Simulation) -> None: ...

    with pytest.raises(ValueError, match="at the top of an importable module"):
        save(tmp_path / "case.json", local, run(local))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match="no replay file"):
        replay(tmp_path / "bad.json")
    path = save(tmp_path / "gone.json", graph, run(graph))
    path.write_text(path.read_text().replace("worlds:graph", "worlds:gone"))
    with pytest.raises(ValueError, match="cannot be imported"):
        replay(path)


# ---------------------------------------------------------------- traces


def test_a_trace_holds_no_address_and_no_path_of_the_machine() -> None:
    text = "\n".join(run(graph, seed=2, faults=[CRASH]).trace.lines())
    assert not re.search(r"0x[0-9a-f]{4}", text)
    assert str(Path(__file__).parent) not in text
    assert "FAULT: crash" in text
    assert normalised("<a.B object at 0x7f00>\n  more") == "<a.B> more"


def test_tasks_of_one_name_are_numbered() -> None:
    who = {event.who for event in run(graph).trace.events()}
    assert {"world", "_ask", "_ask #2", "_ask #4", "/system/node0"} <= who


def test_a_report_has_a_lane_per_actor_and_fits_in_a_hundred_columns() -> None:
    lines = run(graph, seed=2, faults=[CRASH]).report().splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert len([line for line in lines if re.match(r" *\d+ +\d+\.\d{3}  [.*]", line)]) == 50
    assert any(line.endswith("earlier events are not shown") for line in lines)
    rows = [line for line in lines if re.match(r" *\d+ +\d+\.\d{3}  ", line)]
    assert all(row[:60].count("*") == 1 for row in rows)


def test_a_report_of_many_actors_and_long_texts_is_cut() -> None:
    events = [Event(n, n / 3, f"/system/actor{n}", "x" * 200) for n in range(40)]
    lines = report(events).splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert any("and 16 more" in line for line in lines)
    assert report([]).splitlines() == ["  step        time  "]


# ---------------------------------------------------------------- strategies


def test_strategies_without_hypothesis_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name == "hypothesis":
            raise ImportError(name)
        return original(name, *args, **kwargs)  # type: ignore[arg-type]  # pyright: ignore

    monkeypatch.delitem(sys.modules, "hypothesis", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(HypothesisMissing, match=r"motet\[test\]"):
        schedules()
    with pytest.raises(HypothesisMissing, match=r"motet\[test\]"):
        faults("delay")
