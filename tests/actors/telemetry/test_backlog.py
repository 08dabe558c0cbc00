"""The backlog of one subscriber, against a journal in a list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.telemetry.subscription import Backlog, merge, merged
from motet.protocols.events import EventRecord, TextDelta, ThinkingDelta
from tests.actors.telemetry.builders import delta, numbers, record, text

PAGE = 3


class Reader:
    """A backlog and the journal it reads, stepped by hand."""

    def __init__(self, capacity: int, after: int | None, past: int) -> None:
        self.journal = [record(text(n), n) for n in range(1, past + 1)]
        self.backlog = Backlog(capacity, after)
        self.seen: list[EventRecord] = []

    def happen(self, *, durable: bool) -> None:
        seq = len(self.journal) + 1
        if durable:
            self.journal.append(record(text(seq), seq))
        self.backlog.offer(self.journal[-1] if durable else record(delta(seq * 10)))

    def step(self, overtaken: int = 0) -> bool:
        """One step of a subscription; ``overtaken`` events happen between read and replay."""
        if (taken := self.backlog.take()) is not None:
            self.seen.append(taken)
        elif self.backlog.behind:
            self.backlog.behind = False
            after = self.backlog.last or 0
            page = self.journal[after : after + PAGE]
            for _ in range(overtaken):
                self.happen(durable=True)
            self.backlog.replay(page, more=len(page) == PAGE)
        return self.backlog.ready


steps = st.lists(st.sampled_from(["event", "delta", "step", "overtaken step"]), max_size=60)


@given(st.integers(1, 8), st.integers(0, 10), st.none() | st.integers(0, 10), steps)
def test_every_numbered_event_is_read_once_in_order(
    capacity: int, past: int, after: int | None, script: list[str]
) -> None:
    """Law: from its beginning on, a reader sees n+1, n+2, ... without gap or duplicate."""
    after = None if after is None else min(after, past)
    reader = Reader(capacity, after, past)
    for what in script:
        if what in ("event", "delta"):
            reader.happen(durable=what == "event")
        else:
            reader.step(overtaken=3 if what == "overtaken step" else 0)
        assert len(reader.backlog) <= capacity + PAGE
    while reader.step():
        pass
    begin = past if after is None else after
    assert numbers(reader.seen) == list(range(begin + 1, len(reader.journal) + 1))


@given(st.integers(1, 8), st.lists(st.booleans(), max_size=40))
def test_a_reader_that_keeps_up_loses_nothing(capacity: int, script: list[bool]) -> None:
    """Law: whoever takes every record before the next one is offered drops none."""
    reader = Reader(capacity, None, 0)
    for durable in script:
        reader.happen(durable=durable)
        while reader.step():
            pass
    assert len(reader.seen) == len(script)
    assert reader.backlog.dropped == 0


@given(st.integers(2, 9), st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_merged_deltas_are_the_same_text(capacity: int, sizes: list[int]) -> None:
    """Law: deltas of one message, however many, arrive as the same text in the same order."""
    backlog = Backlog(capacity, None)
    at = 0
    for n, size in enumerate(sizes):
        words = chr(97 + n % 26) * size
        backlog.offer(record(delta(at, words)))
        at += size
    read = ""
    while (taken := backlog.take()) is not None:
        assert isinstance(taken.event, TextDelta)
        assert taken.event.at == len(read)
        read += taken.event.text
    assert (len(read), backlog.dropped) == (at, 0)


def test_only_deltas_that_follow_each_other_in_one_message_are_merged() -> None:
    first = record(delta(0, "ab"))
    assert merged(first, record(delta(2, "c"))) == record(delta(0, "abc"))
    assert merged(first, record(delta(3, "c"))) is None
    assert merged(first, record(delta(2, "c", i=1))) is None
    assert merged(first, record(ThinkingDelta(0, 2, "c"))) is None
    assert merged(first, EventRecord(first.stream, delta(2), 1.0, None, "run_2")) is None
    assert merge([first, record(text(1), 1), record(delta(2, "c"))])[1].seq == 1


def test_durable_events_without_a_number_are_given_up_last_and_counted() -> None:
    backlog = Backlog(4, None)
    for n in range(5):
        backlog.offer(record(text(n)))
    assert backlog.dropped == 4
    assert not backlog.behind
    assert backlog.take() == record(text(4))


def test_deltas_of_a_message_that_was_replayed_are_not_shown_after_it() -> None:
    backlog = Backlog(8, after=0)
    backlog.offer(record(delta(0, "he")))
    backlog.offer(record(text(1), 1))
    backlog.offer(record(delta(0, "new")))
    backlog.behind = False
    backlog.replay([record(text(1), 1)], more=False)
    assert backlog.take() == record(text(1), 1)
    assert backlog.take() == record(delta(0, "new"))
    assert (backlog.take(), backlog.dropped) == (None, 1)
