"""Tools as the model and the executor see them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from motet.protocols.chat import ANSWERS, Call, JsonObject, Outcome
from motet.protocols.messages import Request

Effects: TypeAlias = Literal["read", "write"]
"""``read`` calls of one batch run in parallel; a ``write`` makes its batch run in call order."""


class ToolSpec(msgspec.Struct, frozen=True):
    """What a model is told of a tool. ``parameters`` is a JSON Schema object."""

    name: str
    description: str
    parameters: JsonObject
    effects: Effects = "read"


class CallResult(msgspec.Struct, frozen=True):
    """What became of one call. ``text`` is what the model is given.

    Attributes:
        error_id: the stored full error, for ``get_error_detail``.
        kind: class of a failure (``timeout``, ``validation``, ...), empty for success.
        ms: how long it took.
        result_id: the stored whole, for ``get_tool_result``, when ``text`` is a part of it.
    """

    call_id: str
    name: str
    text: str
    outcome: Outcome = "done"
    kind: str = ""
    error_id: str | None = None
    ms: float = 0.0
    result_id: str | None = None

    @property
    def ok(self) -> bool:
        return self.outcome in ANSWERS


class ExecuteCall(Request[CallResult], frozen=True, tag="tools.execute"):
    """Run one call of a run to its one result. Never raises for a failure of the tool."""

    run_id: str
    session: str
    agent: str
    principal: str
    call: Call
