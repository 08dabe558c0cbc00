"""The fair queue alone: its laws over drawn interleavings, and its figures on a virtual clock."""

from __future__ import annotations

from collections import Counter
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


def one_user(_key: str) -> str:
    return "u"


def two_users(key: str) -> str:
    return "u" if key in "abc" else "v"


def a_user_each(key: str) -> str:
    return key


def before_colon(key: str) -> str:
    return key.partition(":")[0]


def left(queue: FairQueue, ticket: Ticket, now: float) -> tuple[Ticket, ...]:
    return queue.leave(ticket, lambda: now)


@given(
    places=st.sampled_from([1, 2, 3, 8, 16]),
    steps=STEPS,
    of=st.sampled_from([one_user, two_users, a_user_each]),
    per_user=st.sampled_from([None, 1, 3]),
    per_key=st.sampled_from([None, 1, 2]),
    free=st.sampled_from([frozenset[str](), frozenset({"u"})]),
)
def test_places_are_neither_lost_nor_given_twice_whatever_comes_and_goes(
    places: int,
    steps: list[tuple[str, int, float]],
    of: Callable[[str], str],
    per_user: int | None,
    per_key: int | None,
    free: frozenset[str],
) -> None:
    """Laws: at most ``places`` work, and no more of a user and of a key than it may have; each key
    is served in its order; a user that has no place does not wait while one is free, and nobody
    waits for what is not kept; what is kept is an eighth at most.
    """
    queue, now = FairQueue(places, per_user, per_key, free), 0.0
    there: list[Ticket] = []
    order: dict[str, list[Ticket]] = {}
    for key, which, pause in steps:
        now += pause
        if which < 15 or not there:
            ticket = queue.enter(of(key), key, now)
            there.append(ticket)
            order.setdefault(key, []).append(ticket)
        else:
            ticket = there.pop(which % len(there))
            granted = left(queue, ticket, now)
            assert all(one.since == now and one in there for one in granted)
            order[ticket.key].remove(ticket)
        working = [one for one in there if not one.waits]
        waiting = [one for one in there if one.waits]
        assert queue.working == len(working) <= places
        assert queue.waiting == len(waiting)
        users, keys = Counter(one.user for one in working), Counter(one.key for one in working)
        most = {user: places if user in free else per_user or places for user in "uvabcd"}
        assert all(count <= most[user] for user, count in users.items())
        assert all(count <= (per_key or places) for count in keys.values())
        may = [
            one
            for one in waiting
            if users[one.user] < most[one.user] and keys[one.key] < (per_key or places)
        ]
        if len(working) < places:
            assert all(users[one.user] for one in may), "a user without a place waits for nothing"
            if len({one.user for one in there}) == 1 and queue.users == 1:
                assert all(keys[one.key] for one in may), "a key of the only user likewise"
        if may:
            assert places - len(working) <= places // KEPT, "nobody waits for what is not kept"
        for own in order.values():
            begun = [not one.waits for one in own]
            assert begun == sorted(begun, reverse=True), "a later one has overtaken"
        positions = [queue.position(one, now) for one in waiting]
        known = [one for one in positions if one]
        assert len(set(known)) == len(known), "two have one position"
        if pause >= 3.0:
            assert sorted(positions) == list(range(1, len(waiting) + 1))
    for ticket in there:
        left(queue, ticket, now)
    assert queue.working == queue.waiting == 0


@given(
    waiting=st.lists(st.tuples(st.sampled_from("uvw"), st.sampled_from("abc")), max_size=30),
    places=st.integers(1, 4),
)
def test_positions_are_the_order_in_which_all_begin(
    waiting: list[tuple[str, str]], places: int
) -> None:
    """Law: exactly, as long as none of those that have got a place leaves it."""
    queue = FairQueue(places, per_user=100, per_key=100)
    for _ in range(places):
        queue.enter("first", "first", 0.0)
    line = [queue.enter(user, user + key, 0.0) for user, key in waiting]
    said = {ticket: queue.position(ticket, 1.0) for ticket in line}
    queue.places += len(line)
    begun = queue._grant(2.0)  # pyright: ignore[reportPrivateUsage]
    kept = queue.places // KEPT
    assert [said[one] for one in begun] == list(range(1, len(begun) + 1))
    assert len(begun) >= len(line) - kept


def test_the_positions_of_a_long_line_are_looked_for_now_and_then_only() -> None:
    queue = FairQueue(1)
    line = [queue.enter("u", f"s{number}", 0.0) for number in range(3_000)]
    assert queue.position(line[1], 0.0) == 1
    queue.leave(line[0], lambda: 0.5)
    assert queue.position(line[2], 0.5) == 2, "as it was"
    assert queue.position(line[2], 4.0) == 1
    late = queue.enter("v", "late", 4.0)
    assert queue.position(late, 4.0) == 0
    assert queue.position(late, 8.0) == 1


def test_one_user_who_came_alone_leaves_room_for_the_next_one() -> None:
    queue = FairQueue(16, per_user=14, free=frozenset({"local"}))
    for number in range(30):
        queue.enter("mallory", f"s{number}", 0.0)
    assert (queue.working, queue.waiting) == (14, 16)
    assert not queue.enter("alice", "s", 1000.0).waits
    mine = [queue.enter("local", f"l{number}", 1000.0) for number in range(2)]
    assert [one.waits for one in mine] == [False, True], "the last one is for a user without any"


def test_keys_that_were_long_gone_are_forgotten_and_those_at_work_are_not() -> None:
    """And users, whose keys go with them."""
    queue = FairQueue(2)
    long = queue.enter("u", "long", 0.0)
    for number in range(1000):
        left(queue, queue.enter("u", f"short {number}", 0.0), 0.0)
    assert queue.keys == 1001
    left(queue, queue.enter("u", "new", RECENT + 1), RECENT + 1)
    assert queue.keys == 2
    left(queue, long, 2 * RECENT)
    left(queue, queue.enter("u", "last", 4 * RECENT), 4 * RECENT)
    assert queue.keys == 1


def test_the_order_costs_no_memory_while_a_key_is_never_done() -> None:
    queue = FairQueue(4)
    there = [queue.enter("u", key, 0.0) for key in "abcd" * 5]
    for now in range(2000):
        there.append(queue.enter("u", there[0].key, float(now)))
        left(queue, there.pop(0), float(now))
    users = queue._users  # pyright: ignore[reportPrivateUsage]
    assert len(users.ranks) <= 2 + KEPT + 1
    assert len(users.shares["u"].keys.ranks) <= 2 * 4 + KEPT + 1


# Figures. A client begins requests of its key; each takes the time that its source names.

Source = Callable[[], Iterator[float]]


def played(
    places: int,
    clients: list[tuple[str, Source, float]],
    until: float,
    of: Callable[[str], str] = a_user_each,
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

            ticket = queue.enter(of(key), key, came)
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
@pytest.mark.parametrize("of", [a_user_each, one_user])
def test_a_quiet_room_beside_floods_is_answered_in_one_and_a_half_times_its_time_alone(
    places: int, start: float, floods: int, of: Callable[[str], str]
) -> None:
    """Five requests of 1 s, one after the other, as a round of five turns has them."""

    def endless() -> Iterator[float]:
        while True:
            yield 1.0

    clients = [(f"flood {n}", endless, 0.0) for n in range(floods) for _ in range(3 * places)]
    quiet = ("quiet", lambda: iter([1.0] * 5), 20 + start)
    done = played(places, [*clients, quiet], 60, of)["quiet"]
    took = done[-1][1] - done[0][0]
    if places >= KEPT:
        assert took <= (7.5 if floods == 1 else 5.0)
    else:  # none can be kept: it waits for the end of one request, or has its share of the place
        assert took <= max(2.0, (1 + floods) / places) * 5


@pytest.mark.parametrize("places", [1, 16, 100])
@pytest.mark.parametrize("of", [a_user_each, one_user])
def test_the_time_of_the_model_is_shared_equally_over_two_hundred_rooms(
    places: int, of: Callable[[str], str]
) -> None:
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
    done = played(places, clients, until, of)
    used = [sum(1.0 + room % 3 for _ in done[f"room {room}"]) for room in range(200)]
    assert jain(used) >= 0.95


@pytest.mark.parametrize("places", [1, 16])
def test_the_time_of_the_model_is_shared_by_users_however_many_rooms_each_has(places: int) -> None:
    def endless() -> Iterator[float]:
        while True:
            yield 1.0

    clients = [(f"{user}:{n}", endless, 0.0) for user in range(4) for n in range(4 + 20 * user)]
    done = played(places, clients, 400 / places, of=before_colon)
    used = [sum(len(done[key]) for key in done if key.startswith(f"{user}:")) for user in range(4)]
    assert jain([float(one) for one in used]) >= 0.95, used


def test_a_hundred_rooms_with_a_hundred_places_wait_for_nobody() -> None:
    clients: list[tuple[str, Source, float]] = [
        (f"room {n}", lambda: iter([1.0] * 5), 0.0) for n in range(100)
    ]
    done = played(100, clients, until=100)
    assert max(end for ends in done.values() for _, end in ends) == 5.0
