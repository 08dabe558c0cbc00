"""Recovery of unfinished inputs when a host starts: its configuration and its records.

Invariants: what is taken up again was acknowledged, is young, and repeats no call whose effects may
not happen twice (G15); a session whose resumption has ended its host again and again is left alone
until somebody releases it (G14).
"""

from __future__ import annotations

import attrs
import msgspec

from motet.protocols.limits import Limits
from motet.protocols.queueing import QueueMode
from motet.protocols.sessions import Role


@attrs.frozen(kw_only=True)
class RecoveryConfig:
    """What a host does about the end of the last one, and about its own.

    Attributes:
        resume_within: seconds; unfinished inputs whose session showed life later than that are
            taken up again, older ones are listed as interrupted. 0: all are.
        quarantine_after: how many hosts in a row may die while they take up one session.
        drain: seconds that runs get to end when the host is asked to shut down.
    """

    resume_within: float = 300.0
    quarantine_after: int = 3
    drain: float = 30.0

    def __attrs_post_init__(self) -> None:
        for name, value in (("resume_within", self.resume_within), ("drain", self.drain)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be seconds, 0 or more, not {value!r}")
        if self.quarantine_after < 1:
            raise ValueError(f"quarantine_after must be 1 or more, not {self.quarantine_after!r}")


class Given(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an input was given besides its text, kept so that another host can take it up.

    Attributes:
        role: of the principal that it runs for.
        limits: its own; None: those of its agent.
        deps: it has some, which cannot be stored: only its program can send it again.
        steers: the run that it was to enter.
        sender, mode: as it came.
    """

    role: Role
    limits: Limits | None = None
    deps: bool = False
    steers: str | None = None
    sender: str = ""
    mode: QueueMode = "followup"


class Quarantined(msgspec.Struct, frozen=True):
    """A session that is not taken up again: ``tries`` hosts in a row died while they did.

    ``since``: Unix seconds.
    """

    session: str
    owner: str
    tries: int
    since: float
