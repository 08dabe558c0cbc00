"""Acts in a room by those who may not do them change nothing and tell nobody.

Every method about a room, and every command of a room's chat, has a row with the right that it
takes, and a room of its own. Everybody without that right tries it: those below the role, who are
banned, muted, have left or never were there, and a moderator whose token may only read. Then the
lowest role that has the right does it, so that no row is one that nobody could do. A method or a
command without a row fails its test.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Literal, TypeAlias

import attrs
import msgspec
import trio
import trio.testing

import motet
from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.gateway.methods import METHODS
from motet.actors.gateway.talk import ROOM_COMMANDS
from motet.actors.storage.connection import Connection
from motet.actors.storage.tokens import new_token
from motet.protocols import gateway as wire
from motet.protocols.chat import JsonObject
from motet.protocols.room_acts import (
    ACTS,
    AddPerson,
    BanPerson,
    LeaveRoom,
    MutePerson,
    RoomRole,
    rank,
)
from motet.protocols.room_people import LEAST, RoomRight
from motet.protocols.rooms import RoomPlan
from motet.protocols.sessions import Role
from tests.actors.gateway.fakes import Client, connected
from tests.scripted import Scripted

Who: TypeAlias = Literal[
    "olga", "mona", "max", "mel", "ray", "mute", "irc:ivy", "vic", "ben", "leo", "otto"
]
ROLES: dict[Who, RoomRole | None] = {
    "olga": "owner",
    "mona": "moderator",
    "max": "moderator",
    "mel": "member",
    "irc:ivy": "member",  # by a pattern
    "mute": "member",
    "ray": "reader",
    "vic": "moderator",
    "ben": None,  # was banned
    "leo": None,  # has left
    "otto": None,  # was never there
}
LOOKS: dict[Who, Role] = {"vic": "viewer"}
"""The role of their token, if it is not that of an operator."""
TOKENS: dict[Who, str] = {who: new_token() for who in ROLES}
LIMITS = wire.Limits(messages_per_min=10**6, message_burst=10**6)


@attrs.frozen
class Act:
    """``right``: none takes what everybody may do who may see the room."""

    params: JsonObject
    right: RoomRight = "read"
    speaks: bool = False


def act(right: RoomRight = "read", *, speaks: bool = False, **params: object) -> Act:
    return Act({"room": "{room}", **params}, right, speaks)


METHOD_ROWS: dict[str, Act] = {
    "rooms.get": act(),
    "rooms.history": act(),
    "rooms.people": act(),
    "rooms.summary": act(),
    "rooms.read": act(number=1),
    "rooms.present": act(),
    "rooms.typing": act("post", speaks=True),
    "rooms.post": act("post", speaks=True, text="hello", key="{key}"),
    "messages.react": act("post", speaks=True, number=1, reaction="+1"),
    "messages.edit": act("post", speaks=True, number="{own}", text="other words"),
    "messages.delete": act("moderate", number=1),
    "rooms.set": act("set", people=["otto"]),
    "rooms.add": act("add", user="otto"),
    "rooms.remove": act("remove", user="ray"),
    "rooms.mute": act("mute", user="ray"),
    "rooms.ban": act("ban", user="ray"),
    "rooms.leave": act("leave"),
    "rooms.transfer": act("transfer", user="mel"),
    "rooms.rename": act("rename", title="mine"),
    "rooms.slow": act("slow", seconds=60),
    "rooms.rate": act("slow", messages=6),
    "rooms.archive": act("archive"),
    "rooms.terms": act("set", answers="member"),
    "rooms.invite": act("invite"),
    "rooms.invites": act("invite"),
    "rooms.revoke": act("invite", invite="{invite}"),
    "rooms.export": act("export"),
    "rooms.delete": act("delete"),
}
ELSEWHERE = {"rooms.list", "rooms.create", "rooms.join"}
"""Methods that name no room of others: tests/actors/gateway/test_isolation.py has them."""

COMMAND_ROWS: dict[str, tuple[str, Act]] = {
    "edit": ("{own} other words", act("post", speaks=True)),
    "delete": ("1", act("moderate")),
    "react": ("1 +1", act("post", speaks=True)),
    "thread": ("1 in the thread", act("post", speaks=True)),
    "search": ("welcome", act()),
    "here": ("", act()),
    "people": ("", act()),
    "summary": ("", act()),
    "invite": ("", act("invite")),
    "invites": ("", act("invite")),
    "revoke": ("{invite}", act("invite")),
    "export": ("", act("export")),
    "add": ("otto", act("add")),
    "remove": ("ray", act("remove")),
    "mute": ("ray 10m", act("mute")),
    "unmute": ("mute", act("mute")),
    "ban": ("ray", act("ban")),
    "unban": ("ben", act("ban")),
    "transfer": ("mel", act("transfer")),
    "leave": ("", act("leave")),
    "title": ("mine", act("rename")),
    "slow": ("30", act("slow")),
    "rate": ("6", act("slow")),
    "archive": ("", act("archive")),
    "unarchive": ("", act("archive")),
    "answers": ("member", act("set")),
    "details": ("reader", act("set")),
    "newcomers": ("none", act("set")),
    "deleteroom": ("{room}", act("delete")),
    "queue": ("steer", act("set")),
    "activation": ("off", act("set")),
    "errors": ("", act("inspect")),
    "usage": ("", act("inspect")),
}
SHOWN = {
    "rooms.get", "rooms.history", "rooms.people", "rooms.summary", "rooms.present",
    "rooms.invites", "rooms.export", "here", "people", "summary",
    "search", "invites", "export", "errors", "usage",
}  # fmt: skip
"""Methods and commands that change nothing."""


@attrs.define
class Club:
    """A room with people of every role, who are all connected. ``known``: for parameters."""

    host: motet.Host
    folder: Path
    clients: dict[Who, Client]
    known: dict[str, str] = attrs.field(factory=dict[str, str])
    before: set[tuple[object, ...]] = attrs.field(factory=set[tuple[object, ...]])
    _keys: Iterator[int] = attrs.field(factory=count)

    async def enter(self) -> None:
        """Another room; its owner watches it."""
        host, olga = self.host, motet.Principal("olga")
        plan = RoomPlan(("helper",), speakers=("mentions",))
        room = (await host.rooms.create("club", plan, people=("ben", "leo"), principal=olga)).name
        await host.rooms.post(room, "welcome", principal=olga)
        await host.rooms.manage(AddPerson(room=room, user="irc:*"), principal=olga)
        for who, role in ROLES.items():
            if role is not None and role != "owner" and ":" not in who:
                await host.rooms.manage(AddPerson(room=room, user=who, role=role), principal=olga)
        self.known = {"room": room}
        for who in ("mona", "max", "mel", "irc:ivy", "mute"):
            said = await host.rooms.post(room, f"I am {who}", principal=motet.Principal(who))
            self.known[f"own of {who}"] = str(said.seq)
        await host.rooms.manage(MutePerson(room=room, user="mute"), principal=olga)
        await host.rooms.manage(BanPerson(room=room, user="ben"), principal=olga)
        await host.rooms.manage(LeaveRoom(room=room), principal=motet.Principal("leo"))
        invite = await host.rooms.invite(room, principal=olga)
        self.known |= {"invite": invite.invite.id, "token": invite.token}
        await (await host.open_room(room)).wait()
        await self.clients["olga"].result("subscribe", stream=f"room:{room}")
        await self.heard()
        self.before = await self.settled()

    async def ask(self, who: Who, method: str, params: JsonObject) -> wire.ResponseFrame:
        own = self.known.get(f"own of {who}", "1")
        names = {**self.known, "key": f"k{next(self._keys)}"}
        text = msgspec.json.encode(params).decode().replace('"{own}"', own).replace("{own}", own)
        for name, known in names.items():
            text = text.replace(f"{{{name}}}", known)
        given = msgspec.json.decode(text, type=JsonObject)
        return await self.clients[who].ask(method, **given)

    async def heard(self) -> list[wire.EventFrame]:
        """The events that the room's owner has got and not looked at."""
        client = self.clients["olga"]
        await client.ask("ping")
        await trio.testing.wait_all_tasks_blocked()
        await client.ask("ping")
        found = [one for one in client.events if one.stream != wire.SYSTEM_STREAM]
        client.events.clear()
        return found

    async def settled(self) -> set[tuple[object, ...]]:
        """All rows of all tables, but for those that say which requests were answered, and the
        host's traces of its own reads, which come within a second.
        """
        await self.host.events.head(f"room:{self.known['room']}")
        await trio.testing.wait_all_tasks_blocked()
        found = set[tuple[object, ...]]()
        with closing(Connection(str(self.folder / "motet.db"))) as base:
            for (name,) in base.run("SELECT name FROM sqlite_schema WHERE type = 'table'"):
                if name not in ("idempotency", "sqlite_stat1"):
                    rows = ((name, *row) for row in base.run(f'SELECT * FROM "{name}"'))
                    found |= {row for row in rows if not str(row[1]).startswith("host_")}
        return found

    async def check_untouched(self, what: object) -> None:
        """Nobody was told of anything, and nothing is another way than before."""
        assert await self.heard() == [], what
        now = await self.settled()
        assert (now - self.before, self.before - now) == (set(), set()), what

    async def check_done(self, what: str) -> None:
        """Something is another way, or told; it shows that those who were refused tried it."""
        changed = await self.settled() != self.before
        assert (bool(await self.heard()) or changed) == (what not in SHOWN), what


@asynccontextmanager
async def club(folder: Path) -> AsyncGenerator[Club]:
    helper = motet.Agent("helper", model=Scripted(name="helper"))
    entries = (token_entry(TOKENS[who], who, LOOKS.get(who, "operator")) for who in ROLES)
    tokens = StaticTokens(tuple(entries))
    async with motet.open_host(folder, agents=[helper]) as host, AsyncExitStack() as stack:
        context = Context(host, Settings(tokens=tokens, limits=LIMITS))
        clients: dict[Who, Client] = {
            who: await stack.enter_async_context(connected(context, TOKENS[who])) for who in ROLES
        }
        yield Club(host, folder, clients)


def refused(row: Act, *, typed: bool = False) -> list[Who]:
    """Those who may not do it; ``typed``: as a command, which is posted."""

    def may(who: Who) -> bool:
        role = ROLES[who]
        looks_only = who == "vic" and (typed or row.right != "read")
        mute = who == "mute" and row.speaks
        low = role is None or rank(role) < rank(LEAST[row.right])
        return not (looks_only or mute or low)

    return [who for who in ROLES if not may(who)]


def allowed(row: Act) -> Who:
    """One of the lowest role that may do it."""
    return next(who for who in reversed(ROLES) if who not in refused(row, typed=True))


def check(who: Who, answer: wire.ResponseFrame, right: RoomRight = "read") -> None:
    """A refusal says nothing to those for whom the room does not exist."""
    assert isinstance(answer.error, wire.ErrorBody), (who, answer)
    if ROLES[who] is None:
        unknown = "no room", "there is no such invite: it is used up, over or revoked"
        assert answer.error.code == "not_found", (who, answer)
        assert answer.error.message.startswith(unknown), (who, answer)
    else:  # a message of somebody else is there, and not theirs to withdraw
        codes = {"forbidden", "not_found"} if right == "moderate" else {"forbidden"}
        assert answer.error.code in codes, (who, answer)
    assert "welcome" not in wire.encode(answer)


async def test_a_method_of_a_room_does_nothing_for_those_without_the_right(tmp_path: Path) -> None:
    async with club(tmp_path) as here:
        for method, row in METHOD_ROWS.items():
            await here.enter()
            for who in refused(row):
                check(who, await here.ask(who, method, row.params), row.right)
            await here.check_untouched(method)
            answer = await here.ask(allowed(row), method, row.params)
            assert answer.ok, (method, answer)
            await here.check_done(method)


async def test_a_command_of_a_room_does_nothing_for_those_without_the_right(tmp_path: Path) -> None:
    async with club(tmp_path) as here:
        for word, (argument, row) in COMMAND_ROWS.items():
            await here.enter()
            text = f"/{word} {argument}".strip()
            params: JsonObject = {"room": "{room}", "text": text, "key": "{key}"}
            for who in refused(row, typed=True):
                answer = await here.ask(who, "rooms.post", params)
                if answer.ok:  # some say in words that nothing was done
                    assert ROLES[who] is not None
                    told = str(msgspec.convert(answer.result, dict[str, object])["text"])
                    assert told.startswith(("Nothing was done", "Nothing was changed")), told
                else:
                    check(who, answer, row.right)
            await here.check_untouched(word)
            answer = await here.ask(allowed(row), "rooms.post", params)
            assert answer.ok, (word, answer)
            await here.check_done(word)


async def test_no_text_of_a_message_is_kept_for_a_command_that_is_sent_again(
    tmp_path: Path,
) -> None:
    """It would stay when the message is another one."""
    async with club(tmp_path) as here:
        await here.enter()
        for word in ("search welcome", "export", "summary"):
            params: JsonObject = {"room": "{room}", "text": f"/{word}", "key": "{key}"}
            answer = await here.ask("olga", "rooms.post", params)
            assert ("welcome" in wire.encode(answer)) == (word != "summary")
        with closing(Connection(str(tmp_path / "motet.db"))) as base:
            assert "welcome" not in str(base.run("SELECT * FROM idempotency"))


async def test_what_is_refused_in_a_thread_that_has_no_message_opens_none(tmp_path: Path) -> None:
    async with club(tmp_path) as here:
        await here.enter()
        post = METHOD_ROWS["rooms.post"]
        for method, row in METHOD_ROWS.items():
            if method.startswith("messages.") or row is post:
                for who in refused(row) if row is post else ROLES:
                    params = {**row.params, "room": "{room}/1", "number": 2}
                    check(who, await here.ask(who, method, params), "moderate")
        await here.check_untouched("a thread")
        assert (await here.ask("mel", "rooms.post", {**post.params, "room": "{room}/1"})).ok
        await here.check_done("a thread")


UPWARDS: list[tuple[Who, str, JsonObject]] = [
    ("mona", "rooms.mute", {"user": "max"}),
    ("mona", "rooms.mute", {"user": "olga"}),
    ("mona", "rooms.ban", {"user": "max"}),
    ("mona", "rooms.ban", {"user": "olga"}),
    ("mona", "rooms.ban", {"user": "mona", "banned": False}),
    ("mona", "rooms.remove", {"user": "max"}),
    ("mona", "rooms.remove", {"user": "olga"}),
    ("mona", "rooms.add", {"user": "max", "role": "reader"}),
    ("mona", "rooms.add", {"user": "mona", "role": "reader"}),
    ("mona", "rooms.add", {"user": "olga", "role": "reader"}),
    ("mona", "rooms.add", {"user": "otto", "role": "moderator"}),
    ("mona", "rooms.add", {"user": "mel", "role": "moderator"}),
    ("mona", "rooms.invite", {"role": "moderator"}),
    ("mona", "rooms.transfer", {"user": "mona"}),
    ("olga", "rooms.transfer", {"user": "otto"}),
    ("olga", "rooms.transfer", {"user": "ben"}),
    ("olga", "rooms.transfer", {"user": "irc:*"}),
    ("olga", "rooms.leave", {}),
    ("olga", "rooms.add", {"user": "ben"}),
    ("olga", "rooms.add", {"user": "irc:*", "role": "moderator"}),
    ("olga", "messages.edit", {"number": 3, "text": "words of somebody else"}),
]


async def test_nobody_acts_on_their_equals_or_gives_what_they_have_not(tmp_path: Path) -> None:
    async with club(tmp_path) as here:
        await here.enter()
        for who, method, params in UPWARDS:
            answer = await here.ask(who, method, {"room": "{room}", **params})
            assert isinstance(answer.error, wire.ErrorBody), (who, method, params)
            codes = ("forbidden", "invalid_params", "not_found")
            assert answer.error.code in codes, (who, method, answer)
        await here.check_untouched("upwards")


async def test_an_invite_lets_nobody_in_who_is_banned(tmp_path: Path) -> None:
    async with club(tmp_path) as here:
        await here.enter()
        check("ben", await here.ask("ben", "rooms.join", {"token": "{token}"}))
        await here.check_untouched("an invite")


def test_every_method_and_every_command_of_a_room_has_a_row() -> None:
    of_rooms = {name for name in METHODS if name.startswith(("rooms.", "messages."))}
    assert of_rooms == METHOD_ROWS.keys() | ELSEWHERE
    assert set(ACTS) <= METHOD_ROWS.keys()
    assert {
        *ROOM_COMMANDS,
        "deleteroom",
        "queue",
        "activation",
        "errors",
        "usage",
    } == COMMAND_ROWS.keys()
    assert {row.right for row in METHOD_ROWS.values()} >= set(LEAST) - {
        "stop", "details", "answer", "inspect", "moderate",
    }  # fmt: skip
