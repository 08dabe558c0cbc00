"""A place for commands whose state must lie beside what their tools see, and logs as they were."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of the test; ``../st`` is its own too."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture(autouse=True)
def clean_logs() -> Iterator[None]:
    """Leaves logging as it was: a command that runs in this process decides where its logs go."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
