"""Five faults of the kind that users report, each in a small project that uses public names only.

Nobody has written down how to find them: a program is drawn, the invariants of every host are
looked at, and what is left after shrinking is a test that a person could have written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import attrs
import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import motet
from motet import testing as mt
from motet.testing.invariants import Invariant
from motet.testing.stories.target import Receive, Subject
from tests.motet.testing.elsewhere import replayed_elsewhere
from tests.motet.testing.faulty import bridge, deploy, inbox, trimmer, webhook


@attrs.frozen
class Project:
    """What a project gives to its tests, and what is wrong with it."""

    subject: Subject
    broken: Collection[str]
    receive: Receive | None = None
    setup: Callable[[motet.Host], None] | None = None
    invariants: Sequence[Invariant] = ()


PROJECTS = {
    "broken tool pairs": Project(trimmer.agent, {"hooks_do_not_fail"}, setup=trimmer.install),
    "a doubled reply": Project(
        webhook.agent, {"inputs_are_answered_once"}, receive=webhook.receive
    ),
    "an input lost at a restart": Project(
        inbox.agent, {"inputs_are_answered_once"}, receive=inbox.receive
    ),
    "a stop that leaves work behind": Project(
        deploy.agent,
        {"stops_are_total", "no_work_after_the_end", "nothing_is_left", "code_behaves"},
    ),
    "a group chat that never ends": Project(
        bridge.room,
        {"bounded_turns"},
        setup=bridge.install,
        invariants=[mt.invariants.bounded_turns(2)],
    ),
}


def found(project: Project, seed: int) -> mt.InvariantBroken:
    """What the harness says of a project, after shrinking."""

    @hypothesis.seed(seed)
    @settings(
        max_examples=400,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(mt.programs(project.subject, receive=project.receive))
    def test(program: mt.BoundProgram) -> None:
        with mt.simulated_host(seed=program.seed, setup=project.setup) as host:
            program.execute(host)
            mt.check(host, *project.invariants)

    with pytest.raises(mt.InvariantBroken) as raised:
        test()
    return raised.value


def is_found_and_printed(project: Project, seed: int, folder: Path) -> Path:
    """It is found, is at most eight steps long, and fails in the same way as a printed test.

    Gives the file of the case.
    """
    error = found(project, seed)
    assert any(one.invariant.partition("(")[0] in project.broken for one in error.violations)
    assert error.program is not None
    assert len(error.program.steps) <= 8
    assert error.lanes
    case = mt.save_case(error.program, folder / "case.json", violations=error.violations)
    printed: dict[str, Callable[[], None]] = {}
    exec(compile(error.test, "printed", "exec"), printed)
    with pytest.raises(mt.InvariantBroken) as again:
        printed["test_found"]()
    assert again.value.violations == error.violations
    assert mt.run_twice(error.program, setup=project.setup) == mt.load_case(case).hash
    return case


@pytest.mark.slow
def test_a_group_chat_that_never_ends_is_found_and_printed(tmp_path: Path) -> None:
    is_found_and_printed(PROJECTS["a group chat that never ends"], 1, tmp_path)


@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", PROJECTS)
def test_bugs_that_users_reported_are_found_printed_and_replayed(
    name: str, seed: int, tmp_path: Path
) -> None:
    case = is_found_and_printed(PROJECTS[name], seed, tmp_path)
    assert replayed_elsewhere(case)[0] == mt.load_case(case).violations[0]
