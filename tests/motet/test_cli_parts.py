"""The parts of the command line that need no process."""

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import structlog
import trio
from trio.testing import wait_all_tasks_blocked

import motet
from motet.announced import default_state
from motet.cli.exits import code_of_error, code_of_status, explained
from motet.cli.keyboard import Bell, Interrupted, Interrupts, Keyboard
from motet.cli.logs import log_as, log_to_stderr, starting
from motet.cli.serve import follow_log
from motet.cli.setup import load_setup
from motet.protocols.config import LogConfig
from motet.protocols.errors import ConfigError, LimitReached, MotetError, RunCancelled, UnknownName
from motet.protocols.storage import StorageError
from motet.runtime import StartFailed


def failed_start(cause: Exception) -> StartFailed:
    error = StartFailed("/host/database", f"on_start raised {cause!r}")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("no such key"), 2, "no such key"),
        (MotetError("it is full"), 1, "it is full"),
        (LimitReached("turns", "20 turns"), 3, "20 turns"),
        (RunCancelled("stopped"), 4, "stopped"),
        (PermissionError(13, "Permission denied", "x.txt"), 1, "x.txt: Permission denied"),
        (ExceptionGroup("g", [ExceptionGroup("h", [ConfigError("deep")])]), 2, "deep"),
        (ExceptionGroup("g", [MotetError("a"), MotetError("b"), MotetError("a")]), 1, "a\nb"),
        (failed_start(StorageError("disk full")), 1, "disk full"),
    ],
)
def test_an_error_is_one_sentence_and_an_exit_code(error: Exception, code: int, said: str) -> None:
    assert (code_of_error(error), explained(error)) == (code, said)


def test_a_bug_is_called_one() -> None:
    assert explained(ZeroDivisionError("by 0")).startswith(
        "a bug in motet or in a tool: ZeroDivisionError: by 0; set MOTET_DEBUG=1"
    )


def test_the_exit_code_of_a_run_is_that_of_its_status() -> None:
    codes = {
        status: code_of_status(status) for status in ("completed", "failed", "limited", "refused")
    }
    assert codes == {"completed": 0, "failed": 1, "limited": 3, "refused": 6}
    assert code_of_status("cancelled") == code_of_status("dropped") == 4


# Setup


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path.parent / f"{tmp_path.name}-xdg"))
    return tmp_path


def test_without_a_file_there_is_a_helper_and_a_state_outside_of_the_workspace(here: Path) -> None:
    setup = load_setup(None, None)

    assert setup.name(None) == "helper"
    assert (setup.state, setup.chosen) == (Path(f"{here}-xdg", "motet"), False)
    assert setup.workspace == here
    assert default_state() == setup.state


def test_tools_never_see_the_folder_that_holds_the_state(here: Path) -> None:
    setup = load_setup(None, Path("kept"))
    assert (setup.state, setup.workspace) == (Path("kept"), Path("kept/workspace"))


def test_where_the_state_is_below_tools_see_a_folder_of_their_own(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(here / ".local"))

    setup = load_setup(None, None)

    assert setup.config.workspace is None
    assert setup.workspace == here / ".local" / "motet" / "workspace"


def test_the_file_here_is_read_and_the_options_win(here: Path) -> None:
    (here / "motet.toml").write_text('state = "s"\n[agents.a]\n[agents.b]\nmodel = "openai:x"\n')

    setup = load_setup(None, None)
    changed = setup.with_model("b", "anthropic:y")

    assert (setup.state, setup.chosen) == (here / "s", True)
    assert load_setup(None, Path("other")).state == Path("other")
    assert [agent.model_name for agent in setup.agents()] == ["demo", "openai:x"]
    assert [agent.model_name for agent in changed.agents()] == ["demo", "anthropic:y"]
    with pytest.raises(UnknownName, match="did you mean 'b'"):
        setup.name("bb")


# Signals


def test_a_signal_interrupts_a_wait_and_nothing_else() -> None:
    bell = Bell()
    with Interrupts(bell.rope) as interrupts:
        signal.raise_signal(signal.SIGINT)  # is kept until somebody waits
        with pytest.raises(Interrupted) as first, interrupts.waiting():
            raise AssertionError("not reached")
        with interrupts.waiting():
            pass
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted) as second, interrupts.waiting():
            raise AssertionError("not reached")

    assert (first.value.number, second.value.number) == (signal.SIGINT, signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_is_noticed_though_its_wakeup_is_read_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main, read, late = threading.get_ident(), os.read, threading.Event()
    frames = sys._current_frames  # pyright: ignore[reportPrivateUsage]  # public by its docs

    def read_late(descriptor: int, size: int) -> bytes:
        if threading.get_ident() != main:
            late.wait()
        return read(descriptor, size)

    def blocked() -> bytes:
        return read(silent, 1)

    def interrupted_wait() -> None:
        with interrupts.waiting():
            threading.Thread(target=signal_another_thread).start()
            blocked()

    def signal_another_thread() -> None:
        while (at := frames()[main]).f_code is not blocked.__code__ or at.f_lineno != line:
            pass
        # The C handler runs in this thread, so the wait of the main thread goes on.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        late.set()

    monkeypatch.setattr(os, "read", read_late)
    silent, writer = os.pipe()
    line = blocked.__code__.co_firstlineno + 1
    with Interrupts(Bell().rope) as interrupts:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted), interrupts.waiting():
            raise AssertionError("not reached")
        with pytest.raises(Interrupted):
            interrupted_wait()
    os.close(silent)
    os.close(writer)


class Recorded:
    """A conversation that notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def say(self, text: str) -> None:
        self.asked.append(text.strip())

    def stop(self) -> None:
        self.asked.append("<stop>")

    def review(self) -> str:
        return ""

    def leave(self) -> None:
        self.asked.append("<leave>")


def test_ctrl_c_while_busy_stops_once_and_then_leaves() -> None:
    conversation, bell = Recorded(), Bell()
    person = Keyboard(conversation, bell, interactive=False)
    person.hear("work\n")

    person.interrupted(signal.SIGINT)
    person.interrupted(signal.SIGINT)

    assert conversation.asked == ["work", "<stop>", "<leave>"]


def test_blank_lines_are_not_said_and_quit_leaves() -> None:
    conversation = Recorded()
    person = Keyboard(conversation, Bell(), interactive=False)

    for line in ("\n", "hi\n", " /QUIT \n", "after\n"):
        person.hear(line)

    assert conversation.asked == ["hi", "<leave>"]


# Logs


def test_the_log_has_the_configured_level_and_format(
    clean_logs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    log_as(LogConfig(level="warning", format="text"))
    for name in ("motet.host", "other"):
        logging.getLogger(name).info("not that important")
        logging.getLogger(name).warning("look", extra={"at": 1})
    structlog.get_logger("motet").info("not that either")
    log_as(LogConfig(format="json"))
    structlog.get_logger("motet").info("started")
    *text, line = capsys.readouterr().err.splitlines()
    assert len(text) == 2
    assert all("look" in one and not one.startswith("{") for one in text)
    assert json.loads(line)["event"] == "started"


async def test_a_reload_changes_the_log_at_once(clean_logs: None, tmp_path: Path) -> None:
    file = tmp_path / "motet.toml"
    file.write_text('[log]\nlevel = "warning"\n')
    async with motet.open_host(config=file) as host, trio.open_nursery() as nursery:
        log_as(LogConfig(level="warning"))
        nursery.start_soon(follow_log, host)
        await wait_all_tasks_blocked()
        file.write_text('[log]\nlevel = "error"\n')
        await host.reload()
        with trio.fail_after(60):
            while logging.getLogger().level != logging.ERROR:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


def test_logs_off_a_terminal_are_json_lines_without_the_values_of_variables(
    clean_logs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr(logging.INFO)
    password = "hunter2-is-secret"
    try:
        print(len(password) / 0)
    except ZeroDivisionError:
        logging.getLogger("motet.gateway").exception("a connection failed")
    structlog.get_logger("motet").info("started", port=1)
    with starting():
        logging.getLogger("motet.runtime").error("what the command says itself")

    printed = capsys.readouterr()
    first, second = (json.loads(line) for line in printed.err.splitlines())
    assert printed.out == ""
    assert (first["event"], first["logger"]) == ("a connection failed", "motet.gateway")
    assert "ZeroDivisionError" in first["exception"]
    assert (second["event"], second["port"], second["level"]) == ("started", 1, "info")
    assert password not in printed.err
