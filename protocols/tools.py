"""Tools as the model and the executor see them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from motet.protocols.chat import ANSWERS, Call, FailureClass, JsonObject, Outcome
from motet.protocols.messages import Request

Effects: TypeAlias = Literal["read", "write"]
"""``read`` calls of one batch run in parallel; a ``write`` makes its batch run in call order."""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as a model sees it. ``parameters``: a JSON Schema of type object."""

    name: str
    description: str
    parameters: JsonObject
    effects: Effects = "read"


class CallResult(msgspec.Struct, frozen=True):
    """The result of one call. ``text``: for the model.

    Attributes:
        error_id: the stored full error, for ``get_error_detail``.
        kind: class of a failure (``timeout``, ``validation``, ...), empty for success.
        ms: its duration.
        result_id: of the whole stored result, for ``get_tool_result``, if ``text`` is a part.
        failure: the class of a failure, which decides where it counts; empty for success.
    """

    call_id: str
    name: str
    text: str
    outcome: Outcome = "done"
    kind: str = ""
    error_id: str | None = None
    ms: float = 0.0
    result_id: str | None = None
    failure: FailureClass | Literal[""] = ""

    @property
    def ok(self) -> bool:
        return self.outcome in ANSWERS


class ExecuteCall(Request[CallResult], frozen=True, tag="tools.execute"):
    """Execute one call of a run; exactly one result, also for a failure of the tool.

    ``sender``: the author, in a group for which the principal speaks.
    """

    run_id: str
    session: str
    agent: str
    principal: str
    call: Call
    sender: str = ""
