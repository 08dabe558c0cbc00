"""Recovery of unfinished inputs when a host starts: its configuration and its records.

Invariants: a resumed input was acknowledged, is recent, and repeats no call whose effects must not
happen twice (G15); a session whose resumption has repeatedly ended its host is quarantined until a
person releases it (G14).
"""

from __future__ import annotations

import attrs
import msgspec

from motet.protocols.limits import Limits
from motet.protocols.policy import Subject
from motet.protocols.queueing import QueueMode
from motet.protocols.sessions import Role


@attrs.frozen(kw_only=True)
class RecoveryConfig:
    """The reaction of a host to the end of the last host, and to its own.

    Attributes:
        resume_within: seconds; unfinished inputs are resumed if their session has a sign of life
            that is not older; the others are listed as interrupted. 0: all are.
        quarantine_after: hosts in a row that may die while they resume one session.
        drain: seconds for runs to end when the host is asked to shut down.
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


class InputOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of an input, kept so that another host can resume it, or send it again.

    Attributes:
        role: of its principal.
        limits: its own; None: those of its agent.
        deps: it has dependencies. These cannot be stored: only its program can send it again.
        steers: the run that it should enter; ``only_enters``: it never becomes a run of its own.
        sender, mode: as it arrived.
        waited: its caller waited for it, and is gone with its host: it does not resume.
        lineage: the agents that have handed it over, whose policies hold for it.
        next_agent: takes over after the calls of its last answer.
        payers: the people of a room who pay for it; ``round``: the account of its round.
        turn: of a room, as ``RoomState.turn`` names it.
        stopped: the reason of a stop that it has not ended from: it ends so in the next host.
    """

    role: Role
    limits: Limits | None = None
    deps: bool = False
    steers: str | None = None
    sender: str = ""
    mode: QueueMode = "followup"
    only_enters: bool = False
    waited: bool = False
    lineage: tuple[Subject, ...] = ()
    next_agent: str = ""
    stopped: str = ""
    payers: tuple[str, ...] = ()
    turn: str = ""
    round: str = ""


class Quarantined(msgspec.Struct, frozen=True):
    """A session that is not resumed: ``tries`` hosts in a row died while they resumed it.

    ``since``: Unix seconds.
    """

    session: str
    owner: str
    tries: int
    since: float
