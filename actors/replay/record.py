"""A run as one JSON file: what came before it, what was said to it, by its model and by its tools.

Secrets and personal data are taken out before anything is written, so that a record may be put
under version control; it is played as it was written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs
import msgspec

from motet.actors.errors.redact import redact
from motet.actors.replay.journal import RunJournal
from motet.protocols.chat import ChatMessage
from motet.protocols.errors import ConfigError
from motet.protocols.events import AnyEvent
from motet.protocols.sessions import RunInfo
from motet.protocols.version import __version__

VERSION: Final = 1


class RunRecord(msgspec.Struct, frozen=True, tag="run", tag_field="case"):
    """What the file holds: the fields of :class:`RunJournal`, and who wrote it."""

    version: int
    motet: str
    info: RunInfo
    before: tuple[ChatMessage, ...]
    rows: tuple[ChatMessage, ...]
    events: tuple[AnyEvent, ...]


def encoded(journal: RunJournal) -> bytes:
    """The file of a run, on lines that a person reads."""
    fields = attrs.asdict(journal, recurse=False)
    record = RunRecord(VERSION, __version__, **fields)
    plain: object = msgspec.json.decode(msgspec.json.encode(record))
    return msgspec.json.format(msgspec.json.encode(redact(plain)), indent=1) + b"\n"


def read_record(file: str | Path) -> RunJournal:
    """The run in a file. Raises ``ConfigError`` for one that is none, or of another version."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"the record {file} cannot be read: {error.strerror}") from error
    return decoded(data, str(file))


def decoded(data: bytes, file: str) -> RunJournal:
    """As :func:`read_record`, from bytes; ``file`` is what errors call them."""
    try:
        record = msgspec.json.decode(data, type=RunRecord)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{file} is no record of a run: {error}; `motet record RUN > {file}` writes one"
        ) from None
    if record.version != VERSION:
        raise ConfigError(
            f"{file} is a record of version {record.version}, this motet reads {VERSION}: "
            "record the run anew"
        )
    if not record.rows:
        raise ConfigError(f"{file} has no rows: a run that never began cannot be played")
    return RunJournal(record.info, record.before, record.rows, record.events)
