"""Events in a journal: their versions, and what cannot be written or read."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.domain_events import (
    DomainEvent,
    EventNotPortable,
    EventTypes,
    StoredEvent,
    UnknownEvent,
    UnknownEventVersion,
)
from motet.protocols.messages import Message


class Paid(DomainEvent, frozen=True, tag="account.paid"):
    """Version 1 had euros, version 2 cents, version 3 has a currency."""

    version: ClassVar[int] = 3
    cents: int
    currency: str

    @classmethod
    def upcast(cls, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        if version == 1:
            return {"cents": fields["euros"] * 100}
        return {**fields, "currency": "EUR"}


class Closed(DomainEvent, frozen=True, tag="account.closed"):
    reason: str | None = None
    balances: dict[str, float] = msgspec.field(default_factory=dict[str, float])


TYPES: EventTypes[Paid | Closed] = EventTypes([Paid, Closed])


@given(st.builds(Paid, st.integers(), st.text()) | st.builds(Closed, st.none() | st.text()))
def test_an_event_that_is_stored_is_read_back(event: Paid | Closed) -> None:
    """Law: reading what is stored gives an equal event."""
    stored = TYPES.stored(7, event)
    assert (stored.number, stored.version) == (7, type(event).version)
    assert TYPES.event("account/a", stored) == event


def test_older_versions_become_the_newest_step_by_step() -> None:
    old = StoredEvent(1, "account.paid", 1, '{"type":"account.paid","euros":5}')
    assert TYPES.event("account/a", old) == Paid(500, "EUR")
    newer = StoredEvent(2, "account.paid", 2, '{"type":"account.paid","cents":70}')
    assert TYPES.event("account/a", newer) == Paid(70, "EUR")


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        (StoredEvent(3, "account.paid", 4, "{}"), "version 4.*version 3.*by a newer program"),
        (StoredEvent(3, "account.paid", 1, "{}"), "version 1.*KeyError: 'euros'"),
        (StoredEvent(3, "account.paid", 3, "{}"), "version 3.*required field `cents`"),
        (StoredEvent(3, "account.closed", 0, "{}"), "version 0.*no upcast from version 0"),
        (StoredEvent(3, "account.paid", 3, "{tor"), "version 3.*malformed"),
    ],
)
def test_a_version_that_cannot_be_read_is_named(stored: StoredEvent, says: str) -> None:
    with pytest.raises(UnknownEventVersion, match=rf"event 3 of 'account/a' is a .*{says}"):
        TYPES.event("account/a", stored)


def test_an_unknown_event_is_named_with_those_that_are_known() -> None:
    with pytest.raises(UnknownEvent, match=r"'room.made'.*knows account.closed, account.paid"):
        TYPES.event("account/a", StoredEvent(3, "room.made", 1, "{}"))


def test_what_could_not_be_read_back_is_not_written() -> None:
    wrong: Any = "five"
    live: Any = object()
    for event in (
        Paid(wrong, "EUR"),
        Closed(live),
        Closed(None, {"EUR": float("nan")}),
        Message(),
    ):
        with pytest.raises(EventNotPortable, match="cannot be stored"):
            TYPES.stored(1, event)  # type: ignore[arg-type]


def test_an_event_needs_a_tag_of_its_own_and_a_version() -> None:
    class NoTag(DomainEvent, frozen=True):
        pass

    class Number(DomainEvent, frozen=True, tag=5):
        pass

    class Early(DomainEvent, frozen=True, tag="early"):
        version: ClassVar[int] = 0

    class Twin(DomainEvent, frozen=True, tag="account.closed"):
        pass

    class Plain(msgspec.Struct, frozen=True, tag="plain"):
        pass

    for kinds, says in (
        ([NoTag], "with a tag"),
        ([Number], "with a tag"),
        ([Plain], "derive it from DomainEvent"),
        ([Early], "begin with 1"),
        ([Closed, Twin], "same tag"),
    ):
        with pytest.raises(TypeError, match=says):
            EventTypes(kinds)
