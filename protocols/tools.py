"""Tools as the model and the executor see them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from motet.protocols.chat import ANSWERS, Call, FailureClass, JsonObject, Outcome
from motet.protocols.errors import MotetError
from motet.protocols.messages import Request

Effects: TypeAlias = Literal["read", "write"]
"""``read`` calls of one batch run in parallel; a ``write`` makes its batch run in call order."""


def unsuccessful(code: str, message: str) -> JsonObject:
    """The answer of a tool that looks up what is stored, where it has found nothing to show."""
    return {"success": False, "error": {"code": code, "message": message}}


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


# Raised by the functions of tools


class ToolRetry(MotetError):
    """Raised by a tool that was called wrongly: the model gets the message unchanged and can try
    again. Not stored, and no failure of the tool.
    """

    failure: FailureClass = "argument"


ModelRetry = ToolRetry
"""Its name in other frameworks."""


class ToolDenied(MotetError):
    """Raised by a tool that refuses a call; the model gets the reason. No failure of the tool."""

    failure: FailureClass = "refusal"


class ToolFailure(MotetError):
    """Raised by a tool that describes its failure; stored like any other error.

    Attributes:
        detail: stored beside the message.
        code: the tool's own error code, part of the summary.
        kind: what the failure is about; if empty, it is guessed from the message.
        failure: the class of the failure, which decides where it counts; if empty, it follows from
            the kind: ``not_found`` is a negative result, ``validation`` a wrong argument, and any
            other a fault of the tool.
    """

    def __init__(
        self,
        message: str,
        *,
        detail: JsonObject | None = None,
        code: str = "",
        kind: str = "",
        failure: FailureClass | Literal[""] = "",
    ):
        super().__init__(message)
        self.detail = detail
        self.code = code
        self.kind = kind
        self.failure = failure


class ToolNegative(ToolFailure):
    """Raised by a tool that worked and whose answer is no: nothing found, a failing test.

    The model gets the answer whole, marked as a failed call. It is not stored as an error and
    counts for nothing: it ends no run and takes no tool out.

    Attributes:
        value: the answer, of any type that a tool can return; the message unless given.
    """

    def __init__(
        self,
        message: str,
        *,
        value: object = None,
        detail: JsonObject | None = None,
        code: str = "",
        kind: str = "",
    ):
        super().__init__(message, detail=detail, code=code, kind=kind, failure="negative")
        self.value: object = message if value is None else value
