"""The mock server with this folder's fixtures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aimock import Aimock, serving


@pytest.fixture(scope="session")
def aimock(node: Path) -> Iterator[Aimock]:
    with serving(node, Path(__file__).parent / "fixtures") as server:
        yield server
