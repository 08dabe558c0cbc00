"""The outbox and the subscription together, against a model of a client that may be slow."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from motet.actors.gateway.hub import Published
from motet.actors.gateway.outbox import Outbox
from motet.actors.gateway.streams import Subscription
from motet.protocols import gateway as wire
from motet.protocols.events import (
    Activity,
    AnyEvent,
    EventRecord,
    Gap,
    MessageAdded,
    TextDelta,
    Warned,
)

SMALL = wire.Limits(outbox_frames=8, outbox_bytes=100_000)


def published(
    event: AnyEvent, seq: int | None = None, run: str = "r", stream: str = "session:a"
) -> Published:
    return Published(EventRecord(stream=stream, event=event, ts=1.0, seq=seq, run_id=run))


def frames(box: Outbox) -> list[wire.Frame]:
    found: list[wire.Frame] = []
    while (entry := box.pop()) is not None:
        found.append(wire.decode_frame(entry.frame()))
        if entry.written is not None:
            entry.written()
    return found


def events(box: Outbox) -> list[EventRecord]:
    records = [wire.event_record(f) for f in frames(box) if isinstance(f, wire.EventFrame)]
    return [record for record in records if record is not None]


def test_a_thousand_deltas_are_one_frame_under_pressure() -> None:
    box = Outbox()
    for index in range(1000):
        assert box.offer(published(TextDelta(0, index, "x")))
    assert len(box) == 1
    assert [record.event for record in events(box)] == [TextDelta(0, 0, "x" * 1000)]
    assert box.bytes == 0


@given(st.lists(st.tuples(st.sampled_from("rs"), st.text(max_size=5), st.booleans()), max_size=60))
def test_merging_never_changes_the_text_of_a_message(
    steps: list[tuple[str, str, bool]],
) -> None:
    """Law: however deltas are merged, each run's deltas lie end to end and give its text."""
    box = Outbox()
    texts = {"r": "", "s": ""}
    received: list[EventRecord] = []
    for run, text, read in steps:
        box.offer(published(TextDelta(0, len(texts[run]), text), run=run))
        texts[run] += text
        if read:
            received += events(box)
    received += events(box)
    for run, text in texts.items():
        got = ""
        for record in received:
            if record.run_id == run and isinstance(record.event, TextDelta):
                assert record.event.at == len(got)
                got += record.event.text
        assert got == text


def test_deltas_with_a_hole_between_them_or_of_other_messages_do_not_merge() -> None:
    box = Outbox()
    for event in (TextDelta(0, 0, "ab"), TextDelta(0, 5, "c"), TextDelta(1, 6, "d")):
        box.offer(published(event))
    box.offer(published(TextDelta(1, 7, "e"), stream="session:b"))
    assert (len(box), box.merged) == (4, 0)


def test_above_half_of_the_limits_only_ephemerals_that_merge_are_taken() -> None:
    box = Outbox(SMALL)
    box.offer(published(TextDelta(0, 0, "a")))
    for seq in range(1, 4):
        assert box.offer(published(Warned("s", "m"), seq))
    assert box.offer(published(TextDelta(0, 0, "z"), run="other"))
    assert box.offer(published(Activity("tool")))
    assert box.offer(published(TextDelta(0, 1, "b")))
    assert (box.dropped, box.merged, len(box)) == (2, 1, 4)


def test_when_full_durable_events_are_refused_and_one_gap_covers_them() -> None:
    box = Outbox(SMALL)
    for seq in range(1, 9):
        assert box.offer(published(Warned("s", "m"), seq))
    assert not box.offer(published(Warned("s", "m"), 9))
    box.gap("session:a", 9, 9, 1.0)
    box.extend_gap("session:a", 12)
    assert events(box)[-1].event == Gap(9, 12)


def test_a_withdrawn_stream_is_not_written_and_its_page_counts_as_written() -> None:
    box, done = Outbox(), list[bool]()
    box.page("session:a", [published(Warned("s", "m"), 1)], lambda: done.append(True))
    box.offer(published(Warned("s", "m"), 1, stream="session:b"))
    box.answer("{}")
    box.withdraw("session:a")
    assert done == [True]
    assert len(box) == 2


def test_a_sealed_outbox_keeps_answers_only() -> None:
    box = Outbox()
    box.offer(published(Warned("s", "m"), 1))
    box.answer('{"type":"res","id":"1","ok":true}')
    box.seal()
    assert box.offer(published(Warned("s", "m"), 2))
    assert [type(frame) for frame in frames(box)] == [wire.ResponseFrame]


class SlowClient(RuleBasedStateMachine):
    """Law: whatever the pace of writer and reader, a client that follows the recipe has, at the
    end, the journal, in order and once. The replayer's part is played here step by step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.journal: list[EventRecord] = []
        self.box = Outbox(SMALL)
        self.subscription = Subscription("session:a", verified=True)
        self.subscription.begin(0, 0)
        self.got: list[int] = []
        self.delivered: list[int] = []
        self.lost = False

    @rule(count=st.integers(1, 12))
    def publish(self, count: int) -> None:
        for _ in range(count):
            seq = len(self.journal) + 1
            event = published(MessageAdded("assistant", "a", str(seq)), seq)
            self.journal.append(event.record)
            if self.subscription.take(event) and not self.box.offer(event):
                self.subscription.lose()
                self.box.gap("session:a", seq, seq, 1.0)
            elif self.subscription.phase == "lost":
                self.box.extend_gap("session:a", seq)

    @rule()
    def publish_ephemeral(self) -> None:
        event = published(Activity("tool"))
        if self.subscription.take(event):
            self.box.offer(event)

    @rule(limit=st.integers(1, 5))
    @precondition(lambda self: self.subscription.phase == "held")
    def replay(self, limit: int) -> None:
        last = self.subscription.last
        page = [Published(record) for record in self.journal[last : last + limit]]
        for event in page:
            assert event.record.seq is not None
            assert self.subscription.replayed(event.record.seq)
        if page:
            self.box.page("session:a", page, None)
        for event in self.subscription.splice():
            if not self.box.offer(event):
                assert event.record.seq is not None
                self.subscription.lose()
                self.box.gap("session:a", event.record.seq, self.subscription.head, 1.0)
                break

    @rule(count=st.integers(1, 20))
    def write(self, count: int) -> None:
        for _ in range(count):
            entry = self.box.pop()
            if entry is None:
                return
            frame = wire.decode_frame(entry.frame())
            assert isinstance(frame, wire.EventFrame)
            self.receive(frame)

    def receive(self, frame: wire.EventFrame) -> None:
        if frame.event == "gap":
            self.lost = True
        elif isinstance(frame.seq, int):
            assert frame.seq == len(self.got) + 1, "a gap or a duplicate"
            self.got.append(frame.seq)

    @rule()
    @precondition(lambda self: self.lost)
    def subscribe_again(self) -> None:
        self.lost = False
        self.subscription.close()
        self.box.withdraw("session:a")
        self.subscription = Subscription("session:a", verified=True)
        self.subscription.begin(len(self.got), len(self.journal))

    @invariant()
    def the_outbox_is_bounded(self) -> None:
        assert len(self.box) <= SMALL.outbox_frames + 5 * 64

    def teardown(self) -> None:
        for _ in range(200):
            if self.lost:
                self.subscribe_again()
            if self.subscription.phase == "held":
                self.replay(5)
            self.write(100)
        assert self.got == [record.seq for record in self.journal]


SlowClient.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestSlowClient = SlowClient.TestCase
