"""Who may see a room, and who may say who may: pure.

Invariant: to everybody else a room does not exist (G16).
"""

from __future__ import annotations

from collections.abc import Collection

from motet.protocols.sessions import Principal

EVERYBODY = "*"
"""In a list of people: every user of the host."""


def may_see(who: Principal, owner: str, people: Collection[str]) -> bool:
    """Read it, follow it, speak in it and stop it."""
    return may_change(who, owner) or who.user in people or EVERYBODY in people


def may_change(who: Principal, owner: str) -> bool:
    """Invite people, and send them away."""
    return who.role == "admin" or (bool(owner) and who.user == owner)
