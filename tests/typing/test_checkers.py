"""mypy and pyright refuse wrong uses of the kernel and of agents, and know what right ones give."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
REFUSED = ("refused.py", "refused_agents.py")
INFERRED = "inferred.py"
IGNORED = re.compile(r"  # type: ignore\[([\w-]+)\]  # pyright: ignore\[([\w, ]+)\]$", re.M)

# A file, a line, and the name the checker has for what is wrong with it.
Refusal = tuple[str, int, str]


class Place(msgspec.Struct):
    line: int


class Range(msgspec.Struct):
    start: Place


class Diagnostic(msgspec.Struct):
    file: str
    range: Range
    message: str
    rule: str = ""


class Pyright(msgspec.Struct, rename={"diagnostics": "generalDiagnostics"}):
    """What ``pyright --outputjson`` prints; its lines count from 0."""

    diagnostics: list[Diagnostic]


def expected(checker: int) -> set[Refusal]:
    """What the comments of the snippets ignore: group 1 for mypy, group 2 for pyright."""
    return {
        (name, number, rule)
        for name in REFUSED
        for number, line in enumerate((HERE / name).read_text("utf-8").splitlines(), 1)
        if (match := IGNORED.search(line))
        for rule in match[checker].split(", ")
    }


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The snippets without their comments: nothing is ignored any more."""
    for name in (*REFUSED, INFERRED):
        (tmp_path / name).write_text(IGNORED.sub("", (HERE / name).read_text("utf-8")), "utf-8")
    return tmp_path


def printed(*command: str, cwd: Path) -> str:
    program = shutil.which(command[0], path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail(f"{command[0]} is not installed: make install")
        pytest.skip(f"{command[0]} is not installed: make install")
    # The wrapper of pyright would otherwise ask the npm registry whether it is the newest.
    env = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    ran = subprocess.run(
        [program, *command[1:]], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return ran.stdout


def test_there_are_snippets_of_each_kind() -> None:
    lines = [{(name, line) for name, line, _ in expected(checker)} for checker in (1, 2)]
    assert lines[0] == lines[1]
    assert len(lines[0]) >= 20


@pytest.mark.extended
def test_mypy_refuses_exactly_the_wrong_lines(bare: Path) -> None:
    # A cache of its own: another mypy may be at work on the usual one.
    said = printed("mypy", "--no-pretty", "--cache-dir=.mypy_cache/bare", str(bare), cwd=ROOT)

    found = re.findall(r"(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", said, re.M)
    assert {(name, int(line), code) for name, line, code in found} == expected(1)


@pytest.mark.extended
def test_pyright_refuses_exactly_the_wrong_lines(bare: Path) -> None:
    settings = {"include": ["."], "extraPaths": [str(ROOT)], "typeCheckingMode": "strict"}
    (bare / "pyrightconfig.json").write_text(json.dumps(settings))

    said = printed("pyright", "--outputjson", "--pythonpath", sys.executable, cwd=bare)

    found = msgspec.json.decode(said, type=Pyright).diagnostics
    assert {(Path(one.file).name, one.range.start.line + 1, one.rule) for one in found} == expected(
        2
    )
