"""Forks of the tests: each is told from a started interpreter by nothing that a program sees."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forks

ENDS = {
    "the end of the program": "print('said'); import sys; print('told', file=sys.stderr)",
    "a code": "raise SystemExit(7)",
    "a code of more than a byte": "raise SystemExit(256 + 3)",
    "a message": "raise SystemExit('no such thing')",
    "an exception": "def fail(): raise ValueError('is wrong')\nfail()",
    "an exception in exec": "exec('1 / 0')",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "Ctrl-C": "import signal; signal.raise_signal(signal.SIGINT)",
    "the hooks of its end": "import atexit; atexit.register(print, 'at the end')",
    "an exception in such a hook": "import atexit; atexit.register(lambda: 1 / 0)",
    "a thread that is not done": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('done'))).start()"
    ),
    "a pool of threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "ThreadPoolExecutor(1).submit(print, 'done')"
    ),
    "a coroutine that nobody awaits": "async def one(): ...\nleft = one()",
    "a file that nobody closes": "left = open('file', 'w'); left.write('kept')",
    "a warning": "import warnings; warnings.warn('beware')",
}
SEES = {
    "its words": "import sys; print(sys.argv, sys.orig_argv[1:], sys.path[0], __name__)",
    "its folder and environment": "import os; print(os.getcwd(), sorted(os.environ.items()))",
    "its streams": (
        "import sys\n"
        "for one in (sys.stdin, sys.stdout, sys.stderr):\n"
        "    print(one.isatty(), one.encoding, one.errors, one.line_buffering, one.write_through)\n"
        "print(repr(input()), repr(sys.stdin.read()))"
    ),
    "its files": "import os; print(sorted(os.listdir('/proc/self/fd')))",
    "its signals": (
        "import signal\n"
        "print([str(signal.getsignal(one)) for one in signal.valid_signals()])\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    ),
    "its threads": (
        "import os, threading\n"
        "print([one.name for one in threading.enumerate()], len(os.listdir('/proc/self/task')))"
    ),
    "its group and session": "import os; print(os.getpgrp(), os.getsid(0), os.getpid() > 1)",
    "the future of its file": "print(__annotations__ if '__annotations__' in vars() else None)\n"
    "x: int = 1\nprint(__annotations__)",
}


def both(
    *arguments: str, cwd: Path, stdin: str = ""
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """A program as a fork, and as a process of its own."""
    at_start = {k: v for k, v in os.environ.items() if k.startswith(forks.READ_AT_START)}
    env = {**at_start, "PATH": os.environ["PATH"], "PYTHONPATH": str(forks.ROOT), "MARK": "1"}
    forked = forks.ran(*arguments, cwd=cwd, env=env, timeout=20, stdin=stdin)
    begun = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    return forked, begun


def last_words(said: str) -> str:
    """The messages of exceptions and warnings, without the places where they were found."""
    lines = [re.sub("0x[0-9a-f]+|^\\S+:[0-9]+: ", "", line) for line in said.splitlines()]
    places = (" ", "Traceback", "RuntimeWarning: Enable")
    return "\n".join(line for line in lines if not line.startswith(places))


@pytest.mark.parametrize("flags", [(), ("-W", "error")], ids=["", "-W error"])
@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_a_program_ends_as_in_an_interpreter(
    code: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    forked, begun = both(*flags, "-c", code, cwd=tmp_path)

    assert (forked.returncode, forked.stdout) == (begun.returncode, begun.stdout)
    assert last_words(forked.stderr) == last_words(begun.stderr)
    file = tmp_path / "file"
    assert not file.exists() or file.read_text() == "kept"


@pytest.mark.parametrize("code", SEES.values(), ids=SEES)
def test_a_program_sees_what_an_interpreter_shows_it(code: str, tmp_path: Path) -> None:
    forked, begun = both("-c", code, "one", "-x", cwd=tmp_path, stdin="a\r\nb\nc")

    assert begun.returncode == 0, begun.stderr
    assert forked.stdout == begun.stdout
    assert forked.stderr == begun.stderr


def test_modules_and_files_are_programs_too(tmp_path: Path) -> None:
    said = "import sys; print(sys.argv, sys.path[0], __name__, __file__, __spec__ is None)"
    (tmp_path / "told.py").write_text(said)
    for words in (("-m", "told", "one"), (str(tmp_path / "told.py"), "one")):
        forked, begun = both(*words, cwd=tmp_path)
        assert begun.returncode == 0, begun.stderr
        assert forked.stdout == begun.stdout
    absent, begun = both("-m", "no_such_module", cwd=tmp_path)
    assert absent.returncode == begun.returncode == 1


def test_programs_have_chances_of_their_own(tmp_path: Path) -> None:
    code = "import random, trio; print(random.random(), trio._core._run._r.random())"
    drawn = [word for _ in range(3) for word in both("-c", code, cwd=tmp_path)[0].stdout.split()]
    assert len(set(drawn)) == 6


def test_its_terminal_sends_ctrl_c_to_it(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    code = "import os, time; print(os.getsid(0) == os.getpid(), flush=True); time.sleep(60)"
    with (
        open(ours, "r+b", buffering=0) as terminal,
        forks.started(
            *("-c", code), cwd=tmp_path, env=forks.environment(), stdin=theirs, stdout=theirs,
            stderr=theirs, session=True,
        ) as program,
    ):  # fmt: skip
        os.close(theirs)
        assert isinstance(program, forks.Fork)
        assert terminal.readline() == b"True\r\n"
        terminal.write(b"\x03")
        assert program.wait(20) == -signal.SIGINT


def test_a_program_is_killed_and_the_next_one_runs(tmp_path: Path) -> None:
    with forks.started("-c", "input()", cwd=tmp_path, env=forks.environment()) as program:
        assert isinstance(program, forks.Fork)
        assert program.poll() is None
        with pytest.raises(TimeoutError):
            program.wait(0.01)
        program.kill()
        assert program.wait(20) == program.poll() == -signal.SIGKILL
        program.kill()
    assert both("-c", "print(1)", cwd=tmp_path)[0].stdout == "1\n"


def test_a_shell_runs_forks_by_their_words(tmp_path: Path) -> None:
    words = [*forks.in_a_shell(), "-c", "import sys; print(input(), *sys.argv); sys.exit(3)", "a b"]
    said = subprocess.run(words, cwd=tmp_path, input=b"in", capture_output=True, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (3, b"in -c a b\n", b"")


def test_another_interpreter_is_started(tmp_path: Path) -> None:
    env = {**forks.environment(), "PYTHONHASHSEED": "7"}
    with forks.started("-c", "print(hash('a'))", cwd=tmp_path, env=env) as program:
        assert isinstance(program, subprocess.Popen)
        assert program.stdout is not None
        said = program.stdout.read()
    begun = subprocess.run(
        [sys.executable, "-c", "print(hash('a'))"], env=env, capture_output=True, check=True
    )
    assert said == begun.stdout
