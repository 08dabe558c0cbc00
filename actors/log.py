"""Logs of the library: structured, and handed to the standard library's ``logging``.

The embedding program decides what becomes of them; motet configures nothing and prints nothing.
"""

from __future__ import annotations

import logging
from typing import cast

import structlog


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose keyword arguments arrive as ``extra`` of the record."""
    bound = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return cast("structlog.stdlib.BoundLogger", bound)  # wrap_logger is annotated with Any
