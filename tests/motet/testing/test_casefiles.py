"""Case files under pytest: a corpus that is replayed with the tests, and several files at once."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from motet import testing as mt
from motet.testing.reproduction import run_source
from motet.testing.stories.target import Subject
from tests.motet.testing.test_printed import printed

pytest_plugins = ["pytester"]

SHOP = """
    import motet

    agent = motet.Agent("shop")

    @agent.tool
    async def add(a: int, b: int) -> str:
        return str(a + b)
"""
TESTS = """
    import pytest
    from hypothesis import HealthCheck, Phase, given, settings
    from shop import agent

    from motet import testing as mt

    once = settings(
        max_examples=1, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), derandomize=True,
    )

    def no_needle(snapshot):
        asked = [row.text for one in snapshot.asked for row in one.request.messages]
        return ["a needle was asked for"] if any("needle" in text for text in asked) else []

    @once
    @given(mt.programs(agent, max_steps=2))
    def test_finds(program):
        with mt.simulated_host(seed=program.seed) as host:
            program.execute(host)
            mt.check(host, no_needle)

    class TestClass:
        @pytest.mark.parametrize("users", [1, 2])
        def test_with_parameters(self, users):
            @once
            @given(mt.programs(agent, users=users, max_steps=2))
            def search(program):
                with mt.simulated_host(seed=program.seed) as host:
                    program.execute(host)
                    mt.check(host, no_needle)
            search()
"""
FINDS = "test_shop.py::test_finds"
WITH_PARAMETERS = "test_shop.py::TestClass::test_with_parameters[2]"


@pytest.fixture
def kept(pytester: pytest.Pytester) -> Callable[..., Path]:
    """Writes a case of the project into its corpus."""
    pytester.makeini("[pytest]\ntestpaths = .")
    pytester.makepyfile(shop=SHOP, test_shop=TESTS)
    pytester.syspathinsert()
    agent: Subject = importlib.import_module("shop").agent
    folder = pytester.path / ".motet" / "corpus"

    def keep(name: str, text: str, test: str = FINDS, **changed: Any) -> Path:
        program = mt.Program([mt.Send("ann", text)]).bind(agent)
        path = mt.save_case(program, folder / f"{name}.json", test=test, violations=("found",))
        if changed:
            path.write_text(json.dumps(json.loads(path.read_text()) | changed))
        return path

    return keep


def lines(result: pytest.RunResult) -> str:
    return result.stdout.str()


def collected(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if "::" in line]


@pytest.mark.slow
def test_a_corpus_is_replayed_before_the_tests_and_tells_what_is_gone(
    pytester: pytest.Pytester, kept: Callable[..., Path]
) -> None:
    kept("needle", "a needle")
    kept("parameters", "a needle", WITH_PARAMETERS)
    kept("hay", "hay", versions={"motet": "0.0.9"})
    kept("other", "hay", trace=["another"], hash="another")
    kept("lost", "a needle", "test_shop.py::test_gone")
    kept("unsure", "hay", irreproducible="a clock decides")
    kept("alone", "hay", "")
    kept("newer", "hay", format=7)

    plain = pytester.runpytest_inprocess("-v")

    said = lines(plain)
    plain.assert_outcomes(failed=4, passed=7)
    ran = [line.rpartition(" [")[0].strip() for line in said.splitlines() if line.endswith("%]")]
    assert ran == [
        ".motet/corpus/alone.json::alone PASSED",
        "test_shop.py::test_finds <- hay PASSED",
        ".motet/corpus/lost.json::lost FAILED",
        "test_shop.py::test_finds <- needle FAILED",
        ".motet/corpus/newer.json::newer FAILED",
        "test_shop.py::test_finds <- other PASSED",
        "test_shop.py::TestClass::test_with_parameters <- parameters[2] FAILED",
        "test_shop.py::test_finds <- unsure PASSED",
        "test_shop.py::test_finds PASSED",
        "test_shop.py::TestClass::test_with_parameters[1] PASSED",
        "test_shop.py::TestClass::test_with_parameters[2] PASSED",
    ]
    assert said.count("no_needle: a needle was asked for") >= 2
    assert "the test of the case, test_shop.py::test_gone, is not there any more" in said
    assert "newer.json has format 7; this version reads 1" in said
    assert "motet: 6 cases were replayed" in said
    assert "needle.json: it still fails" in said
    assert "hay.json: not reproduced any more: the program runs as then, and nothing is" in said
    assert "the case is of other versions: motet was 0.0.9" in said
    assert "other.json: not reproduced any more: " in said
    assert "the replay differs from line 1 of the trace on" in said
    assert "unsure.json: not reproduced: a clock decides" in said
    assert "a case was written" not in said
    pasted = run_source(printed(plain), pytester.path)
    assert (pasted.failed, pasted.kind, pasted.broken) == (True, "InvariantBroken", "")


@pytest.mark.slow
def test_chosen_tests_replay_their_own_cases_only(
    pytester: pytest.Pytester, kept: Callable[..., Path]
) -> None:
    kept("needle", "a needle")
    kept("parameters", "a needle", WITH_PARAMETERS)
    kept("lost", "a needle", "test_shop.py::test_gone")

    chosen = pytester.runpytest_inprocess("--collect-only", "-q", FINDS)
    none = pytester.runpytest_inprocess("--collect-only", "-q", "--motet-no-corpus")

    assert collected(chosen) == [f"{FINDS} <- needle", FINDS]
    assert collected(none) == [
        FINDS,
        "test_shop.py::TestClass::test_with_parameters[1]",
        "test_shop.py::TestClass::test_with_parameters[2]",
    ]


@pytest.mark.slow
def test_several_files_and_folders_are_replayed_in_one_call(
    pytester: pytest.Pytester, kept: Callable[..., Path]
) -> None:
    needle, hay = kept("needle", "a needle"), kept("hay", "hay")
    kept("lost", "a needle", "no_such_file.py::test_gone")
    kept("other", "hay", trace=["another"], hash="another")
    kept("alone", "hay", "")

    two = pytester.runpytest_inprocess("--collect-only", "-q", "--motet-replay", needle, hay)
    folder = pytester.runpytest_inprocess("--motet-replay", ".motet/corpus")
    empty = pytester.runpytest_inprocess("--motet-replay", str(pytester.mkdir("empty")))

    assert collected(two) == [f"{FINDS} <- needle", f"{FINDS} <- hay"]
    folder.assert_outcomes(failed=3, passed=2)
    assert "hay.json: not reproduced any more: the program runs as then" in lines(folder)
    assert "no_such_file.py::test_gone, is not there any more" in lines(folder)
    assert "not reproduced any more" in lines(folder)
    assert empty.ret == pytest.ExitCode.USAGE_ERROR
    empty.stderr.fnmatch_lines(["*--motet-replay: no case in *empty*"])


@pytest.mark.sweep
def test_the_workers_of_xdist_replay_a_corpus_too(
    pytester: pytest.Pytester, kept: Callable[..., Path]
) -> None:
    kept("needle", "a needle")
    kept("alone", "hay", "")

    result = pytester.runpytest_subprocess("-n", "2")

    result.assert_outcomes(failed=1, passed=4)
    assert "motet: 2 cases were replayed" in lines(result)
