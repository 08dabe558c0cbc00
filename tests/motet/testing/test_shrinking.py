"""The first reduction of a finding: steps and answers are left out, in few tries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

import attrs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.internal.conjecture.data import Span
from hypothesis.internal.conjecture.shrinker import Shrinker

import motet
from motet import testing as mt
from motet.testing import Step
from motet.testing.stories import drawing, shrinking
from motet.testing.stories.choosing import FIRST_ELEMENT

ADVICE = (
    "Hypothesis has other names inside: adapt `stories/shrinking.py`, or findings shrink slowly"
)
agent = motet.Agent("clerk", model=mt.ScriptedModel([]))


@agent.tool
async def pay(euros: int) -> str:
    """Pay."""
    return "paid"


@agent.tool
async def look(name: str, often: int) -> str:
    """Look at something."""
    return name


def test_hypothesis_still_has_what_the_reduction_needs() -> None:
    assert drawing.__name__  # whose import has installed it
    needed = ("initial_coarse_reduction", "consider_new_nodes", "check_calls", "calls", "spans")
    assert all(hasattr(Shrinker, name) for name in needed), ADVICE
    assert {"start", "end", "label"} <= set(dir(Span)), ADVICE
    assert vars(Shrinker)["initial_coarse_reduction"].__module__ == shrinking.__name__, ADVICE


@attrs.frozen
class Place:
    start: int
    end: int
    label: int = FIRST_ELEMENT


@attrs.define
class Tried:
    """A shrinker of lists of two choices for each element; it fails while all ``needed`` are in."""

    nodes: Sequence[int]
    needed: frozenset[int]
    tries: int = 0

    @property
    def spans(self) -> list[Place]:
        return [Place(at, at + 2) for at in range(0, len(self.nodes), 2)]

    def consider_new_nodes(self, nodes: Sequence[int]) -> bool:
        self.tries += 1
        fails = self.needed <= set(nodes)
        if fails:
            self.nodes = nodes
        return fails


@given(st.integers(1, 60), st.sets(st.integers(0, 59), max_size=3))
def test_exactly_the_needed_elements_are_left(count: int, needed: set[int]) -> None:
    """Law: nothing that is needed goes, and nothing else stays, in a few tries for each."""
    wanted = frozenset(one for one in needed if one < count)
    tried = Tried([element for element in range(count) for _ in range(2)], wanted)

    shrinking._leave_out(tried, inner=False)  # pyright: ignore[reportPrivateUsage]

    assert set(tried.nodes) == wanted
    assert list(tried.nodes) == sorted(tried.nodes)
    assert tried.tries <= 4 + 16 * max(1, len(wanted))


def shrunk(fails: Callable[[mt.BoundProgram], bool], seed: int) -> tuple[mt.BoundProgram, int, int]:
    """The smallest failing program, the answers of the first one, and the tries in between."""
    failed: list[mt.BoundProgram] = []
    tries = 0

    @seeded(seed)
    @settings(
        max_examples=600,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    )
    @given(mt.programs(agent, max_steps=20))
    def search(program: mt.BoundProgram) -> None:
        nonlocal tries
        tries += bool(failed)
        if fails(program):
            failed.append(program)
            raise AssertionError

    with pytest.raises(AssertionError):
        search()
    return failed[-1], len(answers(failed[0])), tries


def answers(program: mt.BoundProgram) -> Sequence[Step]:
    return program.script.get("clerk", ())


@pytest.mark.parametrize("seed", [1, 2])
def test_one_answer_of_many_is_left_in_few_programs(seed: int) -> None:
    def fails(program: mt.BoundProgram) -> bool:
        said = list(map(repr, answers(program)))
        paid = sum("call('pay'" in one and "euros=0" not in one for one in said)
        return paid > 2 and len(said) > 20 if not seen else paid > 0

    seen: list[int] = []

    def first(program: mt.BoundProgram) -> bool:
        found = fails(program)
        seen.extend([1] if found else [])
        return found

    program, before, tries = shrunk(first, seed)

    assert before > 20
    assert len(answers(program)) == 1
    assert len(program.steps) <= 2
    assert tries < 300


def test_a_finding_that_gets_hardly_smaller_ends_the_search() -> None:
    """One that comes and goes with each detail could be tried without end."""

    def fails(program: mt.BoundProgram) -> bool:
        return len(program.steps) > 1 and crc32(repr(program).encode()) % 4 == 0

    _, _, tries = shrunk(fails, 3)

    assert tries < 3 * shrinking.STALL
