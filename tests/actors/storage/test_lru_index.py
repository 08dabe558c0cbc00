"""The order in which results make room for others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.storage.results import Entry, LruIndex, ResultsFull, ResultTooLarge

LIFE = 100.0


def filled(*entries: str, max_bytes: int = 900) -> LruIndex:
    """A ledger with 300 bytes under each name; a name with ``!`` is pinned."""
    ledger = LruIndex(max_bytes, LIFE)
    for name in entries:
        ledger.add(Entry(name.rstrip("!"), "s", 300, 0.0, name.endswith("!")))
    return ledger


def test_the_least_recently_used_goes_first() -> None:
    ledger = filled("a", "b", "c")
    assert ledger.room_for(300, 1) == ["a"]
    ledger.use("a", 1)
    assert ledger.room_for(300, 2) == ["b"]
    assert ledger.room_for(301, 2) == ["b", "c"]


def test_pinned_ones_stay_and_when_all_are_nothing_fits() -> None:
    assert filled("a!", "b", "c").room_for(300, 1) == ["b"]
    with pytest.raises(ResultsFull):
        filled("a!", "b!", "c!").room_for(300, 1)
    with pytest.raises(ResultTooLarge):
        filled(max_bytes=100).room_for(300, 1)


def test_a_result_ends_with_its_life_and_a_use_prolongs_it() -> None:
    ledger = filled("a", "b!")
    assert ledger.find("a", "s", LIFE - 1)
    ledger.use("a", LIFE - 1)
    assert ledger.find("a", "s", LIFE + 1)
    assert ledger.find("b", "s", LIFE) is None
    assert ledger.room_for(0, LIFE) == ["b"]


def test_a_foreign_session_finds_nothing() -> None:
    assert filled("a").find("a", "other", 1) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "use", "pin", "unpin", "tick"]), st.integers(0, 9)),
        max_size=60,
    )
)
def test_it_agrees_with_a_list_in_order_of_use(ops: list[tuple[str, int]]) -> None:
    """Law: bounded; least recently used first; pinned ones only when expired; none needlessly."""
    ledger, model, now = LruIndex(1_000, 10), list[Entry](), 0.0
    for number, (op, n) in enumerate(ops):
        match op:
            case "tick":
                now += n
            case "put":
                size = n * 60
                try:
                    going = ledger.room_for(size, now)
                except ResultsFull:
                    alive = [e for e in model if now - e.used < 10 and e.pinned]
                    assert sum(e.held for e in alive) + size > 1_000
                    continue
                kept = [e for e in model if now - e.used < 10]
                while sum(e.held for e in kept) + size > 1_000:
                    kept.remove(next(e for e in kept if not e.pinned))
                assert set(going) == {e.id for e in model} - {e.id for e in kept}
                ledger.remove(going)
                entry = Entry(str(number), "s", size, now)
                ledger.add(entry)
                model = [*kept, entry]
            case _ if model:
                old = model[n % len(model)]
                if op == "use":
                    ledger.use(old.id, now)
                    model.remove(old)
                    model.append(Entry(old.id, "s", old.held, now, old.pinned))
                else:
                    ledger.pin(old.id, op == "pin")
                    new = Entry(old.id, "s", old.held, old.used, op == "pin")
                    model[model.index(old)] = new
            case _:
                pass
        assert ledger.held == sum(e.held for e in model) <= 1_000
        assert len(ledger) == len(model)
