"""What a tool declares besides its function, written once for every way to make one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypedDict, cast

from motet.actors.tools.context import Context
from motet.protocols.chat import JsonObject
from motet.protocols.tools import Effects

Approval: TypeAlias = bool | Callable[[Context[Any], JsonObject], bool | Awaitable[bool]]
"""Whether a person has to approve a call; the callable decides on its context and arguments.

An exception in it means that a person is asked.
"""

_APPROVAL = ("approval", "requires_approval", "needs_approval")


class Traits(TypedDict, total=False):
    """How a tool is run.

    timeout: seconds one call may take; 60 if absent.
    max_output: bytes of a result that a model gets at once, at most the default of 16,384; a
        larger one is stored, and the model reads on in pages.
    effects: ``read`` if absent; a ``write`` makes the batch it is in run in call order (G8).
    parallel: False: no other call of a batch runs beside a call of this tool.
    approval: whether a person has to approve a call, or a function that says so.
    polling: to be called again and again in the same way is its use: that is no loop.
    idempotent: to run a call twice is as good as once, so that one that the end of its host has cut
        off is run again; if absent: what is declared as ``effects="read"`` is.
    """

    timeout: float
    max_output: int
    effects: Effects
    parallel: bool
    approval: Approval
    polling: bool
    idempotent: bool


class ToolOptions(Traits, total=False):
    """What may be given with ``tool(...)`` and ``@agent.tool(...)``.

    name: the function's own if absent.
    description: that of its docstring if absent.
    requires_approval, needs_approval: other names of ``approval``.
    """

    name: str | None
    description: str | None
    requires_approval: Approval
    needs_approval: Approval


def traits(options: ToolOptions) -> Traits:
    """How the tool is run, each option under its one name.

    Raises ``TypeError`` for an option that there is not, and for two names of one.
    """
    given: dict[str, object] = {**options}
    for name in given:
        if name not in ToolOptions.__annotations__:
            known = ", ".join(ToolOptions.__annotations__)
            raise TypeError(f"a tool has no option {name!r}; there are {known}")
    named = [name for name in _APPROVAL if name in given]
    if len(named) > 1:
        raise TypeError(f"{' and '.join(named)} mean the same: give approval=... only")
    found = {name: given[name] for name in Traits.__annotations__ if name in given}
    found.setdefault("idempotent", given.get("effects") == "read")
    for name in named:
        found["approval"] = given[name]
    return cast(Traits, found)  # its keys, with the values of the same keys
