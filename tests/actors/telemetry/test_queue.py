"""The bounded queue of the bus."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.telemetry.event_bus import RecordQueue
from motet.protocols.events import EventRecord, is_durable
from tests.actors.telemetry.builders import delta, record, text


@given(st.integers(1, 6), st.lists(st.booleans(), max_size=30))
def test_order_is_kept_and_only_ephemeral_records_are_dropped(
    capacity: int, durable: list[bool]
) -> None:
    """Law: what is taken is a subsequence of what was put, with every durable one in it."""
    queue = RecordQueue(capacity)
    put: list[EventRecord] = []
    for n, lasting in enumerate(durable):
        if lasting and queue.full:
            break
        put.append(record(text(n) if lasting else delta(n)))
        queue.put(put[-1])
        assert len(queue) <= capacity
    taken = queue.take()
    assert [r for r in taken if is_durable(r.event)] == [r for r in put if is_durable(r.event)]
    assert taken == [r for r in put if r in taken]
    assert queue.dropped == len(put) - len(taken)
    assert len(queue) == 0
    assert not queue.full


def test_a_full_queue_of_durable_events_takes_no_more() -> None:
    queue = RecordQueue(2)
    queue.put(record(text(1)))
    queue.put(record(delta()))
    assert not queue.full
    queue.put(record(text(2)))
    assert queue.full
    assert not queue.put(record(text(3)))
    assert queue.put(record(delta()))
    assert queue.dropped == 2
    assert len(queue) == 2
