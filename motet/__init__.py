"""motet: an actor-model runtime on Trio for LLM agents.

The front door: the public names and no logic. A name is imported when it is first used, so that
``motet.runtime`` alone costs no more than itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from motet.protocols.version import __version__ as __version__

if TYPE_CHECKING:
    from motet.actors.agent.definition import Agent
    from motet.actors.children.handoff import Handoff
    from motet.actors.client import Client, connect
    from motet.actors.embed.asyncio_host import AsyncioHost
    from motet.actors.embed.guest import guest
    from motet.actors.embed.portal import HostClosed
    from motet.actors.embed.started import StartedRun
    from motet.actors.embed.thread import HostThread
    from motet.actors.host import Host, open_host
    from motet.actors.replay import Replay
    from motet.actors.result import RunResult
    from motet.actors.rooms.conditions import Elapsed, MaxTurns, TextMention
    from motet.actors.rooms.definition import Member, Room
    from motet.actors.rooms.handle import OpenRoom
    from motet.actors.rooms.speakers import mentions, round_robin, selector
    from motet.actors.storage.errors import StateInUse, StorageError
    from motet.actors.stream import RunStream
    from motet.actors.teams.team import Team
    from motet.actors.tools.context import Context
    from motet.actors.tools.process_tool import process_tool
    from motet.actors.tools.tool import (
        Length,
        ModelRetry,
        Pattern,
        Range,
        Tool,
        ToolDenied,
        ToolRetry,
        tool,
    )
    from motet.protocols.approvals import (
        ApprovalAnswered,
        ApprovalInfo,
        ApprovalPending,
        ApprovalsConfig,
        Grant,
        NeedsApproval,
    )
    from motet.protocols.config import GatewayConfig, HostConfig
    from motet.protocols.errors import (
        Aborted,
        AgentError,
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
        ChildEnded,
        ChildStarted,
        MessageAdded,
        RoomIdle,
        RoomTurn,
        RunCompleted,
        RunEscalated,
        RunFailed,
        RunLimited,
        RunResumed,
        RunRetrying,
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
    from motet.protocols.sessions import (
        LOCAL,
        Ack,
        KeyConflict,
        Principal,
        QueueFull,
        SessionBusy,
        StopReport,
    )


_HOMES = {
    "motet.actors.agent.definition": ("Agent",),
    "motet.actors.children.handoff": ("Handoff",),
    "motet.actors.client": ("Client", "connect"),
    "motet.actors.embed.asyncio_host": ("AsyncioHost",),
    "motet.actors.embed.guest": ("guest",),
    "motet.actors.embed.portal": ("HostClosed",),
    "motet.actors.embed.started": ("StartedRun",),
    "motet.actors.embed.thread": ("HostThread",),
    "motet.actors.host": (
        "Host",
        "open_host",
    ),
    "motet.actors.replay": ("Replay",),
    "motet.actors.result": ("RunResult",),
    "motet.actors.rooms.conditions": ("Elapsed", "MaxTurns", "TextMention"),
    "motet.actors.rooms.definition": ("Member", "Room"),
    "motet.actors.rooms.handle": ("OpenRoom",),
    "motet.actors.rooms.speakers": ("mentions", "round_robin", "selector"),
    "motet.actors.storage.errors": ("StateInUse", "StorageError"),
    "motet.actors.stream": ("RunStream",),
    "motet.actors.teams.team": ("Team",),
    "motet.actors.tools.context": ("Context",),
    "motet.actors.tools.process_tool": ("process_tool",),
    "motet.actors.tools.tool": (
        "Length",
        "ModelRetry",
        "Pattern",
        "Range",
        "Tool",
        "ToolDenied",
        "ToolRetry",
        "tool",
    ),
    "motet.protocols.approvals": (
        "ApprovalAnswered",
        "ApprovalInfo",
        "ApprovalPending",
        "ApprovalsConfig",
        "Grant",
        "NeedsApproval",
    ),
    "motet.protocols.config": (
        "GatewayConfig",
        "HostConfig",
    ),
    "motet.protocols.errors": (
        "Aborted",
        "AgentError",
        "ConfigError",
        "Escalated",
        "InputValidation",
        "Internal",
        "LimitReached",
        "Llm",
        "MissingExtra",
        "MotetError",
        "NotFound",
        "OutputSerialization",
        "RunCancelled",
        "UnknownName",
    ),
    "motet.protocols.events": (
        "Activity",
        "AgentChanged",
        "AnyEvent",
        "ApprovalRequested",
        "ApprovalResolved",
        "ChildEnded",
        "ChildStarted",
        "MessageAdded",
        "RoomIdle",
        "RoomTurn",
        "RunCompleted",
        "RunEscalated",
        "RunFailed",
        "RunLimited",
        "RunResumed",
        "RunRetrying",
        "RunStarted",
        "RunWaiting",
        "TextDelta",
        "ThinkingDelta",
        "ToolCall",
        "ToolResult",
        "Warned",
    ),
    "motet.protocols.hooks": (
        "Abort",
        "AfterChild",
        "AfterCompact",
        "AfterModel",
        "AfterTool",
        "Allow",
        "Ask",
        "BeforeInput",
        "BeforeModel",
        "BeforeChild",
        "BeforeCompact",
        "BeforeOutput",
        "BeforeTool",
        "Continue",
        "Decision",
        "Deny",
        "Replace",
        "Respond",
        "RunEnd",
        "RunError",
        "RunWarning",
        "SessionEnd",
        "SessionStart",
    ),
    "motet.protocols.limits": (
        "Limits",
        "UsageLimits",
    ),
    "motet.protocols.mcp": ("McpServer",),
    "motet.protocols.models": (
        "Model",
        "Usage",
    ),
    "motet.protocols.policy": (
        "Policy",
        "PolicyRule",
        "Ruling",
        "Subject",
        "ToolFacts",
        "ToolRules",
    ),
    "motet.protocols.queueing": ("QueueConfig", "QueueMode"),
    "motet.protocols.sessions": (
        "LOCAL",
        "Ack",
        "KeyConflict",
        "Principal",
        "QueueFull",
        "SessionBusy",
        "StopReport",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

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
    "AgentError",
    "Allow",
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
    "ChildEnded",
    "ChildStarted",
    "Client",
    "ConfigError",
    "Context",
    "Continue",
    "Decision",
    "Deny",
    "Elapsed",
    "Escalated",
    "GatewayConfig",
    "Grant",
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
    "QueueConfig",
    "QueueFull",
    "QueueMode",
    "Range",
    "Replace",
    "Replay",
    "Respond",
    "Room",
    "RoomIdle",
    "RoomTurn",
    "Ruling",
    "RunCancelled",
    "RunCompleted",
    "RunEnd",
    "RunError",
    "RunEscalated",
    "RunFailed",
    "RunLimited",
    "RunResult",
    "RunResumed",
    "RunRetrying",
    "RunStarted",
    "RunStream",
    "RunWaiting",
    "RunWarning",
    "SessionBusy",
    "SessionEnd",
    "SessionStart",
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
    "ToolDenied",
    "ToolFacts",
    "ToolResult",
    "ToolRetry",
    "ToolRules",
    "UnknownName",
    "Usage",
    "UsageLimits",
    "Warned",
    "connect",
    "guest",
    "mentions",
    "open_host",
    "process_tool",
    "round_robin",
    "selector",
    "tool",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'motet' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
