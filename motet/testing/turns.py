"""The turn that a request belongs to, and a plain answer to it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from motet.actors.models.dialects import json_object
from motet.actors.models.schema_values import filled
from motet.actors.runs.output import FINAL_ANSWER
from motet.protocols.chat import AssistantMessage, ChatMessage, JsonObject, ToolMessage, UserMessage
from motet.protocols.models import ModelRequest
from motet.protocols.tools import ToolSpec
from motet.testing.steps import Answer, say

TEXT = "a"
"""What texts of values are, unless something is drawn."""

_FINAL = re.compile(rf"{FINAL_ANSWER}(_\d+)?")


def this_turn(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """What came after the last input that began a turn."""
    inputs = (
        at for at, row in enumerate(messages) if isinstance(row, UserMessage) and not row.note
    )
    return messages[max(inputs, default=-1) + 1 :]


def called(messages: Sequence[ChatMessage]) -> set[str]:
    """The names of all tools that were called."""
    return {
        call.name for row in messages if isinstance(row, AssistantMessage) for call in row.calls
    }


def results(messages: Sequence[ChatMessage]) -> list[ToolMessage]:
    return [row for row in messages if isinstance(row, ToolMessage)]


def output_tool(request: ModelRequest) -> ToolSpec | None:
    """The tool whose call is the answer, for an agent whose answer has a form; it comes last."""
    last = request.tools[-1] if request.tools else None
    if last is None or not _FINAL.fullmatch(last.name):
        return None
    done = {row.name for row in results(this_turn(request.messages)) if row.outcome == "done"}
    return None if last.name in done else last  # an agent's own tool of that name has been run


def plain_answer(request: ModelRequest, text: str, output: JsonObject | None = None) -> Answer:
    """The end of a turn: ``text``, or where the answer has a form ``output`` or what fits it."""
    if request.output is not None:
        value = output if output is not None else filled(request.output.schema, TEXT)
        return say(msgspec.json.encode(value).decode())
    tool = output_tool(request)
    if tool is None:
        return say(text)
    value = output if output is not None else json_object(filled(tool.parameters, TEXT))
    return Answer(calls=((tool.name, value),))
