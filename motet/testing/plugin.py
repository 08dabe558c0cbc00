"""The pytest plugin: fixtures, async tests on Trio, and no real model requests.

It is active wherever motet is installed. Invariants: besides this file and the switch, nothing of
motet is imported until a fixture or an option needs it; a test that another plugin claims is left
to it. ``-p no:motet`` disables the plugin.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import pytest

from motet.actors.models import switch

if TYPE_CHECKING:
    from trio.testing import MockClock

    from motet.testing.casefiles import Kept
    from motet.testing.host import SimulatedHost
    from motet.testing.reached import Book

ALLOW = "motet_allow_model_requests"
ON_TRIO = "motet_async_on_trio"

CLAIMED = frozenset({"anyio", "asyncio", "curio", "tornado", "trio", "twisted"})
"""Marks of async tests that another plugin runs."""

_PROGRAMS = "motet.testing.stories.program"
_REACHED = "motet.testing.reached"
_TABLE = "motet: what was searched"
_CASES = "motet.testing.casefiles"
_TOLD = "motet: cases"

LISTED_FROM = 10
"""Programs of a test from which on it counts as a search, whose table is printed."""
MOST_TABLES = 10

CORPUS = Path(".motet", "corpus")
"""The folder of cases that are replayed with the tests, below the root of the project."""

_before = pytest.StashKey[bool]()
_replay: pytest.StashKey[list[Kept]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    _load_as_written(pluginmanager)
    group = parser.getgroup("motet", "agents under test (motet)")
    group.addoption(
        "--motet-allow-model-requests",
        action="store_true",
        help="let models be asked for real, which costs money; refused by default",
    )
    group.addoption(
        "--motet-replay",
        metavar="FILE",
        nargs="+",
        help="run only the tests that wrote these cases, with what they found; files or folders",
    )
    group.addoption(
        "--motet-no-corpus",
        action="store_true",
        help=f"leave out the cases in {CORPUS}, which are replayed before the tests",
    )
    group.addoption(
        "--motet-no-rerun",
        action="store_true",
        help="report findings without running them again in another process",
    )
    group.addoption(
        "--motet-seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of each motet_host: another one is another schedule",
    )
    parser.addini(ALLOW, "let models be asked for real", type="bool", default=False)
    parser.addini(
        ON_TRIO, "run async tests that no other plugin claims on Trio", type="bool", default=True
    )


def _load_as_written(plugins: pytest.PytestPluginManager) -> None:
    """Keep pytest from rewriting the asserts of all of motet, as it does for a plugin's package.

    Rewriting costs half a second of each start for nothing. A pytest that keeps its list elsewhere
    only costs that half second.
    """
    marked: object = getattr(plugins.rewrite_hook, "_must_rewrite", None)
    known: object = getattr(plugins.rewrite_hook, "_marked_for_rewrite_cache", None)
    if isinstance(marked, set) and isinstance(known, dict):
        marked.discard("motet")
        known.clear()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_before] = switch.allowed()
    switch.allow(bool(config.getoption(ALLOW)) or bool(config.getini(ALLOW)))
    replay: list[str] | None = config.getoption("motet_replay")
    if replay is not None:
        _replay_only(config, [Path(config.invocation_params.dir, name) for name in replay])


def _replay_only(config: pytest.Config, paths: Sequence[Path]) -> None:
    """Collect only the tests that have found the cases; for one without a test, its own file."""
    from motet.testing.casefiles import Kept, case_in

    files = [one for path in paths for one in (_json_in(path) if path.is_dir() else [path])]
    if not files:
        raise pytest.UsageError(f"--motet-replay: no case in {', '.join(map(str, paths))}")
    cases = [Kept(path, case_in(path)) for path in dict.fromkeys(files)]
    config.stash[_replay] = cases
    args: dict[str, None] = {}
    for kept in cases:
        file, _, rest = kept.test.partition("::")
        # Without a configuration file, the option itself may change the root.
        roots = (config.rootpath, config.invocation_params.dir)
        found = next((root / file for root in roots if file and (root / file).is_file()), None)
        if found is not None:
            # Of several, one whose test is gone must not be in the way of the others.
            args[f"{found}::{rest}" if len(cases) == 1 else str(found)] = None
        elif kept.test and len(cases) == 1:
            raise pytest.UsageError(
                f"{kept.path} is a case of {kept.test}, which is not below {roots[-1]}"
            )
    # Something has to be collected, or pytest would collect everything.
    config.args = list(args) or [str(cases[0].path)]


def _json_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist what it cannot see: how the whole run was started."""
    node.workerinput["motet_alone"] = _is_whole(node.config)


def _is_whole(config: pytest.Config) -> bool:
    """Whether all tests of the project are run, by plain ``pytest``."""
    told: dict[str, object] = getattr(config, "workerinput", {})
    if "motet_alone" in told:
        return bool(told["motet_alone"])
    source, sources = config.args_source, pytest.Config.ArgsSource
    at_root = config.invocation_params.dir == config.rootpath
    return source is sources.TESTPATHS or (source is sources.INVOCATION_DIR and at_root)


def pytest_unconfigure(config: pytest.Config) -> None:
    switch.allow(config.stash.get(_before, True))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Put the replays of cases in front, before anybody deselects.

    Then mark async tests for pytest-trio, after all plugins that mark their own tests.
    """
    _add_cases(session, config, items)
    yield
    if config.pluginmanager.hasplugin("trio") and config.getini(ON_TRIO):
        for item in items:
            if isinstance(item, pytest.Function) and _is_unclaimed(item):
                item.add_marker(pytest.mark.trio)


def _add_cases(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    if _replay in config.stash:
        from motet.testing.casefiles import with_cases

        cases = config.stash[_replay]
        items[:] = with_cases(session, items, cases, alone=True)
        return
    folder = config.rootpath / CORPUS
    if config.getoption("motet_no_corpus") or not folder.is_dir():
        return
    from motet.testing.casefiles import kept_in, with_cases

    items[:0] = with_cases(session, items, kept_in(folder), alone=_is_whole(config))


def _is_unclaimed(item: pytest.Function) -> bool:
    """True for an async test that no plugin claims and pytest alone would refuse."""
    return (
        _is_async(item)
        and type(item) is pytest.Function  # other plugins use item classes of their own
        and "anyio_backend" not in item.fixturenames
        and CLAIMED.isdisjoint(mark.name for mark in item.iter_markers())
    )


def _is_async(item: pytest.Function) -> bool:
    return inspect.iscoroutinefunction(_function_of(item))


def _function_of(item: pytest.Item) -> Callable[..., object] | None:
    """The test function itself, without the wrapper of @given."""
    found: Callable[..., object] | None = getattr(item, "function", None)
    return getattr(getattr(found, "hypothesis", None), "inner_test", found)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Replay the case in place of drawn programs, or check the states of ``sometimes``."""
    if not _replays(item) or not isinstance(item, pytest.Function):
        with _book(item) as book, _survey(item), _testing(item):
            yield
        _check_reached(book)
        return
    from motet.testing.casefiles import replay_in

    with replay_in(item):
        yield


def _replays(item: pytest.Item) -> bool:
    """Whether an item replays a case, and is no test of its own."""
    if _CASES not in sys.modules:
        return False
    from motet.testing.casefiles import CASE

    return CASE in item.stash


@contextmanager
def _testing(item: pytest.Item) -> Generator[None]:
    """Print programs with the body of the test that has drawn them."""
    function: Callable[..., object] | None = getattr(item, "function", None)
    if _PROGRAMS not in sys.modules or function is None:
        yield
        return
    from motet.testing.stories.printing import tested_by

    with tested_by(function):
        yield


@contextmanager
def _survey(item: pytest.Item) -> Generator[None]:
    """Count the programs of a test; its table is printed, and a vacuous search fails."""
    if _PROGRAMS not in sys.modules:
        yield  # no program has been drawn before the test, by any `@given(programs(...))`
        return
    from motet.testing.survey import Vacuous, survey_of

    with survey_of() as survey:
        try:
            yield
        finally:
            if survey.programs >= LISTED_FROM:
                item.user_properties.append((_TABLE, survey.table()))
    try:
        survey.check()
    except Vacuous as vacuous:
        pytest.fail(str(vacuous), pytrace=False)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print what each search has reached."""
    if config.get_verbosity() < 0:
        return
    told = [
        (name, report.nodeid, str(text))
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        for name, text in getattr(report, "user_properties", [])
        if report.when == "call"
    ]
    cases = [text for name, _, text in told if name == _TOLD]
    if cases:
        terminalreporter.section(f"motet: {len(cases)} cases were replayed", sep="-")
    for text in cases:
        terminalreporter.line(text)
    tables = [(nodeid, table) for name, nodeid, table in told if name == _TABLE]
    if tables:
        terminalreporter.section("motet: what was searched", sep="-")
    for nodeid, table in tables[:MOST_TABLES]:
        terminalreporter.line(f"{nodeid}\n{table}\n")
    if len(tables) > MOST_TABLES:
        terminalreporter.line(f"and {len(tables) - MOST_TABLES} searches more")


@contextmanager
def _book(item: pytest.Item) -> Generator[Book | None]:
    """A book for the states that the test must reach, if it may use ``sometimes``."""
    function = _function_of(item)
    if _REACHED not in sys.modules and not _mentions(function, "sometimes"):
        yield None
        return
    from motet.testing.reached import book_of

    with book_of(function) as book:
        yield book


def _check_reached(book: Book | None) -> None:
    if book is None and _REACHED not in sys.modules:
        return
    from motet.testing.reached import NeverReached, assert_reached

    missing = ""
    try:
        # Without a book, the test itself imported the module and used its default book.
        assert_reached() if book is None else book.check()
    except NeverReached as error:
        missing = str(error)
    if missing:
        pytest.fail(missing, pytrace=False)


def _mentions(function: object, name: str) -> bool:
    code: object = getattr(function, "__code__", None)
    return isinstance(code, CodeType) and name in code.co_names


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last events of the test's host, and the case file, to a failure."""
    cases: list[tuple[str, str]] = []
    if call.when == "call" and call.excinfo is not None and _PROGRAMS in sys.modules:
        # Before the report is made, which prints the test that is run here.
        cases = list(_cases(item, call.excinfo.value))
    report = yield
    if report.when == "call" and report.failed:
        host: SimulatedHost | None = getattr(item, "funcargs", {}).get("motet_host")
        if host is not None:
            report.sections.append((f"motet_host, at {host.now():g} s", host.report()))
        report.sections += cases
    return report


def _cases(item: pytest.Item, error: BaseException) -> Iterator[tuple[str, str]]:
    """Run each finding again, write its case, and say what has come of it."""
    from motet.testing.casefiles import write_cases

    if _replays(item):
        return
    again = not item.config.getoption("motet_no_rerun")
    for found in write_cases(item.config.rootpath, item.nodeid, error, again=again):
        shown = os.path.relpath(found.file, item.config.invocation_params.dir)
        if found.test:
            yield f"motet: as a test ({found.verdict})", found.test
        once = f"to replay it: pytest --motet-replay {shown}"
        kept = f"to replay it with the tests from now on: move it into {CORPUS}"
        yield "motet: a case was written", f"{once}\n{kept}"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A case that is replayed without a test; it takes its content from the list of cases."""
    stash = parent.config.stash
    if _replay not in stash or all(kept.path != file_path for kept in stash[_replay]):
        return None
    from motet.testing.casefiles import CaseFile

    # pytest does not say what else it takes.
    return CaseFile.from_parent(parent, path=file_path)  # pyright: ignore[reportUnknownMemberType]


@pytest.fixture
def motet_host(request: pytest.FixtureRequest) -> Iterator[SimulatedHost]:
    """A host in a simulated world: virtual time, no access to the real world.

    See :func:`motet.testing.simulated_host`. A test with Hypothesis opens that itself, once for
    each example.
    """
    from motet.testing.host import simulated_host

    seed = request.config.getoption("motet_seed")
    assert isinstance(seed, int), seed
    with simulated_host(seed) as host:
        yield host


@pytest.fixture
def virtual_clock() -> MockClock:
    """A clock for an async test on Trio: it stands still, and jumps when no task can run.

    A test of ten minutes takes no time, and ``trio.current_time()`` begins at 0. The test itself
    must request the fixture.
    """
    from trio.testing import MockClock

    return MockClock(autojump_threshold=0)
