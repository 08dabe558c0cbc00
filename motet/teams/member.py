"""A room as a tool of an agent, and as a member of another room.

Each call opens a room of its own below the run that makes the call (``Context.run_room``).
Invariants: the inner room spends the budget of the run above it, ends with it, and has no people
and no rights beyond its own; the same call again, after a kill of the host, goes on with the
messages that are on disk and opens no second room.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import trio

from motet.actors.rooms.definition import Room
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool, tool
from motet.agent import Agent
from motet.protocols.chat import ChatMessage, ToolMessage, UserMessage
from motet.protocols.limits import MAX_DEPTH, Limits
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)
from motet.protocols.rooms import DEPTH, FAILED, INTERRUPTED, STOPPED, TURNS, RoomResult
from motet.protocols.tools import Effects, ToolFailure

TIMEOUT = 600.0
"""Seconds of a call that has a room answer."""

_UNFINISHED = (TURNS, DEPTH, "tokens", "usd", "wall")
"""Reasons for which a round ends before its members have nothing more to say."""


def room_tool(
    room: Room,
    *,
    name: str | None = None,
    description: str = "",
    timeout: float = TIMEOUT,
    effects: Effects = "write",
) -> Tool:
    """A tool that has the members of ``room`` work on a task, and returns their last message.

    Each call has a room of its own: the members know the task, and nothing of earlier calls. A
    round that ends at a limit says so in the result; one that was stopped or has failed is a failed
    call. Cancelling the call, also by ``timeout``, stops the room and waits (G1). After a kill of
    the host the call is repeated, and its room goes on.

    Raises ``TypeError`` for a name that cannot be one.
    """

    async def ask_room(ctx: Context[Any], task: str) -> str:
        """Args:
        task: what is to be done, with all that has to be known for it.
        """
        return answer_of(await ctx.run_room(room, task))

    members = ", ".join(member.name for member in room.members)
    return tool(
        ask_room,
        name=name or room.name,
        description=description or f"Have a group of agents work on a task: {members}.",
        timeout=timeout,
        effects=effects,
        idempotent=True,
    )


def room_agent(
    room: Room,
    *,
    name: str | None = None,
    description: str = "",
    limits: Limits | None = None,
    timeout: float = TIMEOUT,
) -> Agent[None, str]:
    """A room as an agent: a member of another room, a sub-agent, the target of a handoff.

    It has no model of its own. It passes each input on to the room and answers with the room's
    last message. ``limits``: of one input, for all members together; by default as many levels of
    agents below it as there may be. Give it to ``open_host(agents=[...])`` to have its runs found
    by name after a restart.

    Raises ``ConfigError`` for a name that cannot be one.
    """
    asks = room_tool(room, name="ask_room", description=description, timeout=timeout)
    return Agent(
        name or room.name,
        model=Relay(name or room.name, asks.name),
        description=description or asks.description,
        tools=[asks],
        limits=limits or Limits(depth=MAX_DEPTH, turns=1_000, wall=timeout),
        history=1,  # its room is told the last input only
        skills=(),
    )


def answer_of(result: RoomResult) -> str:
    """The answer of a room for the caller of a tool.

    Raises ``ToolFailure`` if the room was stopped, cut off, or has failed.
    """
    said = f" The last message was: {result.text}" if result.text else ""
    if result.reason == FAILED:
        raise ToolFailure(f"the room {result.room!r} has failed.{said}", failure="fault")
    if result.reason in (STOPPED, INTERRUPTED):
        text = f"the room {result.room!r} did not finish: {result.reason}.{said}"
        raise ToolFailure(text, failure="refusal")
    note = f"[The group has ended early: {result.reason}]" if result.reason in _UNFINISHED else ""
    return "\n".join(filter(None, (result.text, note))) or f"[Nobody has spoken: {result.reason}]"


@attrs.frozen
class Relay:
    """A model without a mind: it passes each input to one tool and says what that returns.

    A pure function of the transcript, so that a run that resumes goes on where it was.
    """

    of: str
    tool: str

    @property
    def name(self) -> str:
        return f"relay:{self.of}"

    @property
    def repeats(self) -> bool:
        """See ``Repeatable``: its room goes on after a kill, and the work is done once."""
        return True

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        yield _stream(relayed(request.messages, self.tool))


def relayed(messages: tuple[ChatMessage, ...], target: str) -> list[ModelEvent]:
    """The next answer: the result of the last call, or a call with the last input. It is free."""
    last, free = messages[-1], UsageReport(Usage(cost=0.0))
    if isinstance(last, ToolMessage):
        return [TextPart(last.text), free, Finished("stop")]
    asked = (row.text for row in reversed(messages) if isinstance(row, UserMessage))
    task = msgspec.json.encode({"task": next(asked, "")}).decode()
    call = CallStart(0, f"relay_{len(messages)}", target)
    return [call, CallArguments(0, task), free, Finished("tool_calls")]


async def _stream(answer: list[ModelEvent]) -> AsyncGenerator[ModelEvent]:
    for event in answer:
        await trio.lowlevel.checkpoint()
        yield event
