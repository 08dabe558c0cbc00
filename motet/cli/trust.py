"""Consent to the configuration of a folder, as direnv and editors ask for it.

A ``motet.toml`` can import, start and send anything, and comes with whatever one downloads or
clones. So nothing of one is used before the person at the terminal, or ``motet trust``, has agreed
to its powers (:mod:`motet.protocols.config_powers`). A file without powers needs no consent.

A consent is to a folder and to the powers that its file had then. A changed file asks again if it
has a power more. It is no consent to the code of the folder as it was: a module, hook or server
there may change, as those of any program that one starts.

Invariants: a consent counts for the folder in which links end, and only from a file in the state of
this user that nobody else can write.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
import termios
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import attrs
import msgspec

from motet.actors.hosting.config import CONFIG_FILE, read_data
from motet.announced import private_folder
from motet.cli.exits import OK
from motet.cli.render import in_json
from motet.protocols.config_powers import Power, powers_of, printable, shown
from motet.protocols.errors import ConfigError

VARIABLE = "MOTET_TRUST"
"""``1``: every configuration is trusted; else folders with ``:`` between them, which are."""

FOLDER = "trusted"
"""Folder of the consents, a file for each."""

PATH = 4_096
"""Characters of a path that are shown."""

LARGEST = 4 << 20
"""Bytes of a configuration, and of a text that it takes from its folder."""


class Untrusted(ConfigError):
    """A configuration that nobody has agreed to. Nothing of it was used."""


class Consent(msgspec.Struct, frozen=True):
    """A stored consent: ``powers`` are their identities, ``at`` is a time of the wall clock."""

    folder: str
    powers: tuple[str, ...]
    at: float


class Trusted(msgspec.Struct, frozen=True):
    """A trusted folder, as ``--json`` prints it."""

    folder: str
    at: float
    powers: int


@attrs.frozen
class Place:
    """The folder of a configuration, links followed."""

    root: Path

    @classmethod
    def of(cls, file: Path) -> Place:
        return cls(Path(os.path.realpath(file.parent)))

    def inside(self, path: str) -> bool:
        if "${" in path or path.startswith(("~", "file:")) or "\0" in path:
            return False
        return Path(os.path.realpath(self.root / path)).is_relative_to(self.root)

    def resolved(self, path: str) -> str:
        if "${" in path or path.startswith("file:") or "\0" in path:
            return path
        return os.path.realpath(self.root / os.path.expanduser(path))

    def text(self, path: str) -> str | None:
        if not self.inside(path) or _problem(self.root / path):
            return None
        try:
            return (self.root / path).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def has_module(self, name: str) -> bool:
        first = name.partition(".")[0]
        entries = [self.root / first, self.root / f"{first}.py"]
        return first.isidentifier() and any(entry.exists() for entry in entries)


def _problem(file: Path) -> str:
    """Why a file is not to be read: a pipe or a device would never end."""
    try:
        found = file.stat()
    except OSError:
        return ""  # its reader says what is wrong
    if not stat.S_ISREG(found.st_mode):
        return f"{file} is not a regular file"
    return f"{file} has more than {LARGEST:,} bytes" if found.st_size > LARGEST else ""


def powers_in(file: Path) -> tuple[Power, ...]:
    """The powers of a configuration file. Raises ``ConfigError`` if it cannot be read."""
    if problem := _problem(file):
        raise ConfigError(problem)
    try:
        return powers_of(read_data(file), Place.of(file))
    except RecursionError:
        raise ConfigError(f"{file} is nested too deeply") from None


# Consents


def _file_of(root: Path, home: Path) -> Path:
    return home / FOLDER / f"{sha256(os.fsencode(root)).hexdigest()}.json"


def _stored(file: Path) -> Consent | None:
    """A stored consent, unless somebody else could have written it."""
    try:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                return None
            return msgspec.json.decode(opened.read(), type=Consent)
    except (OSError, msgspec.DecodeError):
        return None


def _missing(file: Path, home: Path) -> tuple[Power, ...]:
    """The powers of the file that nobody has agreed to."""
    powers = powers_in(file)
    root = Place.of(file).root
    if not powers or _by_environment(root):
        return ()
    consent = _stored(_file_of(root, home))
    if consent is None or consent.folder != str(root):
        return powers
    return tuple(one for one in powers if one.identity not in consent.powers)


def _by_environment(root: Path) -> bool:
    said = os.environ.get(VARIABLE, "")
    if said == "1":
        return True
    return str(root) in [os.path.realpath(one) for one in said.split(":") if one.startswith("/")]


def consent(file: Path, home: Path) -> tuple[Power, ...]:
    """Store the consent to all powers that the file has now, and return them.

    ``home``: the state directory of this user. Raises ``OSError``.
    """
    powers, root = powers_in(file), Place.of(file).root
    stored = _file_of(root, home)
    private_folder(stored.parent)
    before = _stored(stored)  # of another file of the folder, or of this one as it was
    known = set(before.powers if before is not None and before.folder == str(root) else ())
    known.update(one.identity for one in powers)
    told = Consent(str(root), tuple(sorted(known)), time.time())
    new = stored.with_suffix(f".{os.getpid()}")
    with suppress(FileNotFoundError):
        new.unlink()
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as out:
        out.write(msgspec.json.encode(told))
    new.replace(stored)
    return powers


# The door


def check_trust(file: Path, home: Path) -> None:
    """Raise ``Untrusted`` if the file has a power that nobody has agreed to."""
    if missing := _missing(file, home):
        raise Untrusted(
            f"{_introduced(file, missing)}\n"
            f"Nothing of it was used. Read it, and if you trust it:  {_order(file)}"
        )


def ask_trust(file: Path, home: Path) -> None:
    """As :func:`check_trust`, but at a terminal the person there is asked first."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        check_trust(file, home)
    while missing := _missing(file, home):
        _forget_typed()
        print(f"{_introduced(file, missing)}\nDo you trust it? [y/N] ", end="", file=sys.stderr)
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise Untrusted(f"nothing of it was used; to trust it later:  {_order(file)}")
        if _missing(file, home) == missing:  # else it changed meanwhile: ask again
            consent(file, home)


def _forget_typed() -> None:
    """What was typed or pasted before the question was seen is no answer to it."""
    with suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _introduced(file: Path, missing: tuple[Power, ...]) -> str:
    where = printable(str(file.absolute()), PATH)
    return f"{where} is not trusted yet. It would\n{shown(missing)}"


def _order(file: Path) -> str:
    """The command that trusts the file, for a shell."""
    root = Place.of(file).root
    target = str(root if file.name == CONFIG_FILE else root / file.name)
    quoted = shlex.quote(target) if target.isprintable() else f"$'{_escaped(target)}'"
    return f"motet trust {quoted}"


def _escaped(text: str) -> str:
    """The text for ``$'...'`` of a shell."""
    return "".join(
        c if c.isprintable() and c not in "'\\" else "".join(f"\\x{b:02x}" for b in os.fsencode(c))
        for c in text
    )


# The command


def trust(target: Path, home: Path) -> int:
    """Trust a configuration: ``target`` is its file, or the folder of its ``motet.toml``."""
    file = target / CONFIG_FILE if target.is_dir() else target
    if not file.is_file():
        raise ConfigError(f"there is no configuration {printable(str(file), PATH)}")
    powers = consent(file, home)
    where = printable(str(Place.of(file).root), PATH)
    if powers:
        print(f"{where} is trusted. {file.name} may\n{shown(powers)}")
    else:
        print(f"{where} needs no trust: {file.name} has nothing that could do harm")
    return OK


def revoke(target: Path, home: Path) -> int:
    """Take the consent to a folder back. Running servers keep what they have."""
    root = Path(os.path.realpath(target if not target.is_file() else target.parent))
    try:
        _file_of(root, home).unlink()
    except FileNotFoundError:
        raise ConfigError(f"{printable(str(root), PATH)} was not trusted") from None
    print(f"{printable(str(root), PATH)} is not trusted any more")
    return OK


def show_trusted(home: Path, *, json: bool) -> int:
    """Print the folders that are trusted."""
    found = [_stored(file) for file in sorted((home / FOLDER).glob("*.json"))]
    consents = sorted((one for one in found if one is not None), key=lambda one: one.folder)
    if json:
        print(in_json([Trusted(one.folder, one.at, len(one.powers)) for one in consents]))
        return OK
    for one in consents:
        day = time.strftime("%Y-%m-%d", time.localtime(one.at))
        print(f"{day}  {len(one.powers):3} powers  {printable(one.folder, PATH)}")
    if not consents:
        print("no folder is trusted", file=sys.stderr)
    return OK
