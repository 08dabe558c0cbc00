"""What the runtime takes from outside: the time of day, the clock of the machine, and fresh ids.

Nothing in ``runtime`` and ``actors`` asks the operating system for these by itself, so that a
simulation can give all of them from its seed (G12). Chance is drawn from the module ``random``,
which a simulation seeds. Secrets are not taken from here: nobody may be able to guess a token.

Invariant: what is replaced is replaced for the whole process, and only while a simulation is on,
of which there is one at a time.
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
    """Where all of it comes from; the defaults are the real ones."""

    wall_time: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    fresh_hex: Callable[[int], str] = secrets.token_hex


_now = Outside()


def wall_time() -> float:
    """Seconds since 1970, as ``time.time``."""
    return _now.wall_time()


def monotonic() -> float:
    """Seconds of a clock that is never set back, as ``time.monotonic``."""
    return _now.monotonic()


def fresh_hex(nbytes: int) -> str:
    """So many bytes that nobody has had before, in hexadecimal: for ids."""
    return _now.fresh_hex(nbytes)


@contextmanager
def replaced(outside: Outside) -> Generator[None]:
    """Take all of it from ``outside`` for the time of the block."""
    global _now
    before, _now = _now, outside
    try:
        yield
    finally:
        _now = before
