"""motet: an actor-model runtime on Trio for LLM agents.

The front door: the public names and no logic. A name is imported when it is first used, so that
``motet.runtime`` alone costs no more than itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from motet.protocols.version import __version__ as __version__

if TYPE_CHECKING:
    from motet.actors.agents.spec import Handoff
    from motet.actors.agents.teams import Team
    from motet.actors.host import Host, open_host
    from motet.actors.hosting.inputs import RunStream
    from motet.actors.hosting.replay import Replay
    from motet.actors.rooms.definition import Member, Room
    from motet.actors.rooms.opening import OpenRoom
    from motet.actors.tools.context import Context
    from motet.actors.tools.process_tool import process_tool
    from motet.actors.tools.tool import Length, Pattern, Range, Tool, tool
    from motet.agent import Agent
    from motet.client import Client, connect
    from motet.embed.asyncio_host import AsyncioHost, guest
    from motet.embed.portal import HostClosed
    from motet.embed.thread import HostThread, StartedRun
    from motet.protocols.approvals import (
        ApprovalAnswered,
        ApprovalInfo,
        ApprovalPending,
        ApprovalsConfig,
        Grant,
        NeedsApproval,
    )
    from motet.protocols.config import AgentConfig, GatewayConfig, HostConfig
    from motet.protocols.errors import (
        Aborted,
        AgentError,
        AnswerRefused,
        ConfigError,
        Escalated,
        InputValidation,
        Internal,
        LimitReached,
        Llm,
        MissingExtra,
        MotetError,
        NotFound,
        OutputSerialization,
        RunCancelled,
        UnknownName,
    )
    from motet.protocols.events import (
        Activity,
        AgentChanged,
        AnyEvent,
        ApprovalRequested,
        ApprovalResolved,
        CallDropped,
        ChildEnded,
        ChildStarted,
        MessageAdded,
        MessageDeleted,
        MessageEdited,
        MessageReaction,
        RoomIdle,
        RoomTurn,
        RunCompleted,
        RunEscalated,
        RunFailed,
        RunLimited,
        RunRefused,
        RunResumed,
        RunRetrying,
        RunStalled,
        RunStarted,
        RunWaiting,
        TextDelta,
        ThinkingDelta,
        ToolCall,
        ToolResult,
        Warned,
    )
    from motet.protocols.hooks import (
        Abort,
        AfterChild,
        AfterCompact,
        AfterModel,
        AfterTool,
        Allow,
        Ask,
        BeforeChild,
        BeforeCompact,
        BeforeInput,
        BeforeModel,
        BeforeOutput,
        BeforeTool,
        Continue,
        Decision,
        Deny,
        Replace,
        Respond,
        RunEnd,
        RunError,
        RunWarning,
        SessionEnd,
        SessionStart,
    )
    from motet.protocols.limits import Limits, UsageLimits
    from motet.protocols.mcp import McpServer
    from motet.protocols.models import Model, Usage
    from motet.protocols.policy import Policy, PolicyRule, Ruling, Subject, ToolFacts, ToolRules
    from motet.protocols.queueing import QueueConfig, QueueMode
    from motet.protocols.recovery import Quarantined, RecoveryConfig
    from motet.protocols.reload import Reloaded
    from motet.protocols.room_conditions import (
        Condition,
        Elapsed,
        MaxTurns,
        SpokenBy,
        TextMention,
        ToolCalled,
        When,
    )
    from motet.protocols.room_speakers import (
        handoff,
        mentions,
        round_robin,
        selector,
        when_alone,
    )
    from motet.protocols.rooms import RoomChange, RoomPlan, RoomResult, RoomView
    from motet.protocols.run import RunResult
    from motet.protocols.sessions import (
        LOCAL,
        Ack,
        KeyConflict,
        Principal,
        QueueFull,
        SessionBusy,
        ShuttingDown,
        StopReport,
    )
    from motet.protocols.storage import StateInUse, StorageError
    from motet.protocols.tools import ModelRetry, ToolDenied, ToolFailure, ToolNegative, ToolRetry
    from motet.teams.graph import Graph
    from motet.teams.member import room_agent, room_tool
    from motet.teams.plan import plan_and_progress


# The module of each public name.
_HOMES = {
    "motet.actors.agents.spec": "Handoff",
    "motet.actors.agents.teams": "Team",
    "motet.actors.host": "Host open_host",
    "motet.actors.hosting.inputs": "RunStream",
    "motet.actors.hosting.replay": "Replay",
    "motet.actors.rooms.definition": "Member Room",
    "motet.actors.rooms.opening": "OpenRoom",
    "motet.protocols.room_speakers": "handoff mentions round_robin selector when_alone",
    "motet.actors.tools.context": "Context",
    "motet.actors.tools.process_tool": "process_tool",
    "motet.actors.tools.tool": "Length Pattern Range Tool tool",
    "motet.agent": "Agent",
    "motet.client": "Client connect",
    "motet.embed.asyncio_host": "AsyncioHost guest",
    "motet.embed.portal": "HostClosed",
    "motet.embed.thread": "HostThread StartedRun",
    "motet.protocols.approvals": (
        "ApprovalAnswered ApprovalInfo ApprovalPending ApprovalsConfig Grant NeedsApproval"
    ),
    "motet.protocols.config": "AgentConfig GatewayConfig HostConfig",
    "motet.protocols.errors": (
        "Aborted AgentError AnswerRefused ConfigError Escalated InputValidation Internal "
        "LimitReached Llm MissingExtra MotetError NotFound OutputSerialization RunCancelled "
        "UnknownName"
    ),
    "motet.protocols.events": (
        "Activity AgentChanged AnyEvent ApprovalRequested ApprovalResolved CallDropped "
        "ChildEnded ChildStarted MessageAdded MessageDeleted MessageEdited "
        "MessageReaction RoomIdle RoomTurn RunCompleted RunEscalated "
        "RunFailed RunLimited RunRefused RunResumed RunRetrying RunStalled RunStarted RunWaiting "
        "TextDelta ThinkingDelta ToolCall ToolResult Warned"
    ),
    "motet.protocols.hooks": (
        "Abort AfterChild AfterCompact AfterModel AfterTool Allow Ask BeforeChild BeforeCompact "
        "BeforeInput BeforeModel BeforeOutput BeforeTool Continue Decision Deny Replace Respond "
        "RunEnd RunError RunWarning SessionEnd SessionStart"
    ),
    "motet.protocols.limits": "Limits UsageLimits",
    "motet.protocols.mcp": "McpServer",
    "motet.protocols.models": "Model Usage",
    "motet.protocols.policy": "Policy PolicyRule Ruling Subject ToolFacts ToolRules",
    "motet.protocols.queueing": "QueueConfig QueueMode",
    "motet.protocols.recovery": "Quarantined RecoveryConfig",
    "motet.protocols.reload": "Reloaded",
    "motet.protocols.room_conditions": (
        "Condition Elapsed MaxTurns SpokenBy TextMention ToolCalled When"
    ),
    "motet.protocols.rooms": "RoomChange RoomPlan RoomResult RoomView",
    "motet.protocols.run": "RunResult",
    "motet.protocols.sessions": (
        "Ack KeyConflict LOCAL Principal QueueFull SessionBusy ShuttingDown StopReport"
    ),
    "motet.protocols.storage": "StateInUse StorageError",
    "motet.protocols.tools": "ModelRetry ToolDenied ToolFailure ToolNegative ToolRetry",
    "motet.teams.graph": "Graph",
    "motet.teams.member": "room_agent room_tool",
    "motet.teams.plan": "plan_and_progress",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "LOCAL",
    "Abort",
    "Aborted",
    "Ack",
    "Activity",
    "AfterChild",
    "AfterCompact",
    "AfterModel",
    "AfterTool",
    "Agent",
    "AgentChanged",
    "AgentConfig",
    "AgentError",
    "Allow",
    "AnswerRefused",
    "AnyEvent",
    "ApprovalAnswered",
    "ApprovalInfo",
    "ApprovalPending",
    "ApprovalRequested",
    "ApprovalResolved",
    "ApprovalsConfig",
    "Ask",
    "AsyncioHost",
    "BeforeChild",
    "BeforeCompact",
    "BeforeInput",
    "BeforeModel",
    "BeforeOutput",
    "BeforeTool",
    "CallDropped",
    "ChildEnded",
    "ChildStarted",
    "Client",
    "Condition",
    "ConfigError",
    "Context",
    "Continue",
    "Decision",
    "Deny",
    "Elapsed",
    "Escalated",
    "GatewayConfig",
    "Grant",
    "Graph",
    "Handoff",
    "Host",
    "HostClosed",
    "HostConfig",
    "HostThread",
    "InputValidation",
    "Internal",
    "KeyConflict",
    "Length",
    "LimitReached",
    "Limits",
    "Llm",
    "MaxTurns",
    "McpServer",
    "Member",
    "MessageAdded",
    "MessageDeleted",
    "MessageEdited",
    "MessageReaction",
    "MissingExtra",
    "Model",
    "ModelRetry",
    "MotetError",
    "NeedsApproval",
    "NotFound",
    "OpenRoom",
    "OutputSerialization",
    "Pattern",
    "Policy",
    "PolicyRule",
    "Principal",
    "Quarantined",
    "QueueConfig",
    "QueueFull",
    "QueueMode",
    "Range",
    "RecoveryConfig",
    "Reloaded",
    "Replace",
    "Replay",
    "Respond",
    "Room",
    "RoomChange",
    "RoomIdle",
    "RoomPlan",
    "RoomResult",
    "RoomTurn",
    "RoomView",
    "Ruling",
    "RunCancelled",
    "RunCompleted",
    "RunEnd",
    "RunError",
    "RunEscalated",
    "RunFailed",
    "RunLimited",
    "RunRefused",
    "RunResult",
    "RunResumed",
    "RunRetrying",
    "RunStalled",
    "RunStarted",
    "RunStream",
    "RunWaiting",
    "RunWarning",
    "SessionBusy",
    "SessionEnd",
    "SessionStart",
    "ShuttingDown",
    "SpokenBy",
    "StartedRun",
    "StateInUse",
    "StopReport",
    "StorageError",
    "Subject",
    "Team",
    "TextDelta",
    "TextMention",
    "ThinkingDelta",
    "Tool",
    "ToolCall",
    "ToolCalled",
    "ToolDenied",
    "ToolFacts",
    "ToolFailure",
    "ToolNegative",
    "ToolResult",
    "ToolRetry",
    "ToolRules",
    "UnknownName",
    "Usage",
    "UsageLimits",
    "Warned",
    "When",
    "connect",
    "guest",
    "handoff",
    "mentions",
    "open_host",
    "plan_and_progress",
    "process_tool",
    "room_agent",
    "room_tool",
    "round_robin",
    "selector",
    "tool",
    "when_alone",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'motet' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return [*{*globals(), *__all__}]
