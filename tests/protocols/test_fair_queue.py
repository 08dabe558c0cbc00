"""The fair queue alone: its laws over drawn interleavings, and its figures on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.fair_queue import KEPT, RECENT, FairQueue, Ticket

STEPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 30), st.sampled_from([0.0, 0.5, 3.0, 70.0])),
    max_size=80,
)


def left(queue: FairQueue, ticket: Ticket, now: float) -> tuple[Ticket, ...]:
    return queue.leave(ticket, lambda: now)


@given(places=st.sampled_from([1, 2, 3, 8, 16]), steps=STEPS)
def test_places_are_neither_lost_nor_given_twice_whatever_comes_and_goes(
    places: int, steps: list[tuple[str, int, float]]
) -> None:
    """Laws: at most ``places`` work; each key is served in its order; a key that has no place does
    not wait while one is free; what is kept free is an eighth at most, and nothing for one key.
    """
    queue, now = FairQueue(places), 0.0
    there: list[Ticket] = []
    order: dict[str, list[Ticket]] = {}
    for key, which, pause in steps:
        now += pause
        if which < 15 or not there:
            ticket = queue.enter(key, now)
            there.append(ticket)
            order.setdefault(key, []).append(ticket)
        else:
            ticket = there.pop(which % len(there))
            waited = ticket.waits
            granted = left(queue, ticket, now)
            assert all(one.since == now and one in there for one in granted)
            assert not (waited and granted) or len(order) > 1
            order[ticket.key].remove(ticket)
        working = [one for one in there if not one.waits]
        waiting = [one for one in there if one.waits]
        assert queue.working == len(working) <= places
        assert queue.waiting == len(waiting)
        free, busy = places - len(working), {one.key for one in working}
        if free:
            assert {one.key for one in waiting} <= busy, "a key without a place waits for nothing"
        if waiting:
            assert free <= places // KEPT
            assert len({one.key for one in there}) > 1 or free == 0 or queue.keys > 1
        for own in order.values():
            begun = [not one.waits for one in own]
            assert begun == sorted(begun, reverse=True), "a later one has overtaken"
    for ticket in there:
        left(queue, ticket, now)
    assert queue.working == queue.waiting == 0


def test_keys_that_were_long_gone_are_forgotten_and_those_at_work_are_not() -> None:
    queue = FairQueue(2)
    long = queue.enter("long", 0.0)
    for number in range(1000):
        left(queue, queue.enter(f"short {number}", 0.0), 0.0)
    assert queue.keys == 1001
    left(queue, queue.enter("new", RECENT + 1), RECENT + 1)
    assert queue.keys == 2
    left(queue, long, 2 * RECENT)
    left(queue, queue.enter("last", 4 * RECENT), 4 * RECENT)
    assert queue.keys == 1


def test_the_order_costs_no_memory_while_a_key_is_never_done() -> None:
    queue = FairQueue(4)
    there = [queue.enter(key, 0.0) for key in "abcd" * 5]
    for now in range(2000):
        there.append(queue.enter(there[0].key, float(now)))
        left(queue, there.pop(0), float(now))
    assert len(queue._ranks) <= 2 * 4 + KEPT + 1  # pyright: ignore[reportPrivateUsage]


# Figures. A client begins requests of its key; each takes the time that its source names.

Source = Callable[[], Iterator[float]]


def played(
    places: int, clients: list[tuple[str, Source, float]], until: float
) -> dict[str, list[tuple[float, float]]]:
    """When each client's requests came and ended, by key, for sequential clients of a queue."""
    queue = FairQueue(places)
    agenda: list[tuple[float, int, Callable[[float], None]]] = []
    count = 0
    done: dict[str, list[tuple[float, float]]] = {key: [] for key, _, _ in clients}
    running: dict[Ticket, Callable[[float], None]] = {}

    def at(when: float, what: Callable[[float], None]) -> None:
        nonlocal count
        count += 1
        heappush(agenda, (when, count, what))

    def client(key: str, lengths: Iterator[float]) -> Callable[[float], None]:
        def ask(came: float) -> None:
            length = next(lengths, None)
            if length is None:
                return

            def begin(now: float) -> None:
                at(now + length, end)

            def end(now: float) -> None:
                done[key].append((came, now))
                del running[ticket]
                for other in left(queue, ticket, now):
                    running[other](now)
                ask(now)

            ticket = queue.enter(key, came)
            running[ticket] = begin
            if not ticket.waits:
                begin(came)

        return ask

    for key, source, start in clients:
        at(start, client(key, source()))
    while agenda and agenda[0][0] <= until:
        now, _, what = heappop(agenda)
        what(now)
    return done


def jain(shares: list[float]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(one * one for one in shares))


@pytest.mark.parametrize("places", [1, 4, 8, 16, 100])
@pytest.mark.parametrize("start", [0.0, 0.25, 0.999])
@pytest.mark.parametrize("floods", [1, 3])
def test_a_quiet_room_beside_floods_is_answered_in_one_and_a_half_times_its_time_alone(
    places: int, start: float, floods: int
) -> None:
    """Five requests of 1 s, one after the other, as a round of five turns has them."""

    def endless() -> Iterator[float]:
        while True:
            yield 1.0

    clients = [(f"flood {n}", endless, 0.0) for n in range(floods) for _ in range(3 * places)]
    quiet = ("quiet", lambda: iter([1.0] * 5), 20 + start)
    done = played(places, [*clients, quiet], until=60)["quiet"]
    took = done[-1][1] - done[0][0]
    if places >= KEPT:
        assert took <= (7.5 if floods == 1 else 5.0)
    else:  # none can be kept: it waits for the end of one request, or has its share of the place
        assert took <= max(2.0, (1 + floods) / places) * 5


@pytest.mark.parametrize("places", [1, 16, 100])
def test_the_time_of_the_model_is_shared_equally_over_two_hundred_rooms(places: int) -> None:
    """However many requests a room has at once, and however long these take."""

    def endless(length: float) -> Source:
        def lengths() -> Iterator[float]:
            while True:
                yield length

        return lengths

    clients: list[tuple[str, Source, float]] = []
    for room in range(200):
        for _ in range(1 + room % 7):
            clients.append((f"room {room}", endless(1.0 + room % 3), 0.0))
    until = 200 * 30 / places
    done = played(places, clients, until)
    used = [sum(1.0 + room % 3 for _ in done[f"room {room}"]) for room in range(200)]
    assert jain(used) >= 0.95


def test_a_hundred_rooms_with_a_hundred_places_wait_for_nobody() -> None:
    clients: list[tuple[str, Source, float]] = [
        (f"room {n}", lambda: iter([1.0] * 5), 0.0) for n in range(100)
    ]
    done = played(100, clients, until=100)
    assert max(end for ends in done.values() for _, end in ends) == 5.0
