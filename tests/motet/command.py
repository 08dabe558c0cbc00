"""The real command, as a process: on pipes, or on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0
"""Seconds after which something that does not happen is taken for a failure."""

UNSAFE_SHELL = 'workspace = "."\n[tools.shell]\nmode = "unsafe"\n'
"""A configuration whose shell works on machines without bubblewrap too."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "motet.cli", *arguments]


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a user without keys has; all that motet keeps lands in a folder beside ``home``."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("OPENAI", "ANTHROPIC", "MOTET"))
    }
    own = {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": f"{home}-xdg", "TERM": "xterm"}
    return kept | own | dict(extra or {})


@attrs.frozen
class Done:
    code: int
    out: str
    err: str


def motet(
    *arguments: str, cwd: Path, stdin: str = "", env: Mapping[str, str] | None = None
) -> Done:
    """Run the command to its end on pipes."""
    ended = subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(cwd, env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Done(ended.returncode, ended.stdout, ended.stderr)


@attrs.define(eq=False)
class Process:
    """A running command: what it has said so far is in ``said``, what was looked for is gone."""

    popen: subprocess.Popen[bytes]
    output: int
    said: str = ""
    seen: str = ""

    def expect(self, text: str) -> str:
        """Wait until it says ``text``; everything up to there."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.said:
            left = deadline - time.monotonic()
            heard = left > 0 and self._read(left)
            assert heard, f"no {text!r} in {self.seen + self.said!r}"
        before, _, self.said = self.said.partition(text)
        self.seen += before + text
        return before

    def end(self) -> int:
        """Wait for its end; its exit code."""
        while self._read(PATIENCE):
            pass
        return self.popen.wait(PATIENCE)

    def type(self, keys: str) -> None:
        """Press keys; Ctrl-C is ``\x03``."""
        os.write(self.output, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def kill(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout):
            if stream is not None:
                stream.close()

    def _read(self, seconds: float) -> bool:
        """More of what it says; False at the end of it."""
        if not select.select([self.output], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.output, 65_536)
        except OSError:  # how a terminal ends
            return False
        self.said += data.decode("utf-8", "replace")
        return bool(data)


@contextmanager
def started(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> Generator[Process]:
    """The command while it runs on pipes; killed at the end of the block if it still does."""
    popen = subprocess.Popen(
        command(*arguments),
        cwd=cwd,
        env=environment(cwd, env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert popen.stdout is not None
    process = Process(popen, popen.stdout.fileno())
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def terminal(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
) -> Generator[Process]:
    """The command at a terminal, where Ctrl-C is a key."""
    ours, theirs = pty.openpty()
    popen = subprocess.Popen(
        command(*arguments),
        cwd=cwd,
        env=environment(cwd, env),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    process = Process(popen, ours)
    try:
        yield process
    finally:
        process.kill()
        os.close(ours)
