"""The wire format of protocol ``motet.v1``: frames, parameters, results, limits.

Invariants: encoding never fails for an event of a host; decoding never raises anything but
:class:`FrameError`, whose message names what is wrong; unknown fields are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from motet.protocols.chat import JsonObject
from motet.protocols.errors import MotetError
from motet.protocols.escalations import Answer, EscalationInfo, EscalationState
from motet.protocols.events import AnyEvent, EventRecord, event_name
from motet.protocols.host import AgentInfo
from motet.protocols.messages import Request as Ask
from motet.protocols.queueing import QueueMode
from motet.protocols.sessions import HistoryRow, Role, RunInfo, RunStatus, SessionInfo, StopReport

SUBPROTOCOL: Final = "motet.v1"
PROTOCOL: Final = 1
SESSION_STREAM: Final = "session:"
SYSTEM_STREAM: Final = "system"

ErrorCode: TypeAlias = Literal[
    "bad_frame",
    "connect_first",
    "protocol_version",
    "unauthorized",
    "forbidden",
    "unknown_method",
    "invalid_params",
    "not_found",
    "unknown_agent",
    "key_conflict",
    "already_answered",
    "queue_full",
    "session_busy",
    "rate_limited",
    "limit_reached",
    "overloaded",
    "unavailable",
    "storage_unavailable",
    "internal",
]
RETRYABLE: Final[frozenset[ErrorCode]] = frozenset(
    {
        *("queue_full", "session_busy", "rate_limited", "limit_reached", "overloaded"),
        *("unavailable", "storage_unavailable"),
    }
)
"""Sending the same request again later can succeed."""

# Close codes: RFC 6455's own, then those of this protocol.
CLOSE_DONE: Final = 1000
CLOSE_GOING_AWAY: Final = 1001
CLOSE_UNSUPPORTED: Final = 1003
CLOSE_POLICY: Final = 1008
CLOSE_TOO_LARGE: Final = 1009
CLOSE_INTERNAL: Final = 1011
CLOSE_OVERLOADED: Final = 1013
CLOSE_CONNECT_TIMEOUT: Final = 4001
CLOSE_PROTOCOL: Final = 4002
CLOSE_REVOKED: Final = 4003
CLOSE_RATE: Final = 4008


class FrameError(MotetError):
    """A frame or its parameters cannot be read. ``request_id`` is the frame's, if it had one."""

    def __init__(self, message: str, request_id: str = "") -> None:
        super().__init__(message)
        self.request_id = request_id


class Limits(msgspec.Struct, frozen=True):
    """Limits of one gateway, sent to each client at connect. Sizes in bytes, times in ms."""

    frame: int = 1_048_576
    connect_frame: int = 65_536
    connect_ms: int = 5_000
    outbox_frames: int = 256
    outbox_bytes: int = 8_388_608
    send_timeout_ms: int = 10_000
    ping_ms: int = 20_000
    in_flight: int = 8
    waiting: int = 64
    subscriptions: int = 32
    connections: int = 200
    connections_per_user: int = 20
    messages_per_min: int = 60
    message_burst: int = 10
    frames_per_sec: int = 500
    bytes_per_sec: int = 4_194_304
    page_events: int = 200
    page_bytes: int = 262_144
    connect_failures: int = 30
    connect_failures_ms: int = 300_000


# -- frames ------------------------------------------------------------------------------------

RequestId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
UserName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]


class RequestFrame(msgspec.Struct, frozen=True, tag="req", tag_field="type"):
    """``as_user``: the user of this one request; for the tokens of bridges."""

    id: RequestId
    method: Annotated[str, Meta(max_length=64)]
    params: JsonObject = {}
    as_user: UserName | UnsetType = UNSET


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """``message`` is fit to show; ``error_id`` finds the cause in the server's log."""

    code: str
    message: str
    retryable: bool | UnsetType = UNSET
    retry_after_ms: int | UnsetType = UNSET
    error_id: str | UnsetType = UNSET


class ResponseFrame(msgspec.Struct, frozen=True, tag="res", tag_field="type", omit_defaults=True):
    """``result`` when ``ok``, else ``error``."""

    id: str
    ok: bool
    result: object | UnsetType = UNSET
    error: ErrorBody | UnsetType = UNSET


class EventFrame(msgspec.Struct, frozen=True, tag="event", tag_field="type", omit_defaults=True):
    """``data`` holds the event's fields; without ``seq`` it is ephemeral."""

    stream: str
    event: str
    ts: float
    data: JsonObject
    seq: int | UnsetType = UNSET
    run_id: str | UnsetType = UNSET


Frame: TypeAlias = RequestFrame | ResponseFrame | EventFrame
ServerFrame: TypeAlias = ResponseFrame | EventFrame

# -- parameters --------------------------------------------------------------------------------

SessionKey: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
StreamName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=240)]
IdempotencyKey: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
PageSize: TypeAlias = Annotated[int, Meta(ge=1, le=200)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Position: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]
"""Number of an event or a row; the upper bound is that of SQLite's integers."""


class NoParams(msgspec.Struct, frozen=True):
    """The method takes nothing."""


class ProtocolRange(msgspec.Struct, frozen=True):
    min: int = PROTOCOL
    max: int = PROTOCOL


class ClientInfo(msgspec.Struct, frozen=True):
    name: str = ""
    version: str = ""
    caps: tuple[str, ...] = ()


class Auth(msgspec.Struct, frozen=True):
    """``as_user``: the user of the whole connection; for the tokens of bridges."""

    token: str | None = None
    as_user: UserName | None = None


class ConnectParams(msgspec.Struct, frozen=True):
    """``resume``: for each stream, the number of the last event that the client has."""

    protocol: ProtocolRange = ProtocolRange()
    client: ClientInfo = ClientInfo()
    auth: Auth = Auth()
    resume: Annotated[dict[StreamName, Count], Meta(max_length=32)] = {}


class ChatSendParams(msgspec.Struct, frozen=True):
    """``mode``: queue mode while the session is at work; absent: the session's.

    ``sender``: the author, in a group for which a bridge speaks; it gives no rights.
    """

    session: SessionKey
    text: Annotated[str, Meta(min_length=1)]
    key: IdempotencyKey
    agent: str | None = None
    mode: QueueMode | None = None
    sender: Annotated[str, Meta(max_length=64)] = ""


class SubscribeParams(msgspec.Struct, frozen=True):
    """``after`` absent: from now on; 0: from the beginning."""

    stream: StreamName
    after: Count | None = None


class UnsubscribeParams(msgspec.Struct, frozen=True):
    stream: StreamName


class SessionsListParams(msgspec.Struct, frozen=True):
    limit: PageSize = 50
    cursor: float | None = None


class SessionsHistoryParams(msgspec.Struct, frozen=True):
    session: SessionKey
    before: Position | None = None
    limit: PageSize = 50


class RunsListParams(msgspec.Struct, frozen=True):
    """``room``: those of the members of a room whose owner the user is."""

    session: SessionKey | None = None
    status: RunStatus | None = None
    limit: PageSize = 50
    room: SessionKey | None = None


class RunsStopParams(msgspec.Struct, frozen=True):
    """Exactly one of ``run_id``, ``session``, ``room`` and ``all``.

    A stop that is sent again under its ``key`` does not end later runs.
    """

    key: IdempotencyKey
    run_id: str | None = None
    session: SessionKey | None = None
    room: SessionKey | None = None
    all: bool = False
    grace_ms: Annotated[int, Meta(ge=0, le=30_000)] = 5_000

    def __post_init__(self) -> None:
        named = (self.run_id, self.session, self.room)
        if sum(one is not None for one in named) + self.all != 1:
            raise ValueError("give exactly one of `run_id`, `session`, `room` and `all`")


class EscalationsListParams(msgspec.Struct, frozen=True):
    """``room``: one of the caller's own."""

    session: SessionKey | None = None
    room: SessionKey | None = None
    state: EscalationState | None = None
    limit: PageSize = 50


class EscalationsResolveParams(msgspec.Struct, frozen=True):
    """The same answer may be repeated, without a key."""

    escalation: Annotated[str, Meta(min_length=1, max_length=200)]
    decision: Answer
    note: str = ""


# -- results -----------------------------------------------------------------------------------


class PrincipalInfo(msgspec.Struct, frozen=True):
    user: str
    role: Role


class ServerInfo(msgspec.Struct, frozen=True):
    """``instance`` changes with each start of the host."""

    version: str
    instance: str
    time: float


class StreamState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The range of a stream. ``resumed`` false: read the history, then continue at ``head``."""

    head: int
    oldest: int
    resumed: bool
    reason: Literal["too_old", "ahead", "not_found", "limit_reached"] | UnsetType = UNSET


class Connected(msgspec.Struct, frozen=True):
    protocol: int
    server: ServerInfo
    principal: PrincipalInfo
    methods: tuple[str, ...]
    limits: Limits
    streams: dict[str, StreamState]


class Pong(msgspec.Struct, frozen=True):
    time: float


class AgentsList(msgspec.Struct, frozen=True):
    agents: tuple[AgentInfo, ...]


class Sent(msgspec.Struct, frozen=True):
    """The input is on disk. ``position``: in the queue, from 1; ``seq``: of its event."""

    run_id: str
    status: Literal["accepted", "queued", "steered", "collected", "duplicate", "dropped"]
    position: int = 0
    seq: int | None = None


class Stopped(StopReport, frozen=True):
    """``duplicate``: the result of the first stop with that key."""

    status: Literal["done", "duplicate"] = "done"


class CommandAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text was a command for the host and made no run.

    ``duplicate``: it was carried out before, under the same key. ``run_id``: of the run that goes
    on because of it.
    """

    command: str
    text: str
    status: Literal["command", "duplicate"] = msgspec.field(default_factory=lambda: "command")
    report: StopReport | UnsetType = UNSET
    run_id: str | UnsetType = UNSET


class SessionsList(msgspec.Struct, frozen=True):
    """``cursor``: of the next page; None: this is the last one."""

    sessions: tuple[SessionInfo, ...]
    cursor: float | None


class SessionsHistory(msgspec.Struct, frozen=True):
    """Rows in order. ``before``: of the page of older rows; None: there are none."""

    session: str
    rows: tuple[HistoryRow, ...]
    before: int | None


class RunsList(msgspec.Struct, frozen=True):
    """Newest first; the ``text`` of each is cut to 200 code points."""

    runs: tuple[RunInfo, ...]


class EscalationsList(msgspec.Struct, frozen=True):
    """Newest first."""

    escalations: tuple[EscalationInfo, ...]


class Unsubscribed(msgspec.Struct, frozen=True):
    """``was``: there was such a subscription."""

    stream: str
    was: bool


class GatewayState(msgspec.Struct, frozen=True):
    """``addresses`` are ``(host, port)`` pairs as bound; counts are since the start."""

    addresses: tuple[tuple[str, int], ...]
    connections: int
    evicted: int
    failed: int
    refused_connects: int
    secure: bool = False

    @property
    def url(self) -> str:
        """The URL of the first address, for a client or a browser."""
        host, port = self.addresses[0]
        scheme = "https" if self.secure else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class GetGatewayState(Ask[GatewayState], frozen=True, tag="gateway.state"):
    """Addresses and counts of the gateway."""


# -- encoding and decoding ---------------------------------------------------------------------

P = TypeVar("P")
F = TypeVar("F")

_encoder = msgspec.json.Encoder()
_request_decoder = msgspec.json.Decoder(RequestFrame)
_frame_decoder: msgspec.json.Decoder[Frame] = msgspec.json.Decoder(Frame)


class _Id(msgspec.Struct, frozen=True):
    id: RequestId


_id_decoder = msgspec.json.Decoder(_Id)


def decode_request(text: str | bytes) -> RequestFrame:
    """The request in a client's frame, or :class:`FrameError`."""
    return _decoded(_request_decoder.decode, text)


def decode_frame(text: str | bytes) -> Frame:
    """Any frame, or :class:`FrameError`."""
    return _decoded(_frame_decoder.decode, text)


def _decoded(decode: Callable[[str | bytes], F], text: str | bytes) -> F:
    try:
        return decode(text)
    except msgspec.ValidationError as error:
        raise FrameError(f"not a frame of {SUBPROTOCOL}: {error}", _id_of(text)) from None
    except RecursionError:
        raise FrameError("not a frame: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(f"not a JSON object in UTF-8: {error}") from None


def _id_of(text: str | bytes) -> str:
    """The id of a malformed frame, so that its sender can tell which one it was."""
    try:
        return _id_decoder.decode(text).id
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ""


def decode_params(params: JsonObject, kind: type[P]) -> P:
    """The parameters as a struct. Raises :class:`FrameError`, which names the wrong one."""
    try:
        return msgspec.convert(params, kind)
    except msgspec.ValidationError as error:
        raise FrameError(f"{error}{_choices(str(error), kind)}") from None


def _choices(problem: str, kind: type) -> str:
    """The possible values of a parameter that has another one."""
    name = problem.rpartition("`$.")[2].rstrip("`") if problem.startswith("Invalid enum") else ""
    info = msgspec.inspect.type_info(kind)
    fields = info.fields if isinstance(info, msgspec.inspect.StructType) else ()
    types = [one.type for one in fields if one.name == name]
    options = [each for one in types for each in getattr(one, "types", (one,))]
    values = [str(value) for one in options for value in getattr(one, "values", ())]
    return f": one of {', '.join(values)}" if values else ""


def encode(frame: Frame) -> str:
    """One frame as JSON text. Text that is not Unicode (lone surrogates) is replaced by ``?``."""
    try:
        return _encoder.encode(frame).decode()
    except UnicodeEncodeError:
        return _encoder.encode(_scrubbed(msgspec.to_builtins(frame))).decode()


def _scrubbed(value: object) -> object:
    """The same plain data with all text made Unicode."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_scrubbed(item) for item in cast("list[object]", value)]  # plain JSON data
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)  # to_builtins makes every key a string here
        return {_scrubbed(key): _scrubbed(item) for key, item in fields.items()}
    return value


def event_frame(record: EventRecord) -> EventFrame:
    return EventFrame(
        stream=record.stream,
        event=event_name(record.event),
        ts=record.ts,
        data=msgspec.structs.asdict(record.event),
        seq=UNSET if record.seq is None else record.seq,
        run_id=UNSET if record.run_id is None else record.run_id,
    )


def event_record(frame: EventFrame) -> EventRecord | None:
    """The event of a frame; None for an event of a later version, which clients ignore.

    Raises :class:`FrameError` when a known event lacks a field or has a wrong one.
    """
    if frame.event not in _EVENT_NAMES:
        return None
    try:
        event = msgspec.convert({**frame.data, "event": frame.event}, AnyEvent)
    except msgspec.ValidationError as error:
        raise FrameError(f"event {frame.event!r}: {error}") from None
    seq = None if frame.seq is UNSET else frame.seq
    run_id = None if frame.run_id is UNSET else frame.run_id
    return EventRecord(stream=frame.stream, event=event, ts=frame.ts, seq=seq, run_id=run_id)


_EVENT_NAMES: Final = frozenset(str(kind.__struct_config__.tag) for kind in AnyEvent.__args__)


def ok(request_id: str, result: object) -> ResponseFrame:
    """The answer with a result; None is omitted."""
    return ResponseFrame(id=request_id, ok=True, result=UNSET if result is None else result)


def failed(request_id: str, error: ErrorBody) -> ResponseFrame:
    return ResponseFrame(id=request_id, ok=False, error=error)
