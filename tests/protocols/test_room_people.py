"""Roles, the table of rights, and the decisions of administration."""

from __future__ import annotations

from contextlib import suppress
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.errors import Forbidden, InputValidation, NotFound
from motet.protocols.events import ApprovalRequested, EventRecord, ToolCall, ToolResult
from motet.protocols.room_acts import (
    ACTS,
    ROLES,
    AddPerson,
    ArchiveRoom,
    BanPerson,
    LeaveRoom,
    MutePerson,
    RateRoom,
    RemovePerson,
    RenameRoom,
    RoomAct,
    RoomRole,
    SetTerms,
    SlowRoom,
    TransferRoom,
    rank,
    told,
)
from motet.protocols.room_people import (
    LEAST,
    PeopleChange,
    RoomPerson,
    RoomRight,
    RoomTerms,
    SlowDown,
    Standing,
    audience,
    candidates,
    decide,
    refusal,
    without_details,
)
from motet.protocols.sessions import Principal

OWNER, ADMIN, EVE = Principal("olga"), Principal("root", "admin"), Principal("eve")
MOD, MEMBER, READER = Principal("mia"), Principal("ben"), Principal("rita")
NOW = 1_000.0


def room(**given: object) -> Standing:
    rows = (RoomPerson("mia", "moderator"), RoomPerson("ben"), RoomPerson("rita", "reader"))
    terms = RoomTerms(**given)  # type: ignore[arg-type]  # the test's own names
    return Standing("dev", "olga", audience((), rows), terms)


def applied(before: Standing, change: PeopleChange) -> Standing:
    """The room after a change, as the SQL of it does."""
    people = {name: one for name, one in before.people.items() if name not in change.gone}
    people |= {one.user: one for one in change.put}
    owner = before.owner if change.owner is None else change.owner
    terms = before.terms if change.terms is None else change.terms
    return Standing(before.room, owner, people, terms, before.configured)


def test_the_table_has_every_right_and_a_role_has_those_of_the_roles_below() -> None:
    assert set(LEAST) == set(get_args(RoomRight))
    for right in LEAST:
        has = [room().may(who, right) for who in (READER, MEMBER, MOD, OWNER)]
        assert has == sorted(has)
        assert (has[3], room().may(ADMIN, right), room().may(EVE, right)) == (True, True, False)


def test_the_terms_say_who_answers_and_who_sees_the_work_of_tools() -> None:
    assert not room().may(MOD, "answer")
    assert room(answers="moderator").may(MOD, "answer")
    assert (room().may(MEMBER, "details"), room(details="reader").may(READER, "details")) == (
        False,
        True,
    )


def test_a_user_of_a_channel_stands_in_the_longest_pattern() -> None:
    assert candidates("irc:net:bob") == ("irc:net:bob", "irc:net:*", "irc:*", "*")
    rows = (RoomPerson("irc:*", "reader"), RoomPerson("irc:net:*"), RoomPerson("irc:net:eve"))
    here = Standing("dev", "olga", audience((), rows))
    assert here.role(Principal("irc:net:bob")) == "member"
    assert here.role(Principal("irc:ann")) == "reader"
    assert here.role(Principal("bob")) is None
    assert here.role(Principal("irc:*")) is None  # nobody passes as everybody
    assert Standing("", "olga", audience(("*",), ())).role(Principal("bob")) is not None


def test_a_ban_wins_over_patterns_and_can_be_lifted() -> None:
    here = Standing("dev", "olga", audience(("*",), ()), configured=frozenset("*"))
    banned = applied(here, decide(here, OWNER, BanPerson(room="dev", user="eve"), NOW))
    assert (banned.role(EVE), banned.role(MEMBER), banned.names) == (None, "member", ("*",))
    assert isinstance(refusal(banned, EVE, invited=False, now=NOW, lately=(0,)), NotFound)
    lifted = decide(banned, OWNER, BanPerson(room="dev", user="eve", banned=False), NOW)
    assert applied(banned, lifted).role(EVE) == "member"


def test_a_mute_of_somebody_in_a_pattern_leaves_their_role_to_the_pattern() -> None:
    people = audience(("ben",), (RoomPerson("irc:*"),))
    here = Standing("dev", "olga", people, configured=frozenset(("ben",)))
    for user in ("irc:bob", "ben"):
        change = decide(here, OWNER, MutePerson(room="dev", user=user, seconds=60), NOW)
        muted = audience(("ben",), (RoomPerson("irc:*"), *change.put))
        there, who = Standing("dev", "olga", muted), Principal(user)
        assert there.role(who) == "member"
        said = refusal(there, who, invited=True, now=NOW + 30, lately=(0,))
        assert isinstance(said, Forbidden)
        assert "30 s" in str(said)
        assert refusal(there, who, invited=True, now=NOW + 60, lately=(0,)) is None
        # Without the pattern, or the configuration, a mute lets nobody in.
        assert Standing("dev", "olga", audience((), change.put)).role(who) is None


@pytest.mark.parametrize(
    ("who", "act", "error"),
    [
        (EVE, LeaveRoom(room="dev"), NotFound),
        (MEMBER, AddPerson(room="dev", user="eve"), Forbidden),
        (MEMBER, RenameRoom(room="dev", title="x"), Forbidden),
        (MOD, AddPerson(room="dev", user="eve", role="moderator"), Forbidden),
        (MOD, RemovePerson(room="dev", user="olga"), Forbidden),
        (MOD, MutePerson(room="dev", user="mia"), Forbidden),
        (MOD, ArchiveRoom(room="dev"), Forbidden),
        (MOD, SetTerms(room="dev", answers="member"), Forbidden),
        (OWNER, LeaveRoom(room="dev"), InputValidation),
        (OWNER, AddPerson(room="dev", user="ir*c"), InputValidation),
        (OWNER, AddPerson(room="dev", user="irc:*", role="moderator"), InputValidation),
        (OWNER, TransferRoom(room="dev", user="eve"), InputValidation),
    ],
)
def test_what_may_not_be_is_refused(who: Principal, act: RoomAct, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        decide(room(), who, act, NOW)
    assert type(caught.value) is error


def test_a_room_changes_hands_and_its_owner_so_far_stays_as_a_moderator() -> None:
    after = applied(room(), decide(room(), OWNER, TransferRoom(room="dev", user="ben"), NOW))
    assert (after.role(MEMBER), after.role(OWNER), after.owner) == ("owner", "moderator", "ben")


def test_whoever_is_configured_is_banned_and_not_removed() -> None:
    here = Standing("dev", "", audience(("ben",), ()), configured=frozenset(("ben",)))
    with pytest.raises(InputValidation, match="where the room is defined"):
        decide(here, ADMIN, RemovePerson(room="dev", user="ben"), NOW)
    with pytest.raises(InputValidation, match="where the room is defined"):
        decide(here, MEMBER, LeaveRoom(room="dev"), NOW)


def test_slow_mode_holds_for_members_and_not_for_moderators() -> None:
    slow = room(slow=60.0)
    said = refusal(slow, MEMBER, invited=True, now=NOW, lately=(NOW - 20,))
    assert isinstance(said, SlowDown)
    assert said.retry_after == 40
    assert refusal(slow, MEMBER, invited=True, now=NOW, lately=(NOW - 60,)) is None
    for who in (MOD, OWNER, ADMIN):
        assert refusal(slow, who, invited=True, now=NOW, lately=(NOW,)) is None


def test_readers_and_people_of_an_archived_room_cannot_speak() -> None:
    assert isinstance(refusal(room(), READER, invited=True, now=NOW, lately=(0,)), Forbidden)
    assert isinstance(
        refusal(room(archived=1.0), OWNER, invited=True, now=NOW, lately=(0,)), Forbidden
    )
    assert refusal(room(), EVE, invited=False, now=NOW, lately=(0,)) is None  # a program vouches
    assert isinstance(refusal(room(), EVE, invited=True, now=NOW, lately=(0,)), NotFound)


def test_those_without_details_see_that_a_tool_works_and_not_what() -> None:
    events = (
        ToolCall("c", "shell", {"command": "secret"}),
        ToolResult("c", "shell", ok=True, outcome="done", preview="secret", ms=1.0),
        ApprovalRequested("a", "c", "shell", {"command": "secret"}, "secret?", "secret", 1.0),
    )
    for event in events:
        record = EventRecord("room:dev", event, 1.0, 1)
        shown = without_details(record)
        assert "secret" not in repr(shown)
        assert shown.seq == 1


USERS = ("olga", "mia", "ben", "rita", "eve", "irc:bob", "irc:eve")
PATTERNS = ("*", "irc:*")
people = st.sampled_from(USERS).map(Principal) | st.just(ADMIN)
someone = st.sampled_from((*USERS, *PATTERNS))
acts = st.one_of(
    st.builds(AddPerson, room=st.just("dev"), user=someone, role=st.sampled_from(ROLES[:3])),
    st.builds(RemovePerson, room=st.just("dev"), user=someone),
    st.builds(MutePerson, room=st.just("dev"), user=someone, seconds=st.sampled_from((0, 50))),
    st.builds(BanPerson, room=st.just("dev"), user=someone, banned=st.booleans()),
    st.builds(TransferRoom, room=st.just("dev"), user=someone),
    st.just(LeaveRoom(room="dev")),
    st.just(SlowRoom(room="dev", seconds=9.0)),
    st.just(RateRoom(room="dev", messages=9)),
    st.builds(SetTerms, room=st.just("dev"), answers=st.sampled_from(ROLES)),
)


def level(here: Standing, user: str) -> int:
    role: RoomRole | None = here.role(Principal(user))
    return -1 if role is None else rank(role)


@given(st.lists(st.tuples(people, acts), max_size=30))
def test_nobody_rises_above_themselves_and_nobody_acts_on_their_betters(
    talk: list[tuple[Principal, RoomAct]],
) -> None:
    """Law: in any order of acts, the room has one owner; an act of somebody without the right
    changes nothing; nobody is lowered, muted or banned but by one above them, or by themselves;
    nobody rises but by one above what they become, the owner's own hand-over excepted; a banned
    user has no role until the ban is lifted. Each act that is carried out has a sentence.
    """
    here = room()
    for who, act in talk:
        mine = here.role(who)
        with suppress(NotFound, InputValidation):
            after = applied(here, decide(here, who, act, NOW))
            assert mine is not None
            assert told(act, who.user).text
            for user in USERS:
                before, now = level(here, user), level(after, user)
                if user != who.user and now != before:
                    assert rank(mine) > before or isinstance(act, TransferRoom)
                if now > before and not isinstance(act, TransferRoom):
                    assert rank(mine) > now
                own = after.people.get(user)
                assert not (own and own.banned) or now in (-1, rank("owner"))
            assert after.owner not in after.people or isinstance(act, TransferRoom)
            here = after
    assert set(ACTS.values()) >= {type(act) for _, act in talk}
