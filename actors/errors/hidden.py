"""The exact secrets of this process: values that its hosts were configured with.

They belong to the process and not to a host, as its logs do: what one host must not show,
another must not either. Invariant: a value is hidden as long as one host that has it is open.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from motet.actors.errors.scan import NO_WORD_BEFORE

SHORTEST = 8
"""Shorter values are words: taking them out would only make errors unreadable."""
_ANYWHERE = 16

_values: Counter[str] = Counter()
_pattern: re.Pattern[str] | None = None


@contextmanager
def hiding(values: Iterable[str | None]) -> Generator[None]:
    """Redaction takes these values out, wherever they stand, until the block is left."""
    kept = [value for value in values if value and len(value) >= SHORTEST]
    _change(kept, 1)
    try:
        yield
    finally:
        _change(kept, -1)


def hidden_values() -> re.Pattern[str] | None:
    """What matches them; None when there are none."""
    return _pattern


def _change(values: list[str], by: int) -> None:
    global _pattern
    for value in values:
        _values[value] += by
    longest_first = sorted((v for v, n in _values.items() if n > 0), key=len, reverse=True)
    shapes = "|".join(_shape(value) for value in longest_first)
    _pattern = re.compile(shapes) if shapes else None


def _shape(value: str) -> str:
    """Long ones with digits are no word's part by chance; others have to stand alone."""
    shape = re.escape(value)
    if len(value) >= _ANYWHERE and any(letter.isdigit() for letter in value):
        return shape
    return rf"{NO_WORD_BEFORE}{shape}(?![0-9A-Za-z_])"
