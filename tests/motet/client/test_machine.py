"""The client's side of the protocol, without a connection: frames out, given frames in."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.client.machine import Following, Machine
from motet.client.requests import ClientError, ConnectionLost, RequestFailed, TurnedAway
from motet.protocols import gateway as wire
from motet.protocols.chat import JsonObject
from motet.protocols.events import Gap, MessageAdded, RunStarted, TextDelta, Warned

STREAM = "session:a"


class Peer:
    """A machine, and the host's side of its connection."""

    def __init__(self) -> None:
        self.machine = Machine(wire.ClientInfo("test"))
        self.woken = 0

    def sent(self) -> list[wire.RequestFrame]:
        """The frames to send since the last call."""
        frames = [wire.decode_request(text) for text in self.machine.outgoing]
        self.machine.outgoing.clear()
        return frames

    def connect(self, instance: str = "boot_1", **streams: wire.StreamState) -> wire.RequestFrame:
        self.machine.opened()
        (asked,) = self.sent()
        assert asked.method == "connect"
        self.answer(
            asked.id,
            wire.Connected(
                1,
                wire.ServerInfo("0.1.0", instance, 1.0),
                wire.PrincipalInfo("local", "admin"),
                (),
                wire.Limits(frame=2_000),
                {f"session:{name}": state for name, state in streams.items()},
            ),
        )
        return asked

    def answer(self, request_id: str, result: object) -> None:
        self.machine.received(wire.encode(wire.ok(request_id, result)))

    def refuse(self, request_id: str, code: str, *, retryable: bool = False) -> None:
        body = wire.ErrorBody(code, "no", retryable)
        self.machine.received(wire.encode(wire.failed(request_id, body)))

    def event(self, seq: int, name: str = "run.started", **data: object) -> None:
        fields: JsonObject = data or {"agent": "echo", "model": "m"}
        self.machine.received(wire.encode(wire.EventFrame(STREAM, name, 1.0, fields, seq)))

    def delta(self, text: str) -> None:
        data: JsonObject = {"i": 0, "at": 0, "text": text}
        self.machine.received(wire.encode(wire.EventFrame(STREAM, "text.delta", 1.0, data)))

    def tick(self, heads: Mapping[str, int]) -> None:
        frame = wire.EventFrame("system", "tick", 1.0, {"heads": dict(heads)})
        self.machine.received(wire.encode(frame))

    def wake(self) -> None:
        self.woken += 1

    def follow(self, after: int | None = 0, capacity: int = 100) -> Following:
        return self.machine.follow(STREAM, after, self.wake, capacity)

    def taken(self, following: Following) -> list[int | None]:
        seqs: list[int | None] = []
        while (record := self.machine.take(following)) is not None:
            seqs.append(record.seq)
        return seqs


@pytest.fixture
def peer() -> Peer:
    return Peer()


def live(peer: Peer, after: int | None = 0, head: int = 0, capacity: int = 100) -> Following:
    peer.connect()
    following = peer.follow(after, capacity)
    (asked,) = peer.sent()
    peer.answer(asked.id, wire.StreamState(head, 1, resumed=True))
    return following


def test_nothing_but_connect_is_sent_before_the_host_has_answered_it(peer: Peer) -> None:
    pending = peer.machine.request("ping", {}, peer.wake)
    peer.machine.opened()
    assert [frame.method for frame in peer.sent()] == ["connect"]

    peer.machine.lost()
    peer.connect()

    (ping,) = peer.sent()
    peer.answer(ping.id, {"time": 1.0})
    assert (ping.method, pending.result, peer.woken) == ("ping", {"time": 1.0}, 1)


def test_requests_with_a_key_are_sent_again_in_order_and_others_fail(peer: Peer) -> None:
    peer.connect()
    first = peer.machine.request("chat.send", {"key": "1"}, peer.wake)
    lost = peer.machine.request("sessions.reset", {}, peer.wake)
    second = peer.machine.request("chat.send", {"key": "2"}, peer.wake)
    before = peer.sent()
    peer.machine.lost()
    after = peer.machine.request("sessions.reset", {}, peer.wake)
    peer.connect()

    again = peer.sent()
    assert [frame.id for frame in before] == [first.id, lost.id, second.id]
    assert [frame.id for frame in again] == [first.id, second.id, after.id]
    assert again[0].params == {"key": "1"}
    assert isinstance(lost.error, ConnectionLost)
    assert first.state == "sent"


def test_a_request_that_was_forgotten_is_not_sent(peer: Peer) -> None:
    pending = peer.machine.request("chat.send", {"key": "1"}, peer.wake)
    peer.machine.forget(pending)
    peer.connect()
    assert peer.sent() == []


def test_requests_in_flight_are_limited_and_stops_are_not(peer: Peer) -> None:
    peer.connect()
    limits = wire.Limits()
    window = limits.in_flight + limits.waiting // 2
    for _ in range(window + 5):
        peer.machine.request("status", {}, peer.wake)
    stop = peer.machine.request("runs.stop", {"all": True}, peer.wake)

    sent = peer.sent()
    assert (len(sent), sent[-1].id) == (window + 1, stop.id)
    peer.answer(sent[0].id, None)
    assert len(peer.sent()) == 1


def test_a_request_above_the_hosts_limit_fails_here(peer: Peer) -> None:
    peer.connect()
    pending = peer.machine.request("chat.send", {"text": "x" * 3_000}, peer.wake)
    assert peer.sent() == []
    assert isinstance(pending.error, RequestFailed)
    assert "the host reads 2000" in str(pending.error)
    with pytest.raises(TypeError):
        peer.machine.request("chat.send", {"text": object()}, peer.wake)


def test_events_come_once_and_in_order_whatever_the_connection_does(peer: Peer) -> None:
    following = live(peer)
    for seq in (1, 1, 2, 5, 6):
        peer.event(seq)

    (asked,) = peer.sent()
    assert asked.params == {"stream": STREAM, "after": 2}
    peer.answer(asked.id, wire.StreamState(6, 1, resumed=True))
    for seq in (3, 4, 5, 6):
        peer.event(seq)
    assert peer.taken(following) == [1, 2, 3, 4, 5, 6]
    assert peer.sent() == []


def test_a_reconnect_names_the_last_event_that_was_kept(peer: Peer) -> None:
    following = live(peer, None, head=7)
    peer.event(8)
    peer.machine.lost()

    asked = peer.connect(a=wire.StreamState(9, 1, resumed=True))
    peer.event(9)

    assert asked.params["resume"] == {STREAM: 8}
    assert peer.taken(following) == [8, 9]
    assert peer.sent() == []


def test_after_a_gap_or_a_tick_the_missing_events_are_asked_for(peer: Peer) -> None:
    following = live(peer)
    peer.event(1)
    peer.tick({STREAM: 1})
    assert peer.sent() == []

    peer.tick({STREAM: 3})
    (asked,) = peer.sent()
    peer.answer(asked.id, wire.StreamState(3, 1, resumed=True))
    frame = wire.EventFrame(STREAM, "gap", 1.0, {"start": 2, "end": 3})
    peer.machine.received(wire.encode(frame))

    (again,) = peer.sent()
    assert asked.params == again.params == {"stream": STREAM, "after": 1}
    assert peer.taken(following) == [1]


@pytest.mark.parametrize(("reason", "head", "start"), [("too_old", 90, 4), ("ahead", 2, 3)])
def test_events_that_the_host_lost_are_a_gap(
    peer: Peer, reason: str, head: int, start: int
) -> None:
    following = live(peer)
    for seq in (1, 2, 3):
        peer.event(seq)
    peer.machine.lost()
    state = {"head": head, "oldest": 80, "resumed": False, "reason": reason}
    peer.connect(a=msgspec.convert(state, wire.StreamState))
    peer.event(head + 1)

    records = [peer.machine.take(following) for _ in range(5)]
    assert records[3] is not None
    assert records[3].event == Gap(start, head)
    assert records[4] is not None
    assert records[4].seq == head + 1


def test_a_stream_that_is_not_there_any_more_ends_with_an_error(peer: Peer) -> None:
    following = live(peer)
    peer.event(1)
    peer.machine.lost()
    peer.connect(a=wire.StreamState(0, 0, resumed=False, reason="not_found"))

    assert peer.taken(following) == [1]
    assert isinstance(following.error, RequestFailed)
    assert following.error.code == "not_found"


def test_a_host_that_cannot_answer_now_is_asked_again_at_its_tick(peer: Peer) -> None:
    following = live(peer)
    peer.event(2)
    (asked,) = peer.sent()
    peer.refuse(asked.id, "unavailable", retryable=True)
    assert following.error is None

    peer.tick({})

    assert [frame.method for frame in peer.sent()] == ["subscribe"]


def test_a_slow_reader_holds_the_stream_until_it_has_read(peer: Peer) -> None:
    following = live(peer, capacity=4)
    peer.delta("dropped first")
    for seq in range(1, 7):
        peer.event(seq)

    assert [frame.method for frame in peer.sent()] == ["unsubscribe"]
    taken = [peer.machine.take(following) for _ in range(2)]
    (asked,) = peer.sent()
    assert [record.seq for record in taken if record] == [1, 2]
    assert asked.params == {"stream": STREAM, "after": 4}


def test_a_restart_of_the_host_drops_parts_of_unfinished_messages(peer: Peer) -> None:
    following = live(peer)
    peer.event(1)
    peer.delta("half a")
    peer.machine.lost()
    peer.connect("boot_2", a=wire.StreamState(1, 1, resumed=True))

    assert peer.machine.restarts == 1
    assert peer.taken(following) == [1]


class Outages:
    """A host whose storage comes and goes: events without numbers come again with them."""

    def __init__(self) -> None:
        self.peer = Peer()
        self.following = live(self.peer)
        self.seq = self.made = 0
        self.late: list[str] = []
        self.heard: list[str] = []

    def publish(self, *, works: bool, text: str) -> None:
        self.made += 1
        if works:
            self.store([*self.late, text])
            self.late.clear()
        else:
            self.say(text, None)
            self.late.append(text)

    def store(self, texts: list[str]) -> None:
        for text in texts:
            self.seq += 1
            self.say(text, self.seq)

    def say(self, text: str, seq: int | None) -> None:
        data: JsonObject = {"source": "test", "message": text}
        frame = wire.EventFrame(
            STREAM, "warning", 1.0, data, msgspec.UNSET if seq is None else seq, "run_1"
        )
        self.peer.machine.received(wire.encode(frame))

    def read(self) -> None:
        while (record := self.peer.machine.take(self.following)) is not None:
            assert isinstance(record.event, Warned)
            self.heard.append(record.event.message)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.sampled_from("ab")), max_size=40))
def test_an_event_without_a_number_is_not_told_again_with_it(
    steps: list[tuple[bool, bool, str]],
) -> None:
    """Law: whatever the storage does, and whenever it is read, each event is told once."""
    world = Outages()
    for works, reads, text in steps:
        world.publish(works=works, text=text)
        if reads:
            world.read()
    world.read()
    assert world.heard == [text for _, _, text in steps]
    assert world.following.last == world.seq


def test_what_had_no_number_when_the_host_ended_is_not_waited_for(peer: Peer) -> None:
    following = live(peer)
    data: JsonObject = {"agent": "echo", "model": "m"}
    peer.machine.received(wire.encode(wire.EventFrame(STREAM, "run.started", 1.0, data)))
    assert peer.taken(following) == [None]
    peer.machine.lost()
    peer.connect("boot_2", a=wire.StreamState(0, 1, resumed=True))
    peer.event(1)
    assert peer.taken(following) == [1]


def test_events_of_a_later_version_are_skipped_and_counted(peer: Peer) -> None:
    following = live(peer)
    peer.event(1, "run.levitated", height=3)
    peer.event(2, "run.started", agent=5, model="m")
    peer.event(3, "message", role="assistant", author="echo", text="hi")

    record = peer.machine.take(following)
    assert record is not None
    assert record.event == MessageAdded("assistant", "echo", "hi")
    assert (record.seq, peer.machine.unreadable) == (3, 1)


def test_a_refused_connect_raises_its_reason(peer: Peer) -> None:
    peer.machine.opened()
    (asked,) = peer.sent()
    with pytest.raises(RequestFailed, match="no") as refused:
        peer.refuse(asked.id, "unauthorized")
    assert refused.value.code == "unauthorized"


def test_a_closed_machine_fails_pending_and_later_requests(peer: Peer) -> None:
    following = live(peer)
    peer.event(1)
    pending = peer.machine.request("status", {}, peer.wake)
    gone = TurnedAway(4003, "token revoked")
    peer.machine.fail(gone)

    late = peer.machine.request("status", {}, peer.wake)
    assert pending.error is late.error is following.error is gone
    assert peer.taken(following) == [1]


def test_a_stream_has_one_reader(peer: Peer) -> None:
    following = live(peer)
    with pytest.raises(ClientError, match="already"):
        peer.follow()
    peer.machine.unfollow(following)
    assert [frame.method for frame in peer.sent()] == ["unsubscribe"]
    peer.event(1)
    peer.follow(None)
    (asked,) = peer.sent()
    assert asked.params == {"stream": STREAM}


def test_deltas_come_between_the_events_that_they_belong_to(peer: Peer) -> None:
    following = live(peer)
    peer.event(1)
    peer.delta("hi")
    peer.event(2)

    found = [peer.machine.take(following) for _ in range(3)]
    kinds = [type(record.event) for record in found if record]
    assert kinds == [RunStarted, TextDelta, RunStarted]
