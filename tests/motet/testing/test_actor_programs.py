"""Plain actors against a sequential model: lost updates, lost state, and no alarm on right ones."""

from __future__ import annotations

import itertools

import pytest
import trio
from hypothesis import Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from motet import testing as mt
from motet.protocols.linearizable import Operation, linearization
from motet.protocols.messages import Message, Request
from motet.runtime import Actor, handles


class Add(Request[int], frozen=True, tag="subject.add"):
    amount: int


class Get(Request[int], frozen=True, tag="subject.get"):
    """The total."""


class Note(Message, frozen=True, tag="subject.note"):
    """Adds one, without an answer."""


def total(state: int, message: Message) -> tuple[int, object]:
    """The model of every counter here."""
    if isinstance(message, Get):
        return state, state
    after = state + (message.amount if isinstance(message, Add) else 1)
    return after, after


class Counter(Actor[Add | Get | Note]):
    """Right, as long as it does not crash."""

    def __init__(self) -> None:
        self.total = 0

    @handles(Add)
    async def add(self, request: Add) -> int:
        before = self.total
        await trio.lowlevel.checkpoint()
        self.total = before + request.amount
        return self.total

    @handles(Note)
    async def note(self, message: Note) -> None:
        self.total += 1

    @handles(Get)
    async def get(self, request: Get) -> int:
        return self.total


class Hasty(Actor[Add | Get]):
    """Loses updates: two handlers read before either writes."""

    def __init__(self) -> None:
        self.total = 0

    @handles(Add, concurrent=2)
    async def add(self, request: Add) -> int:
        before = self.total
        await trio.lowlevel.checkpoint()
        self.total = before + request.amount
        return self.total

    @handles(Get)
    async def get(self, request: Get) -> int:
        return self.total


def until_found(drawn: st.SearchStrategy[mt.ActorProgram], most: int, seed: int = 1) -> int:
    """The number of programs until the first finding; 0: none in ``most``."""
    tried = found = 0

    @seeded(seed)
    @settings(max_examples=most, phases=(Phase.generate,), database=None, deadline=None)
    @given(drawn)
    def search(program: mt.ActorProgram) -> None:
        nonlocal tried, found
        if found:
            return
        tried += 1
        try:
            program.check()
        except mt.NotLinearizable:
            found = tried

    search()
    return found


# ---------------------------------------------------------------- findings


def test_a_lost_update_is_found_within_200_programs() -> None:
    assert until_found(mt.actor_programs(Hasty, total, 0, crashes=0), 200) > 0


def test_a_state_that_a_restart_forgets_is_found_within_200_programs() -> None:
    assert until_found(mt.actor_programs(Counter, total, 0, crashes=2), 200) > 0


@given(mt.actor_programs(Counter, total, 0, crashes=0))
@settings(max_examples=60, deadline=None)
def test_an_actor_that_handles_one_message_at_a_time_raises_no_alarm(
    program: mt.ActorProgram,
) -> None:
    program.check()


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(5))
def test_no_alarm_in_300_programs(seed: int) -> None:
    assert until_found(mt.actor_programs(Counter, total, 0, crashes=0), 300, seed) == 0


def test_a_finding_names_the_operations() -> None:
    program = mt.ActorProgram(Hasty, total, 0, clients=((Add(1),), (Add(10),)))
    with pytest.raises(mt.NotLinearizable, match=r"client 1: Add\(amount=1\) -> 1"):
        program.check()


def test_a_small_world_is_explored_whole() -> None:
    with pytest.raises(mt.NotLinearizable):
        mt.ActorProgram(Hasty, total, 0, clients=((Add(1),), (Add(10),))).explore()
    right = mt.ActorProgram(Counter, total, 0, clients=((Add(1),), (Get(),)))
    assert right.explore() > 1


def test_an_actor_without_a_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="names no messages"):
        mt.actor_programs(lambda: Counter(), total)


# ---------------------------------------------------------------- the check, pure


def register(state: int, message: str) -> tuple[int, object]:
    """``w1`` writes 1; ``r`` reads."""
    return (int(message[1:]), None) if message[0] == "w" else (state, state)


def test_a_read_may_not_go_back() -> None:
    write = Operation("a", "w1", 1, 8)
    new, old = Operation("b", "r", 2, 3, 1), Operation("b", "r", 4, 5, 0)
    assert linearization([write, new], 0, register) == (0, 1)
    assert linearization([write, new, old], 0, register) is None


def test_an_operation_without_an_answer_may_have_happened_or_not() -> None:
    lost = Operation("a", "w1", 1)
    for seen in (0, 1):
        assert linearization([lost, Operation("b", "r", 2, 3, seen)], 0, register) is not None
    back = [lost, Operation("b", "r", 2, 3, 1), Operation("b", "r", 4, 5, 0)]
    assert linearization(back, 0, register) is None


times = st.lists(
    st.tuples(st.integers(0, 8), st.integers(1, 5), st.sampled_from(["w1", "w2", "r"])),
    min_size=1,
    max_size=5,
)


@given(times, st.lists(st.integers(0, 2), min_size=5, max_size=5))
@settings(max_examples=150)
def test_the_check_agrees_with_the_definition(
    planned: list[tuple[int, int, str]], answers: list[int]
) -> None:
    """Law: there is a linearization if and only if some permutation that keeps the order of
    operations that do not overlap gives all answers."""
    history = [
        Operation(f"{n}", message, at, at + long, None if message[0] == "w" else answers[n])
        for n, (at, long, message) in enumerate(planned)
    ]
    assert (linearization(history, 0, register) is not None) == any(
        _explains(order, history) for order in itertools.permutations(range(len(history)))
    )


def _explains(order: tuple[int, ...], history: list[Operation[str]]) -> bool:
    state = 0
    for place, number in enumerate(order):
        one = history[number]
        for later in order[place + 1 :]:
            returned = history[later].returned
            if returned is not None and returned < one.called:
                return False
        state, answer = register(state, one.message)
        if answer != one.answer:
            return False
    return True
