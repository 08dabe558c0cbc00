"""The steps of the guide to testing: each finds the bug that is planted in it, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

STEPS = Path(__file__).parents[2] / "examples" / "testing"
PLANTED = re.compile(r"^( *)\S.*  # planted, right is: (.*)$", re.M)
# What is found need not be made small here.
CONFTEST = """
    from hypothesis import Phase, settings

    settings.register_profile("short", phases=[Phase.generate], database=None)
    settings.load_profile("short")
"""
FOUND = {
    "test_an_order_reduces_the_stock": r"{'pear': 2} != {'pear': 1}",
    "test_a_supplier_who_is_down_is_given_up_within_a_minute": r"assert 1033\.0 < 60",
    "test_the_rent_is_never_paid_twice": r"findings, first crash before step \d+ with seed 0: ",
    "test_everybody_is_answered_once": r"inputs_are_answered_once \(G15\): the input ",
    "test_each_agent_speaks_once_for_each_message": r"turns of agents in the room 'den' for ",
}


def steps() -> dict[str, str]:
    """The files by name."""
    return {path.stem: path.read_text() for path in sorted(STEPS.glob("test_*.py"))}


def test_the_guide_shows_what_stands_in_the_files() -> None:
    guide = (STEPS.parents[1] / "docs" / "guide-testing.md").read_text()
    shown = re.findall(r"^```py\n(.*?)^```$", guide, re.M | re.S)
    files = [path.read_text() for path in sorted(STEPS.glob("test_*.py"))]
    assert len(shown) == len(files) == 5
    assert all(block in file for block, file in zip(shown, files, strict=True))
    assert all(path.name in guide for path in STEPS.glob("test_*.py"))


@pytest.mark.extended
def test_each_step_finds_the_bug_that_is_planted_in_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    for name, text in steps().items():
        pytester.makepyfile(**{name: text})

    # Each seed finds them all; with this one after few programs.
    result = pytester.runpytest_subprocess("-v", "--hypothesis-seed=3")

    result.assert_outcomes(failed=5, passed=1)
    out = result.stdout.str()
    for name, why in FOUND.items():
        _, _, said = out.partition(f"_ {name} _")
        assert re.search(why, said), name
    assert out.count("to replay it: pytest --motet-replay") == 2


@pytest.mark.sweep
def test_each_step_passes_when_its_bug_is_mended(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    for name, text in steps().items():
        mended, planted = PLANTED.subn(r"\1\2", text)
        for many, few in (("max_examples=200", "max_examples=4"), ("every=4", "every=12")):
            mended = mended.replace(many, few)
        assert planted == 1, name
        pytester.makepyfile(**{name: mended})

    pytester.runpytest_subprocess().assert_outcomes(passed=6)
