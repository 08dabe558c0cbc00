"""The file of a run, which tests replay.

Its secrets and personal data are taken out before it is written, so that it may be put under
version control.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs
import msgspec

from motet.protocols.chat import ChatMessage
from motet.protocols.errors import ConfigError
from motet.protocols.events import AnyEvent
from motet.protocols.redaction.redact import redact
from motet.protocols.run_journal import RunJournal
from motet.protocols.sessions import RunInfo
from motet.protocols.version import __version__

VERSION: Final = 1


class RunRecord(msgspec.Struct, frozen=True, tag="run", tag_field="case"):
    """The content of the file: the fields of :class:`RunJournal`, and the version that wrote it."""

    version: int
    motet: str
    info: RunInfo
    before: tuple[ChatMessage, ...]
    rows: tuple[ChatMessage, ...]
    events: tuple[AnyEvent, ...]


def encode_record(journal: RunJournal) -> bytes:
    """The file of a run, as indented JSON."""
    fields = attrs.asdict(journal, recurse=False)
    record = RunRecord(VERSION, __version__, **fields)
    plain: object = msgspec.json.decode(msgspec.json.encode(record))
    return msgspec.json.format(msgspec.json.encode(redact(plain, tagged=False)), indent=1) + b"\n"


def read_record(file: str | Path) -> RunJournal:
    """The run in a file. Raises ``ConfigError`` if it holds none, or is of another version."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"the record {file} cannot be read: {error.strerror}") from error
    return decode_record(data, str(file))


def decode_record(data: bytes, file: str) -> RunJournal:
    """As :func:`read_record`, from bytes; ``file`` is their name in errors."""
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
