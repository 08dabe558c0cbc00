"""``motet eval``: evaluations of a file, exit codes, JSON, the bar, and what Ctrl-C leaves."""

from __future__ import annotations

import calendar
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from motet.cli import main
from tests.motet.command import started, terminal

EVALS = """
import motet
from motet import testing as mt

def reply(request):
    text = request.messages[-1].text
    if text == "hang":
        return mt.slow(mt.say("late"), seconds=3600)
    return text

agent = motet.Agent("echo", model=mt.FunctionModel(reply))
words = mt.Evaluation("words", agent, [
    mt.EvalCase("one", "one", "one"),
    mt.EvalCase("two", "two", "zwei"),
    mt.EvalCase("three", "three", "three"),
])
slow = mt.Evaluation("slow", agent, [
    mt.EvalCase("quick", "quick", "quick"),
    mt.EvalCase("hangs", "hang", "late"),
])
"""

BLOCK = """
import time

@agent.tool
def block() -> str:
    print("blocked", flush=True)
    time.sleep(60)
    return ""

"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a file of evaluations, whose module is forgotten afterwards."""
    (tmp_path / "evals.py").write_text(EVALS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("evals", None)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(("eval", *arguments))
    streams = capsys.readouterr()
    return ended.value.code, streams.out, streams.err


@pytest.mark.usefixtures("place")
def test_a_table_a_line_for_each_trial_and_a_comparison(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = printed(capsys, "evals.py:words")
    assert code == 1
    assert "words 1: 2 of 3 cases passed" in out
    assert "two: expected" not in out
    assert "equals: expected 'zwei', got 'two'" in out
    assert "motet traces show run_" in out
    assert "words/1/three" in out
    assert sorted(line[:5] for line in err.splitlines()) == ["✓ one", "✓ thr", "✗ two"]

    code, out, _ = printed(capsys, "evals.py:words", "--only", "t*", "--least", "0.5")
    assert code == 0
    assert "words 2: 1 of 2 cases passed" in out
    assert "since words 1: passed 1 of 2 → 1 of 2 trials" in out


@pytest.mark.usefixtures("place")
def test_a_budget_is_that_of_the_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "evals.py:words", "--budget", "5", "--least", "0.5")
    assert (code, "stopped" in out) == (0, False)
    code, _, err = printed(capsys, "evals.py:words", "--budget", "0")
    assert code == 2
    assert "budget must be above 0 dollars or None, not 0.0" in err


def test_json_for_ci_has_a_stable_form_and_can_be_compared_with(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = printed(capsys, "evals.py:words", "--json", "--repeats", "2")
    told = json.loads(out)
    assert (code, err) == (1, "")
    assert told.keys() == {"passed", "stopped", "evaluations", "format"}
    (report,) = told["evaluations"]
    assert report.keys() >= {"name", "number", "agent", "model", "cases", "totals", "previous"}
    assert [case["outcome"] for case in report["cases"]] == ["passed", "failed", "passed"]
    assert report["totals"]["trials"] == report["planned"] == 6
    assert report["cases"][1]["trials"][0]["judged"][0]["reason"].startswith("expected 'zwei'")

    (place / "report.json").write_text(out)
    (place / "evals.py").write_text(EVALS.replace('"zwei"', '"two"'))
    sys.modules.pop("evals")
    arguments = ("evals.py:words", "--state", "other", "--against", "report.json", "--json")
    code, out, _ = printed(capsys, *arguments)
    (report,) = json.loads(out)["evaluations"]
    assert code == 0
    assert report["number"] == report["previous"]["number"] == 1
    assert [case["change"] for case in report["cases"]] == ["same", "changed", "same"]


@pytest.mark.usefixtures("place")
def test_what_cannot_be_evaluated_is_said_in_a_sentence(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "nothing.py").write_text("x = 1\n")
    (place / "unimportable.py").write_text("import no_such_module_at_all\n")
    (place / "motet.toml").write_text("[limits]\nturnz = 3\n")
    for arguments, says in [
        (("none.py",), "there is no file none.py"),
        (("nothing.py",), "nothing.py has no evaluation: write"),
        (("unimportable.py",), "unimportable.py cannot be imported: No module named"),
        (("no.such.module",), "no.such.module cannot be imported"),
        (("evals.py:wrods",), "did you mean 'words'?"),
        (("evals.py:words",), "turnz"),
        (("evals.py:words", "-c", "none.toml"), "none.toml"),
    ]:
        code, out, err = printed(capsys, *arguments)
        assert (code, out) == (2, ""), arguments
        assert says in err
    (place / "motet.toml").unlink()
    code, _, err = printed(capsys, "evals.py:words", "--only", "on", "--state", "st")
    assert code == 2
    assert "unknown case 'on'; did you mean 'one'?" in err
    code, _, err = printed(capsys, "evals.py", "--against", "evals.py")
    assert code == 2
    assert "choose one of words, slow" in err


@pytest.mark.usefixtures("place")
def test_a_configuration_whose_tools_could_read_the_state_gets_it_elsewhere(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "motet.toml").write_text(f'workspace = "."\nstate = "{place}-st"\n')

    code, out, _ = printed(capsys, "evals.py:words", "--only", "one", "--json")

    assert code == 0
    assert json.loads(out)["evaluations"][0]["state"] == f"{place}-st/evals"
    assert not (place / ".motet").exists()


def test_a_file_with_the_name_of_another_module_leaves_that_alone(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "calendar.py").write_text(EVALS)

    code, out, _ = printed(capsys, "calendar.py:words", "--only", "one", "--json")

    assert code == 0, out
    assert calendar is sys.modules["calendar"]
    assert not hasattr(calendar, "words")
    sys.modules.pop("motet_calendar")


@pytest.mark.slow
def test_ctrl_c_stops_in_order_and_the_next_evaluation_goes_on(place: Path) -> None:
    with terminal("eval", "evals.py:slow", cwd=place) as evaluation:
        evaluation.expect("1/2")
        evaluation.expect("1 passed, 0 not")
        evaluation.type("\x03")
        evaluation.expect("stopping the runs; once more to leave at once")
        evaluation.expect("slow 1: 1 of 1 cases passed, stopped after 1 of 2 trials")
        evaluation.expect("to go on: motet eval evals.py:slow --resume")
        assert evaluation.end() == 4
    (place / "evals.py").write_text(EVALS.replace("3600", "0"))
    with started("eval", "evals.py:slow", "--resume", cwd=place) as evaluation:
        evaluation.expect("1 of 2 trials are kept")
        evaluation.expect("slow 2: 2 of 2 cases passed")
        assert evaluation.end() == 0


@pytest.mark.slow
def test_a_second_signal_leaves_at_once_and_what_has_ended_is_kept(place: Path) -> None:
    deaf = EVALS.replace("words = ", f"{BLOCK}words = ").replace(
        'return mt.slow(mt.say("late"), seconds=3600)', 'return mt.call("block")'
    )
    (place / "evals.py").write_text(deaf)
    with started("eval", "evals.py:slow", "--jobs", "1", cwd=place) as evaluation:
        evaluation.expect("✓ quick")
        evaluation.expect("blocked")
        evaluation.signal(signal.SIGTERM)
        evaluation.expect("stopping the runs; once more to leave at once")
        evaluation.signal(signal.SIGINT)
        evaluation.expect("left at once; the trials that have ended are kept")
        assert evaluation.end() == 128 + signal.SIGINT
    journal = (place / ".motet/evals/results/slow/00001.jsonl").read_text()
    assert '"case":"quick"' in journal
