"""The last lines of the library's log, held for whoever looks after a host from afar.

Invariants: at most ``room`` lines are held; what was redacted for the log is redacted here; a
record that cannot be kept disturbs nobody.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from typing import Final

from motet.actors.errors.redact import redact_text
from motet.actors.log import STANDARD_FIELDS
from motet.protocols.chat import JsonObject
from motet.protocols.host_records import LogLine

ROOM: Final = 1_000
_TEXT: Final = 2_000
_NAME: Final = "motet"


class LogTail(logging.Handler):
    """A handler of the logger ``motet`` between :meth:`attach` and :meth:`detach`.

    All hosts of one process log to that logger, so each tail has the lines of all of them.
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
    """Numbers as they are, all else as a short text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact_text(str(value))[:_TEXT]
