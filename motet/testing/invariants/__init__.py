"""The invariants of every host (G1 to G16), and those that an author may add to them.

An invariant is a function of a :class:`Snapshot` that gives a sentence for all that is wrong.
G3 to G6 and G13 are seen through the kernel's counters; G9 and G11 cannot be seen from outside of
a system, and G12 takes two runs: :func:`motet.testing.run_twice`.
"""

from motet.testing.invariants.rooms import (
    bounded_turns,
    everybody_answered,
    max_requests,
    never_says,
    no_echo,
    no_self_reply,
    only_members_speak,
)
from motet.testing.invariants.snapshot import Finding, Invariant, Snapshot, Violation
from motet.testing.invariants.standard import CHEAP, STANDARD, broken

__all__ = [
    "CHEAP",
    "STANDARD",
    "Finding",
    "Invariant",
    "Snapshot",
    "Violation",
    "bounded_turns",
    "broken",
    "everybody_answered",
    "max_requests",
    "never_says",
    "no_echo",
    "no_self_reply",
    "only_members_speak",
]
