"""The mock server with this folder's fixtures, and a clean end for tests with an SDK."""

import gc
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aimock import Aimock, serving


@pytest.fixture(scope="session")
def aimock(node: Path) -> Iterator[Aimock]:
    with serving(node, Path(__file__).parent / "fixtures") as server:
        yield server


@pytest.fixture(autouse=True, scope="module")
def certificates() -> Iterator[None]:
    """Every client reads the certificates of the machine, which takes longer than most tests."""

    def read_nothing(*_args: object, **_options: object) -> None:
        """No server of these tests has a certificate."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl.SSLContext, "load_verify_locations", read_nothing)
        patch.setattr(ssl.SSLContext, "load_default_certs", read_nothing)
        yield


@pytest.fixture(scope="module")
def sdk_garbage() -> Iterator[None]:
    """What the SDKs leave behind is found while the module's filter of warnings still holds."""
    yield
    gc.collect()
