"""Bootstrap files: the rules for each type of agent, their templates, and the files on disk.

The rules are pure. The functions on disk block, for a worker thread. Invariants: a user was given
their files if the record beside them says so, and the record is written last, so that a seeding
that broke off is tried again; an existing file is never overwritten; no link is followed out of the
folder.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec
import trio

from motet.actors.agents.prompt import ContextFile
from motet.actors.tools.builtin.paths import Parts, give, open_file, open_folder, owner_of
from motet.protocols.agents import AgentProfile, AgentType, PromptMode, Team
from motet.protocols.tools import ToolFailure
from motet.runtime.outside import fresh_hex
from motet.runtime.sandbox import Owner

Home: TypeAlias = Literal["agent", "user"]
"""``agent``: the agent's own folder, for all users; ``user``: the folder of one user."""

ORDER = (
    "SOUL.md",
    "IDENTITY.md",
    "AGENTS.md",
    "TOOLS.md",
    "BOOTSTRAP.md",
    "USER_PREDEFINED.md",
    "USER.md",
    "MEMORY.md",
    "DELEGATION.md",
    "TEAM.md",
    "AVAILABILITY.md",
)
"""All bootstrap files, by priority: the first ones get the room in a prompt."""

BOOTSTRAP = "BOOTSTRAP.md"
_TEMPLATES = Path(__file__).parent / "templates"
BOOTSTRAP_TURNS = 3
"""Turns of a user that make up the first conversation."""

_OF_USER: Mapping[AgentType, frozenset[str]] = MappingProxyType(
    {
        "plain": frozenset(),
        "open": frozenset(
            {"AGENTS.md", "SOUL.md", "IDENTITY.md", "USER.md", BOOTSTRAP, "MEMORY.md"}
        ),
        "predefined": frozenset({"USER.md", BOOTSTRAP, "MEMORY.md"}),
    }
)
_ABSENT: Mapping[AgentType, frozenset[str]] = MappingProxyType(
    {
        # They are about a user, whom a plain agent does not know.
        "plain": frozenset({BOOTSTRAP, "USER_PREDEFINED.md"}),
        "open": frozenset({"USER_PREDEFINED.md"}),
        "predefined": frozenset(),
    }
)
SEEDED: Mapping[AgentType, tuple[str, ...]] = MappingProxyType(
    {
        "plain": (),
        "open": ("AGENTS.md", "SOUL.md", "IDENTITY.md", "USER.md", BOOTSTRAP),
        "predefined": ("USER.md", BOOTSTRAP),
    }
)
"""The files that a user is given at the first turn."""
MINIMAL = ("AGENTS.md", "TOOLS.md")


class Wanted(msgspec.Struct, frozen=True):
    """A file to read, if it is there."""

    name: str
    home: Home


def wanted(profile: AgentProfile, mode: PromptMode) -> tuple[Wanted, ...]:
    """The files of a prompt, in order; none for an agent without files."""
    if profile.files is None and not profile.seeds:
        return ()
    kind = profile.acts_as
    names = MINIMAL if mode == "minimal" else ORDER
    found = [
        Wanted(name, "user" if name in _OF_USER[kind] else "agent")
        for name in names
        if name not in _ABSENT[kind]
    ]
    return tuple(file for file in found if file.home == "user" or profile.files is not None)


def with_team(
    files: tuple[ContextFile, ...], profile: AgentProfile, mode: PromptMode
) -> tuple[ContextFile, ...]:
    """The files with the one about the agent's team, which is made here if there is none on disk.

    Exactly one of TEAM.md and AVAILABILITY.md stays; a plain agent without a team gets neither.
    """
    if mode == "minimal":
        return files
    team, name = profile.team, "TEAM.md" if profile.team else "AVAILABILITY.md"
    other = "AVAILABILITY.md" if team else "TEAM.md"
    files = tuple(file for file in files if file.name != other)
    if any(file.name == name for file in files):
        return files
    if team is not None:
        return (*files, ContextFile(name, team_text(team)))
    return (*files, ContextFile(name, _ALONE)) if files and profile.type != "plain" else files


_ALONE = "You work alone: there is no team, and no task board. Do what is asked yourself."


def team_text(team: Team) -> str:
    """TEAM.md: the members, and the duties of a lead and of a member."""
    duty = (
        "You lead it: cut work into tasks, give each to the member it suits, look at what comes "
        "back, and answer for the whole."
        if team.role == "lead"
        else "You are a member: do the tasks you are given, and report what you did and found."
    )
    who = [f"- {m.name}: {m.description}" if m.description else f"- {m.name}" for m in team.members]
    return "\n".join([f"# Team {team.name}", duty, *(["Its other members:"] if who else []), *who])


def in_first_conversation(turns: int) -> bool:
    """Whether a user with so many turns is still in the first conversation."""
    return turns < BOOTSTRAP_TURNS


@cache
def template(name: str, kind: AgentType) -> str:
    """The built-in template of a user's file, for an agent without one of its own. Blocks."""
    # Not by the file's own name: programs that edit this code read an AGENTS.md wherever it is.
    own = name.removesuffix(".md")
    file = f"{own}_{kind}.txt" if name == BOOTSTRAP and kind == "predefined" else f"{own}.txt"
    return (_TEMPLATES / file).read_text("utf-8")


# The files on disk

RECORD = ".motet-user.json"
"""The record beside the files of a user."""
LARGEST = 4 << 20
"""Bytes of a file that is read for a prompt."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

Write: TypeAlias = Callable[[int, str, bytes, "Owner | None"], bool]
"""``write(folder, name, data, owner)``: false if there is a file of that name."""


class UserRecord(msgspec.Struct, frozen=True):
    """``seeded``: the files that a user was given; ``turns``: those of the first conversation."""

    seeded: tuple[str, ...] = ()
    turns: int = 0


def make_folder(root: Path, parts: Parts) -> None:
    """Make the folder at ``parts`` below ``root``, if it is missing. Raises ``OSError``."""
    with open_folder(root, parts, make=True, owner=owner_of(root)):
        pass


def create(folder: int, name: str, data: bytes, owner: Owner | None) -> bool:
    """Create a file, whole or not at all; false if there is one of that name."""
    temporary = f".motet-{fresh_hex(8)}.tmp"
    fd = os.open(temporary, _NEW, 0o666, dir_fd=folder)
    try:
        with open(fd, "wb") as file:
            give(fd, owner)
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
    return True


def seed(
    root: Path, parts: Parts, texts: Callable[[], Mapping[str, str]], write: Write = create
) -> tuple[str, ...]:
    """Give a user their files, once; returns the names of the ones written now.

    ``texts`` is called only if there is something to write. Raises ``OSError``; then there is no
    record, and the next call goes on where this one broke off.
    """
    owner = owner_of(root)
    with open_folder(root, parts, make=True, owner=owner) as folder:
        if _record(folder) is not None:
            return ()
        wanted = texts()
        made = [name for name, text in wanted.items() if write(folder, name, _data(text), owner)]
        write(folder, RECORD, msgspec.json.encode(UserRecord(tuple(wanted))), owner)
        os.fsync(folder)
    return tuple(made)


def is_seeded(root: Path, parts: Parts) -> bool:
    """Whether a user was given their files. Raises ``OSError``."""
    try:
        with open_folder(root, parts) as folder:
            return _record(folder) is not None
    except FileNotFoundError:
        return False


def count_turn(root: Path, parts: Parts) -> bool:
    """Count a turn of a user; true if it ended their first conversation.

    Then BOOTSTRAP.md is removed. Raises ``OSError``: the turn is not counted, so that a file that
    could not be removed now is removed after the next turn.
    """
    with open_folder(root, parts) as folder:
        record = _record(folder)
        if record is None or not in_first_conversation(record.turns):
            return False
        turns = record.turns + 1
        over = not in_first_conversation(turns)
        if over:
            with suppress(FileNotFoundError):
                os.unlink(BOOTSTRAP, dir_fd=folder)
        after = msgspec.structs.replace(record, turns=turns)
        _overwrite(folder, RECORD, msgspec.json.encode(after), owner_of(root))
    return over


def user_texts(root: Path, parts: Parts, names: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """The existing files of a user, and the errors of those that cannot be read.

    Links are not followed: a tool could make one to the files of others.
    """
    found: dict[str, str] = {}
    problems: list[str] = []
    try:
        with open_folder(root, parts) as folder:
            for name in names:
                trio.from_thread.check_cancelled()
                try:
                    found[name] = _text(_opened(folder, name), name)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    problems.append(f"{name} of the user: {error.strerror or error}")
    except FileNotFoundError:
        pass  # A user without files has no folder.
    except OSError as error:
        problems.append(f"the folder of the user: {error.strerror or error}")
    return found, problems


def agent_texts(files: Path, names: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """The existing files of an agent, and the errors of those that cannot be read.

    Links may lead inside the same folder, not out of it.
    """
    found: dict[str, str] = {}
    problems: list[str] = []
    for name in names:
        trio.from_thread.check_cancelled()
        try:
            with open_file(files, name) as file:
                found[name] = _text(os.dup(file.fileno()), name)
        except ToolFailure as failure:
            if failure.kind != "not_found":
                problems.append(str(failure))
        except OSError as error:
            problems.append(f"{name} of the agent: {error.strerror or error}")
    return found, problems


def _opened(folder: int, name: str) -> int:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return os.open(name, _OPEN, dir_fd=folder)


def _text(fd: int, name: str) -> str:
    """Read and close a file. Bytes that are not UTF-8 show as U+FFFD."""
    with open(fd, "rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise OSError(errno.EFBIG, f"{name} has more than {LARGEST >> 20} MB")
    return data.decode("utf-8", "replace")


def _record(folder: int) -> UserRecord | None:
    """The record of a user; one that cannot be decoded is removed."""
    try:
        return msgspec.json.decode(_text(_opened(folder, RECORD), RECORD), type=UserRecord)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        os.unlink(RECORD, dir_fd=folder)
        return None


def _overwrite(folder: int, name: str, data: bytes, owner: Owner | None) -> None:
    temporary = f".motet-{fresh_hex(8)}.tmp"
    try:
        create(folder, temporary, data, owner)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)


def _data(text: str) -> bytes:
    return text.encode("utf-8", "replace")
