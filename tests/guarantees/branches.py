"""Branches of a simulated world: what comes before a fault is played once, for all faults after it.

A sweep plays a story with a fault at each of its steps. All that comes before the fault is the same
each time, the boot of the host too: half of the time. So the process forks where a fault is to
come. The child goes on with the fault, and is checked; the original waits for it, and goes on
without.

Invariants: one process is at work at a time; a child is a copy of the whole world, and leaves
nothing behind but its verdict. SQLite may be used on in a child, although its connections are the
original's, since the files of a simulated disk are in memory; only its locks are on a real file,
and belong to a process: the original gives them back to the system while a child lives.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs

from motet import testing as mt

__all__ = ["Branches"]

LONGEST = 120
"""Seconds after which a child is ended that hangs."""
MOST = 5
"""Findings after which a sweep goes on no longer."""


@attrs.define(eq=False)
class Branches:
    """A context manager around a play whose world forks; leaving it ends a child.

    Raises AssertionError on leaving, with the findings of the children.

    Attributes:
        count: of the children so far.
        found: what was wrong in them, each with what they were told to say of themselves.
    """

    host: mt.SimulatedHost
    count: int = 0
    found: list[str] = attrs.field(factory=list[str])
    _folder: tempfile.TemporaryDirectory[str] = attrs.field(factory=tempfile.TemporaryDirectory)
    _verdict: int | None = None

    @property
    def is_child(self) -> bool:
        return self._verdict is not None

    def branch(self, name: str) -> bool:
        """Fork; True in the child. The original returns when that has ended."""
        if self.is_child or len(self.found) >= MOST:
            return False
        with self._in_the_real_world():
            return self._branch(name)

    def _branch(self, name: str) -> bool:
        restore = self._give_back_locks()
        before = self._files()
        verdict, told = os.pipe()
        with warnings.catch_warnings():
            # Other threads, as those of pytest-xdist, may hold locks which no world uses.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            os.close(verdict)
            self._verdict = told
            gc.disable()
            tempfile.tempdir = self._folder.name
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LONGEST)
            return True
        os.close(told)
        self.count += 1
        with open(verdict, "rb") as file:
            said = file.read().decode()
        _, status = os.waitpid(child, 0)
        restore()
        if said or status:
            self.found.append(f"{name}: {said or f'ended with status {status}'}")
        assert self._files() == before, "a child has changed real files: such a story cannot branch"
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._verdict is not None:
            # At once: nothing of the original's may be closed or removed.
            try:
                if error is not None:
                    said = "".join(traceback.format_exception(error))
                    os.write(self._verdict, said[-60_000:].encode("utf-8", "replace"))
            finally:
                os._exit(0 if error is None else 1)
        self._folder.cleanup()
        if error is None and self.found:
            raise AssertionError(f"{len(self.found)} findings, first {self.found[0]}")

    @contextmanager
    def _in_the_real_world(self) -> Generator[None]:
        """The guards of the world let real things be used."""
        guards = self.host.loop._entrance._guards  # type: ignore[union-attr]  # pyright: ignore
        active, guards.active = guards.active, False
        try:
            yield
        finally:
            guards.active = active

    def _give_back_locks(self) -> Callable[[], None]:
        """Closing any descriptor of a file gives back all of its process's locks on that file.

        The result restores the file, which a child deletes when its disk is crashed.
        """
        system = self.host.disk._connected()  # pyright: ignore[reportPrivateUsage]
        file = Path(system._locks)  # pyright: ignore[reportPrivateUsage]
        spare = Path(self._folder.name, file.name)
        if not spare.exists():
            spare.hardlink_to(file)
        os.close(os.open(file, os.O_RDWR))
        return lambda: None if file.exists() else file.hardlink_to(spare)

    def _files(self) -> set[tuple[str, int, int]]:
        """The real files of the world, which all children share: none may change them."""
        folder = Path(self.host._workspace)  # pyright: ignore[reportPrivateUsage]
        known = [(path, path.stat()) for path in folder.rglob("*")]
        return {(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in known}
