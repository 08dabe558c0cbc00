"""``motet errors escalations``: what waits for a person, and the answer."""

import json
from pathlib import Path

import pytest

from tests.motet.command import motet
from tests.motet.test_cli_look import printed

IMPATIENT = """
[agents.helper]
model = "demo"
tools = ["broken:shell"]
[agents.helper.limits]
tool_errors = 1
"""
BROKEN = '''
def shell(command: str) -> str:
    """Run a command."""
    raise OSError("no route to prod")
'''


def test_an_escalated_run_is_printed_listed_and_answered_once(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "motet.toml").write_text(IMPATIENT)
    (here / "broken.py").write_text(BROKEN)
    run = motet("run", "helper", "run make", "-s", "one", "--state", "../st", cwd=here)
    assert run.code == 1
    assert "handed to a person: Too many errors with" in run.err

    _, listed, _ = printed(capsys, "errors", "escalations", "--json", "--state", "../st")
    (escalation,) = json.loads(listed)
    _, table, _ = printed(capsys, "errors", "escalations", "--state", "../st")
    assert escalation["id"] in table

    resolve = ("errors", "escalations", "resolve", escalation["id"], "--state", "../st")
    code, _, wrong = printed(capsys, *resolve, "--decision", "perhaps")
    assert (code, "must be one of retry, advice, skip, give_up" in wrong) == (2, True)
    code, _, silent = printed(capsys, *resolve, "--decision", "advice")
    assert (code, "advice needs a note" in silent) == (2, True)
    code, out, _ = printed(capsys, *resolve, "--decision", "advice", "--note", "hello", "--json")
    answered = json.loads(out)
    assert (code, answered["state"], answered["note"]) == (0, "resolved", "hello")
    code, _, other = printed(capsys, *resolve, "--decision", "give_up")
    assert (code, "has answered" in other) == (1, True)
    _, _, nothing = printed(capsys, "errors", "escalations", "--state", "../st")
    assert "nothing waits for a person" in nothing
