"""G16 for newcomers of rooms: nobody reads a message that the room hides from them, by any method.

Random talks on a real host with people who come, go, are muted, banned and come back, also by a
pattern, with threads, edits and reactions. Each message has a word of its own, so that it is seen
wherever it is read. The judge keeps for itself what was said before somebody came, and what since.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import attrs
import msgspec
import pytest
import trio

import motet
from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.storage.tokens import new_token
from motet.protocols.errors import Forbidden, InputValidation, NotFound
from motet.protocols.room_acts import (
    AddPerson,
    BanPerson,
    LeaveRoom,
    MutePerson,
    RemovePerson,
    RoomAct,
    SetTerms,
)
from motet.protocols.room_newcomers import Newcomers
from motet.protocols.rooms import RoomPlan
from motet.protocols.sessions import Principal
from tests.actors.gateway.fakes import Client, connected
from tests.actors.rooms.talk import Speaks

ALICE = Principal("alice")
OTHERS = tuple(Principal(name) for name in ("bob", "cleo", "irc:dan", "irc:eve"))
TOKENS = {who.user: new_token() for who in (ALICE, *OTHERS)}
WORD = re.compile(r"w\d+x")
SETTINGS: tuple[Newcomers, ...] = ("none", "joining", "summary")


def words(found: object) -> set[str]:
    return set(WORD.findall(msgspec.json.encode(found).decode()))


@attrs.define
class World:
    """One room of alice's.

    ``said``: all words, ``main``: those in the main talk that were taken; ``hidden``: for each
    person, the words that were said before they came; ``since``: how many these were.
    """

    random: Random
    state: Path
    host: motet.Host
    room: str = ""
    said: list[str] = attrs.field(factory=list[str])
    main: set[str] = attrs.field(factory=set[str])
    since: dict[str, int] = attrs.field(factory=dict[str, int])
    hidden: dict[str, set[str]] = attrs.field(factory=dict[str, "set[str]"])
    here: set[str] = attrs.field(factory=set[str])
    came: set[str] = attrs.field(factory=set[str])
    moderators: set[str] = attrs.field(factory=set[str])
    reads: Newcomers = "joining"

    def word(self) -> str:
        self.said.append(f"w{len(self.said)}x")
        return self.said[-1]

    def comes(self, user: str) -> None:
        """Somebody comes; a user of the pattern, and all with ``none``, come when they look."""
        self.here.add(user)
        self.came.discard(user)
        self._begins(user)

    def _begins(self, user: str) -> None:
        self.hidden[user], self.since[user] = set(self.said), len(self.said)

    def looks(self, user: str) -> None:
        waits = user.startswith("irc:") or (self.reads == "none" and self.hidden.get(user))
        if user not in self.came and waits:
            self._begins(user)
        self.came.add(user)

    async def act(self, act: RoomAct, who: Principal = ALICE) -> bool:
        try:
            await self.host.rooms.manage(act, principal=who)
        except (Forbidden, InputValidation, NotFound):
            return False
        return True

    async def say(self, who: Principal, room: str = "") -> None:
        self.looks(who.user)
        word = self.word()
        with suppress(NotFound, Forbidden):
            await self.host.rooms.post(room or self.room, word, principal=who)
            self.main |= {word} if not room else set()

    async def check(self, who: Principal) -> None:
        """All that somebody can read, by every method."""
        rooms, room, may = self.host.rooms, self.room, who.user in self.here
        if not may:
            with pytest.raises(NotFound):
                await rooms.history(room, principal=who)
            return
        self.looks(who.user)
        found: list[object] = [await rooms.get(room, principal=who)]
        before: int | None = None
        while page := await rooms.history(room, before=before, limit=3, principal=who):
            found.append(page)
            before = page[0].seq
        hidden = (await rooms.get(room, principal=who)).hidden
        for number in range(1, len(await self.host.rooms.history(room, limit=200)) + 1):
            thread = f"{room}/{number}"
            with suppress(NotFound):
                found.append(await rooms.history(thread, principal=who))
                assert number > hidden
            with suppress(NotFound, Forbidden):
                await rooms.mark_read(thread, 1, principal=who)
                assert number > hidden
            with suppress(NotFound, Forbidden, InputValidation):
                found.append(await rooms.react(room, number, "+1", principal=who))
                assert number > hidden
            with suppress(NotFound, InputValidation):
                text, about = f"re {number}", number
                await rooms.post(room, text, reply_to=about, principal=who)
                assert number > hidden
        with suppress(Forbidden):
            found.append(await rooms.export(room, principal=who))
        found += [await rooms.page(principal=who), await rooms.people(room, principal=who)]
        found.append((await rooms.summary(room, principal=who)).upto)
        found += await self.streamed(who)
        if who.user not in self.moderators:
            assert not words(found) & self.hidden[who.user], who.user
        else:
            assert hidden == 0
        assert set(self.said[self.since[who.user] :]) & self.main <= words(found)

    async def streamed(self, who: Principal) -> list[object]:
        """The events that a client gets, from the first one that it may have on, and live."""
        tokens = StaticTokens(
            token_entry(token, user, "operator") for user, token in TOKENS.items()
        )
        context, stream = Context(self.host, Settings(tokens=tokens)), f"room:{self.room}"
        async with connected(context, TOKENS[who.user]) as client:
            state = await client.result("subscribe", stream=stream, after=0)
            info = await self.host.rooms.get(self.room, principal=who)
            assert int(str(state["oldest"])) > info.hidden_events
            if not state["resumed"]:
                first = int(str(state["oldest"])) - 1
                state = await client.result("subscribe", stream=stream, after=first)
            # An old message gets another text while the newcomer listens.
            for one in (await self.host.rooms.history(self.room, limit=200))[:2]:
                if one.kind == "person" and not one.deleted:
                    old = WORD.findall(one.text)
                    author = Principal(one.author, "operator")
                    with suppress(NotFound, Forbidden):
                        text = " ".join([*old, "again"])
                        await self.host.rooms.edit_message(
                            self.room, one.seq, text, principal=author
                        )
            await self.host.rooms.post(self.room, "the end", principal=ALICE)
            return await until_the_end(client)


async def until_the_end(client: Client) -> list[object]:
    found: list[object] = []
    with trio.fail_after(20):
        while True:
            frame = await client.event()
            found.append(frame.data)
            if frame.event == "message" and frame.data.get("text") == "the end":
                return found


async def step(world: World) -> None:
    random, room = world.random, world.room
    who = random.choice(OTHERS)
    match random.randrange(10):
        case 0 | 1 | 2:
            for _ in range(random.randrange(1, 4)):
                speaker = random.choice([ALICE, *(o for o in OTHERS if o.user in world.here)])
                await world.say(speaker)
        case 3:
            number = random.randint(1, max(1, len(world.said)))
            await world.say(ALICE, f"{room}/{number}")
        case 4 if not who.user.startswith("irc:"):
            role = random.choice(["member", "reader", "moderator"])
            if await world.act(AddPerson(room=room, user=who.user, role=role)):  # type: ignore[arg-type]
                if who.user not in world.here:
                    world.comes(who.user)
                (world.moderators.add if role == "moderator" else world.moderators.discard)(
                    who.user
                )
        case 5 if not who.user.startswith("irc:"):
            act = random.choice([RemovePerson(room=room, user=who.user), None])
            gone = await (world.act(act) if act else world.act(LeaveRoom(room=room), who))
            if gone:
                world.here.discard(who.user)
                world.moderators.discard(who.user)
        case 6:
            if await world.act(BanPerson(room=room, user=who.user)):
                world.here.discard(who.user)
                world.moderators.discard(who.user)
            if random.random() < 0.7:
                await world.act(BanPerson(room=room, user=who.user, banned=False))
                if who.user.startswith("irc:") and "irc:*" in world.here:
                    world.comes(who.user)
        case 7:
            if "irc:*" in world.here:
                await world.act(RemovePerson(room=room, user="irc:*"))
                world.here -= {"irc:*", "irc:dan", "irc:eve"}
            elif await world.act(AddPerson(room=room, user="irc:*")):
                world.here.add("irc:*")
                people = (await world.host.rooms.people(room)).people
                banned = {one.user for one in people if one.banned}
                for user in {"irc:dan", "irc:eve"} - banned:
                    world.comes(user)
        case 8:
            await world.act(MutePerson(room=room, user=who.user, seconds=random.choice([0, 60])))
        case _:
            await world.check(who)


@asynccontextmanager
async def world_of(seed: int, state: Path) -> AsyncGenerator[World]:
    random = Random(seed)
    agents = [motet.Agent("ann", model=Speaks("noted", "ann"))]
    async with motet.open_host(state, agents=agents) as host:
        world = World(random, state, host)
        plan = RoomPlan(("ann",), speakers=("mentions",))
        world.room = (await host.rooms.create("den", plan, principal=ALICE)).name
        world.reads = random.choice(SETTINGS)
        await world.act(SetTerms(room=world.room, newcomers=world.reads))
        for _ in range(random.randrange(3)):
            await world.say(ALICE)
        yield world


async def talk(seed: int, state: Path) -> None:
    async with world_of(seed, state) as world:
        for _ in range(24):
            await step(world)
        for who in OTHERS:
            await world.check(who)


@pytest.mark.parametrize("seed", range(7))
async def test_nobody_reads_what_was_said_before_they_came(seed: int, tmp_path: Path) -> None:
    await talk(seed, tmp_path / "state")


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(1_000, 1_300))
async def test_nobody_does_in_many_talks(seed: int, tmp_path: Path) -> None:
    await talk(seed, tmp_path / "state")
