"""The laws find violations, in made-up numbers and in kernels with a planted defect."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.runtime import ActorDead, Statistics, open_system
from motet.runtime.incarnation import Incarnation
from motet.runtime.mailbox import Mailbox
from motet.runtime.testing import Outcome, Simulation, Violation, run
from motet.runtime.testing.invariants import broken_laws
from motet.runtime.testing.probe import Limits
from tests.runtime.testing.worlds import Add, Node, graph

IDLE = Statistics(
    state="running",
    accepted=0,
    handled=0,
    withdrawn=0,
    dead_lettered=0,
    stashed=0,
    queued=0,
    running=0,
    waiting=0,
    restarts=0,
)
LIMITS = Limits(capacity=3, handlers=1)
TERMS = ("handled", "withdrawn", "dead_lettered", "stashed", "queued", "running")


def broken(
    now: Statistics, before: Statistics | None = None, may_finish: int | None = None
) -> list[str]:
    found = broken_laws(before, now, LIMITS, may_finish)
    return [f"{guarantee}: {detail}" for guarantee, detail in found]


counts = st.fixed_dictionaries({name: st.integers(0, 5) for name in TERMS})


@given(counts, st.integers(-3, 3))
def test_the_law_of_conservation_finds_each_missing_message(
    terms: dict[str, int], lost: int
) -> None:
    """Law: G4 is broken exactly when accepted is not the sum of the other counters."""
    seen = msgspec.structs.replace(IDLE, **terms, accepted=sum(terms.values()) + lost)
    conserved = not any(f.startswith("G4: accepted") for f in broken(seen))
    assert conserved == (lost == 0)


@given(counts, counts)
def test_more_mail_than_room_or_handlers_than_declared_is_found(
    terms: dict[str, int], earlier: dict[str, int]
) -> None:
    """Law: G5 and G13 are broken exactly when a number exceeds the declared limit."""
    seen = msgspec.structs.replace(IDLE, **terms, accepted=sum(terms.values()))
    found = broken(seen)
    assert any(f.startswith("G13") for f in found) == (seen.queued + seen.stashed > 3)
    assert any(f.startswith("G5") for f in found) == (seen.running > 1)


def test_each_law_names_its_numbers() -> None:
    replace = msgspec.structs.replace
    assert broken(IDLE) == []
    assert broken(replace(IDLE, accepted=1)) == [
        "G4: accepted 1, but handled 0, withdrawn 0, dead_lettered 0, "
        "stashed 0, queued 0, running 0"
    ]
    assert broken(replace(IDLE, accepted=1, handled=2, queued=-1)) == [
        "G4: less than nothing: queued -1"
    ]
    more = replace(IDLE, accepted=1, handled=1)
    assert broken(IDLE, before=more) == [
        "G4: accepted went from 1 to 0",
        "G4: handled went from 1 to 0",
    ]
    ending = replace(IDLE, state="stopping", accepted=2, handled=1, running=1)
    assert broken(ending, may_finish=2) == []
    assert broken(ending, may_finish=1) == [
        "G6: stopping, but a handler began: handled 1 + running 1, when the end began 1"
    ]
    assert broken(replace(IDLE, state="dead", accepted=1, queued=1, waiting=2)) == [
        "G2: dead, but queued 1, waiting 2"
    ]


# ---------------------------------------------------------------- a clean kernel


def test_a_clean_kernel_breaks_no_law() -> None:
    """Law: G1 to G6 and G13 hold after every step of every schedule."""
    for seed in range(100):
        run(graph, seed=seed).check()


# ---------------------------------------------------------------- kernels with a defect


def first_violation(defect: str) -> Violation:
    """Of the first of 200 schedules that finds one."""
    outcomes: Iterator[Outcome[int]] = (run(graph, seed=seed) for seed in range(200))
    found = next((outcome.violations[0] for outcome in outcomes if outcome.violations), None)
    assert found is not None, f"200 schedules did not find {defect}"
    return found


def test_a_message_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Mailbox.withdraw

    def withdraw(self: Mailbox, ask: object) -> None:
        original(self, ask)  # type: ignore[arg-type]  # pyright: ignore
        self.withdrawn = 0

    monkeypatch.setattr(Mailbox, "withdraw", withdraw)
    violation = first_violation("a forgotten message")
    assert violation.guarantee == "G4"
    assert violation.actor.startswith("/system/node")


def test_a_mailbox_without_a_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def put(self: Mailbox, item: object) -> bool:
        if self.closed is not None:
            return False
        self.accepted += 1
        self._enqueue(item)  # type: ignore[arg-type]  # pyright: ignore
        return True

    monkeypatch.setattr(Mailbox, "put", put)
    assert first_violation("a mailbox without a limit").guarantee == "G13"


def test_mail_left_in_a_dead_actor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Mailbox.close

    def close(self: Mailbox, reason: str) -> None:
        if any(isinstance(item, Add) for item in self.queue):
            self.shut, self.holder = reason, None
            self.limit = 0
            return
        original(self, reason)

    monkeypatch.setattr(Mailbox, "close", close)

    async def world(sim: Simulation) -> None:
        async with open_system() as system:
            sim.watch(system)
            ref = await system.start(lambda: Node(sim, None), name="node")
            for amount in range(3):
                ref.tell_nowait(Add(amount))
            await ref.stop(grace=1)

    found = {v.guarantee: v for v in run(world).violations}
    assert "G2" in found
    assert "dead, but queued" in found["G2"].detail


def test_mail_handled_after_the_stop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(self: Incarnation) -> None:
        if not self.owner.mailbox.queue:
            self.finishing = True
        self.owner.mailbox.wake()

    def close(self: Mailbox, reason: str) -> None:
        if not self.queue:
            original(self, reason)

    original = Mailbox.close
    monkeypatch.setattr(Incarnation, "finish", finish)
    monkeypatch.setattr(Mailbox, "close", close)

    async def world(sim: Simulation) -> None:
        async with open_system() as system:
            sim.watch(system)
            ref = await system.start(lambda: Node(sim, None), name="node")
            for amount in range(3):
                ref.tell_nowait(Add(amount))
            await ref.stop(grace=9)

    assert "G6" in {v.guarantee for v in run(world, max_steps=300).violations}


def test_two_handlers_in_one_turn_are_found() -> None:
    async def world(sim: Simulation) -> None:
        async def handler() -> None:
            with sim.turns.taking("/system/node"):
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(handler)
            nursery.start_soon(handler)

    (violation,) = run(world, choices=()).violations
    assert str(violation) == "G5 broken at step 3 by /system/node: 2 handlers are in the turn"


# ---------------------------------------------------------------- what the world tells


def test_work_for_an_asker_that_resumed_is_found() -> None:
    async def world(sim: Simulation) -> None:
        async def handler() -> None:
            with sim.asks.working(7):
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            with sim.asks.asking(7):
                nursery.start_soon(handler)
                await trio.sleep(0.5)

    details = [v.detail for v in run(world).violations if v.guarantee == "G1"]
    assert details == ["its asker resumed while 1 handlers worked for it"]


def test_a_handler_that_begins_after_its_asker_resumed_is_found() -> None:
    async def world(sim: Simulation) -> None:
        with sim.asks.asking(7):
            await trio.sleep(1)
        with sim.asks.working(7):
            await trio.sleep(1)

    (violation,) = run(world).violations
    assert (violation.guarantee, violation.actor) == ("G1", "request 7")


def test_two_outcomes_a_missing_one_and_the_answer_of_another_are_found() -> None:
    async def world(sim: Simulation) -> None:
        sim.asks.asked("twice")
        sim.asks.resumed("twice", "value")
        sim.asks.resumed("twice", "ActorDead")
        sim.asks.asked("never")
        with sim.asks.asking("mine"):
            sim.asks.answered("mine", "yours")

    found = {v.actor: v.detail for v in run(world).violations}
    assert found == {
        "request twice": "several outcomes: value, ActorDead",
        "request mine": "it got the answer of yours",
        "request never": "no outcome",
    }


def test_an_error_is_an_outcome_too() -> None:
    async def world(sim: Simulation) -> None:
        async with open_system() as system:
            sim.watch(system)
            ref = await system.start(lambda: Node(sim, None), name="node")
            await ref.stop()
            with pytest.raises(ActorDead), sim.asks.asking(1):
                raise ActorDead(ref.path, "it was stopped")

    run(world).check()
