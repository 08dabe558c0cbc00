"""A host in memory for the tests of the gateway: its API is generated, its answers are a table."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

import attrs
import msgspec
import trio

from motet.protocols.approvals import ApprovalAnswered, ApprovalInfo, Grant
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.errors import ConfigError, NotFound, UnknownName
from motet.protocols.escalations import EscalationAnswered, EscalationInfo
from motet.protocols.events import (
    AnyEvent,
    EventRecord,
    InputAccepted,
    MessageAdded,
    RunCancelled,
    RunCompleted,
    RunStarted,
    TextDelta,
    ToolCall,
    ToolResult,
    is_durable,
)
from motet.protocols.host import AgentInfo, Expected, HostApi, HostStatus, Journal, StreamHead
from motet.protocols.host_records import ConfigView
from motet.protocols.host_rooms import HostRooms
from motet.protocols.meters import Figures, Meters
from motet.protocols.models import Usage
from motet.protocols.policy import Effect, Judged
from motet.protocols.sessions import (
    Ack,
    HistoryRow,
    KeyConflict,
    Principal,
    RunInfo,
    RunStatus,
    SessionInfo,
    StopReport,
)
from tests.actors.gateway.spec import Call, fake_of

Sink = Callable[[EventRecord], None]
Answered = TypeVar("Answered", EscalationInfo, ApprovalInfo)


class FakeJournal:
    """A :class:`~motet.protocols.host.Journal` in memory. ``oldest``: what retention has left."""

    def __init__(self) -> None:
        self.records: dict[str, list[EventRecord]] = defaultdict(list)
        self.sinks: dict[str, list[Sink]] = defaultdict(list)
        self.oldest = 1
        self.owners: dict[str, str] = {}
        self.watching: dict[str, list[Callable[[str], None]]] = defaultdict(list)
        self.calls: list[Call] = []
        self.api: Journal = fake_of(
            Journal,
            {
                "attach": self._attach,
                "read": self._read,
                "input": self._input,
                "head": self._head,
                "watch_access": self._watch_access,
            },
            self.calls,
        )

    def publish(self, stream: str, event: AnyEvent, run_id: str | None = None) -> EventRecord:
        seq = len(self.records[stream]) + 1 if is_durable(event) else None
        owner = self.owners.get(stream)
        record = EventRecord(stream, event, 1.0, seq, run_id, owner)
        if seq is not None:
            self.records[stream].append(record)
        for sink in tuple(self.sinks[stream]):
            sink(record)
        return record

    def _attach(self, stream: str, sink: Sink) -> Callable[[], None]:
        self.sinks[stream].append(sink)
        return lambda: self.sinks[stream].remove(sink)

    def _read(self, stream: str, after: int, limit: int) -> tuple[EventRecord, ...]:
        start = max(after, self.oldest - 1)
        return tuple(self.records[stream][start : start + limit])

    def _input(self, stream: str, run_id: str) -> int | None:
        mine = (one for one in self.records[stream] if one.run_id == run_id)
        return next((one.seq for one in mine if isinstance(one.event, InputAccepted)), None)

    def _head(self, stream: str) -> StreamHead:
        return StreamHead(len(self.records[stream]), self.oldest, self.owners.get(stream))

    def _watch_access(self, stream: str, changed: Callable[[str], None]) -> Callable[[], None]:
        self.watching[stream].append(changed)
        return lambda: self.watching[stream].remove(changed)


@attrs.frozen
class FakeExpected:
    run_id: str


@attrs.define(eq=False)
class FakeRun:
    info: RunInfo
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)


class FakeHost:
    """Echoes each input in words, after a tool call. The text ``hang`` runs until stopped.

    ``api`` is its :class:`~motet.protocols.host.HostApi`, ``answers`` the table behind it, and
    ``calls`` has the calls of it. Without a nursery nothing runs, and an input is journalled only.
    ``submit_gate`` holds up every submit until it is set.
    """

    def __init__(self, nursery: trio.Nursery | None = None) -> None:
        self.events = FakeJournal()
        self.known: dict[str, SessionInfo] = {}
        self.rows: dict[str, list[HistoryRow]] = defaultdict(list)
        self.run_infos: dict[str, FakeRun] = {}
        self.submitted: list[str] = []
        self.escalated: dict[str, EscalationInfo] = {}
        self.asked: dict[str, ApprovalInfo] = {}
        self.granted: list[Grant] = []
        self.submit_gate: trio.Event | None = None
        self.shuts_down = trio.Event()
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}
        self._nursery = nursery
        self._ids = itertools.count(1)
        self.calls: list[Call] = []
        no_file = ConfigError("this host has no file")
        self.answers: dict[str, object] = {
            "events": self.events.api,
            "rooms": fake_of(
                HostRooms, {"list": (), "open_to": True, "enter": lambda: lambda: None}, self.calls
            ),
            "agents": (AgentInfo("echo", "fake:echo", "says it again", ("clock",)),),
            "closing": self.shuts_down.wait,
            "storage_changed": trio.sleep_forever,
            "status": lambda: HostStatus("boot_1", "0.1.0", 1, 1, 1, len(self.known), 0, 0, 0),
            "figures": lambda: Figures(Meters()),
            "tools": self._tools,
            "expect": self._expect,
            "submit": self._submit,
            "is_resend": self._is_resend,
            "stop": self._stop,
            "queue_mode": "steer",
            "models": (),
            "session_model": None,
            **dict.fromkeys(("session", "reset", "set_queue", "set_model"), self._own),
            "sessions": self._sessions,
            "history": self._history,
            "runs": self._runs,
            "find_run": self._find_run,
            "escalations": self._escalations,
            "resolve": self._resolve,
            "approvals": self._approvals,
            "approve": self._approve,
            "grants": self._grants,
            "revoke": self._revoke,
            "configuration": ConfigView("", {}),
            **dict.fromkeys(("reload", "plan_reload"), no_file),
            **dict.fromkeys(("errors", "traces", "actors", "log_tail", "tokens"), ()),
        }
        self.api: HostApi = fake_of(HostApi, self.answers, self.calls)

    def asked_for(self, method: str) -> list[Call]:
        return [call for call in self.calls if call.method == method]

    def say(self, session: str, event: AnyEvent, run_id: str | None = None) -> None:
        self.events.publish(f"session:{session}", event, run_id)

    # -- inputs and runs -------------------------------------------------------------------------

    def _expect(self) -> Expected:
        return FakeExpected("run_of_no_key")

    async def _submit(
        self, text: str, session: str, agent: str | None, principal: Principal, key: str | None
    ) -> Ack:
        if self.submit_gate is not None:
            await self.submit_gate.wait()
        if agent not in (None, "echo"):
            raise UnknownName("agent", str(agent), ["echo"])
        if session in self.known:
            self._own(session, principal)
        seen = self._keys.get((principal.user, key or ""))
        if key is not None and seen is not None:
            if seen[1] != text:
                raise KeyConflict(f"key {key!r} was used for another text")
            return Ack(seen[0], "duplicate")
        run_id = f"run_{next(self._ids)}"
        self.submitted.append(text)
        self._keys[principal.user, key or run_id] = (run_id, text)
        info = SessionInfo(session, "echo", principal.user, 1.0, float(len(self.known)), 0)
        self.known.setdefault(session, info)
        self.events.owners.setdefault(f"session:{session}", principal.user)
        run = FakeRun(RunInfo(run_id, session, "echo", principal.user, "running", text, 1.0, 1.0))
        self.run_infos[run_id] = run
        self.say(session, InputAccepted(text, principal.user, key), run_id)
        if self._nursery is not None:
            self._nursery.start_soon(self._run, run)
        return Ack(run_id, "accepted")

    async def _is_resend(self, method: str, key: str, principal: Principal) -> bool:
        return method == "chat.send" and (principal.user, key) in self._keys

    async def _run(self, run: FakeRun) -> None:
        info, run_id = run.info, run.info.run_id
        self.say(info.session, RunStarted("echo", "fake:echo"), run_id)
        status: RunStatus = "cancelled"
        try:
            with run.scope:
                await self._echo(info)
                status = "completed"
        finally:
            run.info = msgspec.structs.replace(info, status=status)
            end = RunCompleted(Usage(1, 1)) if status == "completed" else None
            self.say(info.session, end or RunCancelled(Usage(), "stopped"), run_id)
            run.ended.set()

    async def _echo(self, info: RunInfo) -> None:
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

    async def _stop(
        self,
        run_id: str | None,
        session: str | None,
        everything: bool,
        principal: Principal,
        grace: float,
    ) -> StopReport:
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

    # -- records ---------------------------------------------------------------------------------

    def _tools(self, agent: str, principal: Principal) -> tuple[Judged, ...]:
        if agent != "echo":
            raise UnknownName("agent", agent, ["echo"])
        effect: Effect = "deny" if principal.role == "viewer" else "allow"
        return (Judged("clock", ("group:own",), effect, f"of {principal.user}"),)

    def _own(self, session: str, principal: Principal) -> SessionInfo:
        info = self.known.get(session)
        if info is None or (info.owner != principal.user and principal.role != "admin"):
            raise NotFound(f"no session {session!r}")
        return info

    def _sessions(
        self, limit: int, cursor: float | None, principal: Principal
    ) -> tuple[SessionInfo, ...]:
        mine = [info for info in self.known.values() if info.owner == principal.user]
        older = [info for info in mine if cursor is None or info.updated < cursor]
        return tuple(sorted(older, key=lambda info: -info.updated)[:limit])

    def _history(
        self, session: str, before: int | None, limit: int, principal: Principal
    ) -> tuple[HistoryRow, ...]:
        self._own(session, principal)
        rows = [row for row in self.rows[session] if before is None or row.pos < before]
        return tuple(rows[-limit:])

    def _runs(
        self, session: str | None, status: RunStatus | None, limit: int, principal: Principal
    ) -> tuple[RunInfo, ...]:
        infos = [run.info for run in self.run_infos.values() if run.info.user == principal.user]
        found = [
            info
            for info in reversed(infos)
            if session in (None, info.session) and status in (None, info.status)
        ]
        return tuple(found[:limit])

    def _find_run(self, run_id: str, principal: Principal) -> RunInfo:
        run = self.run_infos.get(run_id)
        if run is None or run.info.user != principal.user:
            raise NotFound(f"no run {run_id!r}")
        return run.info

    # -- people ----------------------------------------------------------------------------------

    def _escalations(self, principal: Principal) -> tuple[EscalationInfo, ...]:
        return tuple(one for one in self.escalated.values() if one.user == principal.user)

    def _approvals(self, principal: Principal) -> tuple[ApprovalInfo, ...]:
        return tuple(one for one in self.asked.values() if one.user == principal.user)

    def _grants(self, principal: Principal) -> tuple[Grant, ...]:
        return tuple(one for one in self.granted if one.user == principal.user)

    def _resolve(self, escalation: str, decision: str, principal: Principal) -> EscalationInfo:
        info = _open(principal, self.escalated, escalation)
        if info.decision not in (None, decision):
            raise EscalationAnswered(f"answered with {info.decision!r}")
        info = msgspec.structs.replace(
            info, state="resolved", decision=decision, resolved_by=principal.user
        )
        self.escalated[escalation] = info
        return info

    def _approve(self, approval: str, decision: str, principal: Principal) -> ApprovalInfo:
        info = _open(principal, self.asked, approval)
        if info.decision not in (None, decision):
            raise ApprovalAnswered(f"answered with {info.decision!r}")
        info = msgspec.structs.replace(
            info, state="allowed", decision=decision, resolved_by=principal.user
        )
        self.asked[approval] = info
        return info

    def _revoke(self, grant: str, principal: Principal) -> None:
        if all(one.id != grant or one.user != principal.user for one in self.granted):
            raise NotFound(f"no grant {grant!r}")
        self.granted = [one for one in self.granted if one.id != grant]


def _open(principal: Principal, found: dict[str, Answered], name: str) -> Answered:
    info = found.get(name)
    if info is None or info.user != principal.user:
        raise NotFound(f"there is no {name!r}")
    return info
