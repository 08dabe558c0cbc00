"""``motet chat`` as a process: on a pipe, and at a terminal where Ctrl-C is a key."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.motet.command import UNSAFE_SHELL, Process, motet, started, terminal
from tests.processes import alive, wait_alive

CTRL_C = "\x03"
CTRL_D = "\x04"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "motet.toml").write_text(UNSAFE_SHELL)
    return tmp_path


@pytest.fixture
def chat(folder: Path) -> Iterator[Process]:
    with terminal("chat", cwd=folder) as process:
        process.expect("> ")
        yield process


def test_a_pipe_is_answered_line_by_line_to_its_end(folder: Path) -> None:
    done = motet("chat", cwd=folder, stdin="list files\n\nrun echo one\n/quit\nnever read\n")

    assert done.code == 0
    listed, echoed = done.out.index("motet.toml"), done.out.index("one")
    assert listed < echoed
    assert "→ list_files" in done.err
    assert "✓ shell" in done.err
    assert "never read" not in done.out


def test_the_end_of_a_pipe_ends_the_chat_after_the_last_answer(folder: Path) -> None:
    done = motet("chat", "helper", "-s", "s", cwd=folder, stdin="/status\n/nonsense\nrun echo last")

    assert (done.code, done.out.count("last")) == (0, 1)
    assert "Nothing was said here yet" in done.err
    assert "There is no command /nonsense" in done.err


@pytest.mark.slow
def test_ctrl_c_stops_the_run_and_all_its_processes(chat: Process) -> None:
    chat.type("run sleep 31331 & sleep 31331\r")
    chat.expect("→ shell")
    trio.run(wait_alive, "sleep 31331", 2)

    chat.type(CTRL_C)

    chat.expect("[stopped]")
    assert not alive("sleep 31331")
    chat.expect("> ")
    assert chat.seen.lower().count("[stopped") == 1
    chat.type("run echo still $((40 + 2))\r")
    chat.expect("still 42")
    chat.expect("> ")
    chat.type(CTRL_D)
    assert chat.end() == 0


@pytest.mark.slow
def test_a_line_typed_during_a_run_steers_it_and_stop_ends_both(chat: Process) -> None:
    chat.type("wait 600\r")
    chat.expect("→ shell")
    chat.type("hello\r")
    chat.expect("[goes into the running turn]")

    chat.type("stop\r")

    chat.expect("[not answered")
    chat.expect("> ")
    chat.type("/status\r")
    chat.expect("No run.")
    chat.expect("> ")
    chat.type("/quit\r")
    assert chat.end() == 0


@pytest.mark.slow
def test_at_the_prompt_the_first_ctrl_c_warns_and_the_second_leaves(chat: Process) -> None:
    chat.type("half a li")
    # As a person does: what is typed faster than it can be shown, the terminal drops at Ctrl-C.
    chat.expect("half a li")
    chat.type(CTRL_C)
    chat.expect("Ctrl-C again")
    chat.expect("> ")

    chat.type(CTRL_C)

    assert chat.end() == 0


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_a_run_that_does_not_end_and_a_third_one_at_once(
    folder: Path,
) -> None:
    (folder / "stubborn.py").write_text(
        "import time\n"
        "def shell(command: str) -> str:\n"
        '    "A thread that nobody can cancel."\n'
        "    time.sleep(600)\n"
        '    return ""\n'
    )
    agent = '[agents.helper]\ntools = ["stubborn:shell"]\n'
    (folder / "motet.toml").write_text(UNSAFE_SHELL + agent)
    with terminal("chat", cwd=folder) as chat:
        chat.expect("> ")
        chat.type("run forever\r")
        chat.expect('→ shell(command="forever")')
        chat.expect("\n")
        chat.type(CTRL_C)
        chat.expect("\n")
        chat.type(CTRL_C)
        chat.expect("waiting for the run to end")
        chat.type(CTRL_C)
        assert chat.end() == 130


@pytest.mark.slow
def test_sigterm_ends_the_run_and_its_processes_before_the_chat(folder: Path) -> None:
    with started("chat", cwd=folder) as chat:
        assert chat.popen.stdin is not None
        chat.popen.stdin.write(b"run sleep 31332\n")
        chat.popen.stdin.flush()
        chat.expect("→ shell")
        trio.run(wait_alive, "sleep 31332", 1)

        chat.signal(signal.SIGTERM)

        assert chat.end() == 0
        assert not alive("sleep 31332")


@pytest.mark.slow
def test_two_chats_at_once_both_work_and_the_second_says_that_it_is_not_stored(
    folder: Path, chat: Process
) -> None:
    done = motet("chat", cwd=folder, stdin="run echo here\n")

    assert "here" in done.out
    assert "not stored: the state directory" in done.err
    chat.type(CTRL_D)
    assert chat.end() == 0
