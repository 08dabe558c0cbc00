"""The command as a process: on pipes, or on a terminal of its own."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests import forks

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0
"""Seconds after which something that does not happen is taken for a failure."""

UNSAFE_SHELL = 'workspace = "."\n[tools.shell]\nmode = "unsafe"\n'
"""A configuration whose shell works on machines without bubblewrap too."""

_MODULE = ("-m", "motet.cli")


def command(*arguments: str) -> list[str]:
    """The words of a command that is started as a user starts it, and not forked."""
    return [sys.executable, *_MODULE, *arguments]


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a user without keys has; all that motet keeps lands in a folder beside ``home``."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("OPENAI", "ANTHROPIC", "MOTET"))
    }
    own = {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": f"{home}-xdg", "TERM": "xterm"}
    own["MOTET_TRUST"] = "1"  # the tests of trust say otherwise
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
    ended = forks.ran(
        *_MODULE, *arguments, cwd=cwd, env=environment(cwd, env), stdin=stdin, timeout=PATIENCE
    )
    return Done(ended.returncode, ended.stdout, ended.stderr)


@attrs.define(eq=False)
class Process:
    """A running command: what it has said so far is in ``said``, what was looked for is gone."""

    popen: forks.Program
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
    popen = forks.started(
        *_MODULE, *arguments, cwd=cwd, env=environment(cwd, env), stderr=subprocess.STDOUT
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
    popen = forks.started(
        *_MODULE,
        *arguments,
        cwd=cwd,
        env=environment(cwd, env),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        session=True,
    )
    os.close(theirs)
    process = Process(popen, ours)
    try:
        yield process
    finally:
        process.kill()
        os.close(ours)
