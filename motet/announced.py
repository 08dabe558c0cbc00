"""Servers of this user on this machine: how commands and clients find one, and its token.

``motet serve`` keeps a token in its state directory, and leaves its address beside it while it
runs; in the default state directory a file for each address names that state. All of them are
readable for their owner only, and out of the reach of tools.

Invariant: a token is sent only to a server that runs. Once it has ended, another user's program may
listen on its port.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from motet.actors.storage.location import LOCK_FILE
from motet.actors.storage.tokens import new_token
from motet.protocols.errors import ConfigError
from motet.protocols.storage import StorageError

if TYPE_CHECKING:
    import ssl

FILE = "server.json"
TOKEN_FILE = "token"
FOLDER = "servers"
_TOKEN = re.compile(r"mtt_[0-9a-f]{32}")


class Running(msgspec.Struct, frozen=True):
    """A server. ``certificate``: file of its own, if it speaks TLS."""

    url: str
    token: str
    process: int
    certificate: str | None = None

    def tls(self) -> ssl.SSLContext | None:
        """The certificate itself is pinned, whatever its host name."""
        if self.certificate is None:
            return None
        import ssl  # seldom needed, and slow to load

        context = ssl.create_default_context(cafile=self.certificate)
        context.check_hostname = False
        return context


class _Pointer(msgspec.Struct, frozen=True):
    """Where the server of an address has its state."""

    state: str


def default_state() -> Path:
    """The default state directory: outside any workspace, where no tool can reach it."""
    base = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(base, "motet")


def private_folder(folder: Path) -> None:
    """Make a folder of the default state, and that: nobody else may look into them.

    ``mkdir`` gives the mode to the last folder only. Raises ``OSError``.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


# The side of the server


def kept_token(state: Path) -> str:
    """The token of the person at this machine, made at the first start.

    It stays, so that pages and clients go on after a restart; a new one is made when its file was
    deleted. Raises ``ConfigError`` for a file that others may read or write, or with other words.
    """
    file = state / TOKEN_FILE
    try:
        found = _private(file)
    except FileNotFoundError:
        made = new_token()
        _write(file, made.encode() + b"\n")
        return made
    token = "" if found is None else found.decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"{file} must have a token and be readable for its owner only: delete it, and the next "
            "start makes a new one"
        )
    return token


@contextmanager
def announced(state: Path, url: str, token: str, certificate: str | None) -> Generator[None]:
    """Let commands and clients find the server for the length of the block."""
    told = Running(url, token, os.getpid(), certificate)
    with ExitStack() as files:
        files.enter_context(_left(state / FILE, msgspec.json.encode(told)))
        pointer = _pointer(url)
        with suppress(OSError):  # a home that cannot be written: commands find it by its state
            private_folder(pointer.parent)
            text = msgspec.json.encode(_Pointer(str(state.absolute())))
            files.enter_context(_left(pointer, text))
        yield


def _pointer(url: str) -> Path:
    parts = urlsplit(url)
    host = (parts.hostname or "").replace(":", "_")
    return default_state() / FOLDER / f"{host}-{parts.port}.json"


@contextmanager
def _left(file: Path, content: bytes) -> Generator[None]:
    """A private file for the length of the block."""
    _write(file, content)
    try:
        yield
    finally:
        with suppress(OSError):
            if file.read_bytes() == content:  # else it is a later server's
                file.unlink()


def _write(file: Path, content: bytes) -> None:
    """Write a private file in one step, so that a reader never finds half of it."""
    new = file.with_name(f"{file.name}.new")
    with suppress(FileNotFoundError):
        new.unlink()
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as out:
        out.write(content)
    new.replace(file)


# The side of commands and clients


def running(state: Path) -> Running | None:
    """The server that serves from a state directory now. A file left by a crash does not count."""
    owner = lock_owner(state)
    if owner is None:
        return None
    try:
        text = _private(state / FILE)
        found = None if text is None else msgspec.json.decode(text, type=Running)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return found if found is not None and found.process == owner else None


def own_server(host: str, port: int) -> Running | None:
    """The server of this user that runs at an address of this machine, if there is one.

    ``localhost`` is 127.0.0.1: on the other of its addresses somebody else may listen.
    """
    host = "127.0.0.1" if host == "localhost" else host
    if not (host == "::1" or host.startswith("127.")):
        return None
    address = f"[{host}]" if ":" in host else host
    try:
        text = _private(_pointer(f"http://{address}:{port}"))
        if text is None:
            return None
        found = running(Path(msgspec.json.decode(text, type=_Pointer).state))
    except (OSError, StorageError, msgspec.DecodeError):
        return None
    if found is None or urlsplit(found.url).netloc != f"{address}:{port}":
        return None
    return found


def _private(file: Path) -> bytes | None:
    """The content of a file that nobody but this user may read or write; None: somebody may.

    Raises ``OSError``.
    """
    with file.open("rb") as opened:
        found = os.fstat(opened.fileno())
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            return None
        return opened.read()


def lock_owner(state: Path) -> int | None:
    """The process of the host that has a state directory open; 0: unknown; None: no host.

    Raises ``StorageError`` when the lock file cannot be read.
    """
    try:
        descriptor = _open_lock(state)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{state / LOCK_FILE} cannot be read: {error.strerror}") from None
    try:
        # A shared lock, held for no longer than this call, is refused while a host holds its own.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return 0
        text = os.pread(descriptor, 32, 0)
        return int(text) if text.isdigit() else 0
    finally:
        os.close(descriptor)
    return None


def _open_lock(state: Path) -> int:
    """The lock file, or the directory, which is locked as well, when that file was deleted."""
    try:
        return os.open(state / LOCK_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return os.open(state, os.O_RDONLY)
