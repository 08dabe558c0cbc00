"""pytest, wherever motet is installed: fixtures, async tests on Trio, and no real model requests.

Invariants: nothing of motet but this file is imported until a fixture or an option asks for it; a
test that another plugin claims is left to it. ``-p no:motet`` leaves all of this out.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

from motet.actors import switch

if TYPE_CHECKING:
    from trio.testing import MockClock

ALLOW = "motet_allow_model_requests"
ON_TRIO = "motet_async_on_trio"

CLAIMED = frozenset({"anyio", "asyncio", "curio", "tornado", "trio", "twisted"})
"""Marks by which an async test says who runs it."""

_before = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    _load_as_written(pluginmanager)
    group = parser.getgroup("motet", "agents under test (motet)")
    group.addoption(
        "--motet-allow-model-requests",
        action="store_true",
        help="let models be asked for real, which costs money; refused by default",
    )
    parser.addini(ALLOW, "let models be asked for real", type="bool", default=False)
    parser.addini(
        ON_TRIO, "run async tests that no other plugin claims on Trio", type="bool", default=True
    )


def _load_as_written(plugins: pytest.PytestPluginManager) -> None:
    """Have pytest not rewrite the asserts of all motet, as it does with the package of a plugin.

    That takes half a second of each start, and nobody reads them. A pytest that keeps its list
    elsewhere only takes the half second.
    """
    marked: object = getattr(plugins.rewrite_hook, "_must_rewrite", None)
    known: object = getattr(plugins.rewrite_hook, "_marked_for_rewrite_cache", None)
    if isinstance(marked, set) and isinstance(known, dict):
        marked.discard("motet")
        known.clear()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_before] = switch.allowed()
    switch.allow(bool(config.getoption(ALLOW)) or bool(config.getini(ALLOW)))


def pytest_unconfigure(config: pytest.Config) -> None:
    switch.allow(config.stash.get(_before, True))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark async tests for pytest-trio, behind all plugins that mark their own."""
    if config.pluginmanager.hasplugin("trio") and config.getini(ON_TRIO):
        for item in items:
            if isinstance(item, pytest.Function) and _is_unclaimed(item):
                item.add_marker(pytest.mark.trio)


def _is_unclaimed(item: pytest.Function) -> bool:
    """Whether it is an async test that pytest alone would refuse to run."""
    return (
        _is_async(item)
        and type(item) is pytest.Function  # others have classes for what they run
        and "anyio_backend" not in item.fixturenames
        and CLAIMED.isdisjoint(mark.name for mark in item.iter_markers())
    )


def _is_async(item: pytest.Function) -> bool:
    hypothesis = getattr(item.obj, "hypothesis", None)  # what @given has made of the test
    return inspect.iscoroutinefunction(getattr(hypothesis, "inner_test", item.obj))


@pytest.fixture
def virtual_clock() -> MockClock:
    """A clock for an async test on Trio: it stands still, and jumps when nobody can run.

    A test of ten minutes takes no time, and ``trio.current_time()`` begins at 0. For the test to
    run on it, the test itself has to ask for it.
    """
    from trio.testing import MockClock

    return MockClock(autojump_threshold=0)
