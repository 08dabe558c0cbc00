"""The mock server with this folder's fixtures, and a clean end for tests with an SDK."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aimock import Aimock, serving


@pytest.fixture(scope="session")
def aimock(node: Path) -> Iterator[Aimock]:
    with serving(node, Path(__file__).parent / "fixtures") as server:
        yield server


@pytest.fixture(scope="module")
def sdk_garbage() -> Iterator[None]:
    """What the SDKs leave behind is found while the module's filter of warnings still holds."""
    yield
    gc.collect()
