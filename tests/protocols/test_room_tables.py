"""The SQL of rooms: the lists that a user may see, and the rows of people."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.storage.schema import MIGRATIONS
from motet.protocols import host_tables, room_newcomers
from motet.protocols.room_people import PeopleChange, RoomPerson, Standing, audience, replaced
from motet.protocols.room_tables import change_people, page_of, put_people, redeem
from motet.protocols.sessions import Principal
from motet.protocols.storage import STREAM_DIGEST, Statement, stream_digest

STREAMS = "CREATE TABLE streams (stream TEXT PRIMARY KEY, head INTEGER NOT NULL) WITHOUT ROWID;"
NAMES = ("a", "b", "c", "d", "e")
USERS = ("ann", "irc:bob", "irc:eve")
ROWS = (*USERS, "irc:*", "*")
Known = dict[str, tuple[str, dict[str, RoomPerson]]]


def database() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:")
    made.create_function(STREAM_DIGEST, 1, stream_digest, deterministic=True)
    made.executescript(host_tables.ROOMS + host_tables.ROOM_PEOPLE + host_tables.ROOM_ROLES)
    made.executescript(STREAMS + room_newcomers.STEP)
    return made


def run(base: sqlite3.Connection, *statements: Statement) -> list[int]:
    return [base.execute(one.sql, one.params).rowcount for one in statements]


def make(base: sqlite3.Connection, name: str, owner: str = "") -> None:
    base.execute(
        "INSERT INTO rooms (name, owner, state, created, updated) VALUES (?, ?, '{}', 1, 1)",
        (name, owner),
    )


rooms = st.dictionaries(
    st.sampled_from(NAMES),
    st.tuples(
        st.sampled_from(("", *USERS)),
        st.dictionaries(
            st.sampled_from(ROWS),
            st.builds(
                RoomPerson,
                user=st.just(""),
                role=st.sampled_from(("", "reader", "member")),
                banned=st.booleans(),
            ),
        ),
    ),
)


@given(rooms, st.integers(1, 3))
def test_the_pages_of_a_user_have_the_rooms_in_which_they_have_a_role(
    known: Known, limit: int
) -> None:
    """Law: read in pages, the list of a user has each room in which they have a role once, in
    order; and none in which their own row is a ban. (A ban of a whole pattern is looked at behind
    the list.)
    """
    with closing(database()) as base:
        for name, (owner, people) in known.items():
            make(base, name, owner)
            rows = tuple(
                RoomPerson(user, one.role, banned=one.banned) for user, one in people.items()
            )
            run(base, *change_people(name, PeopleChange(put=rows), 5.0))
            known[name] = owner, audience((), rows)
        for user in USERS:
            found: list[str] = []
            after = ""
            while page := base.execute(*page_of(user, after, limit)).fetchall():
                found += [str(row[0]) for row in page]
                after = found[-1]
            assert found == sorted(set(found))
            for name, (owner, people) in known.items():
                role = Standing(name, owner, people).role(Principal(user))
                assert role is None or name in found
                own = people.get(user)
                assert not (own and own.banned and owner != user) or name not in found


def test_two_additions_at_once_lose_nothing_and_a_list_replaces_all_but_bans() -> None:
    with closing(database()) as base:
        make(base, "dev", "olga")
        for user in ("ann", "ben"):
            run(base, *change_people("dev", PeopleChange(put=(RoomPerson(user),)), 5.0))
        run(base, *change_people("dev", PeopleChange(put=(RoomPerson("eve", banned=True),)), 5.0))
        run(base, *change_people("dev", PeopleChange(put=(RoomPerson("ben", "moderator"),)), 9.0))
        rows = "SELECT user, role, since, banned FROM room_people ORDER BY user"
        assert base.execute(rows).fetchall() == [
            ("ann", "member", 5.0, 0),
            ("ben", "moderator", 5.0, 0),
            ("eve", "member", 5.0, 1),
        ]
        stored = tuple(
            RoomPerson(user, role, banned=bool(banned))
            for user, role, _, banned in base.execute(rows).fetchall()
        )
        here = Standing("dev", "olga", audience((), stored))
        run(base, *change_people("dev", replaced(here, ("ben", "cleo")), 7.0))
        assert [row[:2] for row in base.execute(rows).fetchall()] == [
            ("ben", "moderator"),
            ("cleo", "member"),
            ("eve", "member"),
        ]
        assert run(base, *put_people("nowhere", ("ann",), 1.0)) == [0]


def test_an_invite_lets_in_as_many_as_it_says() -> None:
    with closing(database()) as base:
        make(base, "dev", "olga")
        base.execute("INSERT INTO room_invites VALUES ('h', 'dev', 'member', 'olga', 1, 50, 1)")
        for now, user, used in ((99.0, "late", 0), (9.0, "ann", 1), (9.0, "ben", 0)):
            use, come = redeem("h", "dev", RoomPerson(user), now, now)
            assert run(base, use) == [used]
            if used:
                run(base, come)
        assert base.execute("SELECT user, joined FROM room_people").fetchall() == [("ann", 0)]


def test_the_list_of_people_of_an_older_database_becomes_rows() -> None:
    assert host_tables.ROOM_ROLES in MIGRATIONS
    with closing(sqlite3.connect(":memory:")) as base:
        base.executescript(host_tables.ROOMS + host_tables.ROOM_PEOPLE)
        for name, people in (
            ("a", '["ann","*"]'),
            ("b", "[]"),
            ("c", "not json"),
            ("d", '["ann", 3]'),
        ):
            base.execute(
                "INSERT INTO rooms (name, owner, state, created, updated, people)"
                " VALUES (?, 'olga', '{}', 4, 4, ?)",
                (name, people),
            )
        base.executescript(host_tables.ROOM_ROLES)
        rows = "SELECT room, user, role, joined, since FROM room_people"
        assert base.execute(rows).fetchall() == [
            ("a", "*", "member", 0, 4.0),
            ("a", "ann", "member", 0, 4.0),
            ("d", "ann", "member", 0, 4.0),
        ]
