"""The steps of a program: acts of users, of time and of the power supply.

Invariant: a step is data, and its ``repr`` is the Python that makes it, so that a program can be
kept in a file and pasted into a test.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import NODEFAULT

from motet.testing.scripted import written

__all__ = [
    "INPUTS",
    "Act",
    "Approve",
    "Crash",
    "Disconnect",
    "Post",
    "Resend",
    "Reset",
    "Run",
    "Send",
    "Steer",
    "Stop",
    "Wait",
    "Written",
]


class Written(msgspec.Struct, frozen=True):
    """Root of steps and mishaps: ``mt.Send('ann', 'hello', key='k')``."""

    def __repr__(self) -> str:
        given: list[str] = []
        for field in msgspec.structs.fields(self):
            value: object = getattr(self, field.name)
            if field.default is NODEFAULT:
                given.append(written(value))
            elif value != field.default:
                given.append(f"{field.name}={written(value)}")
        return f"mt.{type(self).__name__}({', '.join(given)})"


class Send(Written, frozen=True, tag="send"):
    """``user`` says something in a session; ``key`` makes a resend harmless.

    The step is over when the input is on disk: nobody waits for the answer. With ``soon`` it is
    over at once, and the input arrives as the host goes on, unless the power is cut before.
    """

    user: str
    text: str
    session: str = "main"
    key: str | None = None
    soon: bool = False


class Resend(Written, frozen=True, tag="resend"):
    """``user`` has not heard that the last input of the session arrived, and sends it again."""

    user: str
    session: str = "main"


class Steer(Written, frozen=True, tag="steer"):
    """``user`` says something to the run that goes on in a session."""

    user: str
    text: str
    session: str = "main"


class Stop(Written, frozen=True, tag="stop"):
    """``user`` stops a session, or the room of the program; the step is over when it has ended."""

    user: str
    session: str = "main"


class Disconnect(Written, frozen=True, tag="disconnect"):
    """``user`` says something, watches ``after`` events of the answer, and goes away.

    Leaving the stream of a run cancels it. Nobody waits longer than a minute.
    """

    user: str
    text: str
    session: str = "main"
    after: int = 1


class Reset(Written, frozen=True, tag="reset"):
    """``user`` has a session begin anew."""

    user: str
    session: str = "main"


class Approve(Written, frozen=True, tag="approve"):
    """``user`` answers all that waits for their approval; at the end, what still does is denied."""

    user: str
    allow: bool = True


class Post(Written, frozen=True, tag="post"):
    """``user`` says something in the room of the program."""

    user: str
    text: str
    key: str | None = None


class Wait(Written, frozen=True, tag="wait"):
    """``seconds`` of virtual time go by, with all that happens in them."""

    seconds: float


class Run(Written, frozen=True, tag="run"):
    """The host takes so many steps of its scheduler, and is held there."""

    steps: int


class Crash(Written, frozen=True, tag="crash"):
    """The power is cut, and comes back: what the disk had synced is there."""


Act: TypeAlias = (
    Send | Resend | Steer | Stop | Approve | Disconnect | Reset | Post | Wait | Run | Crash
)

INPUTS = (Send, Resend, Steer, Disconnect, Post)
"""Steps by which somebody says something."""
