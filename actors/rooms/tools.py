"""The tool by which whoever has the floor of a room hands it over.

It decides nothing: the room reads the call in the turn's transcript when the turn has ended, so
that what was handed over is on disk with the turn, and a turn that fails hands over nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from motet.actors.rooms.access import CHANNEL
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool, ToolRetry, tool
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage

GIVE_FLOOR = "give_floor"
GROUP = {"group:rooms": (GIVE_FLOOR,)}

_DESCRIPTION = (
    "In a group chat, have another member speak after your turn. What you answer after this call "
    "is said first. Call it once, with the member's name as it stands in your instructions."
)


class _Arguments(msgspec.Struct, frozen=True):
    to: str


def floor_tool() -> Tool:
    """``give_floor``, for agents that take part in rooms."""

    async def give_floor(ctx: Context[object], to: str) -> str:
        if not ctx.principal.user.startswith(f"{CHANNEL}:"):
            raise ToolRetry("This is no group chat: there is no floor to give. Just answer.")
        return f"{to} speaks after your turn. Finish it now."

    return tool(give_floor, name=GIVE_FLOOR, description=_DESCRIPTION)


def handed_to(rows: Sequence[ChatMessage]) -> str:
    """The name that a turn has given the floor to, the last one; empty if to nobody."""
    done = {row.call_id for row in rows if isinstance(row, ToolMessage) and row.outcome == "done"}
    calls = [call for row in rows if isinstance(row, AssistantMessage) for call in row.calls]
    given = [call for call in calls if call.name == GIVE_FLOOR and call.id in done]
    return _to(given[-1].arguments) if given else ""


def _to(arguments: str) -> str:
    try:
        return msgspec.json.decode(arguments, type=_Arguments).to.lstrip("@")
    except msgspec.DecodeError:
        return ""  # what it has become when it was repaired is not in the transcript
