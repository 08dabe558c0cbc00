"""A host in memory and a client over a memory stream, for the tests of the gateway."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import attrs
import msgspec
import trio
import trio.testing
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from motet.actors.gateway.context import Context, Settings
from motet.actors.gateway.server import serve_stream
from motet.actors.runs.run import PendingInput
from motet.protocols import gateway as wire
from motet.protocols.approvals import (
    ApprovalAnswered,
    ApprovalDecision,
    ApprovalInfo,
    ApprovalState,
    Grant,
)
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.errors import NotFound, UnknownName
from motet.protocols.escalations import Answer, EscalationAnswered, EscalationInfo, EscalationState
from motet.protocols.events import (
    AnyEvent,
    InputAccepted,
    MessageAdded,
    RunCancelled,
    RunCompleted,
    RunStarted,
    TextDelta,
    ToolCall,
    ToolResult,
)
from motet.protocols.host import AgentInfo, Expected, HostStatus
from motet.protocols.models import Usage
from motet.protocols.policy import Effect, Judged
from motet.protocols.queueing import QueueMode
from motet.protocols.sessions import (
    LOCAL,
    Ack,
    HistoryRow,
    KeyConflict,
    Principal,
    RunInfo,
    RunStatus,
    SessionInfo,
    StopReport,
)
from tests.actors.gateway.fake_journal import FakeJournal
from tests.actors.gateway.fake_records import FakeRecords
from tests.actors.gateway.fake_rooms import FakeRooms


@attrs.define(eq=False)
class FakeRun:
    info: RunInfo
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)


class FakeHost(FakeRecords):
    """Echoes each input in words, after a tool call. The text ``hang`` runs until stopped.

    Without a nursery nothing runs and an input is journalled only. ``submit_gate`` holds up
    every submit until it is set; ``fault`` is raised by it.
    """

    def __init__(self, nursery: trio.Nursery | None = None) -> None:
        self.events = FakeJournal()
        self.rooms = FakeRooms()
        self.known: dict[str, SessionInfo] = {}
        self.rows: dict[str, list[HistoryRow]] = defaultdict(list)
        self.keys: dict[tuple[str, str], tuple[str, str]] = {}
        self.run_infos: dict[str, FakeRun] = {}
        self.stops: list[dict[str, object]] = []
        self.submitted: list[str] = []
        self.resets: list[str] = []
        self.escalated: dict[str, EscalationInfo] = {}
        self.asked: dict[str, ApprovalInfo] = {}
        self.granted: list[Grant] = []
        self.submit_gate: trio.Event | None = None
        self.shuts_down = trio.Event()
        self.fault: Exception | None = None
        self._nursery = nursery
        self._ids = itertools.count(1)

    async def closing(self) -> None:
        await self.shuts_down.wait()

    async def resend(self, run_id: str, *, principal: Principal = LOCAL) -> Ack:
        info = await self.find_run(run_id, principal=principal)
        return await self.submit(info.text, session=info.session, principal=principal)

    def agents(self) -> tuple[AgentInfo, ...]:
        return (AgentInfo("echo", "fake:echo", "says it again", ("clock",)),)

    async def tools(
        self, agent: str, *, session: str = "", principal: Principal = LOCAL
    ) -> tuple[Judged, ...]:
        if agent != "echo":
            raise UnknownName("agent", agent, ["echo"])
        effect: Effect = "deny" if principal.role == "viewer" else "allow"
        return (Judged("clock", ("group:own",), effect, f"of {principal.user}"),)

    def status(self) -> HostStatus:
        return HostStatus("boot_1", "0.1.0", 1.0, 1.0, 1, len(self.known), 0, 0, 0)

    async def submit(
        self,
        text: str,
        *,
        session: str,
        agent: str | None = None,
        mode: QueueMode | None = None,
        sender: str = "",
        principal: Principal = LOCAL,
        key: str | None = None,
        expected: Expected | None = None,
    ) -> Ack:
        await trio.lowlevel.checkpoint()
        if self.submit_gate is not None:
            await self.submit_gate.wait()
        if self.fault is not None:
            raise self.fault
        if agent not in (None, "echo"):
            raise UnknownName("agent", str(agent), ["echo"])
        if session in self.known:
            self._own(session, principal)
        seen = self.keys.get((principal.user, key or ""))
        if key is not None and seen is not None:
            if seen[1] != text:
                raise KeyConflict(f"key {key!r} was used for another text")
            return Ack(seen[0], "duplicate")
        return self._accept(text, session, principal, key)

    def expect(self, session: str, *, sender: str = "", principal: Principal = LOCAL) -> Expected:
        return PendingInput(session, principal, sender)

    def _accept(self, text: str, session: str, principal: Principal, key: str | None) -> Ack:
        run_id = f"run_{next(self._ids)}"
        self.submitted.append(text)
        self.keys[principal.user, key or run_id] = (run_id, text)
        self.known.setdefault(
            session, SessionInfo(session, "echo", principal.user, 1.0, float(len(self.known)), 0)
        )
        info = RunInfo(run_id, session, "echo", principal.user, "running", text, 1.0, 1.0)
        run = self.run_infos[run_id] = FakeRun(info)
        self.say(session, InputAccepted(text, principal.user, key), run_id)
        if self._nursery is not None:
            self._nursery.start_soon(self._run, run)
        return Ack(run_id, "accepted")

    def say(self, session: str, event: AnyEvent, run_id: str | None = None) -> None:
        self.events.publish(f"session:{session}", event, run_id)

    async def _run(self, run: FakeRun) -> None:
        info, run_id = run.info, run.info.run_id
        self.say(info.session, RunStarted("echo", "fake:echo"), run_id)
        status: RunStatus = "cancelled"
        try:
            with run.scope:
                await self._answer(info)
                status = "completed"
        finally:
            run.info = msgspec.structs.replace(info, status=status)
            end = RunCompleted(Usage(1, 1)) if status == "completed" else None
            self.say(info.session, end or RunCancelled(Usage(), "stopped"), run_id)
            run.ended.set()

    async def _answer(self, info: RunInfo) -> None:
        self._row(info, UserMessage(info.text))
        if info.text == "hang":
            await trio.sleep_forever()
        self.say(info.session, ToolCall("call_1", "clock", {"zone": "UTC"}), info.run_id)
        result = ToolResult("call_1", "clock", True, "done", "12:00", 1.0)
        self.say(info.session, result, info.run_id)
        at = 0
        for word in info.text.split():
            await trio.lowlevel.checkpoint()
            self.say(info.session, TextDelta(0, at, word + " "), info.run_id)
            at += len(word) + 1
        self.say(info.session, MessageAdded("assistant", "echo", info.text), info.run_id)
        self._row(info, AssistantMessage(info.text))

    def _row(self, info: RunInfo, row: UserMessage | AssistantMessage) -> None:
        rows = self.rows[info.session]
        rows.append(HistoryRow(len(rows) + 1, info.run_id, 1.0, row))

    def _own(self, session: str, principal: Principal) -> SessionInfo:
        info = self.known.get(session)
        if info is None or (info.owner != principal.user and principal.role != "admin"):
            raise NotFound(f"no session {session!r}")
        return info

    async def stop(
        self,
        *,
        run_id: str | None = None,
        session: str | None = None,
        room: str | None = None,
        everything: bool = False,
        newest: bool = False,
        sender: str = "",
        principal: Principal = LOCAL,
        grace: float = 5.0,
    ) -> StopReport:
        self.stops.append({"run_id": run_id, "session": session, "everything": everything})
        if session is not None:
            self._own(session, principal)
        runs = [
            run
            for run in self.run_infos.values()
            if run.info.status == "running"
            and (everything or run.info.run_id == run_id or run.info.session == session)
            and (run.info.user == principal.user or principal.role == "admin")
        ]
        for run in runs:
            run.scope.cancel()
        with trio.move_on_after(grace):
            for run in runs:
                await run.ended.wait()
        return StopReport(stopped=[run.info.run_id for run in runs])

    def queue_mode(self, session: str) -> QueueMode:
        return "steer"

    async def set_queue(
        self, session: str, mode: QueueMode | None, *, principal: Principal = LOCAL
    ) -> None:
        self._own(session, principal)

    def models(self) -> tuple[str, ...]:
        return ()

    def session_model(self, session: str) -> str | None:
        return None

    async def set_model(
        self, session: str, model: str | None, *, principal: Principal = LOCAL
    ) -> None:
        self._own(session, principal)

    async def reset(self, session: str, *, principal: Principal = LOCAL) -> None:
        self._own(session, principal)
        self.resets.append(session)

    async def session(self, session: str, *, principal: Principal = LOCAL) -> SessionInfo:
        await trio.lowlevel.checkpoint()
        return self._own(session, principal)

    async def sessions(
        self, *, limit: int = 50, cursor: float | None = None, principal: Principal = LOCAL
    ) -> tuple[SessionInfo, ...]:
        mine = [info for info in self.known.values() if info.owner == principal.user]
        older = [info for info in mine if cursor is None or info.updated < cursor]
        return tuple(sorted(older, key=lambda info: -info.updated)[:limit])

    async def history(
        self,
        session: str,
        *,
        before: int | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[HistoryRow, ...]:
        self._own(session, principal)
        rows = [row for row in self.rows[session] if before is None or row.pos < before]
        return tuple(rows[-limit:])

    async def runs(
        self,
        *,
        session: str | None = None,
        status: RunStatus | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[RunInfo, ...]:
        infos = [run.info for run in self.run_infos.values() if run.info.user == principal.user]
        found = [
            info
            for info in reversed(infos)
            if session in (None, info.session) and status in (None, info.status)
        ]
        return tuple(found[:limit])

    async def escalations(
        self,
        *,
        session: str | None = None,
        state: EscalationState | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[EscalationInfo, ...]:
        mine = [info for info in self.escalated.values() if info.user == principal.user]
        found = [
            info for info in mine if session in (None, info.session) and state in (None, info.state)
        ]
        return tuple(found[:limit])

    async def resolve(
        self,
        escalation: str,
        decision: Answer,
        *,
        note: str = "",
        principal: Principal = LOCAL,
    ) -> EscalationInfo:
        info = self.escalated.get(escalation)
        if info is None or info.user != principal.user:
            raise NotFound(f"no escalation {escalation!r}")
        if info.decision not in (None, decision):
            raise EscalationAnswered(f"answered with {info.decision!r}")
        answered = msgspec.structs.replace(
            info, state="resolved", decision=decision, note=note, resolved_by=principal.user
        )
        self.escalated[escalation] = answered
        return answered

    async def approvals(
        self,
        *,
        session: str | None = None,
        room: str | None = None,
        state: ApprovalState | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[ApprovalInfo, ...]:
        mine = [info for info in self.asked.values() if info.user == principal.user]
        found = [
            info for info in mine if session in (None, info.session) and state in (None, info.state)
        ]
        return tuple(found[:limit])

    async def approve(
        self,
        approval: str,
        decision: ApprovalDecision,
        *,
        note: str = "",
        principal: Principal = LOCAL,
    ) -> ApprovalInfo:
        info = self.asked.get(approval)
        if info is None or info.user != principal.user:
            raise NotFound(f"no approval {approval!r}")
        if info.decision not in (None, decision):
            raise ApprovalAnswered(f"answered with {info.decision!r}")
        answered = msgspec.structs.replace(
            info, state="allowed", decision=decision, note=note, resolved_by=principal.user
        )
        self.asked[approval] = answered
        return answered

    async def grants(
        self, *, agent: str | None = None, principal: Principal = LOCAL
    ) -> tuple[Grant, ...]:
        return tuple(grant for grant in self.granted if grant.user == principal.user)

    async def revoke(self, grant: str, *, principal: Principal = LOCAL) -> None:
        if all(one.id != grant or one.user != principal.user for one in self.granted):
            raise NotFound(f"no grant {grant!r}")
        self.granted = [one for one in self.granted if one.id != grant]


class Client:
    """One connection. Events that come while an answer is waited for are kept in order."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self.socket = socket
        self.events: deque[wire.EventFrame] = deque()
        self._answers: dict[str, wire.ResponseFrame] = {}
        self._ids = itertools.count(1)

    async def post(self, method: str, **params: object) -> str:
        """Send a request and return its id."""
        request_id = str(next(self._ids))
        await self.socket.send_message(
            wire.encode(wire.RequestFrame(request_id, method, dict(params)))
        )
        return request_id

    async def answer(self, request_id: str) -> wire.ResponseFrame:
        while request_id not in self._answers:
            await self._receive()
        return self._answers.pop(request_id)

    async def ask(self, method: str, **params: object) -> wire.ResponseFrame:
        return await self.answer(await self.post(method, **params))

    async def result(self, method: str, **params: object) -> dict[str, object]:
        """The result of a request that succeeds."""
        answer = await self.ask(method, **params)
        assert answer.ok, answer
        return msgspec.convert(answer.result, dict[str, object])

    async def error(self, method: str, **params: object) -> wire.ErrorBody:
        """The error of a request that fails."""
        answer = await self.ask(method, **params)
        assert isinstance(answer.error, wire.ErrorBody), answer
        return answer.error

    async def event(self) -> wire.EventFrame:
        while not self.events:
            await self._receive()
        return self.events.popleft()

    async def until(self, name: str) -> list[wire.EventFrame]:
        """All events up to the first one of this name."""
        found = [await self.event()]
        while found[-1].event != name:
            found.append(await self.event())
        return found

    async def close_code(self) -> int:
        """Read on until the server closes; the code it gives."""
        try:
            while True:
                await self._receive()
        except ConnectionClosed as closed:
            return closed.reason.code if closed.reason is not None else 0

    async def _receive(self) -> None:
        message = await self.socket.get_message()
        frame = wire.decode_frame(message)
        if isinstance(frame, wire.EventFrame):
            self.events.append(frame)
        elif isinstance(frame, wire.ResponseFrame):
            self._answers[frame.id] = frame


Headers = list[tuple[bytes, bytes]]


@asynccontextmanager
async def opened(
    context: Context, *, headers: Headers | None = None, peer: str = "127.0.0.1"
) -> AsyncGenerator[Client]:
    """A WebSocket to the gateway, before its first frame."""
    theirs, ours = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, context, theirs, peer)
        socket = await wrap_client_stream(
            nursery,
            cast("trio.SocketStream", ours),  # any stream does, its signature is too narrow
            "localhost",
            "/ws",
            subprotocols=[wire.SUBPROTOCOL],
            extra_headers=headers,
        )
        try:
            yield Client(socket)
        finally:
            with trio.move_on_after(1, shield=True):
                await socket.aclose()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(
    context: Context, token: str | None = None, *, resume: dict[str, int] | None = None
) -> AsyncGenerator[Client]:
    """A client that has connected."""
    async with opened(context) as client:
        await client.result("connect", auth={"token": token}, resume=resume or {})
        yield client


async def stuck_client(
    nursery: trio.Nursery, context: Context, stream: str, *, after: int | None = None
) -> trio.abc.AsyncResource:
    """A client that subscribes to a stream and then reads no more; close what is returned."""
    theirs, ours = trio.testing.lockstep_stream_pair()
    nursery.start_soon(serve_stream, context, theirs, "stuck")
    async with trio.open_nursery() as reading:
        socket = await wrap_client_stream(
            reading, cast("trio.SocketStream", ours), "localhost", "/ws"
        )
        client = Client(socket)
        await client.result("connect")
        await client.result("subscribe", stream=stream, after=after)
        reading.cancel_scope.cancel()
    return ours


def context_of(host: FakeHost, settings: Settings | None = None) -> Context:
    return Context(host, settings or Settings(), now=lambda: 1000.0)
