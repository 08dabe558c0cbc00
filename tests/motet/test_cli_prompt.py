"""``motet prompt``: what an agent is told, looked at without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from motet.cli import main
from tests.motet.command import motet

CONFIG = """
workspace = "work"

[agents.rex]
type = "predefined"
files = "files"
workspace = "per_user"
instructions = "Guard the garden."
tools = ["group:fs"]
memory = true

[agents.plain]
instructions = "Be brief."
tools = ["group:fs"]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "motet.toml").write_text(CONFIG)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "SOUL.md").write_text("Dry and kind.")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["prompt", *arguments, "--state", "st"])
    streams = capsys.readouterr()
    return ended.value.code, streams.out, streams.err


def test_a_pipe_gets_the_prompt_and_a_person_the_sizes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, table = printed(capsys, "plain")
    assert code == 0
    assert text.startswith("Be brief.\n\nToday is ")
    rows = [line.split() for line in table.splitlines() if line.strip()]
    assert rows == [
        ["section", "chars", "~tokens"],
        ["identity", "9", "3"],
        ["time", "20", "7"],
        ["all", "31", "10"],
    ]


def test_json_has_every_section_and_nothing_is_made(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = printed(capsys, "rex", "--json")
    report = json.loads(out)
    names = [section["name"] for section in report["sections"]]
    assert names[:4] == ["identity", "bootstrap", "persona", "tooling"]
    assert report["text"] == "\n\n".join(section["text"] for section in report["sections"])
    assert "Dry and kind." in report["text"]
    assert "- memory_search: " in report["text"]
    assert (report["mode"], report["user"]) == ("full", "local")
    assert report["workspace"] == str(here / "work" / "rex" / "local")
    assert sorted(path.name for path in here.iterdir()) == ["files", "motet.toml"]


@pytest.mark.parametrize("arguments", [["--mode", "minimal"], ["--session", "agent:rex:cron:j"]])
def test_a_minimal_prompt_omits_the_sections_of_a_chat(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    _, out, _ = printed(capsys, "rex", "--json", *arguments)
    report = json.loads(out)
    assert report["mode"] == "minimal"
    assert "Dry and kind." not in report["text"]


def test_an_unknown_agent_is_named_with_the_nearest_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = printed(capsys, "rexx")
    assert (code, err) == (2, "motet: unknown agent 'rexx'; did you mean 'rex'?\n")


@pytest.mark.slow
def test_a_stored_session_gives_its_user_and_group(here: Path) -> None:
    session = "agent:plain:telegram:group:-100"
    ran = motet("run", "plain", "hi", "-s", session, "--state", "st", cwd=here)
    assert ran.code == 0, ran.err
    shown = motet("prompt", "rex", "-s", session, "--json", "--state", "st", cwd=here)
    report = json.loads(shown.out)
    assert "This is a group chat on Telegram" in report["text"]
    assert report["workspace"].endswith("/rex/group%3atelegram%3a-100")
