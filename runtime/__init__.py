"""The actor kernel on Trio. Knows nothing of agents, models, tools or storage.

Reading order: ``actor`` (the methods of a user's actor), ``behaviour`` (its callbacks), ``ref`` (a
reference to it), ``ask`` and ``envelope`` (G1, G3), ``mailbox`` and ``order``, ``incarnation`` (one
life), ``cell`` (the part that survives restarts), ``supervisor``. ``lifecycle`` and ``supervision``
are the pure tables behind the last two. ``kernel`` has the data that all of them
share, so that they need not import each other in circles; nothing imports ``actor``.

The other files can be read alone: ``schedule`` and ``timers``, ``monitors`` and ``links``,
``registry``, ``reply`` (answers that come later), ``machine`` (states), ``pool`` and ``group``,
``event_sourced`` and ``event_journal`` (actors whose state is stored), ``gather``, ``asks`` (many
asks of one task), ``threads`` (other threads and loops), ``stream``, ``observe``, ``telemetry``,
``entry`` (programs with signals), ``processes`` (child processes), ``backoff``, ``rates``,
``spool`` and ``spill``, ``exceptions`` and ``describe``.
"""

from motet.protocols.domain_events import (
    DomainEvent,
    EventNotApplied,
    EventNotPortable,
    JournalConflict,
    JournalError,
    JournalGap,
    StoredEvent,
    UnknownEvent,
    UnknownEventVersion,
)
from motet.runtime.actor import Actor
from motet.runtime.asks import Asks, ask_each
from motet.runtime.entry import run_system
from motet.runtime.envelope import Replies
from motet.runtime.errors import (
    ActorDead,
    ActorPaused,
    AskCycle,
    AskTimeout,
    InjectedCrash,
    LinkBroken,
    MailboxFull,
    MessageNotPortable,
    MotetRuntimeError,
    NameTaken,
    NotInProtocol,
    NotInState,
    RestartLimitExceeded,
    StartFailed,
    StartTimeout,
    TellCycle,
    TooManyChildren,
    WaitCycle,
    WrongLoop,
)
from motet.runtime.event_journal import Journal, MemoryJournal
from motet.runtime.event_sourced import EventSourced, Persistence
from motet.runtime.feed import DeadLetter, DeadLetters, Feed, RestartEvent, Restarts
from motet.runtime.gather import Cut, Done, Failed, Settled, gather_ordered
from motet.runtime.group import Group, Member
from motet.runtime.handlers import handles
from motet.runtime.lifecycle import Exit, Terminated
from motet.runtime.machine import Machine, State
from motet.runtime.order import MailboxSpec, Overflow
from motet.runtime.outside import UnderWay, current_under_way, held_by
from motet.runtime.pool import Pool, Route, start_pool
from motet.runtime.ref import ActorRef
from motet.runtime.registry import IdentityRef, Kind, Registry
from motet.runtime.reply import ReplyTo
from motet.runtime.schedule import ActorTimers, ScheduledMessage
from motet.runtime.snapshot import ActorInfo, Statistics
from motet.runtime.stopping import Leftover, StopReport
from motet.runtime.stream import ReplyStream
from motet.runtime.supervision import AutoShutdown, Directive, Restart, Strategy, Supervision
from motet.runtime.system import System, open_system
from motet.runtime.telemetry import Meter, Telemetry, TraceEvent
from motet.runtime.threads import LoopFuture, Portal, ThreadsafeRef
from motet.runtime.waits import current_deadline

__all__ = [
    "Actor",
    "ActorDead",
    "ActorInfo",
    "ActorPaused",
    "ActorRef",
    "ActorTimers",
    "AskCycle",
    "AskTimeout",
    "Asks",
    "AutoShutdown",
    "Cut",
    "DeadLetter",
    "DeadLetters",
    "Directive",
    "DomainEvent",
    "Done",
    "EventNotApplied",
    "EventNotPortable",
    "EventSourced",
    "Exit",
    "Failed",
    "Feed",
    "Group",
    "IdentityRef",
    "InjectedCrash",
    "Journal",
    "JournalConflict",
    "JournalError",
    "JournalGap",
    "Kind",
    "Leftover",
    "LinkBroken",
    "LoopFuture",
    "Machine",
    "MailboxFull",
    "MailboxSpec",
    "Member",
    "MemoryJournal",
    "MessageNotPortable",
    "Meter",
    "MotetRuntimeError",
    "NameTaken",
    "NotInProtocol",
    "NotInState",
    "Overflow",
    "Persistence",
    "Pool",
    "Portal",
    "Registry",
    "Replies",
    "ReplyStream",
    "ReplyTo",
    "Restart",
    "RestartEvent",
    "RestartLimitExceeded",
    "Restarts",
    "Route",
    "ScheduledMessage",
    "Settled",
    "StartFailed",
    "StartTimeout",
    "State",
    "Statistics",
    "StopReport",
    "StoredEvent",
    "Strategy",
    "Supervision",
    "System",
    "Telemetry",
    "TellCycle",
    "Terminated",
    "ThreadsafeRef",
    "TooManyChildren",
    "TraceEvent",
    "UnderWay",
    "UnknownEvent",
    "UnknownEventVersion",
    "WaitCycle",
    "WrongLoop",
    "ask_each",
    "current_deadline",
    "current_under_way",
    "gather_ordered",
    "handles",
    "held_by",
    "open_system",
    "run_system",
    "start_pool",
]
