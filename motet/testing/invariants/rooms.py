"""Optional invariants for group chats, besides those that hold for every host.

Each is an invariant or returns one; pass it to ``mt.check(host, ...)``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from motet.protocols.rooms import RoomMessage
from motet.testing.invariants.snapshot import Finding, RoomSeen, Snapshot

__all__ = [
    "bounded_turns",
    "everybody_answered",
    "max_requests",
    "never_says",
    "no_echo",
    "no_self_reply",
    "only_members_speak",
]


class bounded_turns(msgspec.Struct, frozen=True):  # it reads as a function
    """Agents speak at most ``turns`` times in a room for each message that a user has posted.

    Only posts of the program count, not those of bridges and bots.
    """

    turns: int

    def __call__(self, snapshot: Snapshot) -> Iterator[Finding]:
        """Rooms with more turns."""
        for room in snapshot.rooms:
            posts = len({s.text for s in snapshot.sent if s.to_room and s.place == room.name})
            said = sum(message.kind == "agent" for message in room.messages)
            if said > self.turns * posts:
                yield (
                    f"{said} turns of agents in the room {room.name!r} for {posts} posts, "
                    f"{self.turns} are allowed for each"
                )

    def __repr__(self) -> str:
        return f"mt.invariants.bounded_turns({self.turns})"


def no_self_reply(snapshot: Snapshot) -> Iterator[Finding]:
    """No agent speaks twice in a row in one round."""
    for room in snapshot.rooms:
        for before, now in _pairs(room):
            same = (before.author, before.round) == (now.author, now.round)
            if same and now.kind == before.kind == "agent":
                yield f"{now.author} answers itself in the room {room.name!r}, message {now.seq}"


def no_echo(snapshot: Snapshot) -> Iterator[Finding]:
    """No agent repeats the previous message word for word."""
    for room in snapshot.rooms:
        for before, now in _pairs(room):
            if now.kind == "agent" and now.text == before.text and now.author != before.author:
                yield f"{now.author} repeats {before.author} in {room.name!r}, message {now.seq}"


def only_members_speak(snapshot: Snapshot) -> Iterator[Finding]:
    """Every agent that speaks in a room is one of its members."""
    for room in snapshot.rooms:
        for message in room.messages:
            if message.kind == "agent" and message.author not in room.members:
                yield f"{message.author} is no member of {room.name!r}, and has spoken there"


def everybody_answered(snapshot: Snapshot) -> Iterator[Finding]:
    """In a room at rest the last message has an answer, unless the room was stopped."""
    stopped = {stop.place for stop in snapshot.stops if stop.to_room}
    for room in snapshot.rooms:
        last = room.messages[-1] if room.messages else None
        excused = room.name in stopped or snapshot.crashes or not snapshot.settled
        if not excused and last is not None and last.kind == "person":
            yield f"nobody has answered message {last.seq} of the room {room.name!r}"


class never_says(msgspec.Struct, frozen=True):
    """No agent ever says ``text``, in a room or to a user."""

    text: str

    def __call__(self, snapshot: Snapshot) -> Iterator[Finding]:
        """The rooms and sessions with the text."""
        for room in snapshot.rooms:
            for message in room.messages:
                if message.kind == "agent" and self.text in message.text:
                    yield f"{message.author} said {self.text!r} in the room {room.name!r}"
        for session in snapshot.transcripts:
            for item in snapshot.transcripts[session]:
                if item.row.__struct_config__.tag == "assistant" and self.text in item.row.text:
                    yield f"{self.text!r} was said in the session {session!r}"

    def __repr__(self) -> str:
        return f"mt.invariants.never_says({self.text!r})"


class max_requests(msgspec.Struct, frozen=True):
    """A run sends at most ``requests`` requests to models."""

    requests: int

    def __call__(self, snapshot: Snapshot) -> Iterator[Finding]:
        """Runs with more requests."""
        for run_id, count in Counter(asked.run_id for asked in snapshot.asked).items():
            if count > self.requests:
                yield f"the run {run_id} has asked models {count} times, not {self.requests}"

    def __repr__(self) -> str:
        return f"mt.invariants.max_requests({self.requests})"


def _pairs(room: RoomSeen) -> Iterator[tuple[RoomMessage, RoomMessage]]:
    return zip(room.messages, room.messages[1:], strict=False)
