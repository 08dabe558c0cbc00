"""Events that come together go together: in order, complete, and once to each client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from motet.actors.gateway.hub import CHUNK, Batch, Hub, Published, batches
from motet.actors.gateway.streams import Subscription
from motet.protocols.events import EventRecord, TextDelta
from tests.actors.gateway.fake_host import FakeHost


def event(seq: int | None, size: int = 1) -> Published:
    return Published(EventRecord("session:a", TextDelta(0, 0, "x" * size), 1.0, seq))


numbers = st.lists(st.none() | st.integers(1, 6), max_size=12)
sizes = st.sampled_from((1, CHUNK // 3, 2 * CHUNK))


@given(numbers.flatmap(lambda seqs: st.tuples(*(st.tuples(st.just(seq), sizes) for seq in seqs))))
def test_all_events_are_in_batches_whose_numbers_follow_one_another(
    given_events: tuple[tuple[int | None, int], ...],
) -> None:
    """Law: batches are the events in their order; each one's numbers are contiguous and bounded."""
    events = [event(seq, size) for seq, size in given_events]

    made = list(batches(events))

    assert [one for batch in made for one in batch.events] == events
    for batch in made:
        found = [one.record.seq for one in batch.events if one.record.seq is not None]
        assert found == list(range(found[0], found[-1] + 1)) if found else batch.start is None
        assert (batch.start, batch.end) == ((found[0], found[-1]) if found else (None, None))
        assert batch.size <= CHUNK or len(batch.events) == 1
        assert batch.bytes() == b"".join(one.bytes() for one in batch.events)


@given(st.integers(0, 4), numbers)
def test_taking_a_batch_equals_taking_each_of_its_events(last: int, seqs: list[int | None]) -> None:
    """Law: what is taken as a whole is what would be taken one by one, with the same outcome."""
    whole, single = (Subscription("session:a", phase="live", last=last) for _ in range(2))
    for batch in batches([event(seq) for seq in seqs]):
        if whole.take_all(batch.start, batch.end):
            assert all(single.take(one) for one in batch.events)
        else:
            assert [whole.take(one) for one in batch.events] == [
                single.take(one) for one in batch.events
            ]
        assert (whole.last, whole.head, whole.phase) == (single.last, single.head, single.phase)


async def test_events_of_one_step_come_together_and_a_failing_watcher_disturbs_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = FakeHost()
    hub = Hub(host.events.api)
    got: list[list[int | None]] = []

    def failing(_batch: Batch) -> None:
        raise RuntimeError("broken")

    def watcher(batch: Batch) -> None:
        got.append([one.record.seq for one in batch.events])

    hub.watch("session:a", failing)
    leave = hub.watch("session:a", watcher)
    for text in "abc":
        host.say("a", TextDelta(0, 0, text))
    assert got == []
    await wait_all_tasks_blocked()

    assert got == [[None, None, None]]
    assert "a watcher of stream 'session:a' failed" in caplog.text
    host.say("a", TextDelta(0, 0, "d"))
    leave()
    await wait_all_tasks_blocked()
    assert len(got) == 1
