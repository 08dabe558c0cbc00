"""The demo model answers without pauses: they take more time than all else that its tests do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from motet.actors.models.demo import DemoModel


@pytest.fixture(autouse=True, scope="module")
def quick_demo() -> Iterator[None]:
    """One that is given a pace keeps it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(DemoModel)["__init__"].__kwdefaults__, "pace", 0.0)
        yield
