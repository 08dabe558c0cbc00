"""Presence, typing and read marks."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.room_presence import EVERY, Pace, Presence

moves = st.lists(
    st.tuples(st.sampled_from(["dev", "ops"]), st.sampled_from(["ann", "bob"]), st.booleans())
)


@given(moves)
def test_a_user_is_here_from_the_first_connection_to_the_end_of_the_last(
    done: list[tuple[str, str, bool]],
) -> None:
    """Law: who is here is who has a connection; a change is told when it is one."""
    presence, open_ = Presence(), Counter[tuple[str, str]]()
    for room, user, comes in done:
        key = (room, user)
        if not comes and not open_[key]:
            continue
        told = (presence.enter if comes else presence.leave)(room, user)
        open_[key] += 1 if comes else -1
        assert told == (open_[key] == (1 if comes else 0))
        here = tuple(
            sorted(name for (where, name), count in open_.items() if count and where == room)
        )
        assert presence.of(room) == here
    assert presence.of("nowhere") == ()


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=30))
def test_a_person_writes_at_most_once_in_so_many_seconds(signs: list[tuple[float, bool]]) -> None:
    now, passed = 0.0, [-EVERY]
    pace = Pace(lambda: now)
    since = False
    for after, on in signs:
        now += after
        if pace.passes("dev", "ann", on=on) and on:
            assert now - passed[-1] >= EVERY or not since
            passed.append(now)
        since = on
    assert pace.passes("ops", "ann", on=True), "rooms do not count for each other"


def test_the_pace_of_many_people_is_bounded_in_memory() -> None:
    pace = Pace(lambda: 0.0)
    for number in range(5_000):
        assert pace.passes("dev", f"user{number}", on=True)
    assert len(pace._last) <= 1_000  # pyright: ignore[reportPrivateUsage]


def test_who_stops_writing_is_told_once() -> None:
    pace = Pace(lambda: 0.0)
    assert pace.passes("dev", "ann", on=True)
    assert not pace.passes("dev", "ann", on=True)
    assert pace.passes("dev", "ann", on=False)
    assert not pace.passes("dev", "ann", on=False)
