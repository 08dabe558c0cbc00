"""The judge of soaks by drawn samples, and a short soak; the long one is ``make soak``."""

from __future__ import annotations

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import motet
from tests.soak.__main__ import soak
from tests.soak.daemon import KINDS, Kind, daemon
from tests.soak.judge import Sample, never_ran, problems

LEVEL = Sample(runs=0, blocks=300_000, files=25, tasks=140, threads=4, log=4_000_000)
NAMES = st.sampled_from(["files", "tasks", "threads", "log"])
SHORT = 5.0
"""Blocks for each run, of a minute: caches still fill, and a garbage collection is a wave."""


def level(count: int, per_run: float = 0.0) -> list[Sample]:
    return [
        attrs.evolve(LEVEL, runs=500 * n, blocks=int(300_000 + 500 * n * per_run))
        for n in range(1, count + 1)
    ]


@given(st.lists(st.integers(-300, 300), min_size=8, max_size=40), st.floats(0.0, 0.3))
def test_a_wave_is_no_slope(wave: list[int], per_run: float) -> None:
    samples = [
        attrs.evolve(one, blocks=one.blocks + high, tasks=one.tasks + high % 3)
        for one, high in zip(level(len(wave), per_run), wave, strict=True)
    ]
    assert problems(samples) == []


@given(st.integers(8, 40), st.floats(1.1, 1e3))
def test_blocks_that_each_run_leaves_are_found(count: int, per_run: float) -> None:
    (found,) = problems(level(count, per_run))
    assert found.startswith("blocks: ")


@given(st.integers(8, 40), NAMES, st.integers(5, 50))
def test_a_level_that_only_rises_is_found(count: int, name: str, step: int) -> None:
    step *= 8 << 20 if name == "log" else 1
    samples = [
        attrs.evolve(one, **{name: getattr(one, name) + n * step})
        for n, one in enumerate(level(count))
    ]
    assert [one.partition(":")[0] for one in problems(samples)] == [name]


@given(st.integers(8, 40), NAMES, st.integers(1, 1_000_000))
def test_what_caches_take_at_first_is_not_held_against_them(
    count: int, name: str, more: int
) -> None:
    warm = count // 2
    first = [attrs.evolve(one, **{name: 0}) for one in level(warm)]
    last = [attrs.evolve(one, **{name: more}) for one in level(count)[warm:]]
    assert problems([*first, *last]) == []


def test_a_soak_that_is_too_short_or_did_too_little_says_so() -> None:
    with pytest.raises(ValueError, match="soak longer"):
        problems(level(7))
    assert never_ran({"work": 3, "fail": 0}, ("work", "fail", "ask")) == [
        "fail never ran",
        "ask never ran",
    ]


@pytest.mark.extended
@pytest.mark.parametrize("kind", KINDS)
def test_a_daemon_that_works_for_half_a_minute_does_all_and_holds_no_more(kind: Kind) -> None:
    assert trio.run(soak, kind, 40.0, 0, 16, SHORT) == []


@pytest.mark.extended
def test_a_hook_that_keeps_what_it_is_told_is_found() -> None:
    async def leaking() -> list[str]:
        kept: list[object] = []
        async with daemon("embedded") as (one, log):

            @one.host.on("run_end")
            async def keep(end: motet.RunEnd) -> None:
                kept.append([[str(end), [end]] for _ in range(4)])

            taken: list[Sample] = []
            for _ in range(10):
                await one.work(0.8)
                taken.append(await one.sample(log))
        return problems(taken, SHORT)

    assert any(one.startswith("blocks") for one in trio.run(leaking))
