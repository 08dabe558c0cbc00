"""Frames of ``motet.v1``: round trips, tolerance, and the examples of docs/protocol.md."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.gateway.methods import METHODS
from motet.protocols import gateway as wire
from motet.protocols import gateway_approvals as approvals
from motet.protocols import gateway_records as records
from motet.protocols import gateway_rooms as rooms
from motet.protocols import room_acts as acts
from motet.protocols.chat import JsonObject
from motet.protocols.escalations import EscalationInfo
from motet.protocols.events import AnyEvent, EventRecord, MessageAdded, ToolCall, is_durable
from motet.protocols.host_rooms import RoomInfo
from motet.protocols.policy import ToolsListParams

DOCS = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```json\n(.*?)\n```$", DOCS, re.MULTILINE | re.DOTALL)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
objects: st.SearchStrategy[JsonObject] = st.dictionaries(text, plain, max_size=4)
ids = st.text(st.characters(codec="ascii"), min_size=1, max_size=20)
errors = st.builds(
    wire.ErrorBody,
    code=text,
    message=text,
    retryable=st.booleans() | st.just(msgspec.UNSET),
    retry_after_ms=st.integers(0, 9999) | st.just(msgspec.UNSET),
    error_id=text | st.just(msgspec.UNSET),
)
frames: st.SearchStrategy[wire.Frame] = st.one_of(
    st.builds(wire.RequestFrame, id=ids, method=text, params=objects),
    st.builds(wire.ok, ids, objects),
    st.builds(wire.failed, ids, errors),
    st.builds(
        wire.EventFrame,
        stream=text,
        event=text,
        ts=st.floats(0, 2e9),
        data=objects,
        seq=st.integers(1, 2**53) | st.just(msgspec.UNSET),
        run_id=text | st.just(msgspec.UNSET),
    ),
)


@given(frames)
def test_every_frame_comes_back_as_it_was(frame: wire.Frame) -> None:
    """Law: decoding what was encoded gives the same frame."""
    assert wire.decode_frame(wire.encode(frame)) == frame


finite = st.floats(allow_nan=False, allow_infinity=False)
FIELDS = {"args": objects, "ms": finite, "expires": finite, "seconds": finite}
"""Values that JSON has, for fields whose type has others."""


def built(kind: type[AnyEvent]) -> st.SearchStrategy[AnyEvent]:
    chosen = {name: FIELDS[name] for name in kind.__struct_fields__ if name in FIELDS}
    return st.builds(kind, **chosen)


events: st.SearchStrategy[AnyEvent] = st.one_of(*map(built, AnyEvent.__args__))


@given(events, st.integers(1, 9))
def test_every_event_comes_back_as_it_was(event: AnyEvent, seq: int) -> None:
    """Law: an event survives the wire, whatever text it holds, once its text is Unicode."""
    record = EventRecord("session:a", event, 1.5, seq if is_durable(event) else None, "run_1")
    frame = wire.decode_frame(wire.encode(wire.event_frame(record)))
    assert isinstance(frame, wire.EventFrame)
    back = wire.event_record(frame)
    again = wire.event_frame(back) if back is not None else None
    assert again is not None
    assert wire.encode(again) == wire.encode(wire.event_frame(record))


def test_text_that_is_no_unicode_is_replaced_and_never_fails() -> None:
    call = ToolCall("c", "t", {"path": "a\ud800b", "more": ["\udfff", 1, None]})
    frame = wire.decode_frame(wire.encode(wire.event_frame(EventRecord("s", call, 1.0))))
    assert isinstance(frame, wire.EventFrame)
    assert frame.data["args"] == {"path": "a?b", "more": ["?", 1, None]}


@given(st.text() | st.binary())
def test_decoding_anything_gives_a_frame_or_a_frame_error(data: str | bytes) -> None:
    """Law: no input raises anything else."""
    with contextlib.suppress(wire.FrameError):
        wire.decode_frame(data)
    with contextlib.suppress(wire.FrameError):
        wire.decode_request(data)


def test_unknown_fields_are_ignored_and_unknown_events_are_none() -> None:
    request = wire.decode_request('{"type":"req","id":"1","method":"ping","params":{},"new":1}')
    assert wire.decode_params({"later": 1}, wire.NoParams) == wire.NoParams()
    assert request.method == "ping"
    assert wire.event_record(wire.EventFrame("s", "event.of.later", 1.0, {})) is None


def test_a_wrong_event_and_a_wrong_parameter_are_named() -> None:
    with pytest.raises(wire.FrameError, match=r"message.*role"):
        wire.event_record(wire.EventFrame("s", "message", 1.0, {}))
    with pytest.raises(wire.FrameError, match=r"\$\.after"):
        wire.decode_params({"stream": "s", "after": -1}, wire.SubscribeParams)


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_documented_frame_is_a_frame(example: str) -> None:
    frame = wire.decode_frame(example)
    match frame:
        case wire.RequestFrame():
            wire.decode_params(frame.params, PARAMS[frame.method])
        case wire.EventFrame():
            assert wire.event_record(frame) is not None
            assert wire.encode(frame) == example
        case wire.ResponseFrame():
            body = frame.result if frame.ok else frame.error
            assert not isinstance(body, msgspec.UnsetType)
            assert any(fits(body, kind) for kind in RESULTS) or not frame.ok
            assert wire.encode(frame) == example


PARAMS: dict[str, type[msgspec.Struct]] = {
    "connect": wire.ConnectParams,
    "ping": wire.NoParams,
    "status": wire.NoParams,
    "agents.list": wire.NoParams,
    "tools.list": ToolsListParams,
    "chat.send": wire.ChatSendParams,
    "subscribe": wire.SubscribeParams,
    "unsubscribe": wire.UnsubscribeParams,
    "sessions.list": wire.SessionsListParams,
    "sessions.history": wire.SessionsHistoryParams,
    "runs.list": wire.RunsListParams,
    "runs.stop": wire.RunsStopParams,
    "escalations.list": wire.EscalationsListParams,
    "escalations.resolve": wire.EscalationsResolveParams,
    "approvals.list": approvals.ApprovalsListParams,
    "approvals.resolve": approvals.ApprovalsResolveParams,
    "approvals.grants": approvals.ApprovalsGrantsParams,
    "approvals.revoke": approvals.ApprovalsRevokeParams,
    "sessions.reset": records.SessionParams,
    "sessions.compact": records.SessionParams,
    "sessions.delete": records.SessionParams,
    "chat.inject": records.ChatInjectParams,
    "runs.get": records.RunsGetParams,
    "runs.resend": records.RunsResendParams,
    "runs.wait": records.RunsWaitParams,
    "errors.list": records.ErrorsListParams,
    "errors.get": records.ErrorsGetParams,
    "traces.list": records.TracesListParams,
    "traces.get": records.TracesGetParams,
    "config.get": wire.NoParams,
    "config.reload": records.ConfigReloadParams,
    "actors.list": wire.NoParams,
    "logs.tail": records.LogsTailParams,
    "tokens.list": wire.NoParams,
    "tokens.new": records.TokensNewParams,
    "tokens.revoke": records.TokensRevokeParams,
    "users.delete": records.UsersDeleteParams,
    "rooms.list": rooms.RoomsListParams,
    "rooms.people": rooms.RoomParams,
    "rooms.summary": rooms.RoomParams,
    "rooms.add": acts.AddPerson,
    "rooms.remove": acts.RemovePerson,
    "rooms.mute": acts.MutePerson,
    "rooms.ban": acts.BanPerson,
    "rooms.leave": acts.LeaveRoom,
    "rooms.transfer": acts.TransferRoom,
    "rooms.rename": acts.RenameRoom,
    "rooms.slow": acts.SlowRoom,
    "rooms.rate": acts.RateRoom,
    "rooms.archive": acts.ArchiveRoom,
    "rooms.terms": acts.SetTerms,
    "rooms.invite": rooms.RoomsInviteParams,
    "rooms.invites": rooms.RoomParams,
    "rooms.revoke": rooms.RoomsRevokeParams,
    "rooms.join": rooms.RoomsJoinParams,
    "rooms.export": rooms.RoomsExportParams,
    "rooms.delete": rooms.RoomParams,
    "rooms.get": rooms.RoomParams,
    "rooms.history": rooms.RoomsHistoryParams,
    "rooms.create": rooms.RoomsCreateParams,
    "rooms.set": rooms.RoomsSetParams,
    "rooms.post": rooms.RoomsPostParams,
    "rooms.read": rooms.RoomsReadParams,
    "rooms.typing": rooms.RoomsTypingParams,
    "rooms.present": rooms.RoomsPresentParams,
    "messages.edit": rooms.MessagesEditParams,
    "messages.delete": rooms.MessagesDeleteParams,
    "messages.react": rooms.MessagesReactParams,
}
RESULTS = (
    wire.Connected,
    wire.Sent,
    wire.CommandAnswer,
    wire.StreamState,
    wire.Stopped,
    EscalationInfo,
    approvals.Resolved,
    records.Injected,
    rooms.Posted,
    rooms.RoomsHistory,
    RoomInfo,
)


def fits(body: object, kind: type[msgspec.Struct]) -> bool:
    """Whether the object is such a struct, with no field that the struct does not have."""
    try:
        fields = msgspec.convert(body, dict[str, object])
        msgspec.convert(body, kind)
    except msgspec.ValidationError:
        return False
    return set(fields) <= set(kind.__struct_fields__)


def documented(heading: str) -> set[str]:
    """The names in back quotes in the first column of the table under a heading."""
    section = DOCS.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_method_event_error_and_close_code_is_documented() -> None:
    assert documented("Methods") == set(METHODS) == set(PARAMS)
    assert documented("Errors") == set(get_args(wire.ErrorCode))
    names = {str(kind.__struct_config__.tag) for kind in AnyEvent.__args__}
    assert {name for name in names if f"`{name}`" not in DOCS} == set()
    codes = {value for name, value in vars(wire).items() if name.startswith("CLOSE_")}
    assert {code for code in codes if f"| {code} |" not in DOCS} == set()


def test_a_message_is_written_as_documented() -> None:
    record = EventRecord("session:a", MessageAdded("user", "al", "hi"), 1.0, 3, "r")
    assert wire.encode(wire.event_frame(record)) == (
        '{"type":"event","stream":"session:a","event":"message","ts":1.0,'
        '"data":{"role":"user","author":"al","text":"hi","i":0,"number":0,"reply_to":0},'
        '"seq":3,"run_id":"r"}'
    )


def test_a_wrong_word_is_answered_by_the_possible_ones() -> None:
    wrong: JsonObject = {"id": "apr_1", "decision": "allow", "key": "k"}
    with pytest.raises(wire.FrameError, match="one of allow-always, allow-once, deny"):
        wire.decode_params(wrong, approvals.ApprovalsResolveParams)
    with pytest.raises(wire.FrameError, match=r"got `bool` - at `\$.decision`$"):
        wire.decode_params({**wrong, "decision": True}, approvals.ApprovalsResolveParams)
