"""All hosts of these tests keep the sums of their rooms twice: see :mod:`tests.room_sums`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.room_sums import watched


@pytest.fixture(autouse=True)
def sums() -> Iterator[None]:
    with watched() as differences:
        yield
    assert differences == []
