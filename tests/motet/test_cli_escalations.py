"""``motet errors escalations``: what waits for a person, and the answer."""

import json
import os
from pathlib import Path

import pytest

from tests.motet.command import Process, motet, started, terminal
from tests.motet.test_cli_look import printed

IMPATIENT = """
[agents.helper]
model = "demo"
tools = ["broken:shell"]
[agents.helper.limits]
tool_errors = 1
"""
BROKEN = '''
import pathlib


def shell(command: str) -> str:
    """Run a command."""
    if pathlib.Path("up").exists():
        return "built"
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
    show = ("errors", "escalations", "show", escalation["id"], "--state", "../st")
    _, shown, _ = printed(capsys, *show)
    assert f"advice by local: hello   motet traces show {answered['next_run']}\n" in shown
    _, _, nothing = printed(capsys, "errors", "escalations", "--state", "../st")
    assert "nothing waits for a person" in nothing


def test_calls_that_fail_together_are_one_attempt(here: Path) -> None:
    (here / "motet.toml").write_text('[agents.helper]\nmodel = "demo"\ntools = ["group:fs"]\n')
    missing = motet("run", "helper", "read a1.txt and read b1.txt and read c1.txt", cwd=here)
    assert (missing.code, missing.out.count("read_file (failed)")) == (0, 3), missing
    (here / "broken.py").write_text(BROKEN)
    patient = IMPATIENT.replace("tool_errors = 1", "tool_errors = 2")
    (here / "motet.toml").write_text(patient)
    broken = motet("run", "helper", "run a and run b and run c", cwd=here)
    assert (broken.code, broken.out.count("no route to prod")) == (0, 3), broken


@pytest.fixture
def failing(here: Path) -> Path:
    """A folder in whose state the session ``one`` waits for a decision."""
    (here / "motet.toml").write_text(IMPATIENT)
    (here / "broken.py").write_text(BROKEN)
    run = motet("run", "helper", "run make", "-s", "one", "--state", "../st", cwd=here)
    assert run.code == 1, run
    return here


def open_ones(capsys: pytest.CaptureFixture[str]) -> list[str]:
    _, out, _ = printed(capsys, "errors", "escalations", "--json", "--state", "../st")
    return [one["id"] for one in json.loads(out) if one["state"] == "open"]


@pytest.mark.slow
def test_a_running_server_takes_the_answer_and_its_run_is_followed(
    failing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (waiting,) = open_ones(capsys)
    resolve = ("errors", "escalations", "resolve", waiting, "--state", "../st")
    with started("serve", "--listen", "127.0.0.1:0", "--state", "../st", cwd=failing) as server:
        server.expect("state    ")
        code, out, told = printed(
            capsys, *resolve, "--decision", "skip", "--note", "run ls and then hello"
        )
        assert (code, "no rule for" in out) == (0, True)
        assert '1. shell({"command":"make"}): unknown: no route to prod [err_' in told
        code, _, again = printed(capsys, *resolve, "--decision", "give_up")
        assert (code, "local has answered" in again) == (1, True)
        code, _, unknown = printed(
            capsys, *resolve[:3], "esc_0", "--state", "../st", "--decision", "retry"
        )
        assert (code, "no escalation 'esc_0'" in unknown) == (1, True)
        (failing / "up").touch()
        for decision, built in (("advice", True), ("give_up", False)):
            (failing / "up").unlink()
            motet_at(server, "run make", failing)
            (failing / "up").touch()
            (one,) = open_ones(capsys)
            given = ("--state", "../st", "--decision", decision, "--note", "run make")
            code, out, _ = printed(capsys, *resolve[:3], one, *given)
            assert (code, "built" in out) == (0, built)
            show = (*resolve[:2], "show", one, "--json", "--state", "../st")
            now = json.loads(printed(capsys, *show)[1])
            assert (now["decision"], now["next_run"] is not None) == (decision, built)


def motet_at(server: Process, text: str, folder: Path) -> None:
    """Say it in the session ``one`` of the server."""
    url = next(word for word in server.seen.split() if word.startswith("ws://"))
    done = motet("chat", "helper", "--url", url, "-s", "one", cwd=folder, stdin=f"{text}\n")
    assert "handed to a person" in done.err, done


@pytest.mark.slow
def test_a_server_that_ends_meanwhile_ends_the_command(
    failing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (waiting,) = open_ones(capsys)
    resolve = ("errors", "escalations", "resolve", waiting, "--decision", "advice", "--note")
    (failing / "broken.py").write_text(
        BROKEN.replace("import pathlib", "import pathlib, time").replace(
            "    if pathlib", "    time.sleep(600)\n    if pathlib"
        )
    )
    with started("serve", "--listen", "127.0.0.1:0", "--state", "../st", cwd=failing) as server:
        server.expect("state    ")
        with started(*resolve, "run make", "--state", "../st", cwd=failing) as command:
            command.expect("→ shell")
            server.kill()
            command.expect("the server has ended")
            assert command.end() == 1
    assert open_ones(capsys) == []


@pytest.mark.slow
def test_a_person_at_a_terminal_decides_with_resolve(failing: Path) -> None:
    with terminal("chat", "helper", "-s", "one", "--state", "../st", cwd=failing) as chat:
        chat.expect("Ctrl-D leaves")
        chat.type("/resolve\r")
        shown = chat.expect("Say which and how: /resolve")
        assert '1. shell({"command":"make"}): unknown: no route to prod [err_' in shown
        chat.type("/resolve skip\r")
        chat.expect("Nothing was done: skip needs a note")
        chat.type("/resolve skip run ls\r")
        chat.expect(": skip, run_")
        chat.expect("I have no rule for 'Leave out the step that failed")
        chat.type("run make\r")
        chat.expect("or /resolve in a chat")
        (failing / "up").touch()
        chat.type("/resolve advice run  make\r")
        chat.expect(": advice, run_")
        chat.expect("built")
        (failing / "up").unlink()
        chat.type("run make\r")
        chat.expect("or /resolve in a chat")
        chat.type("/resolve give_up it is dead\r")
        chat.expect(": give_up")
        chat.type("/resolve retry\r")
        chat.expect("No escalation is open here.")
        if folder := os.environ.get("MOTET_SCREENSHOTS"):
            Path(folder, "resolve.txt").write_text(chat.seen + chat.said)


@pytest.mark.slow
def test_an_answer_in_a_pipe_is_waited_for(failing: Path) -> None:
    (failing / "up").touch()
    chat = ("chat", "helper", "-s", "one", "--state", "../st")
    done = motet(*chat, cwd=failing, stdin="/resolve advice run make\n")
    assert (done.code, "built" in done.out + done.err) == (0, True), done


@pytest.mark.slow
def test_a_host_that_no_command_finds_is_named(
    failing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (waiting,) = open_ones(capsys)
    with terminal("chat", "helper", "-s", "two", "--state", "../st", cwd=failing) as chat:
        chat.expect("Ctrl-D leaves")
        chat.type("/status\r")  # answered once the state is the chat's
        chat.expect("Nothing was said here yet")
        resolve = ("errors", "escalations", "resolve", waiting, "--state", "../st")
        code, _, told = printed(capsys, *resolve, "--decision", "retry")
        assert (code, f"with /resolve {waiting} in its chat, or with --url" in told) == (2, True)
        assert open_ones(capsys) == [waiting]


def test_an_answer_whose_run_waits_for_an_approval_says_so(
    failing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At once, however long a run would wait in memory: no person can answer this process."""
    (waiting,) = open_ones(capsys)
    asking = '[[policy]]\ntool = "*"\neffect = "ask"\n[approvals]\nhold = 3600\n'
    (failing / "motet.toml").write_text(IMPATIENT + asking)
    resolve = ("errors", "escalations", "resolve", waiting, "--state", "../st")
    code, _, told = printed(capsys, *resolve, "--decision", "advice", "--note", "run make")
    assert (code, "[waiting: motet approvals allow apr_" in told) == (5, True)
