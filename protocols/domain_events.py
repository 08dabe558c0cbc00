"""Domain events: the facts that an event-sourced actor stores, and their form in a journal. Pure.

An event is a frozen struct with a tag, its name for ever, and a version. :class:`EventTypes` writes
the events of one actor and reads them back, also those of older versions. The invariants:

* nothing is written that could not be read: an event is read back before it is stored;
* nothing is read as something else: an unknown tag or version is an error that names it;
* an event of an older version becomes the newest by one step (``upcast``) for each version between.

The data is JSON, so that people can read a journal with any tool, and an upcast gets plain fields.
Choices not taken: pickles, which bind the data to the names of classes and run code when they are
read; a schema registry, which is one more thing to keep beside the code that has the types anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar, cast

import msgspec

from motet.protocols.messages import Message

__all__ = [
    "DomainEvent",
    "EventNotApplied",
    "EventNotPortable",
    "EventTypes",
    "JournalConflict",
    "JournalError",
    "JournalGap",
    "StoredEvent",
    "UnknownEvent",
    "UnknownEventVersion",
]

E = TypeVar("E", bound="DomainEvent")


class DomainEvent(Message, frozen=True):
    """A fact that was stored. Subclasses repeat ``frozen=True`` and give a ``tag``.

    The tag is the name of the event in the journal, so it stays when the class gets another name.
    When a field is added without a default, removed, or gets another meaning, the class takes the
    next ``version``, and :meth:`upcast` says how an older one becomes it.
    """

    version: ClassVar[int] = 1

    @classmethod
    def upcast(cls, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of ``version + 1``, from those of ``version``. Pure.

        Called once for each version between the stored one and that of the class. The base class
        knows no older version, and raises LookupError.
        """
        del fields
        raise LookupError(f"no upcast from version {version}")


class StoredEvent(msgspec.Struct, frozen=True):
    """An event, or a snapshot, as a journal stores it.

    Attributes:
        number: of the event in its stream, from 1; of a snapshot: of the last event in it.
        tag: of the class.
        version: of the class when it was stored.
        data: the fields, as JSON.
    """

    number: int
    tag: str
    version: int
    data: str


# ------------------------------------------------------------------ errors


class JournalError(Exception):
    """Base of the errors of journals, and of the events in them."""


class JournalConflict(JournalError):
    """Another incarnation has written to the stream; nothing of this write was stored."""

    def __init__(self, stream: str, after: int) -> None:
        super().__init__(
            f"the stream {stream!r} does not end with event {after} any more: another incarnation "
            "has written to it, and nothing was stored; ask again"
        )
        self.stream = stream
        self.after = after


class JournalGap(JournalError):
    """Events of the stream are missing, so that the state cannot be made again."""

    def __init__(self, stream: str, expected: int, found: int) -> None:
        super().__init__(
            f"the stream {stream!r} has event {found} where {expected} should be: the events "
            "between are gone, or belong to a snapshot that cannot be read"
        )
        self.stream = stream


class UnknownEvent(JournalError):
    """The actor has no event of the stored tag."""

    def __init__(self, stream: str, stored: StoredEvent, known: Iterable[str]) -> None:
        super().__init__(
            f"event {stored.number} of {stream!r} is a {stored.tag!r}, which its actor does not "
            f"know; it knows {', '.join(sorted(known)) or 'none'}"
        )
        self.stream = stream
        self.stored = stored


class UnknownEventVersion(JournalError):
    """The event was stored in a version that its class cannot read."""

    def __init__(self, stream: str, stored: StoredEvent, version: int, reason: str) -> None:
        super().__init__(
            f"event {stored.number} of {stream!r} is a {stored.tag!r} of version {stored.version}, "
            f"and this program has version {version}: {reason}"
        )
        self.stream = stream
        self.stored = stored


class EventNotPortable(JournalError, TypeError):
    """The event could not be read back as it is. Nothing was stored, and its actor goes on."""

    def __init__(self, event: object, problem: str) -> None:
        super().__init__(f"{type(event).__name__} cannot be stored: {problem}")


class EventNotApplied(JournalError):
    """``apply`` failed for an event that is stored; its error is the cause."""

    def __init__(self, stream: str, number: int, event: object) -> None:
        super().__init__(
            f"apply failed for event {number} of {stream!r}, a {type(event).__name__}: it is "
            "stored, so refuse such an event before it is persisted, or mend apply"
        )
        self.stream = stream
        self.number = number


# ------------------------------------------------------------------ writing and reading


class EventTypes(Generic[E]):
    """The event classes of one actor, by tag. TypeError: one of them cannot be stored."""

    def __init__(self, kinds: Iterable[type]) -> None:
        self._by_tag: dict[str, type[E]] = {}
        for kind in kinds:
            if not issubclass(kind, DomainEvent) or not isinstance(_tag(kind), str):
                raise TypeError(
                    f"{kind.__qualname__} is no event that can be stored: derive it from "
                    'DomainEvent, with a tag that is a text, as in tag="account.deposited"'
                )
            if kind.version < 1:
                raise TypeError(f"versions of {kind.__qualname__} begin with 1, not {kind.version}")
            other = self._by_tag.setdefault(str(_tag(kind)), cast("type[E]", kind))
            if other is not kind:
                raise TypeError(
                    f"{kind.__qualname__} and {other.__qualname__} have the same tag {_tag(kind)!r}"
                )

    def __len__(self) -> int:
        return len(self._by_tag)

    def stored(self, number: int, event: E) -> StoredEvent:
        """The form that is stored. Raises EventNotPortable, also for a class not declared."""
        kind = type(event)
        tag = _tag(kind)
        if not isinstance(tag, str) or self._by_tag.get(tag) is not kind:
            names = ", ".join(one.__name__ for one in self._by_tag.values())
            raise EventNotPortable(event, f"its actor declares {names or 'no events'}")
        try:
            data = msgspec.json.encode(event)
            # Types are not checked when an object is made. Found at the next start only, a wrong
            # one would make all of the stream unreadable.
            copy = msgspec.json.decode(data, type=kind)
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise EventNotPortable(event, str(error)) from error
        if copy != event:
            raise EventNotPortable(event, f"it comes back as {copy!r}")
        return StoredEvent(number, tag, kind.version, data.decode())

    def event(self, stream: str, stored: StoredEvent) -> E:
        """The event in its newest version. Raises UnknownEvent, UnknownEventVersion."""
        kind = self._by_tag.get(stored.tag)
        if kind is None:
            raise UnknownEvent(stream, stored, self._by_tag)
        if stored.version > kind.version:
            raise UnknownEventVersion(
                stream, stored, kind.version, "it was written by a newer program"
            )
        try:
            if stored.version == kind.version:
                return msgspec.json.decode(stored.data, type=kind)
            fields: dict[str, Any] = msgspec.json.decode(stored.data, type=dict[str, Any])
            name = kind.__struct_config__.tag_field
            assert name is not None, "it has a tag"
            fields.pop(name, None)
            for version in range(stored.version, kind.version):
                fields = kind.upcast(version, fields)
            return msgspec.convert({**fields, name: stored.tag}, kind)
        # An upcast is foreign code. Whatever it raises, the event cannot be read.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UnknownEventVersion(stream, stored, kind.version, reason) from error


def _tag(kind: type[DomainEvent]) -> str | int | None:
    return kind.__struct_config__.tag
