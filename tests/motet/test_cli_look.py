"""``motet errors`` and ``motet doctor``: looking at a state without disturbing its host."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from motet.cli import main
from motet.cli.errors import bars, moment
from motet.protocols.errors import ConfigError
from tests.motet.command import motet, started

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """The exit code and both streams of a command run in this process."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    streams = capsys.readouterr()
    return ended.value.code, streams.out, streams.err


@pytest.mark.slow
def test_errors_are_listed_filtered_and_shown_while_a_host_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    motet("run", "helper", "fail", "-s", "one", "--state", "st", cwd=tmp_path)
    motet("run", "helper", "fail", "-s", "two", "--state", "st", cwd=tmp_path)
    with started("serve", "--state", "st", "--listen", "127.0.0.1:0", cwd=tmp_path) as server:
        server.expect("token")

        _, groups, _ = printed(capsys, "errors", "--state", "st")
        _, table, _ = printed(capsys, "errors", "--all", "--state", "st")
        _, narrowed, _ = printed(capsys, "errors", "--json", "--session", "one", "--state", "st")
        _, nothing, note = printed(capsys, "errors", "--tool", "none", "--state", "st")
        (error,) = json.loads(narrowed)
        code, whole, _ = printed(capsys, "errors", "show", error["id"], "--state", "st")
        code_of_unknown, _, unknown = printed(capsys, "errors", "show", "err_0", "--state", "st")
        _, health, _ = printed(capsys, "doctor", "--state", "st")

    headings, group = groups.splitlines()
    assert headings.split() == ["last", "times", "agent", "tool", "summary", "newest"]
    assert group.split()[2:4] == ["2x", "helper"]
    lines = table.splitlines()
    assert lines[0].split() == ["time", "session", "tool", "summary", "id"]
    assert [line.split()[2] for line in lines[1:]] == ["two", "one"]
    assert lines[2].rstrip().endswith(error["id"])
    assert (nothing, note) == ("", "no matching errors in st\n")
    assert code == 0
    assert f"motet traces show {error['run_id']}" in whole
    assert error["arguments"]
    assert error["raw_error"]["message"] in whole
    assert "Traceback (most recent call last):\n" in whole
    assert (code_of_unknown, unknown) == (
        1,
        "motet: no stored error 'err_0'; `motet errors` lists them\n",
    )
    assert re.search(rf"✓ state +st is in use by process {server.popen.pid}", health)


def test_an_unused_state_is_sound_and_has_no_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "motet.toml").write_text('[tools.shell]\nmode = "off"\n')

    code, health, _ = printed(capsys, "doctor", "--state", "st")
    errors_code, _, said = printed(capsys, "errors", "--state", "st")

    assert code == 0
    assert "st will be created at the first use" in health
    assert "mode 'off' is configured" in health
    assert (errors_code, said) == (
        1,
        "motet: there is nothing stored in st yet: no host has used it\n",
    )
    assert not (tmp_path / "st").exists()


def test_the_doctor_names_problems_and_their_solutions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("MY_KEY", "sk-secret")
    (tmp_path / "motet.toml").write_text(
        '[tools.shell]\nmode = "off"\n'
        '[models.anthropic]\napi_key_env = "MY_KEY"\n'
        '[agents.a]\nmodel = "openai:m"\n[agents.b]\nmodel = "anthropic:m"\n'
    )
    (tmp_path / "st").mkdir()
    (tmp_path / "st" / "motet.db").write_text("this is no database, it only has the name of one")

    code, health, _ = printed(capsys, "doctor", "--state", "st")

    assert code == 1
    assert "✗ openai" in health
    assert "OPENAI_API_KEY is not set: export OPENAI_API_KEY=..." in health
    assert "✓ anthropic package installed, key in MY_KEY" in health
    assert "sk-secret" not in health
    assert "damaged or no SQLite database" in health


def test_the_doctor_looks_at_the_providers_that_agents_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OLLAMA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    Path("motet.toml").write_text(
        '[agents.a]\nmodel = "google:gemini-2.5-flash"\n[agents.b]\nmodel = "ollama:llama3.2"\n'
    )
    code, health, _ = printed(capsys, "doctor", "--state", "st")
    assert code == 1
    assert re.search(r"✗ google +package installed, but GEMINI_API_KEY is not set", health)
    assert re.search(r"✓ ollama +package installed", health)
    assert "pydantic_ai" not in health

    monkeypatch.setenv("GOOGLE_API_KEY", "key")
    _, health, _ = printed(capsys, "doctor", "--state", "st")
    assert re.search(r"✓ google +package installed, key in GOOGLE_API_KEY", health)


def test_the_doctor_stops_at_a_configuration_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "motet.toml").write_text("[agents")

    code, health, _ = printed(capsys, "doctor")

    assert code == 1
    assert "✗ config" in health
    assert "is not valid TOML" in health


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30m", datetime(2026, 11, 21, 11, 30, tzinfo=UTC)),
        ("2d", datetime(2026, 11, 19, 12, 0, tzinfo=UTC)),
        ("2026-11-20T10:00:00+00:00", datetime(2026, 11, 20, 10, 0, tzinfo=UTC)),
    ],
)
def test_since_takes_spans_and_dates(text: str, expected: datetime) -> None:
    assert moment(text, NOW) == expected.timestamp()


@pytest.mark.parametrize("text", ["", "soon", "10y", "2026-13-01"])
def test_since_refuses_an_invalid_time(text: str) -> None:
    with pytest.raises(ConfigError, match="give 30m, 12h, 7d"):
        moment(text, NOW)


def test_help_and_version_need_no_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "motet.toml").write_text("broken")

    assert printed(capsys, "--version")[1].startswith("motet 0.")
    for name in ("run", "chat", "serve", "errors", "doctor"):
        assert name in printed(capsys, "--help")[1]
        assert "--config" in printed(capsys, name, "--help")[1]


@pytest.mark.slow
def test_errors_are_counted_and_pruned_while_a_host_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for session in ("one", "two"):
        motet("run", "helper", "fail", "-s", session, "--state", "st", cwd=tmp_path)
    with started("serve", "--state", "st", "--listen", "127.0.0.1:0", cwd=tmp_path) as server:
        server.expect("token")

        _, chart, _ = printed(capsys, "errors", "stats", "--state", "st")
        _, sums, _ = printed(capsys, "errors", "stats", "--json", "--state", "st")
        (tool,) = json.loads(sums)["tools"]
        _, of_kind, _ = printed(
            capsys, "errors", "--kind", next(iter(tool["kinds"])), "--json", "--state", "st"
        )
        prune = ("errors", "prune", "--state", "st")
        _, none, _ = printed(capsys, *prune, "--older-than", "1d")
        _, would, _ = printed(capsys, *prune, "--session", "one", "--dry-run")
        code, done, _ = printed(capsys, *prune, "--session", "one")
        _, rest, _ = printed(capsys, *prune, "--tool", tool["tool"], "--json")
        _, _, note = printed(capsys, "errors", "stats", "--state", "st")

    assert (tool["count"], sum(tool["kinds"].values()), sum(tool["steps"])) == (2, 2, 2)
    assert chart.splitlines()[1].split()[:2] == [tool["tool"], "2"]
    assert "█" in chart
    assert len(json.loads(of_kind)) == 2
    assert (none, would) == ("deleted 0 errors\n", "would delete 1 error\n")
    assert (code, done) == (0, "deleted 1 error\n")
    assert json.loads(rest) == {"errors": 1, "deleted": True}
    assert note == "no errors in st\n"


def test_pruning_everything_and_unknown_kinds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, said = printed(capsys, "errors", "prune", "--state", "st")
    assert code == 2
    assert "motet errors prune --older-than 30d" in said
    code, _, said = printed(capsys, "errors", "--kind", "timeot", "--state", "st")
    assert code == 2
    assert "--kind 'timeot' is no kind of error: those are auth, not_found, " in said
    code, _, said = printed(capsys, "errors", "prune", "--older-than", "x", "--state", "st")
    assert "--older-than 'x' is not a time" in said
    code, _, said = printed(capsys, "errors", "prune", "--older-than", "1d", "--state", "st")
    assert (code, "nothing stored in st yet" in said) == (1, True)


def test_bars_are_as_high_as_their_share_of_the_highest() -> None:
    assert bars([0, 1, 4, 8]) == " ▁▄█"
    assert bars([0, 1, 1_000]) == " ▁█"
    assert bars([0, 0]) == "  "
