"""Requests run, wait, or are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.gateway.method import Refusal
from motet.actors.gateway.requests import Requests, urgency
from motet.protocols.gateway import Limits, RequestFrame


def request(name: str, session: str | None = None, text: str = "hi") -> RequestFrame:
    if session is None:
        return RequestFrame(name, "sessions.list")
    return RequestFrame(name, "chat.send", {"session": session, "text": text})


def test_eight_requests_run_others_wait_and_too_many_are_refused() -> None:
    requests = Requests(Limits(in_flight=8, waiting=2))
    assert [requests.admit(request(str(i))) for i in range(10)] == [True] * 8 + [False] * 2
    with pytest.raises(Refusal, match="in flight"):
        requests.admit(request("10"))


def test_stops_and_commands_get_through_when_the_queue_is_full() -> None:
    requests = Requests(Limits(in_flight=1, waiting=0))
    requests.admit(request("1", "a"))
    assert requests.admit(RequestFrame("2", "runs.stop", {"session": "a"}))
    assert urgency(request("3", "a", "don't stop")) is None
    with pytest.raises(Refusal):
        requests.admit(request("4", "a", "/stop"))
    assert requests.admit(request("6", "a", "/errors"))
    with pytest.raises(Refusal, match="1 commands are in flight"):
        requests.admit(request("7", "a", "/usage"))
    requests.over(RequestFrame("2", "runs.stop", {"session": "a"}))
    assert requests.admit(request("5", "a", "STOP!"))


@given(st.lists(st.sampled_from(["a", "b", None]), max_size=40), st.data())
def test_messages_of_a_session_start_one_after_the_other_in_order(
    sessions: list[str | None], data: st.DataObject
) -> None:
    """Law: per session at most one runs, they start in the order in which they came, all start,
    and never more than the limit run.
    """
    requests = Requests(Limits(in_flight=3, waiting=100))
    frames = [request(str(index), session) for index, session in enumerate(sessions)]
    started: list[RequestFrame] = []
    running: list[RequestFrame] = []
    for frame in frames:
        if requests.admit(frame):
            started.append(frame)
            running.append(frame)
    while running:
        assert len(running) <= 3
        ended = running.pop(data.draw(st.integers(0, len(running) - 1)))
        fresh = requests.over(ended)
        started += fresh
        running += fresh
        lanes = [f.params["session"] for f in running if f.params]
        assert len(lanes) == len(set(lanes))
    assert len(started) == len(frames)
    for key in ("a", "b"):
        ids = [int(f.id) for f in started if f.params.get("session") == key]
        assert ids == sorted(ids)
