"""Has a session's actor look at what there is to do, from wherever something was put there.

What it has to do is in its slot, and not in what it is told: so nothing is lost when it is not
there, crashes or is passivated. Nothing here waits.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from motet.protocols.messages import Message
from motet.runtime import MailboxFull

if TYPE_CHECKING:
    from motet.actors.sessions.table import RunTable


class Pump(Message, frozen=True, tag="session.pump"):
    """Look at what is queued, has to be begun, or to be put on record."""


def wake(table: RunTable, session: str) -> bool:
    """Have the session's actor look; False: it is not there, and looks when it begins."""
    actor = table.actor(session)
    if actor is None:
        return table.opened(session) is not None
    with suppress(MailboxFull):  # whatever it is told has it look
        actor.tell_nowait(Pump())
    return True
