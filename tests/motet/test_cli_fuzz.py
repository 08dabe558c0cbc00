"""``motet fuzz``: what breaks an agent is found, made small, printed as a test, and kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from motet.cli import main
from motet.testing import load_case
from tests.motet.command import terminal

MODULE = """
import motet

agent = motet.Agent("helper", model="openai:gpt-5.2")

@agent.tool
async def add(a: int, b: int) -> str:
    return str(a + b)

caller = motet.Agent("caller", model="openai:gpt-5.2")

@caller.tool
async def call_home() -> str:
    import socket
    return str(socket.create_connection(("localhost", 1)))

def never_asks(snapshot):
    return ["a model was asked"] if snapshot.asked else []
"""
CONFIG = """
[agents.helper]
tools = ["list_files"]
[agents.other]
tools = []
[rooms.den]
members = ["helper", "other"]
max_turns = 2
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which ``import fuzzed_agents`` works, and is forgotten afterwards."""
    (tmp_path / "fuzzed_agents.py").write_text(MODULE)
    (tmp_path / "motet.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("fuzzed_agents", None)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    streams = capsys.readouterr()
    return ended.value.code, streams.out, streams.err


@pytest.mark.slow
def test_a_finding_is_printed_as_a_failing_test(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    what = ("fuzz", "fuzzed_agents:agent", "--seed", "3", "--users", "1", "--steps", "1")
    code, out, err = printed(capsys, *what, "--check", "fuzzed_agents:never_asks")

    assert code == 1
    assert "never_asks: a model was asked" in err
    assert "as a test (it fails again in a process of its own):" in err
    assert "def test_fuzzed_agents_agent() -> None:" in out
    assert "from fuzzed_agents import agent, never_asks" in out
    found: dict[str, object] = {}
    exec(compile(out, "found", "exec"), found)
    test = found["test_fuzzed_agents_agent"]
    assert callable(test)
    with pytest.raises(AssertionError, match="a model was asked"):
        test()

    case = load_case(place / ".motet/cases/fuzz-fuzzed_agents_agent-3.json")
    assert case.subject == "fuzzed_agents:agent"
    assert len(case.program.steps) == 1


@pytest.mark.slow
def test_a_configured_agent_or_room_that_nothing_breaks(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = printed(capsys, "fuzz", "helper", "-n", "2", "--seed", "1")
    assert (code, out) == (0, "")
    assert err.startswith("nothing found: 2 programs, seed 1, ")

    code, out, _ = printed(capsys, "fuzz", "den", "-n", "2", "--seed", "1", "--json")
    told = json.loads(out)
    assert (code, told["tried"], told["stopped"], told["case"]) == (0, 2, False, "")


@pytest.mark.usefixtures("place")
def test_an_agent_that_cannot_be_searched_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = printed(capsys, "fuzz", "helpr")
    assert code == 2
    assert "unknown agent or room 'helpr'" in err
    code, _, err = printed(capsys, "fuzz", "fuzzed_agents:agnt")
    assert code == 2
    assert "fuzzed_agents:agnt cannot be imported" in err
    assert "start motet where `import myapp` works" in err
    code, _, err = printed(capsys, "fuzz", "fuzzed_agents:caller", "--seed", "1", "-n", "200")
    assert code == 2
    assert "fuzzed_agents.py:" in err
    assert "the agent needs something that a simulation does not have: " in err
    code, _, err = printed(capsys, "fuzz", "fuzzed_agents:motet")
    assert code == 2
    assert "and no agent or room" in err


@pytest.mark.slow
def test_ctrl_c_ends_the_search_and_the_terminal_shows_how_far_it_came(place: Path) -> None:
    with terminal("fuzz", "fuzzed_agents:agent", "-n", "100000", cwd=place) as search:
        search.expect(" of 100000 programs, ")
        search.type("\x03")
        search.expect("stopped: ")
        assert search.end() == 4


@pytest.mark.extended
def test_several_processes_share_a_search(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("fuzz", "fuzzed_agents:agent", "--jobs", "2", "--examples", "6", "--seed", "3")
    status, out, _ = printed(capsys, *arguments, "--json")
    result = json.loads(out)
    assert (status or 0, result["tried"], result["violations"]) == (0, 6, []), result
    status, out, _ = printed(capsys, *arguments, "--check", "fuzzed_agents:never_asks")
    assert status == 1
    assert "def test_fuzzed_agents_agent() -> None:" in out
    assert list((place / ".motet" / "cases").iterdir())
