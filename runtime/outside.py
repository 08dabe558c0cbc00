"""The outside world: the time of day, the machine's clock, and fresh ids.

All code in ``runtime`` and ``actors`` gets these from here and not from the operating system, so
that a simulation can derive them from its seed (G12). Random numbers come from the module
``random``, which a simulation seeds. Secrets do not come from here, since a seeded token could be
guessed.

Invariant: a replacement is valid for the whole process, and only while a simulation runs, of which
there is one at a time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import attrs

__all__ = ["Outside", "fresh_hex", "monotonic", "replaced", "wall_time"]


@attrs.frozen
class Outside:
    """The sources; the defaults are the real ones."""

    wall_time: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    fresh_hex: Callable[[int], str] = secrets.token_hex


_now = Outside()


def wall_time() -> float:
    """Seconds since 1970, as ``time.time``."""
    return _now.wall_time()


def monotonic() -> float:
    """Seconds of a clock that never goes back, as ``time.monotonic``."""
    return _now.monotonic()


def fresh_hex(nbytes: int) -> str:
    """Random bytes in hexadecimal, for unique ids."""
    return _now.fresh_hex(nbytes)


@contextmanager
def replaced(outside: Outside) -> Generator[None]:
    """Use the sources of ``outside`` in the block."""
    global _now
    before, _now = _now, outside
    try:
        yield
    finally:
        _now = before
