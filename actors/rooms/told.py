"""What a member of a room is told when it gets the floor: pure text.

Invariant: what others say has their name in front and is a user's message, never a part of the
system prompt. Source: API specification, section 6, rules 3, 5 and 7.
"""

from __future__ import annotations

from collections.abc import Sequence

from motet.actors.agent.names import named
from motet.protocols.rooms import MemberInfo, RoomMessage

PASS = "PASS"
NOTHING_NEW = "[Nobody has said anything since.]"


def told(
    messages: Sequence[RoomMessage], *, name: str, agents: int, people: range, most: int
) -> str:
    """What others have said, at most the ``most`` last messages.

    Of agents all behind message ``agents``, of people those whose numbers are in ``people``.
    """
    new = [
        one
        for one in messages
        if (one.seq in people if one.kind == "person" else one.seq > agents and one.author != name)
    ]
    return "\n".join(map(line_of, new[-most:])) or NOTHING_NEW


def line_of(message: RoomMessage) -> str:
    """What somebody said, as a member reads it."""
    return named(message.author, message.text)


def manners(room: str, name: str, members: Sequence[MemberInfo]) -> str:
    """What a member's system prompt says of the room."""
    others = "\n".join(
        f"- @{member.name}: {member.description or 'an agent'}"
        for member in members
        if member.name != name
    )
    return (
        f"You are {name} in the group chat {room!r}. Each line that begins with a name in square "
        "brackets was said by that member, a person or an agent; do not begin yours so. To call "
        f"another member, write @ and its name. If you have nothing to add, answer {PASS} and "
        "nothing else." + (f"\nThe other agents:\n{others}" if others else "")
    )


def is_pass(text: str) -> bool:
    """Whether a turn says nothing: it is not shown, and counts."""
    return _plain(text) in ("", PASS)


def may_be_pass(beginning: str) -> bool:
    """Whether a turn that begins so can still turn out to say nothing."""
    return PASS.startswith(_plain(beginning))


def _plain(text: str) -> str:
    return text.strip().strip("*_`\"'.").upper()


def without_name(text: str, name: str) -> str:
    """What was said, without its speaker's own name in front: models copy what they see."""
    front = f"[{name}]"
    stripped = text.strip()
    return stripped[len(front) :].lstrip(" :") if stripped.startswith(front) else stripped
