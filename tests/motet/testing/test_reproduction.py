"""A finding is run again before it is reported, and state outside of the simulation is named."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.models import switch
from motet.testing import reproduction
from motet.testing.outside import changes, fingerprints, shown
from motet.testing.reproduction import Ended, judged, run_source
from motet.testing.stories.printing import body_of
from tests.motet.testing.faulty import notebook

pytest_plugins = ["pytester"]


def test_each_place_outside_of_the_simulation_has_a_digest_of_its_content() -> None:
    before = fingerprints([notebook])
    notebook.scribble()
    try:
        found = changes(before, fingerprints([notebook]))
    finally:
        notebook.erase()
    assert found == [
        f"{notebook.__name__}.{place}"
        for place in ("CACHE", "Counter.made", "book", "cached", "closed.count", "default(default)")
    ]
    assert changes(before, fingerprints([notebook])) == []


def test_a_class_that_does_not_say_where_it_is_from_has_no_places() -> None:
    """Its metaclass computes that, and may raise."""

    class Hidden(type):
        @property
        def __module__(cls) -> str:  # type: ignore[override]
            raise KeyboardInterrupt

    class Placeless(metaclass=Hidden):
        made = 1

    module = ModuleType("placeless")
    vars(module)["Placeless"] = Placeless
    assert fingerprints([module]) == {}


def test_a_digest_knows_no_addresses_and_no_workspace() -> None:
    text = f"{notebook.Opaque()!r} in /tmp/motet-x1"
    assert shown(text, "/tmp/motet-x1").endswith("Opaque object at 0x…> in <workspace>")


def test_a_verdict_says_why_a_finding_does_not_fail_again() -> None:
    error = AssertionError("1 is not 2")
    assert judged(Ended(True, "AssertionError", "1 is not 2"), error, {}).reproduced
    other = judged(Ended(True, "KeyError", "'a'"), error, {"app.CACHE": "1"})
    assert "fails otherwise, with KeyError: 'a'" in other.why
    hidden = judged(Ended(False, before={"app.CACHE": "0"}), error, {"app.CACHE": "1"})
    assert "`app.CACHE` changed between two runs of one plan" in hidden.why
    assert "a clock or a file" in judged(Ended(False), error, {}).why
    assert (
        "the printed test broke: no such" in judged(Ended(False, broken="no such"), error, {}).why
    )


def test_a_test_with_more_than_a_program_has_no_body_of_its_own() -> None:
    def closed(program: object) -> None:
        assert program is not before

    before = object()
    assert body_of(given(st.none())(closed)) is None
    assert body_of(given(st.none(), st.none())(_two)) is None
    assert body_of(_one) is None  # no program is drawn for it
    own = body_of(given(st.none())(_one))
    assert own is not None
    assert (own.parameter, own.lines) == ("program", ["    assert program is Ended"])
    assert own.imports == {"Ended": f"from {__name__} import Ended"}


def _one(program: object) -> None:
    assert program is Ended


def _two(program: object, more: object) -> None:
    assert program is more


PROJECT = """
import motet

CACHE = []
agent = motet.Agent("app", model="x:y")

@agent.tool
async def look(name: str) -> int:
    "Look something up."
    CACHE.append(name)
    return len(CACHE)
"""

SEARCH = """
from hypothesis import Phase, given, settings
from motet import testing as mt
from shop import agent

MOST = 0
ONCE = settings(max_examples=100, deadline=None, database=None, derandomize=True,
                report_multiple_bugs=False, phases=[Phase.generate])
PLAIN = {"look": {"name": "a"}}

@ONCE
@given(mt.programs(agent, users=1, max_steps=4, faults=mt.Faults.NONE, arguments=PLAIN))
def test_body(program: mt.BoundProgram) -> None:
    with mt.simulated_host(seed=program.seed) as host:
        program.execute(host)
        # Nobody looks anything up.
        assert sum(call.tool == "look" for call in mt.snapshot(host).ran) <= MOST, "too often"

@ONCE
@given(mt.programs(agent, users=2, max_steps=4, faults=mt.Faults.NONE, arguments=PLAIN))
def test_hidden(program: mt.BoundProgram) -> None:
    with mt.simulated_host(seed=program.seed) as host:
        program.execute(host)
        ran = mt.snapshot(host).ran
        assert len(ran) > 2 or all(call.result in (1, 2) for call in ran), "miscounted"
"""


@pytest.mark.extended
def test_a_printed_test_has_its_body_and_fails_when_pasted_in_another_process(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(shop=PROJECT, test_shop=SEARCH)
    result = pytester.runpytest_subprocess("-k", "body", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*motet: as a test (it fails again in a process of its own)*"])
    lines = result.stdout.lines
    first = lines.index("from motet import testing as mt")
    last = next(at for at in range(first, len(lines)) if lines[at].startswith("---"))
    source = "\n".join(lines[first:last]) + "\n"
    assert "# Nobody looks anything up." in source
    assert "from test_shop import MOST" in source
    pasted = Path(pytester.path, "test_pasted.py")
    pasted.write_text(source, encoding="utf-8")
    pytester.runpytest_subprocess(pasted, "-p", "no:cacheprovider").assert_outcomes(failed=1)
    case = next(Path(pytester.path, ".motet", "cases").iterdir())
    replay = pytester.runpytest_subprocess("--motet-replay", case, "-p", "no:cacheprovider")
    replay.assert_outcomes(failed=1)


@pytest.mark.extended
def test_hidden_state_is_named_and_its_replay_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=PROJECT, test_shop=SEARCH)
    result = pytester.runpytest_subprocess("-k", "hidden", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*does not fail: state outside of the simulation decides. `shop.CACHE` changed between*"]
    )
    case = next(Path(pytester.path, ".motet", "cases").iterdir())
    replay = pytester.runpytest_subprocess("--motet-replay", case, "-p", "no:cacheprovider")
    replay.assert_outcomes(failed=1)


def test_another_process_says_how_a_test_ended() -> None:
    ended = run_source("def test_found():\n    print('noise')\n    assert 1 == 2, 'never'\n")
    assert (ended.failed, ended.kind, ended.sentence) == (True, "AssertionError", "never")


@pytest.mark.parametrize(
    ("source", "broken"),
    [
        ("def test_found():\n    print('noise')\n", ""),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_the_command_answers_with_one_line(
    source: str,
    broken: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(source)
    monkeypatch.setattr(sys, "argv", ["motet.testing.reproduction", str(file)])
    before = switch.allowed()

    reproduction.main()  # in this process: a new one only costs time here

    switch.allow(before)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("motet-reproduction: {")
    ended = msgspec.json.decode(last.partition(": ")[2], type=Ended)
    assert (ended.failed, ended.broken) == (False, broken)
