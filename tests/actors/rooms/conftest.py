"""All hosts of these tests keep the sums of their rooms twice: see :mod:`tests.room_sums`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from motet.protocols.storage import Row
from tests.room_sums import watched


@pytest.fixture(autouse=True)
def sums() -> Iterator[list[Row]]:
    """The differences, as hosts end; a test that plants one of its own takes it out."""
    with watched() as differences:
        yield differences
    assert differences == []
