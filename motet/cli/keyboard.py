"""The keyboard, or the pipe in its place: lines are read while the host works.

Reading has the main thread, since only there Ctrl-C can interrupt a line that is being edited; Trio
has a thread of its own. At a terminal a line can be typed while a run is active; from a pipe the
next line is read when everything before it has been answered.

Python raises ``KeyboardInterrupt`` between any two instructions. Here a signal raises only inside
``with interrupts.waiting():``; one that comes at another time raises when that is entered.

A blocking call in C can miss a signal that comes just before it begins to wait: readline does,
between two keys. So a thread of this module interrupts the main thread until it has noticed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Protocol, Self

import attrs

from motet.cli.screen import page

PROMPT = "> "
QUIT = frozenset({"/quit", "/exit"})
READ = "v"
"""Opens the pending approval in a pager, while there is one."""
HISTORY_LINES = 1_000
PATIENCE = 1.0
"""Seconds of clean-up after which a line explains why leaving takes time."""


class Conversation(Protocol):
    """The calls of a conversation. For any thread."""

    def say(self, text: str) -> None: ...

    def stop(self) -> None: ...

    def review(self) -> str:
        """The call that a person is asked about, to be read in a pager; empty: there is none."""
        ...

    def leave(self) -> None: ...


class Bell:
    """Wakes the keyboard's thread; rung by the conversation's thread.

    A byte written to ``rope`` wakes that thread, too, without a ring.
    """

    def __init__(self) -> None:
        self._reader, self.rope = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self.rope, False)
        self.heard = 0
        self.over = False

    def fileno(self) -> int:
        return self._reader

    def ring(self, heard: int) -> None:
        """Nothing is left to do after ``heard`` texts."""
        self.heard = heard
        self._sound()

    def close(self) -> None:
        """The conversation has ended."""
        self.over = True
        self._sound()

    def hush(self) -> None:
        """Read all rings so far."""
        with suppress(BlockingIOError):
            os.read(self._reader, 4096)

    def _sound(self) -> None:
        with suppress(BlockingIOError):  # it is full of unread rings
            os.write(self.rope, b"!")


@attrs.define(eq=False)
class Keyboard:
    """Sends typed lines; Ctrl-C stops a run or leaves, Ctrl-D leaves."""

    conversation: Conversation
    bell: Bell
    interactive: bool
    _said: int = 0
    _stopping: bool = False
    _warned: bool = False
    _no_more: bool = False
    _leaving: bool = False

    def attend(self, interrupts: Interrupts) -> None:
        """Read lines until the user leaves or the conversation is over."""
        while not self._leaving and not self.bell.over:
            try:
                with interrupts.waiting():
                    lines = self._read() if self._at_prompt else self._wait()
            except Interrupted as interrupted:
                self.interrupted(interrupted.number)
            except EOFError:
                self._no_more = True
                if self._at_prompt:
                    self._end_line()
                    self._leave()
            else:
                for line in lines:
                    self.hear(line)

    @property
    def _at_prompt(self) -> bool:
        return self.bell.heard >= self._said

    def hear(self, line: str) -> None:
        """Send a line that was typed or came out of the pipe."""
        self._warned = self._stopping = False
        if line.strip().lower() in QUIT:
            self._leave()
        elif line.strip().lower() == READ and (text := self.conversation.review()):
            page(text)
        elif line.strip() and not self._leaving:
            self._said += 1
            self.conversation.say(line)

    def interrupted(self, number: int) -> None:
        """Handle Ctrl-C, or another signal that ends the process."""
        self._end_line()
        if number != signal.SIGINT:
            self._leave()
        elif not self._at_prompt:
            self._stop()
        elif self._warned or not self.interactive:
            self._leave()
        else:
            self._warned = True
            print("Ctrl-C again, Ctrl-D or /quit leaves", file=sys.stderr)

    def _stop(self) -> None:
        """The first Ctrl-C stops the run; another one while it is stopping leaves."""
        if self._stopping:
            self._leave()
        else:
            self._stopping = True
            self.conversation.stop()

    def _end_line(self) -> None:
        """End the line of the cursor at a terminal."""
        if self.interactive:
            print(file=sys.stderr)

    def _leave(self) -> None:
        self._leaving = True
        self.conversation.leave()

    # Waiting, where a signal may interrupt

    def _read(self) -> list[str]:
        """The next line. Raises ``EOFError`` at the end."""
        self._stopping = False
        if self._no_more:
            raise EOFError
        if self.interactive and sys.stdout.isatty():
            return [input(PROMPT)]
        if self.interactive:
            print(PROMPT, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return [line]

    def _wait(self) -> list[str]:
        """Lines typed while a run is active; none when the bell rings."""
        listen = self.interactive and not self._no_more
        ready, _, _ = select.select([self.bell, *([sys.stdin] if listen else [])], [], [])
        self.bell.hush()
        if sys.stdin not in ready:
            return []
        typed = os.read(sys.stdin.fileno(), 65_536)
        if not typed:
            raise EOFError
        return typed.decode("utf-8", "replace").splitlines()


def join_thread(thread: Thread, interrupts: Interrupts) -> None:
    """Wait for the conversation's thread. Ctrl-C leaves at once, without clean-up."""
    told = False
    while thread.is_alive():
        try:
            with interrupts.waiting():
                thread.join(PATIENCE)
        except Interrupted as interrupted:
            if interrupted.number == signal.SIGINT:
                os._exit(128 + signal.SIGINT)
        if thread.is_alive() and not told:
            print("waiting for the run to end; Ctrl-C leaves at once", file=sys.stderr)
            told = True


def remember(file: Path) -> None:
    """Let the arrow keys find lines of earlier conversations, if readline is available."""
    try:
        import atexit
        import readline
    except ImportError:
        return

    def save() -> None:
        with suppress(OSError):
            file.touch(mode=0o600)
            readline.set_history_length(HISTORY_LINES)
            readline.write_history_file(file)

    with suppress(OSError):
        readline.read_history_file(file)
    atexit.register(save)


# Signals


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NUDGE = signal.SIGURG
"""Ignored by default, so nobody is harmed by one that comes late."""
NOTICE = 0.05
"""Seconds between two interruptions of a main thread that has not noticed a signal."""


class Interrupted(BaseException):
    """A signal came. Not an ``Exception``, so that no library catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupts:
    """Holds the signals for the length of its ``with`` block.

    ``wakeup``: a non-blocking descriptor that gets a byte with each signal. A ``select`` on its
    other end misses none, not even one that comes just before it begins.
    """

    def __init__(self, wakeup: int) -> None:
        self._wakeup = wakeup
        self._waiting = False
        self._pending: int | None = None
        self._before: dict[int, object] = {}
        self._noticed = False
        self._alarm = -1
        self._before_alarm = -1

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._came) for number in SIGNALS}
        self._before[NUDGE] = signal.signal(NUDGE, self._nudged)
        reader, self._alarm = os.pipe()
        os.set_blocking(self._alarm, False)
        self._before_alarm = signal.set_wakeup_fd(self._alarm, warn_on_full_buffer=False)
        threading.Thread(
            target=self._insist, args=(reader, threading.get_ident()), daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._before_alarm)
        os.close(self._alarm)
        self._alarm = -1
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # it came from there

    def _insist(self, reader: int, main: int) -> None:
        """Pass each wake-up on; interrupt the main thread until it has noticed the signal."""
        while numbers := os.read(reader, 4096):
            if all(number == NUDGE for number in numbers):
                continue
            with suppress(BlockingIOError):  # Full of wake-ups: the reader wakes anyway.
                os.write(self._wakeup, numbers)
            # One read may return the wake-ups of a handled signal and of a missed one. Python calls
            # the handlers in the order of their numbers: when the handler of a nudge that follows
            # the read is called, every signal of this read has been recorded.
            self._noticed = False
            while not self._noticed and self._alarm >= 0:
                signal.pthread_kill(main, NUDGE)
                time.sleep(NOTICE)
        os.close(reader)

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Raise :class:`Interrupted` in this block when a signal comes, or came before it.

        A signal that comes just before its end raises when the next block is entered.
        """
        self._waiting = True
        try:
            self._raise_pending()
            yield
        finally:
            self._waiting = False

    def _came(self, number: int, _: FrameType | None) -> None:
        self._pending = number

    def _nudged(self, _number: int, _frame: FrameType | None) -> None:
        # This handler alone raises: ``input()`` calls the handlers of other signals while the
        # exception of a first one is set, and makes a SystemError of both. It takes no lock, since
        # a handler may interrupt itself.
        self._noticed = True
        if self._waiting:
            self._raise_pending()

    def _raise_pending(self) -> None:
        if (number := self._pending) is not None:
            self._pending = None
            raise Interrupted(number)
