"""The steps of a program, and its planned faults.

Invariants: a step or a fault is data, and its ``repr`` is the Python that makes it, so that a
program can be stored in a file and pasted into a test. A fault names its place by a number; one
whose place is never reached does nothing.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import NODEFAULT

from motet.protocols.escalations import Answer as Decision
from motet.testing.invariants.calls import PLANNED
from motet.testing.scripted import source_of

__all__ = [
    "INPUTS",
    "PLANNED",
    "PLANNED_TIMEOUT",
    "Act",
    "Approve",
    "Crash",
    "Disconnect",
    "Do",
    "Mishap",
    "Post",
    "Resend",
    "Reset",
    "Resolve",
    "Run",
    "Send",
    "SourceRepr",
    "Steer",
    "Stop",
    "Wait",
]


class SourceRepr(msgspec.Struct, frozen=True):
    """Base class of steps and mishaps, with a ``repr`` such as ``mt.Wait(1.0)``."""

    def __repr__(self) -> str:
        given: list[str] = []
        for field in msgspec.structs.fields(self):
            value: object = getattr(self, field.name)
            if field.required:
                given.append(source_of(value))
            elif value != (
                field.default_factory() if field.default is NODEFAULT else field.default
            ):
                given.append(f"{field.name}={source_of(value)}")
        return f"mt.{type(self).__name__}({', '.join(given)})"


class Send(SourceRepr, frozen=True, tag="send"):
    """``user`` sends a message to a session; with a ``key`` a resend is a duplicate.

    The step is over when the input is on disk; it does not wait for the answer. With ``soon`` it is
    over at once, and the input arrives later, unless the power is cut before.
    """

    user: str
    text: str
    session: str = "main"
    key: str | None = None
    soon: bool = False


class Resend(SourceRepr, frozen=True, tag="resend"):
    """``user`` sends the last input of the session again, as if its acknowledgement was lost."""

    user: str
    session: str = "main"


class Steer(SourceRepr, frozen=True, tag="steer"):
    """``user`` sends a message to the active run of a session."""

    user: str
    text: str
    session: str = "main"


class Stop(SourceRepr, frozen=True, tag="stop"):
    """``user`` stops a session, or the room of the program, and waits for its end."""

    user: str
    session: str = "main"


class Disconnect(SourceRepr, frozen=True, tag="disconnect"):
    """``user`` sends a message, reads ``after`` events of the answer, and disconnects.

    Leaving the stream of a run cancels it. The user waits a minute at most.
    """

    user: str
    text: str
    session: str = "main"
    after: int = 1


class Reset(SourceRepr, frozen=True, tag="reset"):
    """``user`` resets a session."""

    user: str
    session: str = "main"


class Approve(SourceRepr, frozen=True, tag="approve"):
    """``user`` answers all pending approvals; those of a room, its operator does.

    ``always``: the call, and later ones of its tool, are allowed. Approvals that are pending at the
    end are answered as the program's ``approves`` says.
    """

    user: str
    allow: bool = True
    always: bool = False


class Resolve(SourceRepr, frozen=True, tag="resolve"):
    """``user`` answers all open escalations; those of a room, its operator does."""

    user: str
    decision: Decision = "retry"
    note: str = "take the other one"


class Post(SourceRepr, frozen=True, tag="post"):
    """``user`` posts a message in the room of the program.

    ``reply``: 1 answers the newest message of an agent, 2 the one before; 0, and without such a
    message, it answers none.
    """

    user: str
    text: str
    key: str | None = None
    reply: int = 0


class Do(SourceRepr, frozen=True, tag="do"):
    """A step of the project, by the name of its rule; see ``mt.programs(rules=...)``."""

    name: str
    user: str = "ann"
    session: str = "main"
    arguments: dict[str, Any] = {}


class Wait(SourceRepr, frozen=True, tag="wait"):
    """``seconds`` of virtual time pass, with all work that becomes due."""

    seconds: float


class Run(SourceRepr, frozen=True, tag="run"):
    """The host takes ``steps`` steps of its scheduler, then stands still."""

    steps: int


class Crash(SourceRepr, frozen=True, tag="crash"):
    """The power is cut and comes back: only synced data survives."""


Act: TypeAlias = (
    Send
    | Resend
    | Steer
    | Stop
    | Approve
    | Disconnect
    | Reset
    | Resolve
    | Post
    | Do
    | Wait
    | Run
    | Crash
)

INPUTS = (Send, Resend, Steer, Disconnect, Resolve, Post)
"""Steps that begin runs."""

PLANNED_TIMEOUT = f"{PLANNED}: a time-out struck"


Of: TypeAlias = Literal["tool", "hook", "http"]
Wire: TypeAlias = Literal["", "refused", "reset", "lost", "twice", "busy"]


class Mishap(SourceRepr, frozen=True, omit_defaults=True):
    """A fault in one call of a tool or hook, or of one request to a fake service.

    Attributes:
        call: the number of the call, from 1, over all calls of tools (or of hooks, or requests).
        late: virtual seconds before the function is called, or in the await, or before the answer.
        fails: the message of its failure; empty: it does not fail.
        after: it fails after the function has done its work, so that the effect is there.
        at: the number of an await inside of the function, from 1: the fault is there. A failure is
            a ``ConnectionError`` at the first await from there on that can be left.
        cancelled: a time-out strikes at that await.
        of: the calls that are counted: of tools, of hooks, or requests to :func:`fake_http`.
        wire: the fault of a request: ``refused``: no connection; ``reset``: the connection ends
            after the service has done its work; ``lost``: so does the answer, without an end;
            ``twice``: a request that may be repeated arrives twice; ``busy``: 503.
    """

    call: int
    late: float = 0.0
    fails: str = ""
    after: bool = False
    at: int = 0
    cancelled: bool = False
    of: Of = "tool"
    wire: Wire = ""
