"""Logs of the library: structured, and handed to the standard library's ``logging``.

The embedding program decides what becomes of them; motet configures nothing and prints nothing.
What is logged has no secrets in it (:func:`redact_logs`): errors often quote what they failed on.
"""

from __future__ import annotations

import logging
import traceback
from typing import cast

import structlog
from structlog.typing import EventDict

from motet.actors.errors.redact import redact, redact_text

STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({})))
"""What every record has; the rest was given with it."""
_ARGUMENTS = frozenset({"exc_info", "stack_info"})
"""Those of them that a caller gives all the same."""


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose keyword arguments arrive as ``extra`` of the record."""
    standard = logging.getLogger(name)
    standard.addFilter(_redacting)
    bound = structlog.wrap_logger(
        standard,
        processors=[
            structlog.stdlib.filter_by_level,
            _renamed,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return cast("structlog.stdlib.BoundLogger", bound)  # wrap_logger is annotated with Any


def _renamed(_logger: object, _method: str, event: EventDict) -> EventDict:
    """A field with the name of one that every record has gets an underscore behind it."""
    taken = STANDARD_FIELDS - _ARGUMENTS
    return {f"{key}_" if key in taken else key: value for key, value in event.items()}


def redact_logs() -> None:
    """Have every logger of the library leave out secrets; those of modules loaded so far."""
    for name in list(logging.root.manager.loggerDict):
        if name == "motet" or name.startswith("motet."):
            logging.getLogger(name).addFilter(_redacting)


class Redacted(Exception):
    """Stands in a log for an exception whose text, causes or traceback held secrets."""


def _redacting(record: logging.LogRecord) -> bool:
    """A filter that lets every record pass, without its secrets."""
    message = record.getMessage()
    clean = redact_text(message)
    if clean != message:
        record.msg, record.args = clean, None
    for name, value in vars(record).items():
        if name not in STANDARD_FIELDS and isinstance(value, str | dict | list):
            setattr(record, name, redact(cast("object", value)))
    if record.exc_info and record.exc_info[1] is not None:
        shown = "".join(traceback.format_exception(*record.exc_info))
        if (clean := redact_text(shown)) != shown:
            record.exc_info = (Redacted, Redacted(clean), None)
    return True
