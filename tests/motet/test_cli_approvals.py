"""``motet approvals``, and what waits for a person in ``motet run`` and ``motet chat``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.motet.command import UNSAFE_SHELL, motet, started, terminal
from tests.motet.test_cli_look import printed

ASKING = """
[agents.helper]
model = "demo"
tools = ["group:fs"]
[[policy]]
tool = "list_files"
effect = "ask"
"""


@pytest.fixture
def asking(here: Path) -> Path:
    (here / "motet.toml").write_text(ASKING)
    return here


def waiting(capsys: pytest.CaptureFixture[str]) -> str:
    """The id of the one approval that is pending."""
    _, out, _ = printed(capsys, "approvals", "--json", "--state", "../st")
    (found,) = [one for one in json.loads(out) if one["state"] == "pending"]
    return str(found["id"])


def test_a_suspended_run_exits_with_five_and_resumes_when_it_is_allowed(
    asking: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("run", "helper", "list files", "-s", "one", "--state", "../st")
    code, out, told = printed(capsys, *run)
    assert (code, out.strip()) == (5, "")
    approval = waiting(capsys)
    assert f"motet approvals allow {approval}" in told
    _, table, _ = printed(capsys, "approvals", "--state", "../st")
    assert approval in table
    # An input behind it would wait for ever.
    code, _, told = printed(capsys, "run", "helper", "hi", "-s", "one", "--state", "../st")
    assert (code, approval in told) == (5, True)
    code, out, _ = printed(capsys, "approvals", "allow", approval, "--state", "../st")
    assert (code, "list_files:" in out) == (0, True)
    code, _, other = printed(capsys, "approvals", "deny", approval, "--state", "../st")
    assert (code, "has answered" in other) == (1, True)
    _, _, nothing = printed(capsys, "approvals", "--state", "../st")
    assert "nothing waits for an approval" in nothing


def test_a_denial_is_read_by_the_agent(asking: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "run", "helper", "list files", "--json", "--state", "../st")
    report = json.loads(out)
    assert (code, report["status"]) == (5, "waiting")
    (approval,) = report["approvals"]
    deny = ("approvals", "deny", approval, "--note", "not at noon", "--state", "../st")
    code, out, _ = printed(capsys, *deny)
    assert (code, "who says: not at noon" in out) == (0, True)


def test_permissions_are_listed_and_revoked(
    asking: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> object:
        return printed(capsys, "run", "helper", "list files", "--state", "../st")[0]

    assert run() == 5
    printed(capsys, "approvals", "allow", waiting(capsys), "--always", "--state", "../st")
    assert run() == 0
    _, out, _ = printed(capsys, "approvals", "grants", "--state", "../st")
    assert "helper may call list_files for local though policy asks" in out
    assert printed(capsys, "approvals", "revoke", out.split()[0], "--state", "../st")[0] == 0
    assert run() == 5


@pytest.mark.slow
def test_an_answer_beside_a_running_host_reaches_it(
    asking: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, "run", "helper", "list files", "-s", "one", "--state", "../st")[0] == 5
    approval = waiting(capsys)
    with started("serve", "--listen", "127.0.0.1:0", "--state", "../st", cwd=asking) as server:
        server.expect("state    ")
        code, _, told = printed(capsys, "approvals", "allow", approval, "--state", "../st")
        assert (code, "resumes it" in told) == (0, True)
        shown = ""
        while "✓ list_files" not in shown:
            _, shown, _ = printed(capsys, "sessions", "show", "one", "--state", "../st")


@pytest.mark.slow
def test_a_chat_asks_the_person_at_the_keyboard(asking: Path) -> None:
    typed = "list files\ny\nlist files\nn\n"
    done = motet("chat", "helper", "--state", "../st", cwd=asking, stdin=typed)
    assert done.code == 0
    assert done.err.count("may list_files do that? y: yes, a: always, n: no") == 2
    assert done.err.count("✓ list_files") == done.err.count("✗ list_files") == 1
    assert "queued" not in done.err


@pytest.mark.slow
def test_a_chat_asks_for_approvals_that_wait_already(asking: Path) -> None:
    chat = ("chat", "helper", "-s", "one", "--state", "../st")
    first = motet(*chat, cwd=asking, stdin="list files\n")
    assert "may list_files do that?" in first.err
    second = motet(*chat, cwd=asking, stdin="y\n/status\n")
    assert "may list_files do that?" in second.err
    assert "✓ list_files" in second.err


SHELL = (
    UNSAFE_SHELL.replace('"."', '"work"')
    + """
[agents.helper]
model = "demo"
tools = ["group:fs", "shell"]
[[policy]]
tool = "*"
effect = "ask"
"""
)
HIDING = "ls" + " " * 60 + "; echo important \u202eabc \x9b2K"
SHOWN = "ls" + " " * 60 + "; echo important <U+202E>abc <U+009B>2K"


@pytest.fixture
def shell(here: Path) -> Path:
    (here / "motet.toml").write_text(SHELL)
    return here


@pytest.mark.slow
def test_a_terminal_shows_all_of_the_command_that_it_asks_about(shell: Path) -> None:
    with terminal("chat", "helper", "-s", "one", "--state", "../st", cwd=shell) as chat:
        chat.expect("> ")
        chat.type(f"run {HIDING}\n")
        chat.expect("? apr_")
        assert f'command = "{SHOWN}"' in chat.expect("may shell do that?")
        chat.type("n\n")
        chat.expect("✗ shell")


@pytest.mark.slow
def test_a_terminal_offers_a_pager_for_what_is_long(shell: Path) -> None:
    (shell / "work").mkdir()
    chat_at = terminal(
        "chat", "helper", "-s", "one", "--state", "../st", cwd=shell, env={"PAGER": "cat"}
    )
    with chat_at as chat:
        chat.expect("> ")
        chat.type("run echo" + " word" * 600 + " last\n")
        assert chat.expect("v: read it in a pager").count(" word") >= 1_200, "typed, and shown"
        chat.type("v\n")
        assert chat.expect('last"').count(" word") == 600
        chat.type("y\n")
        chat.expect("✓ shell")


def test_an_approval_is_listed_and_shown_whole(
    shell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, "run", "helper", f"run {HIDING}", "--state", "../st")[0] == 5
    approval = waiting(capsys)
    _, listed, _ = printed(capsys, "approvals", "--state", "../st")
    _, shown, _ = printed(capsys, "approvals", "show", approval, "--state", "../st")
    for text in (listed, shown):
        assert f'command = "{SHOWN}"' in text
        assert "60 blanks in a row" in text
    code, _, told = printed(capsys, "approvals", "show", "apr_none", "--state", "../st")
    assert (code, "no approval" in told) == (1, True)


def test_an_answer_shows_what_it_allows(shell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "run", "helper", "run echo hi", "--state", "../st")[0] == 5
    approval = waiting(capsys)
    code, _, told = printed(capsys, "approvals", "allow", approval, "--state", "../st")
    assert (code, 'command = "echo hi"' in told) == (0, True)
