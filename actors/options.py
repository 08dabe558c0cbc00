"""What may be said of a run besides its input, written once for every way to start one."""

from __future__ import annotations

from typing import TypedDict

from motet.protocols.limits import Limits
from motet.protocols.sessions import Principal


class Bounds(TypedDict, total=False):
    """What one run may spend.

    limits: in place of those of its agent.
    max_turns: in place of ``limits.turns``.
    """

    limits: Limits | None
    max_turns: int | None


class RunOptions(Bounds, total=False):
    """What may be given with ``host.run``, ``host.stream`` and their like.

    session: the conversation it belongs to; a new one if absent.
    principal: for whom it acts; the user of this machine if absent.
    key: of an input that may be sent again: it is answered once.
    """

    session: str | None
    principal: Principal
    key: str | None
