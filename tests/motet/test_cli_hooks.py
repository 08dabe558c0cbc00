"""``motet hooks``: what is configured, and what it would say."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.motet.command import ROOT, Done, motet

CONFIG = """
state = "state"
[[hooks]]
point = "before_tool"
command = ["./check"]
match = "shell|write_*"
timeout = 20
[[hooks]]
point = "before_tool"
command = ["./missing"]
on_error = "continue"
timeout = 20
"""
CHECK = f"""#!{sys.executable}
import json, sys
if "rm" in json.load(sys.stdin)["tool_input"]["command"]:
    sys.exit(2)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "motet.toml").write_text(CONFIG)
    (tmp_path / "check").write_text(CHECK)
    (tmp_path / "check").chmod(0o755)
    return tmp_path


def hooks(folder: Path, *words: str) -> Done:
    return motet("hooks", *words, cwd=folder)


def test_the_hooks_are_listed_in_the_order_they_are_asked(folder: Path) -> None:
    ran = hooks(folder)
    assert ran.code == 0, ran.err
    assert [line.split()[:2] for line in ran.out.splitlines()[1:]] == [
        ["before_tool", "./check"],
        ["before_tool", "./missing"],
    ]


def test_a_dry_run_tells_each_verdict_and_the_merged_one(folder: Path) -> None:
    ran = hooks(folder, "test", "--tool", "shell", "--args", '{"command": "ls"}')
    assert ran.code == 0, ran.err
    check, missing, merged = ran.out.splitlines()
    assert check.startswith("./check: allow")
    assert missing.startswith("./missing: allow")
    assert "failed: FileNotFoundError: there is no program './missing'" in missing
    assert merged == "=> allow"

    denied = hooks(folder, "test", "--tool", "shell", "--args", '{"command": "rm x"}', "--json")
    assert denied.code == 1
    report = json.loads(denied.out)
    assert (report["allowed"], report["merged"]["decision"]) == (False, "deny")
    assert [heard["hook"] for heard in report["hooks"]] == ["./check", "./missing"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--event", "before_lunch"), "no such point 'before_lunch'"),
        ((), "give --tool NAME"),
        (("--tool", "shell", "--args", "[1]"), "is not a JSON object"),
    ],
)
def test_a_wrong_question_is_explained(folder: Path, words: tuple[str, ...], said: str) -> None:
    ran = hooks(folder, "test", *words)
    assert ran.code == 2
    assert said in ran.err


def test_the_example_denies_its_calls(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "hooks", tmp_path / "hooks")
    for text, code in (("ls", 0), ("rm -rf /", 1)):
        args = json.dumps({"command": text})
        asked = ("test", "--tool", "shell", "--args", args)
        assert hooks(tmp_path / "hooks", *asked).code == code
    after = hooks(tmp_path / "hooks", "test", "--event", "after_tool", "--tool", "shell")
    assert after.code == 0, after.err
    assert '"tool_name":"shell"' in (tmp_path / "hooks" / "audit.jsonl").read_text()
