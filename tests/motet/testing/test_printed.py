"""Printed tests of findings: each is pasted into a file, and fails there in another process.

The search and its test are written as a project writes them; see ``faulty`` for the projects. In
the default suite ``test_casefiles.py`` pastes one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.testing.reproduction import run_source
from tests.motet.command import ROOT
from tests.motet.testing import test_user_bugs
from tests.motet.testing.faulty.strangers import PROJECTS

pytest_plugins = ["pytester"]

SETTINGS = """
import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from motet import testing as mt

several = settings(
    max_examples=MOST, deadline=None, database=None, report_multiple_bugs=False,
    phases=[Phase.generate], suppress_health_check=list(HealthCheck),
)
"""
STRANGER = """
from tests.motet.testing.faulty.strangers import PROJECTS

project = PROJECTS[NAME](False)
subject, receive, setup = project.subject, project.receive, project.setup

@hypothesis.seed(1)
@several
@given(mt.programs(
    subject, receive=receive, model="own" if project.own_models else "script"
))
def test_finds(program):
    project.reset()
    with mt.simulated_host(seed=program.seed, setup=setup, http=project.http) as host:
        program.execute(host)
        project.holds(host)
"""
USER = """
from tests.motet.testing.test_user_bugs import PROJECTS

project = PROJECTS[NAME]
subject, receive, setup = project.subject, project.receive, project.setup
invariants = project.invariants

@hypothesis.seed(1)
@several
@given(mt.programs(subject, receive=receive))
def test_finds(program):
    with mt.simulated_host(seed=program.seed, setup=setup) as host:
        program.execute(host)
        mt.check(host, *invariants)
"""
# Findings of plain actors are no tests yet: they are printed as a program and its history.
KINDS = {
    **dict.fromkeys(PROJECTS, STRANGER),
    **dict.fromkeys(test_user_bugs.PROJECTS, USER),
}


HEAD = "def test_found() -> None:"


def printed(result: pytest.RunResult) -> str:
    """The first test that a report has printed, with its imports."""
    at = next((at for at, line in enumerate(result.outlines) if line.endswith(HEAD)), None)
    assert at is not None, "\n".join(result.outlines)
    # The text of an error is indented as the line that has raised it; a section is not.
    margin = result.outlines[at].removesuffix(HEAD)
    lines = ["" if one.strip() in ("", "E") else one for one in result.outlines]
    lines = [one.removeprefix(margin) if one.startswith(margin) else one for one in lines]
    first, last = at, at + 1
    while not lines[first - 1] or lines[first - 1].startswith(("import ", "from ")):
        first -= 1
    while last < len(lines) and (not lines[last] or lines[last].startswith("    ")):
        last += 1
    return "\n".join(lines[first:last]).strip() + "\n"


def is_printed_and_fails(pytester: pytest.Pytester, name: str, most: int) -> None:
    """A finding of this kind is printed, and fails when it is pasted."""
    text = (SETTINGS + KINDS[name]).replace("MOST", str(most)).replace("NAME", repr(name))
    pytester.syspathinsert(ROOT)
    pytester.makepyfile(test_kind=text)
    pytester.syspathinsert()

    result = pytester.runpytest_inprocess("--motet-no-rerun", "-p", "no:cacheprovider")

    result.assert_outcomes(failed=1)
    source = printed(result)
    ended = run_source(source, Path(pytester.path))
    assert ended.failed, f"{ended}\n{source}"
    assert not ended.broken, f"{ended}\n{source}"


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", KINDS)
def test_printed_tests_of_all_kinds_fail_in_another_process(
    pytester: pytest.Pytester, name: str
) -> None:
    is_printed_and_fails(pytester, name, 600)
