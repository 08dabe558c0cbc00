"""Locations of a host's state: a directory, memory, or the simulated disk of a test.

Invariant: at most one :class:`Location` of a directory and of a database is open at a time, in any
process. The operating system holds that lock, so that it ends with the process, even after
``kill -9``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeAlias, TypeVar
from uuid import uuid4

import apsw
import attrs

from motet.actors.storage.connection import (
    WRITE,
    Connection,
    InlineJobs,
    Jobs,
    JobThread,
    copy_image,
    in_thread,
    inline,
    storage_error,
)
from motet.protocols.error_records import suffixes
from motet.protocols.room_changes import FUNCTIONS
from motet.protocols.storage import StateInUse, StorageError
from motet.runtime.outside import fresh_hex

DATABASE_FILE = "motet.db"
KEY_FILE, KEY_BYTES = "redaction.key", 16
FILES = ("", "-wal", "-shm")
"""Ends of the names of a database's files while it is open."""
LOCK_FILE = "motet.lock"
LOG_LIMIT = 16 << 20
"""Bytes that the write-ahead log keeps when all of it is in the database."""
TURNS = 256
BUSY_TIMEOUT = 2.0
"""Seconds that SQLite waits for a lock of another program before it gives up."""


T = TypeVar("T")

Make: TypeAlias = Callable[[type[Connection]], Connection]
Lend: TypeAlias = Callable[[Make, Callable[[Connection], None]], Connection]
"""Gives one connection to all parts of a host: it makes it, of a class of its own, and prepares it
once for each host."""


def _size(file: str) -> int:
    try:
        return os.path.getsize(file)
    except OSError:
        return 0


@attrs.define(eq=False)
class Location:
    """An open location, made by one of the class methods; a context manager.

    ``path`` is the directory, None without one. ``name`` stands in error messages. ``turn``: a
    number that the few processes before this one did not have.
    """

    path: Path | None
    name: str
    _filename: str
    _flags: int
    _release: Callable[[], None]
    _vfs: str | None = None
    turn: int | None = None
    _lend: Lend | None = None

    def hex_source(self) -> Callable[[int], str]:
        """The source of the ids of errors, which begin with the turn."""
        return fresh_hex if self.turn is None else suffixes(self.turn, int(fresh_hex(2), 16))

    @property
    def outlives_host(self) -> bool:
        """Whether the next host finds the state of this one."""
        return self.path is not None or self._vfs is not None

    @classmethod
    def directory(cls, path: str | Path) -> Location:
        """Use a directory, made with mode 0700 if it is missing. Blocks for some disk access.

        Raises:
            StateInUse: another host has it open, or its database.
            StorageError: it cannot be made or written, or its database is an empty file.
        """
        release, turn = _locked(root := Path(path).absolute())
        file = str(root / DATABASE_FILE)
        return cls(root, f"the database {file}", file, 0, release, turn=turn)

    @classmethod
    def memory(cls, image: bytes = b"") -> Location:
        """A private database that ends with :meth:`close`.

        ``image``: the database to begin with, not in WAL mode; by default an empty one.
        """
        filename = f"file:/motet-{uuid4().hex}?vfs=memdb"
        # SQLite drops such a database with its last connection: this connection keeps it alive
        # while the writer restarts.
        keeper = apsw.Connection(filename, flags=WRITE | apsw.SQLITE_OPEN_URI)
        if image:
            copy_image(image, keeper)
        name = "the database in memory"
        return cls(None, name, filename, apsw.SQLITE_OPEN_URI, keeper.close)

    @classmethod
    def simulated(
        cls, vfs: str, filename: str, release: Callable[[], None], lend: Lend | None = None
    ) -> Location:
        """A database on a disk that a registered VFS simulates; it never blocks.

        It has the journal and sync modes of a directory, so that a power cut loses the same.
        ``lend``: gives all the same connection; by default each has its own.
        """
        name = "the database on a simulated disk"
        return cls(None, name, filename, 0, release, vfs, None, lend)

    def redaction_key(self) -> bytes | None:
        """The key of the tags of masks, made at the first call. None: the process's own.

        None without a directory, and on a disk that cannot be written.
        """
        if self.path is None:
            return None
        file = self.path / KEY_FILE
        try:
            if file.is_file() and len(key := file.read_bytes()) == KEY_BYTES:
                return key
            key = bytes.fromhex(fresh_hex(KEY_BYTES))
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(handle, "wb") as opened:
                opened.write(key)
        except OSError:
            return None
        return key

    def connect(self, *, read_only: bool = False) -> Connection:
        """A new connection. Blocking: call it through :meth:`run`. Raises ``StorageError``."""
        try:
            if self._lend is not None:
                return self._lend(self._open, self._configure)
            connection = self._open(Connection, read_only)
            try:
                self._configure(connection, read_only)
            except BaseException:
                connection.close()
                raise
        except apsw.Error as error:
            raise storage_error(error, self.name) from error
        return connection

    def _open(self, kind: type[Connection], read_only: bool = False) -> Connection:
        mode = apsw.SQLITE_OPEN_READONLY if read_only else WRITE
        connection = kind(self._filename, mode | self._flags, self._vfs)
        for name, (function, places) in FUNCTIONS.items():
            connection.create_scalar_function(name, function, places, deterministic=True)  # pyright: ignore
        return connection

    def _configure(self, connection: Connection, read_only: bool = False) -> None:
        connection.set_busy_timeout(int(BUSY_TIMEOUT * 1000))
        if connection.run("PRAGMA foreign_keys") == (
            (0,),
        ):  # to set it again expires all statements
            connection.run("PRAGMA foreign_keys = ON")
        if not read_only and (self.path is not None or self._vfs is not None):
            if connection.run("PRAGMA page_count") == ((0,),):
                # On a simulated disk. Told again, SQLite would write to it at each opening.
                connection.run("PRAGMA auto_vacuum = INCREMENTAL")
            connection.run("PRAGMA journal_mode = WAL")
            connection.run("PRAGMA synchronous = FULL")
            # A log that grew while a reader was stuck would keep its size.
            connection.run(f"PRAGMA journal_size_limit = {LOG_LIMIT}")
            # Else a text that was deleted would stay in the free parts of pages.
            connection.run("PRAGMA secure_delete = ON")

    def files(self) -> tuple[str, ...]:
        """The files of a database in a directory, while it is open."""
        return () if self.path is None else tuple(self._filename + end for end in FILES)

    def sizes(self) -> tuple[int, int]:
        """Bytes of the database and of its write-ahead log; 0 for what is in memory or gone."""
        database, log, *_ = *self.files(), "", ""
        return _size(database), _size(log)

    async def run(self, job: Callable[[], T], interrupt: Callable[[], None] | None = None) -> T:
        """Run blocking work on this database; for a directory in a thread (see ``in_thread``)."""
        return await (inline if self.path is None else in_thread)(job, interrupt)

    def jobs(self) -> Jobs:
        """A runner of all blocking work of one connection; for a directory a thread."""
        return InlineJobs() if self.path is None else JobThread("motet writer")

    def close(self) -> None:
        """Release the lock. Close the connections first. Closing again does nothing."""
        release, self._release = self._release, _nothing
        release()

    def __enter__(self) -> Location:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _nothing() -> None:
    """Nothing is left to release."""


def _locked(root: Path) -> tuple[Callable[[], None], int]:
    """Lock the directory: how to release it, and the turn of this process.

    The file has the process in 32 digits, then its turn. It may be deleted, so that the directory
    itself is locked too. Child programs inherit neither.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as held:
            for path, flags in ((root, os.O_RDONLY), (root / LOCK_FILE, os.O_RDWR | os.O_CREAT)):
                held.callback(os.close, descriptor := os.open(path, flags, 0o600))
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:  # some file systems lock files only
                    if path != root or isinstance(error, BlockingIOError):
                        raise
            last = os.pread(descriptor, 32, 32)
            turn = (int(last) + 1 if last.isdigit() else int(fresh_hex(1), 16)) % TURNS
            os.pwrite(descriptor, f"{os.getpid():032}{turn:03}".encode(), 0)
            os.truncate(descriptor, 35)
            _lock_database(Path(os.path.realpath(root / DATABASE_FILE)), held)
            return held.pop_all().close, turn
    except OSError as error:
        in_use = isinstance(error, BlockingIOError)
        raise (StateInUse(root, _pid(root)) if in_use else _unusable(root, error)) from error


_locked_here = set[tuple[int, int]]()
"""Devices and inodes of databases that this process has locked. Closing another descriptor of such
a file would release the locks of SQLite."""


def _lock_database(file: Path, held: ExitStack) -> None:
    """Lock the database itself, made if it is missing: a directory may be made anew around it.

    A new one is renamed into its place, so that an empty file was not left by a start that was cut
    off. SQLite would take it for a new database, and delete a log beside it.
    """
    if not file.exists():
        _make(file)
    found = os.stat(file)
    if not found.st_size:
        raise StorageError(
            f"the database {file} is an empty file: what was in it is gone. Restore a backup, "
            "or delete the file to start afresh"
        )
    if (key := (found.st_dev, found.st_ino)) in _locked_here:
        raise BlockingIOError
    held.callback(os.close, descriptor := os.open(file, os.O_RDONLY))
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _locked_here.add(key)
    held.callback(_locked_here.discard, key)


def _make(file: Path) -> None:
    with closing(Connection(":memory:")) as made:
        # An old database is changed by a vacuum (see the writer).
        made.run("PRAGMA auto_vacuum = INCREMENTAL; CREATE TABLE t (x); DROP TABLE t; VACUUM")
        image = made.serialize("main")
    new = file.with_name(f"{file.name}.new")
    with new.open("wb") as opened:
        opened.write(image)
        opened.flush()
        os.fsync(opened.fileno())
    new.rename(file)


def _pid(root: Path) -> int | None:
    """The process in the lock file; None if it has not written it yet, or the file is deleted."""
    text = file.read_bytes()[:32] if (file := root / LOCK_FILE).is_file() else b""
    return int(text) if text.isdigit() else None


def _unusable(root: Path, error: OSError) -> StorageError:
    return StorageError(
        f"the state directory {root} cannot be used ({error.strerror}): "
        "choose one that you may write, on a local disk"
    )
