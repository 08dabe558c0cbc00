"""Structured logs of the library, passed to the standard library's ``logging``.

The embedding program configures logging; motet configures nothing and prints nothing. Log records
are redacted (:func:`redact_logs`): errors often quote the values on which they failed.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from typing import Final, cast

from motet.protocols.chat import JsonObject
from motet.protocols.host_records import LogLine
from motet.protocols.redaction.redact import redact, redact_text
from motet.runtime.exceptions import traceback_parts
from motet.runtime.outside import foreign_code

STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({})))
"""The fields of every record; all others came with the call."""
_TAKEN = STANDARD_FIELDS | {"message", "asctime"}
_CALLER = 3  # frames from the standard library to the caller


class Logger:
    """A logger of the standard library whose keyword arguments arrive as ``extra`` of the record.

    A field with the name of a standard field gets a trailing underscore.
    """

    def __init__(self, name: str) -> None:
        self._standard = logging.getLogger(name)
        self._standard.addFilter(_redacting)

    def info(self, event: str, /, **fields: object) -> None:
        self._log(logging.INFO, event, None, fields)

    def warning(
        self, event: str, /, *, exc_info: BaseException | None = None, **fields: object
    ) -> None:
        self._log(logging.WARNING, event, exc_info, fields)

    def error(
        self, event: str, /, *, exc_info: BaseException | None = None, **fields: object
    ) -> None:
        self._log(logging.ERROR, event, exc_info, fields)

    def _log(
        self, level: int, event: str, error: BaseException | None, fields: dict[str, object]
    ) -> None:
        if self._standard.isEnabledFor(level):
            extra = {f"{key}_" if key in _TAKEN else key: value for key, value in fields.items()}
            with foreign_code:  # handlers of the program, and the text of the error
                self._standard.log(level, event, exc_info=error, extra=extra, stacklevel=_CALLER)


def logger(name: str) -> Logger:
    """The logger of a part of the library."""
    return Logger(name)


def redact_logs() -> None:
    """Redact the records of every logger of the library that exists so far."""
    for name in list(logging.root.manager.loggerDict):
        if name == "motet" or name.startswith("motet."):
            logging.getLogger(name).addFilter(_redacting)


class Redacted(Exception):
    """In a log, the replacement of an exception whose text, causes or traceback held secrets."""


def _redacting(record: logging.LogRecord) -> bool:
    """A filter that redacts every record and passes it on."""
    message = record.getMessage()
    clean = redact_text(message)
    if clean != message:
        record.msg, record.args = clean, None
    for name, value in vars(record).items():
        if name not in STANDARD_FIELDS and isinstance(value, str | dict | list):
            setattr(record, name, redact(cast("object", value)))
    if record.exc_info and record.exc_info[1] is not None:
        parts, is_whole = traceback_parts(record.exc_info[1])
        shown = "".join(parts)
        if (clean := redact_text(shown)) != shown or not is_whole:
            record.exc_info = (Redacted, Redacted(clean), None)
    return True


ROOM: Final = 1_000
_TEXT: Final = 2_000
_NAME: Final = "motet"


class LogTail(logging.Handler):
    """The last ``room`` lines of the log, for remote operators of a host; redacted as the log.

    A handler of the logger ``motet`` between :meth:`attach` and :meth:`detach`. All hosts of one
    process log to that logger, so each tail has the lines of all of them. A failure to keep a
    record disturbs nothing else.
    """

    def __init__(self, room: int = ROOM) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[LogLine] = deque(maxlen=room)
        self._numbers = itertools.count(1)

    def attach(self) -> None:
        logging.getLogger(_NAME).addHandler(self)

    def detach(self) -> None:
        logging.getLogger(_NAME).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self._line(record))
        except Exception:
            self.handleError(record)

    def lines(self, limit: int) -> tuple[LogLine, ...]:
        """The newest ``limit`` lines, oldest first."""
        return tuple(self._lines)[-limit:] if limit > 0 else ()

    def _line(self, record: logging.LogRecord) -> LogLine:
        fields: JsonObject = {
            name: _plain(value)
            for name, value in vars(record).items()
            if name not in STANDARD_FIELDS
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = redact_text(repr(record.exc_info[1]))[:_TEXT]
        return LogLine(
            number=next(self._numbers),
            ts=record.created,
            level=record.levelname.lower(),
            logger=record.name,
            message=redact_text(record.getMessage())[:_TEXT],
            fields=fields,
        )


def _plain(value: object) -> object:
    """Numbers as they are, other values as a short text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact_text(str(value))[:_TEXT]
