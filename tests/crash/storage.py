"""``python -m tests.crash.storage``: take the storage of a busy host away, and kill it.

Three troubles in turn. ``lock``: another process holds the write lock of the database, and the host
is killed under it. ``full``: no file may grow (RLIMIT_FSIZE), room is given back, and the host is
killed. ``disk``: the same on a small file system that is really full; for root only. What is left
is judged by the laws of :mod:`tests.crash.checks`: each effect once, nothing acknowledged is lost.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import SystemRandom
from typing import Final, Literal, TypeAlias

from motet.actors.storage.location import DATABASE_FILE
from tests.crash.kills import Kills, Outcome

Trouble: TypeAlias = Literal["lock", "full", "disk"]
ALL: Final[tuple[Trouble, ...]] = ("lock", "full", "disk")

DISK = 32 << 20
"""Bytes of the small file system that are free when a life begins: what is stored stays."""
SLACK = 1 << 16
"""Bytes by which the files beside the database may grow while it must not."""
AFTER = 0.5
"""Seconds within which each next thing happens."""

LOCKER = """
import sqlite3, sys
for line in sys.stdin:
    how, path = line.split(" ", 1)
    db = sqlite3.connect(path.strip(), isolation_level=None, timeout=30)
    db.execute(f"BEGIN {how}")
    print("locked", flush=True)
    sys.stdin.readline()
    db.close()
    print("free", flush=True)
"""


class StorageKills(Kills):
    """A series with these troubles, one after the other, in one folder."""

    def __init__(self, folder: Path, seed: int, troubles: Sequence[Trouble]) -> None:
        super().__init__(folder, seed)
        self._troubles = troubles
        self._state = folder / "state"

    def run(self, kills: int) -> Outcome:
        self._locker = subprocess.Popen(
            [sys.executable, "-c", LOCKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            return super().run(kills)
        finally:
            self._locker.kill()
            self._locker.communicate()

    def _one(self, life: int) -> None:
        trouble = self._troubles[life % len(self._troubles)]
        pid = self._start(f"{life} {trouble}")
        if not self._hears("serving"):
            self.outcome.problems.append(f"life {life} has ended by itself: {self._why()}")
            return
        self._pass()
        began = time.monotonic()
        with self._without_storage(trouble, pid):
            self._pass()
            if trouble == "lock" and self._random.random() < 0.7:
                self._kill(pid)
        self._pass()
        self._kill(pid)
        self._hears("ended")
        if self._status != signal.SIGKILL:
            self.outcome.problems.append(f"life {life} has ended by itself: {self._why()}")
        self.outcome.kills.append(time.monotonic() - began)
        self._look()

    def _pass(self) -> None:
        time.sleep(self._random.random() * AFTER)

    def _kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    @contextmanager
    def _without_storage(self, trouble: Trouble, pid: int) -> Generator[None]:
        match trouble:
            case "lock":
                how = self._random.choice(("IMMEDIATE", "EXCLUSIVE"))
                self._tell(f"{how} {self._state / DATABASE_FILE}")
                yield
                self._tell("free")
            case "full":
                sizes = [one.stat().st_size + SLACK for one in self._folder.iterdir()]
                log = self._state / f"{DATABASE_FILE}-wal"
                limit = max(log.stat().st_size, *sizes)
                before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, -1))
                yield
                with suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
            case "disk":
                ballast = self._state / "ballast"
                with ballast.open("wb", buffering=0) as file, suppress(OSError):
                    while file.write(bytes(4096)) == 4096:
                        pass
                yield
                ballast.unlink()
                _resize(self._state, _used(self._state) + DISK)

    def _tell(self, line: str) -> None:
        assert self._locker.stdin is not None
        assert self._locker.stdout is not None
        print(line, file=self._locker.stdin, flush=True)
        self._locker.stdout.readline()


def _used(disk: Path) -> int:
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _resize(disk: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


@contextmanager
def small_disk(folder: Path, *, wanted: bool = True) -> Generator[bool]:
    """A small file system for the state of the host; False: there is none, or not for this user.

    A block that is left by an error leaves it mounted, to be looked at.
    """
    state = folder / "state"
    state.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "none", str(state)]
    mounted = wanted and not os.geteuid() and not subprocess.run(command, check=False).returncode
    yield mounted
    if mounted:
        subprocess.run(["umount", "-l", str(state)], check=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.storage", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 32))
    parser.add_argument("troubles", nargs="*", default=[], help=f"{', '.join(ALL)}; default: all")
    chosen = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="motet-crash-"))
    asked: frozenset[str] = frozenset(chosen.troubles or ALL)
    with small_disk(folder, wanted="disk" in asked) as mounted:
        troubles: list[Trouble] = [one for one in ALL if asked >= {one}]
        if not mounted and "disk" in troubles:
            troubles.remove("disk")
        print(f"seed {chosen.seed}: {chosen.kills} kills with {', '.join(troubles)} in {folder}")
        outcome = StorageKills(folder, chosen.seed, troubles).run(chosen.kills)
        print(outcome.summary())
        if outcome.problems:
            print("\n".join(outcome.problems[:20]), file=sys.stderr)
            raise SystemExit(1)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
