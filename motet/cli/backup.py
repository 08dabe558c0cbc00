"""``motet backup``: a copy of a state directory, also while its host is at work.

Invariants: the copy is of one moment, and has all that was answered before the command began; it
has its name only when it is whole, checked and on disk; nobody but the owner can read it.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing
from pathlib import Path

import apsw

from motet.actors.storage.connection import Connection, storage_error
from motet.actors.storage.location import BUSY_TIMEOUT, DATABASE_FILE, KEY_FILE
from motet.cli.exits import OK
from motet.protocols.errors import ConfigError, NotFound
from motet.protocols.storage import StorageError

STEPS = 1_000
"""Steps of SQLite between two looks at the size of the copy."""
PORTION, PAUSE = 4 << 20, 0.02
"""Bytes that are written to the disk at once, and the seconds of rest behind them."""


def backup(state: Path, target: Path) -> int:
    """Copy the database and the key of masks into a new directory; the exit code.

    The directory can be used as a state directory. Raises ``NotFound`` without a database,
    ``ConfigError`` for a target that exists, ``StorageError`` for a database that cannot be read or
    is damaged, and for a target that cannot be written; then nothing is left of it.
    """
    file, target = state / DATABASE_FILE, target.absolute()
    if not file.is_file():
        raise NotFound(f"there is no database in {state}: no host has used it")
    if target.exists():
        raise ConfigError(f"{target} exists: give a name that is free")
    part = target.with_name(f".{target.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a command that was killed
        part.mkdir(mode=0o700, parents=True)
        _copy(file, part / DATABASE_FILE)
        if (key := state / KEY_FILE).is_file():
            shutil.copy(key, part / KEY_FILE)
        for made in part.iterdir():
            made.chmod(0o600)
            _sync(made)
        _sync(part)
        part.rename(target)
        _sync(target.parent)
    except apsw.Error as error:
        raise storage_error(error, f"the database {file} or its copy") from error
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    size = (target / DATABASE_FILE).stat().st_size
    print(f"{size / 1e6:.1f} MB in {target}; to restore it, serve it: motet serve --state {target}")
    return OK


def _copy(file: Path, copy: Path) -> None:
    """Reads in one transaction, which waits for nobody and lets the host write."""
    with closing(Connection(str(file), apsw.SQLITE_OPEN_READONLY)) as source:
        source.set_busy_timeout(int(BUSY_TIMEOUT * 1000))
        with closing(_Pace(copy)) as pace:
            source.set_progress_handler(pace, STEPS)
            source.run("VACUUM INTO ?", (str(copy),))
    with closing(Connection(str(copy), apsw.SQLITE_OPEN_READONLY)) as made:
        ((said, *_),) = made.run("PRAGMA quick_check(1)")
    if said != "ok":
        raise apsw.CorruptError(" ".join(str(said).split()))


class _Pace:
    """Writes the copy to the disk as it grows, and pauses: all of it at once, at the end, would
    hold the commits of the host up for long.
    """

    def __init__(self, copy: Path) -> None:
        self._copy, self._size = copy, 0
        self._descriptor: int | None = None

    def __call__(self) -> bool:
        if self._descriptor is None and self._copy.exists():
            self._descriptor = os.open(self._copy, os.O_RDONLY)
        size = 0 if self._descriptor is None else os.fstat(self._descriptor).st_size
        if self._descriptor is not None and size - self._size >= PORTION:
            self._size = size
            os.fdatasync(self._descriptor)
            time.sleep(PAUSE)
        return False

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
