"""Ids of stored errors: ``err_YYYYMMDD_HHMMSS_<6 hex>`` in UTC, 26 characters.

Ids sort as their times do, at a grain of one second. Source: seed 000, contradictions 1 to 6.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from math import floor

ID_SHAPE = r"err_[0-9]{8}_[0-9]{6}_[0-9a-f]{6}"
ERROR_ID = re.compile(ID_SHAPE)
_IN_TEXT = re.compile(rf"(?<![0-9A-Za-z_]){ID_SHAPE}(?![0-9A-Za-z_])")
ID_LENGTH = 26


def new_id(now: float, hex_source: Callable[[int], str]) -> str:
    """An id for ``now`` (Unix seconds). ``hex_source(3)`` gives its six hex digits."""
    made = f"err_{_second(floor(round(now, 6)))}_{hex_source(3)}"
    assert is_id(made), made
    return made


@lru_cache(maxsize=4)
def _second(now: int) -> str:
    """Errors come in crowds, and writing a time down takes longer than all else here."""
    when = datetime.fromtimestamp(now, UTC)
    return f"{when.year:04}{when:%m%d_%H%M%S}"


def is_id(text: str) -> bool:
    return ERROR_ID.fullmatch(text) is not None


def find_id(text: str) -> str | None:
    """The first id in a text: models paste it with its label, quotes or Markdown escapes."""
    found = _IN_TEXT.search(text.replace("\\_", "_"))
    return found.group() if found else None
