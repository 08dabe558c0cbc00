"""Logs on standard error: for people at a terminal, JSON lines otherwise."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager

import structlog
from structlog.typing import EventDict, Processor

from motet.protocols.config import LogConfig


def log_as(config: LogConfig) -> None:
    """Log to standard error as it is configured; also again, after a reload."""
    terminal = sys.stderr.isatty() if config.format == "auto" else config.format == "text"
    log_to_stderr(logging.getLevelNamesMapping()[config.level.upper()], terminal=terminal)


def log_to_stderr(level: int, *, terminal: bool | None = None) -> None:
    """Send the logs of motet, through structlog or the standard library, to standard error.

    ``terminal``: for people; None: as standard error is.
    """
    for_people = sys.stderr.isatty() if terminal is None else terminal
    shared: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *_renderers(terminal=for_people),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=level, force=True)


@contextmanager
def silenced(name: str) -> Generator[None]:
    """Silence a logger and all below it, in a block that reports its errors in another way."""
    logger = logging.getLogger(name)
    before = logger.propagate, logger.handlers
    logger.propagate, logger.handlers = False, [logging.NullHandler()]
    try:
        yield
    finally:
        logger.propagate, logger.handlers = before


def starting() -> AbstractContextManager[None]:
    """Silence the kernel while a host starts: the command reports an actor that fails."""
    return silenced("motet.runtime")


def _renderers(*, terminal: bool) -> list[Processor]:
    """Tracebacks never show the values of variables: these may be secrets."""
    if terminal:
        tracebacks = [] if os.environ.get("MOTET_DEBUG") else [_without_traceback]
        plain = structlog.dev.plain_traceback
        return [*tracebacks, structlog.dev.ConsoleRenderer(exception_formatter=plain)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _without_traceback(_: object, __: str, event: EventDict) -> EventDict:
    event.pop("exc_info", None)
    return event
