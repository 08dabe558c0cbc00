"""``motet replay``: a stored run once more, from the command line."""

import json
from pathlib import Path

import pytest

from motet.cli import main
from motet.protocols.run_journal import Change, excerpt

CONFIG = """
[agents.helper]
model = "demo"
tools = ["list_files"]
"""


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """The exit code and both streams of a command run in this process."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    streams = capsys.readouterr()
    return ended.value.code, streams.out, streams.err


def test_a_run_is_replayed_and_a_change_of_its_agent_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("motet.toml").write_text(CONFIG)
    state = ("--state", "st")
    _, ran, _ = printed(capsys, "run", "helper", "list files", "-s", "notes", "--json", *state)
    run_id: str = json.loads(ran)["run_id"]

    code, out, _ = printed(capsys, "replay", run_id[:9], *state)
    assert (code, out.splitlines()[0].split()) == (0, [run_id, "helper", "notes"])
    assert "✓ same behaviour: completed, 4 rows" in out

    Path("motet.toml").write_text(CONFIG + "limits = { turns = 1 }\n")
    code, out, _ = printed(capsys, "replay", run_id, *state)
    assert code == 1
    assert "\n- end completed\n" in out
    assert "\n+ end limited\n" in out
    assert "✗ it differs: transcript" in out

    code, out, _ = printed(capsys, "replay", run_id, "--json", *state)
    told = json.loads(out)
    assert (code, told["same"], told["then"]) == (1, False, "completed")
    assert {"mark": " ", "line": "user: list files"} in told["rows"]


def test_a_run_that_cannot_be_replayed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, said = printed(capsys, "replay", "run_1", "--state", "st")
    assert code != 0
    assert "there is nothing stored" in said
    printed(capsys, "run", "helper", "hi", "--state", "st")
    _, _, said = printed(capsys, "replay", "run_nope", "--state", "st")
    assert said == "motet: no run 'run_nope'; `motet traces` lists them\n"


def test_only_lines_near_a_difference_are_shown() -> None:
    lines = [Change(" ", str(place)) for place in range(9)]
    lines[4] = Change("-", "4")
    shown = ["⋮" if change is None else change.line for change in excerpt(tuple(lines), 2)]
    assert shown == ["⋮", "2", "3", "4", "5", "6", "⋮"]
    assert list(excerpt(tuple(lines[:3]), 2)) == [None]
