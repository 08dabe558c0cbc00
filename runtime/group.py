"""Groups: actors that get what is published to the group, as of a topic; and the members by name.

Invariants: publishing never waits, so a slow member delays nobody; each member gets each message
that was published while it was one, in the order of publishing, or its dead letter is counted; an
actor that has ended for ever is no member, while one that is being restarted stays one.

OTP has process groups and Akka topics; here both are one class, since both are a set of references
that its dead leave by themselves. A broker as an actor (Akka's) adds a hop and a mailbox that a
burst fills: publishing is a loop over mailboxes in the publisher's own step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import msgspec

from motet.protocols.messages import Message
from motet.runtime.errors import ActorDead, MailboxFull
from motet.runtime.feed import FEED_BUFFER, Feed, joined
from motet.runtime.kernel import Owner
from motet.runtime.monitors import on_end
from motet.runtime.ref import ActorRef, cell_of

__all__ = ["Group", "Member"]

M = TypeVar("M", bound=Message)

_FULL = "published: the mailbox was full"


class Member(msgspec.Struct, frozen=True):
    """An actor has joined a group, or left it."""

    ref: ActorRef[Any]
    joined: bool


class Group(Generic[M]):
    """A set of actors that accept the messages ``M``: a topic to publish to, or a group to look at.

    ``prices = Group[Price]("prices")``; ``prices.join(ref)``. It belongs to no system and needs no
    clean-up: the end of a member is its leaving. A group is passed to those who use it, as a
    reference is; nothing is looked up by its name, which is for dumps.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.missed = 0
        """Messages that found the mailbox of a member full; each is a dead letter as well."""
        self._members: dict[Owner, ActorRef[M]] = {}
        self._feeds: list[Feed[M]] = []
        self._changes: list[Feed[Member]] = []

    def join(self, ref: ActorRef[M]) -> bool:
        """Make an actor a member until it leaves or ends; False if it is one, or has ended.

        Only what is published from now on goes to it.
        """
        owner = cell_of(ref)
        owner.kernel.loop.check(owner.path)
        if owner in self._members or owner.mailbox.closed is not None:
            return False
        self._members[owner] = ref
        on_end(owner, self, lambda _: self._forget(owner))
        self._note(Member(ref, joined=True))
        return True

    def leave(self, ref: ActorRef[M]) -> bool:
        """Publish nothing more to an actor; False if it is no member.

        What is in its mailbox already is handled.
        """
        owner = cell_of(ref)
        if owner.watchers is not None:
            owner.watchers.pop(self, None)
        was_member = owner in self._members
        self._forget(owner)
        return was_member

    def publish(self, message: M) -> int:
        """Tell every member, without waiting, and return the number of those that accepted it.

        A member whose mailbox is full does with it as its overflow policy says; one that would let
        its sender wait, or refuse, has a dead letter, and :attr:`missed` counts it. Raises
        NotInProtocol or MessageNotPortable before anything is sent.
        """
        items = [(owner, owner.envelope(message)) for owner in self._members]
        told = 0
        for owner, item in items:
            box = owner.mailbox
            try:
                if not box.put(item):
                    box.put_or_overflow(item)
                told += 1
            except MailboxFull:
                self.missed += 1
                box.discard(item, _FULL)
            except ActorDead:
                pass  # it is being stopped, and leaves when it has ended
        for feed in self._feeds:
            feed.publish(message)
        return told

    def follow(self, buffer: int = FEED_BUFFER) -> AbstractContextManager[Feed[M]]:
        """Subscribe a task that is no actor: ``with prices.follow() as feed``, to iterate over.

        A message that finds ``buffer`` full is counted in ``feed.missed``.
        """
        return joined(self._feeds, buffer)

    def follow_members(self, buffer: int = FEED_BUFFER) -> AbstractContextManager[Feed[Member]]:
        """Follow who joins and leaves from now on, as :meth:`follow` does messages."""
        return joined(self._changes, buffer)

    @property
    def members(self) -> tuple[ActorRef[M], ...]:
        """The members, in the order in which they joined."""
        return tuple(self._members.values())

    def _forget(self, owner: Owner) -> None:
        ref = self._members.pop(owner, None)
        if ref is not None:
            self._note(Member(ref, joined=False))

    def _note(self, change: Member) -> None:
        for feed in self._changes:
            feed.publish(change)

    def __contains__(self, ref: ActorRef[Any]) -> bool:
        return cell_of(ref) in self._members

    def __iter__(self) -> Iterator[ActorRef[M]]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"<Group {self.name!r}: {len(self)} members>"
