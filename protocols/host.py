"""The interface of a host for its gateway.

Every call takes the principal it acts for: foreign things are not found (G16). The methods are
documented in :class:`motet.Host`; here each has one line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from motet.protocols.approvals import ApprovalDecision, ApprovalInfo, ApprovalState, Grant
from motet.protocols.escalations import Answer, EscalationInfo, EscalationState
from motet.protocols.events import EventRecord
from motet.protocols.host_records import HostRecords
from motet.protocols.host_rooms import HostRooms
from motet.protocols.meters import Figures
from motet.protocols.policy import Judged
from motet.protocols.queueing import QueueMode
from motet.protocols.sessions import (
    LOCAL,
    Ack,
    HistoryRow,
    Principal,
    RunInfo,
    RunStatus,
    SessionInfo,
    StopReport,
)


class AgentInfo(msgspec.Struct, frozen=True):
    name: str
    model: str
    description: str
    tools: tuple[str, ...]


class HostStatus(msgspec.Struct, frozen=True):
    """``instance`` changes at every start; ``time`` and ``started`` are Unix seconds.

    Attributes:
        storage: why nothing can be stored now; empty: it can.
        unsaved_ends: ends of runs that are not on disk yet.
        draining: it takes no new inputs any more, since it ends.
        database_bytes, log_bytes: of the files of the database and of its write-ahead log; 0 for
            one in memory.
    """

    instance: str
    version: str
    time: float
    started: float
    agents: int
    live_sessions: int
    running: int
    queued: int
    dropped_events: int
    storage: str = ""
    unsaved_ends: int = 0
    draining: bool = False
    database_bytes: int = 0
    log_bytes: int = 0


class StreamHead(msgspec.Struct, frozen=True):
    """Highest and lowest journalled number of a stream; ``head`` 0: nothing yet.

    Of a session, in the same moment: ``owner``, None if there is no such session; ``generation``,
    which tells it from earlier sessions of its name.
    """

    head: int
    oldest: int
    owner: str | None = None
    generation: str = ""


class Journal(Protocol):
    """Events of the past and of now."""

    def attach(self, stream: str, sink: Callable[[EventRecord], None]) -> Callable[[], None]:
        """Call ``sink`` with every event from now on, in order; returns the way to detach.

        The sink must not block and must not raise: it runs in the bus's own task.
        """
        ...

    async def read(self, stream: str, after: int, limit: int = 200) -> tuple[EventRecord, ...]:
        """Durable events with ``seq > after``, oldest first."""
        ...

    async def input(self, stream: str, run_id: str) -> int | None:
        """The number of the event by which an input was accepted, if that is known."""
        ...

    async def head(self, stream: str) -> StreamHead: ...

    def watch_access(self, stream: str, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call ``changed`` when other people than before may read the stream; returns the way to
        end that.

        It is called in the step in which that becomes known: when a session was deleted, with its
        generation; when the audience of a room has changed, with an empty text.
        """
        ...


class Expected(Protocol):
    """An input that was sent and not yet submitted."""

    @property
    def run_id(self) -> str:
        """Of the run that it becomes, if no run has come of its key before."""
        ...


class HostApi(HostRecords, Protocol):
    """A running host. All calls may raise ``NotFound``; names that nobody has, ``UnknownName``."""

    @property
    def events(self) -> Journal: ...

    @property
    def rooms(self) -> HostRooms: ...

    def agents(self) -> tuple[AgentInfo, ...]: ...

    async def is_resend(self, method: str, key: str, *, principal: Principal) -> bool:
        """Whether the principal has used this idempotency key of a method before."""
        ...

    async def closing(self) -> None:
        """Return when the host has begun to shut down: it takes no inputs any more."""
        ...

    async def storage_changed(self) -> None:
        """Return when the storage becomes unavailable or works again: see ``HostStatus``."""
        ...

    async def resend(self, run_id: str, *, principal: Principal = LOCAL) -> Ack:
        """Send the input of an interrupted or dropped run again, once."""
        ...

    async def tools(
        self, agent: str, *, session: str = "", principal: Principal = LOCAL
    ) -> tuple[Judged, ...]:
        """The tools of an agent, and the ruling of the policy on each for the principal."""
        ...

    def status(self) -> HostStatus: ...

    def figures(self) -> Figures:
        """What the metrics of the host show."""
        ...

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
        """Make an input durable and have it answered."""
        ...

    def queue_mode(self, session: str, *, principal: Principal = LOCAL) -> QueueMode:
        """The mode of inputs of a session that name none themselves."""
        ...

    async def set_queue(
        self, session: str, mode: QueueMode | None, *, principal: Principal = LOCAL
    ) -> None:
        """Set that mode, None: the default again. Raises ``UnknownName``."""
        ...

    def models(self) -> tuple[str, ...]:
        """The models that a session may have."""
        ...

    def session_model(self, session: str, *, principal: Principal = LOCAL) -> str | None:
        """The model that was set for a session; None: its agent's own."""
        ...

    async def set_model(
        self, session: str, model: str | None, *, principal: Principal = LOCAL
    ) -> None:
        """Set that model, from the next run on; None: the agent's own. Raises ``UnknownName``."""
        ...

    def expect(self, session: str, *, sender: str = "", principal: Principal = LOCAL) -> Expected:
        """Note an input that is to be submitted, so that a stop covers it from now on."""
        ...

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
        """Cancel runs, drop inputs, and wait at most ``grace`` seconds for the clean-up."""
        ...

    async def reset(self, session: str, *, principal: Principal = LOCAL) -> None: ...

    async def session(self, session: str, *, principal: Principal = LOCAL) -> SessionInfo:
        """One session the principal may see; raises ``NotFound``."""
        ...

    async def sessions(
        self, *, limit: int = 50, cursor: float | None = None, principal: Principal = LOCAL
    ) -> tuple[SessionInfo, ...]: ...

    async def history(
        self,
        session: str,
        *,
        before: int | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[HistoryRow, ...]: ...

    async def runs(
        self,
        *,
        session: str | None = None,
        status: RunStatus | None = None,
        limit: int = 50,
        room: str | None = None,
        principal: Principal = LOCAL,
    ) -> tuple[RunInfo, ...]:
        """Newest first. ``room``: those of a room whose owner the principal is; so below."""
        ...

    async def escalations(
        self,
        *,
        session: str | None = None,
        room: str | None = None,
        state: EscalationState | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[EscalationInfo, ...]:
        """Runs that were handed to a person, newest first; ``room``: one of the principal's."""
        ...

    async def resolve(
        self,
        escalation: str,
        decision: Answer,
        *,
        note: str = "",
        principal: Principal = LOCAL,
    ) -> EscalationInfo:
        """Answer an escalation; the same answer again changes nothing."""
        ...

    async def approvals(
        self,
        *,
        session: str | None = None,
        room: str | None = None,
        state: ApprovalState | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[ApprovalInfo, ...]:
        """Calls that wait for a person, or did, newest first; ``room``: one of the principal's."""
        ...

    async def approve(
        self,
        approval: str,
        decision: ApprovalDecision,
        *,
        note: str = "",
        principal: Principal = LOCAL,
    ) -> ApprovalInfo:
        """Answer an approval; the same again changes nothing. Raises ``ApprovalAnswered``."""
        ...

    async def grants(
        self, *, agent: str | None = None, room: str | None = None, principal: Principal = LOCAL
    ) -> tuple[Grant, ...]:
        """The permissions that ``allow-always`` has left, newest first."""
        ...

    async def revoke(
        self, grant: str, *, room: str | None = None, principal: Principal = LOCAL
    ) -> None: ...
