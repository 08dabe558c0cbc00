"""The rules of a queue: what an input leads to, and what starts next."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.runs.queue import allowed, entered, held_with, next_batch, place, surplus, wakes
from motet.actors.runs.run import LONGEST, Burst, Placement
from motet.protocols.queueing import MODES, Overflow, QueueConfig, QueueMode


@attrs.define(eq=False)
class One:
    """An input, or the run that has come of it."""

    id: str
    author: str = "ann"
    placement: Placement = attrs.field(factory=Placement)
    merge_key: object = "agent"
    conversation_key: object = "agent"
    is_stopping: bool = False


def item(
    id: str,
    author: str = "ann",
    mode: QueueMode = "followup",
    burst: Burst | None = None,
    steers: str | None = None,
    merge_key: object = "agent",
    conversation_key: object = "agent",
    is_stopping: bool = False,
) -> One:
    place = Placement(mode, steers, burst=burst)
    return One(id, author, place, merge_key, conversation_key, is_stopping)


def ids(ones: Sequence[One]) -> list[str]:
    return [one.id for one in ones]


# Placing


def test_a_text_that_steers_enters_the_run_that_goes_on() -> None:
    run, text = item("r"), item("t", mode="steer")
    assert place(text, [text], [run], 1).into is run


def test_nothing_enters_a_run_that_is_ending_or_of_another_agent() -> None:
    text = item("t", mode="steer")
    assert entered(text, [item("r", is_stopping=True)], 1) is None
    assert entered(text, [item("r", conversation_key="another")], 1) is None


def test_in_a_group_a_text_enters_its_senders_own_run_and_no_other_while_one_may_start() -> None:
    ann, bob = item("a", "ann"), item("b", "bob")
    assert entered(item("t", "ann", "steer"), [ann, bob], 3) is ann
    assert entered(item("t", "cid", "steer"), [ann, bob], 3) is None
    assert entered(item("t", "cid", "steer"), [ann, bob], 2) is bob


def test_an_interruption_ends_its_senders_runs_and_takes_the_place_of_what_they_have_waiting() -> (
    None
):
    ann, bob = item("a", "ann"), item("b", "bob")
    old, other, into = item("o", "ann"), item("x", "bob"), item("s", "bob", steers="a")
    new = item("n", "ann", "interrupt")
    placed = place(new, [old, other, into, new], [ann, bob], 3)
    assert (placed.ends, placed.drops, placed.frees) == ((ann,), (old,), (into,))


# Starting


def test_what_was_collected_starts_as_one() -> None:
    queue = [
        item("1", mode="collect"),
        item("2", "bob", "collect"),
        item("3"),
        item("4", "bob", "collect"),
    ]
    assert ids(next_batch(queue, [], 1, 0)) == ["1", "2", "4"]


def test_where_several_runs_go_on_each_sender_has_its_own() -> None:
    queue = [item("1", mode="collect"), item("2", "bob", "collect"), item("3", mode="collect")]
    assert ids(next_batch(queue, [], 3, 0)) == ["1", "3"]
    assert ids(next_batch(queue, [item("r", "ann")], 3, 0)) == ["2"]


def test_what_was_said_for_different_agents_is_not_joined() -> None:
    queue = [item("1", mode="collect"), item("2", mode="collect", merge_key="another agent")]
    assert ids(next_batch(queue, [], 1, 0)) == ["1"]


def test_what_is_held_starts_with_what_it_is_held_with_and_holds_its_sender_only() -> None:
    burst = Burst(0, 1)
    queue = [item("1", burst=burst), item("2", "bob"), item("3"), item("4", burst=burst)]
    assert ids(next_batch(queue, [], 1, 0.5)) == ["2"]
    assert ids(next_batch(queue, [], 1, 1.0)) == ["1"], "the fourth may not overtake the third"
    assert wakes(queue, 0.5) == 1
    assert wakes(queue, 1.0) == float("inf")


def test_a_text_that_is_to_enter_a_run_starts_when_that_has_ended() -> None:
    queue = [item("t", steers="r")]
    assert next_batch(queue, [item("r", "bob")], 3, 0) == ()
    assert ids(next_batch(queue, [], 1, 0)) == ["t"]


# Bounds


@pytest.mark.parametrize(
    ("tokens", "window", "runs"),
    [(None, 100_000, 5), (50_000, 100_000, 5), (60_000, 100_000, 1), (1, 0, 5)],
)
def test_a_full_window_lets_one_run_go_on(tokens: int | None, window: int, runs: int) -> None:
    assert allowed(5, tokens, window, 0.6) == runs


@pytest.mark.parametrize(
    ("overflow", "dropped"), [("reject", []), ("drop_oldest", ["1"]), ("drop_newest", ["3"])]
)
def test_a_full_queue_drops_as_it_is_told(overflow: Overflow, dropped: list[str]) -> None:
    queue = [item("1"), item("2"), item("3")]
    assert ids(surplus(queue, QueueConfig(capacity=2, overflow=overflow))) == dropped


@given(st.lists(st.floats(0, 3), min_size=1, max_size=30), st.floats(0.1, 2))
def test_a_burst_is_held_a_pause_after_its_last_input_and_never_for_ever(
    gaps: list[float], pause: float
) -> None:
    """Law: a burst ends a pause after its last input, or LONGEST pauses after its first; what
    comes later begins another.
    """
    now, queue = 0.0, list[One]()
    for number, gap in enumerate(gaps):
        now += gap
        new = item(str(number))
        open_ = [
            one.placement.burst
            for one in queue
            if one.placement.burst and one.placement.burst.until > now
        ]
        new.placement.burst = held_with(queue, new, now, pause)
        queue.append(new)
        assert new.placement.burst.until == pytest.approx(
            max(
                min(now + pause, new.placement.burst.began + LONGEST * pause),
                *(burst.until for burst in open_),
                0.0,
            )
        )
        assert (new.placement.burst in open_) == bool(open_)


# All together

INPUTS = st.builds(
    item,
    id=st.just(""),
    author=st.sampled_from(["ann", "bob", "cid"]),
    mode=st.sampled_from(MODES),
    merge_key=st.sampled_from(["x", "x", "y"]),
)
STEPS = st.lists(st.one_of(INPUTS, st.sampled_from(["end", "end newest", "time"])), max_size=40)


@given(STEPS, st.sampled_from([1, 1, 2, 3]), st.sampled_from([0.0, 1.0]))
def test_every_input_is_answered_once_or_named_as_dropped(
    steps: list[One | str], limit: int, pause: float
) -> None:
    """Law: each input starts a run, is answered with another's, enters one, or is named as
    dropped, exactly once; at most ``limit`` runs go on, each sender has one; the inputs of a
    sender that start do so in their order.
    """
    world = World(limit, pause)
    for number, step in enumerate(steps):
        world.now += 0.3
        if isinstance(step, One):
            mode = step.placement.mode
            world.come(item(str(number), step.author, mode, merge_key=step.merge_key))
        elif step == "time":
            world.now += 2
        elif world.running:
            world.end(world.running[0 if step == "end" else -1])
        world.settle()
    while world.queue or world.running:
        world.now += 1
        for run in list(world.running):
            world.end(run)
        world.settle()
    assert sorted(world.outcomes) == sorted(world.seen)
    for author in ("ann", "bob", "cid"):
        own = [int(one.id) for one in world.started if one.author == author]
        assert own == sorted(own)


class World:
    """A session by the rules alone; texts enter their run when it ends."""

    def __init__(self, limit: int, pause: float) -> None:
        self.limit, self.pause, self.now = limit, pause, 0.0
        self.queue: list[One] = []
        self.running: list[One] = []
        self.started: list[One] = []
        self.seen: list[str] = []
        self.outcomes: list[str] = []
        self._held: list[One] = []

    def come(self, new: One) -> None:
        self.seen.append(new.id)
        if self.pause:
            new.placement.burst = held_with(self.queue, new, self.now, self.pause)
        self.queue.append(new)
        self._held.append(new)

    def settle(self) -> None:
        for one in list(self._held):
            if one.placement.burst is None or one.placement.burst.until <= self.now:
                self._held.remove(one)
                if one in self.queue:
                    self._place(one)
        while batch := next_batch(self.queue, self.running, self.limit, self.now):
            for one in batch:
                self.queue.remove(one)
                self.outcomes.append(one.id)
                self.started.append(one)
            self.running.append(batch[0])
            assert len(self.running) <= self.limit
            assert len({one.author for one in self.running}) == len(self.running)

    def _place(self, one: One) -> None:
        placed = place(one, self.queue, self.running, self.limit)
        one.placement.steers = placed.into.id if placed.into else None
        for run in placed.ends:
            run.is_stopping = True
        for gone in placed.drops:
            self.queue.remove(gone)
            self.outcomes.append(gone.id)
        for freed in placed.frees:
            freed.placement.steers = None

    def end(self, run: One) -> None:
        self.running.remove(run)
        for one in [one for one in self.queue if one.placement.steers == run.id]:
            self.queue.remove(one)
            self.outcomes.append(one.id)
