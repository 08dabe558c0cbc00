"""``motet tools``: what somebody may call, what not, and which rule says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from motet.cli import main

CONFIG = """
[gateway]
tokens = [{token = "mtt_00112233445566778899aabbccddeeff", user = "vera", role = "viewer"}]

[tools]
profile = "coding"
per_hour = { shell = 20, "group:web" = 0 }

[agents.helper]
tools = ["group:fs", "group:shell", "group:web"]
policy = { ask = ["bash"] }

[[policy]]
tool = "group:shell"
roles = ["viewer"]
effect = "deny"
reason = "viewers look"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "motet.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["tools", *arguments])
    streams = capsys.readouterr()
    return ended.value.code, streams.out, streams.err


def row(table: str, tool: str) -> list[str]:
    return next(line.split() for line in table.splitlines() if line.startswith(tool))


def test_a_table_names_the_rule_that_decides(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, table, heading = printed(capsys, "helper")
    assert (code, heading) == (0, "helper, for local (admin)\n")
    assert row(table, "read_file") == ["read_file", "allow", "150", "profile", "coding", "group:fs"]
    asked = "shell ask 20 agents.helper.policy: ask bash group:shell"
    assert " ".join(row(table, "shell")) == asked
    assert " ".join(row(table, "http_fetch")[:4]) == "http_fetch allow no limit"
    del here


def test_a_user_has_the_role_of_their_token(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, table, heading = printed(capsys, "--as", "vera")
    assert (code, heading) == (0, "helper, for vera (viewer)\n")
    denied = "shell deny policy[0]: deny group:shell (viewers look) group:shell"
    assert " ".join(row(table, "shell")) == denied
    assert printed(capsys, "--as", "bob")[2] == "helper, for bob (operator)\n"
    assert printed(capsys, "--as", "vera", "--role", "admin")[2] == "helper, for vera (admin)\n"
    del here


def test_json_has_all_of_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = printed(capsys, "--role", "viewer", "--json")
    found = json.loads(text)
    assert (code, found["agent"], found["user"], found["role"]) == (0, "helper", "local", "viewer")
    by_name = {tool["name"]: tool for tool in found["tools"]}
    assert by_name["shell"]["effect"] == "deny"
    assert by_name["shell"]["reason"] == "viewers look"
    assert by_name["edit_file"]["groups"] == ["group:fs", "group:builtin"]
    del here


def test_a_wrong_policy_is_refused_with_the_nearest_name(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "motet.toml").write_text(CONFIG.replace('tool = "group:shell"', 'tool = "shel"'))
    code, _, error = printed(capsys)
    assert code == 2
    assert error == "motet: policy[0].tool: unknown tool or group 'shel'; did you mean 'shell'?\n"
    code, _, error = printed(capsys, "helpr")
    assert (code, "did you mean 'helper'" in error) == (2, True)
