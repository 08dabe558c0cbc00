"""``motet run`` as a process: what is on which stream, and the exit codes."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
import trio

from motet.cli import main
from tests.motet.command import PATIENCE, UNSAFE_SHELL, command, environment, motet, started
from tests.processes import alive, wait_alive


def test_standard_output_is_the_answer_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("milk")

    done = motet("run", "helper", "-", cwd=tmp_path, stdin="read note.txt and fail")

    assert done.code == 0
    assert done.out.startswith("read_file")
    assert "milk" in done.out
    assert "→ read_file" not in done.out
    assert '→ read_file(path="note.txt")' in done.err
    assert "✗ read_file" in done.err
    assert "[err_" in done.err


def test_json_is_one_object_with_the_whole_result(tmp_path: Path) -> None:
    done = motet("run", "helper", "fail", "--json", "--session", "s:1", cwd=tmp_path)

    result = json.loads(done.out)
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)
    assert (result["status"], result["session"], result["agent"]) == ("completed", "s:1", "helper")
    assert result["errors"][0]["error_id"].startswith("err_")
    assert result["usage"]["input_tokens"] > 0


def test_a_session_continues_and_its_limits_hold(tmp_path: Path) -> None:
    (tmp_path / "motet.toml").write_text("[limits]\nturns = 1\n[agents.a]\ntools = ['group:fs']\n")

    limited = motet("run", "a", "list files", "-s", "s", cwd=tmp_path)
    after = motet("run", "a", "hi", "-s", "s", cwd=tmp_path)

    assert limited.code == 3
    assert "the limit of turns is reached" in limited.err
    assert after.code == 0


def test_a_model_without_its_key_fails_and_says_which(tmp_path: Path) -> None:
    done = motet("run", "helper", "hi", "-m", "anthropic:claude-x", cwd=tmp_path)

    assert (done.code, done.out.strip()) == (1, "")
    assert "ANTHROPIC_API_KEY" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "helpr", "hi"], "unknown agent 'helpr'; did you mean 'helper'?"),
        (["run", "helper", "  "], "the text is empty"),
        (["run", "helper", "hi", "-c", "gone.toml"], "no configuration file"),
        (["run", "helper"], "Missing argument 'TEXT'"),
        (["errors", "--since", "soon"], "give 30m, 12h, 7d, or a date"),
        (["serve", "--listen", "here"], "give HOST:PORT"),
    ],
)
def test_wrong_usage_is_one_sentence_and_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert said in printed.err


def test_an_unknown_model_is_one_sentence_and_code_2(tmp_path: Path) -> None:
    done = motet("run", "helper", "hi", "-m", "opnai:x", cwd=tmp_path)

    assert (done.code, done.out) == (2, "")
    assert done.err == "motet: unknown model provider 'opnai'; did you mean 'openai'?\n"


def test_all_problems_of_a_configuration_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "motet.toml").write_text('stat = "s"\n[agents.a]\nmodle = "demo"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["run", "a", "hi"])

    said = capsys.readouterr().err
    assert "stat: unknown key; did you mean 'state'?" in said
    assert "agents.a.modle: unknown key; did you mean 'model'?" in said


def test_a_chosen_state_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "motet.db").write_text("this is no database, it only has the name of one")

    done = motet("run", "helper", "hi", "--state", "bad", cwd=tmp_path)

    assert (done.code, done.out) == (1, "")
    assert "damaged or no SQLite database" in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_a_signal_stops_the_run_with_code_4_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "motet.toml").write_text(UNSAFE_SHELL)
    with started("run", "helper", "run sleep 31341 & sleep 31341", cwd=tmp_path) as run:
        run.expect("→ shell")
        trio.run(wait_alive, "sleep 31341", 2)

        run.signal(signal.SIGINT)

        run.expect("[stopped]")
        assert run.end() == 4
        assert not alive("sleep 31341")


def test_a_reader_that_goes_away_is_no_error_worth_a_traceback(tmp_path: Path) -> None:
    piped = subprocess.run(
        f"{' '.join(command('run', 'helper', 'hi', '--json'))} | true",
        shell=True,
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert piped.stderr == ""
