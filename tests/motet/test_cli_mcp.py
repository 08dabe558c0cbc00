"""``motet mcp`` and what ``motet doctor`` says of MCP servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.actors.tools.mcp.stage import SERVER
from tests.motet.command import motet

CONFIG = f"""
state = "state"
[tools.shell]
mode = "off"
[mcp.own]
command = ["{sys.executable}", "{SERVER}"]
[mcp.bad]
command = ["{sys.executable}", "{SERVER}", "dies"]
env = {{ API_TOKEN = "my-own-secret-token" }}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "motet.toml").write_text(CONFIG)
    return tmp_path


def test_the_servers_are_listed_and_none_is_started(folder: Path) -> None:
    ran = motet("mcp", cwd=folder)
    assert (ran.code, ran.err) == (0, "")
    assert [line.split()[0] for line in ran.out.splitlines()] == ["mcp:own", "mcp:bad"]
    assert "my-own-secret-token" not in ran.out


def test_the_tools_of_a_server_are_shown_by_the_names_that_models_call(folder: Path) -> None:
    ran = motet("mcp", "tools", "own", cwd=folder)
    assert ran.code == 0
    assert ran.out.splitlines()[0].split() == ["mcp__own__echo", "The", "tool", "echo."]
    assert ran.err == "mcp:own: faulty 1, protocol 2025-11-25\n"


def test_a_server_that_cannot_be_used_is_an_exit_code_and_costs_the_others_nothing(
    folder: Path,
) -> None:
    ran = motet("mcp", "tools", "--json", cwd=folder)
    bad, own = json.loads(ran.out)
    assert ran.code == 1
    assert "cannot find my settings" in bad["problem"]
    assert len(own["tools"]) == 12


def test_the_doctor_starts_each_server(folder: Path) -> None:
    ran = motet("doctor", cwd=folder)
    assert ran.code == 1
    assert "✓ mcp       own: 12 tools (faulty 1, protocol 2025-11-25)" in ran.out
    assert "✗ mcp       bad: it has closed its output (exit code 4)" in ran.out
