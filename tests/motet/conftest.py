"""A place for commands whose state must lie beside what their tools see, and not in it."""

from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of the test; ``../st`` is its own too."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place
