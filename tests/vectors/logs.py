"""Logs of the library while a case runs: kept for the case, and not printed."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.levels: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.levels.append(record.levelname.lower())


@contextmanager
def kept_logs() -> Generator[list[str]]:
    """The levels of the records that are logged within the block, in their order."""
    logger, handler = logging.getLogger("motet"), _Kept()
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler.levels
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
