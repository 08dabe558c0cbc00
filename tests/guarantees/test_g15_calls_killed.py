"""Law: no ``@name`` of an acknowledged message is lost when a real ``motet serve`` is killed.

People talk over the gateway, and the owner adds, removes and renames members, while the process is
killed by SIGKILL at random moments. Each call of somebody who was a member ends in a turn or in one
``call.dropped``, and no dropped call is told twice.
"""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import attrs
import pytest
import trio

import motet
from motet.client import Client, connect
from motet.client.requests import RequestFailed
from motet.protocols.events import RoomTurn
from motet.protocols.gateway_rooms import Posted
from motet.protocols.rooms import ROOM_MODES, RoomChange, RoomMode, RoomPlan
from tests.guarantees.worlds import calls as world
from tests.motet.command import Process, started

TOML = "[gateway]\nmessages_per_minute = 1000000\n" + "\n".join(
    f'[agents.{name}]\nmodel = "demo"' for name in world.EVERYBODY
)
CALLED = ("", "@ann", "@ben", "@cid", "@all", "@cid @ann", "@ben ask @ann about", "@zed", "@bea")
STAYS = "ann"
"""The one that no change removes: calls by agents are expected of it only, since nobody outside
knows who was a member when an agent spoke."""


@attrs.define
class Talk:
    """What was said and acknowledged in one room, over all lives of the host.

    Attributes:
        here: the members that a message surely calls if it names them, by its number.
        open: a text that was sent and not acknowledged, with the members it may surely call.
        members: those of the last change that was acknowledged; None: one may be under way.
    """

    random: Random
    mode: RoomMode
    room: str = ""
    words: int = 0
    members: tuple[str, ...] | None = world.NAMES
    open: tuple[str, tuple[str, ...]] | None = None
    here: dict[int, tuple[str, ...]] = attrs.field(factory=dict[int, tuple[str, ...]])

    async def go_on(self, client: Client, length: int) -> None:
        """Say and change something; what was begun in the last life is said again first."""
        if not self.room:  # none was made, or it was not acknowledged
            found = [one.name for one in await client.rooms()]
            turns = self.random.choice((2, 5, 9))
            plan = RoomPlan(world.NAMES, speakers=("mentions",), max_turns=turns, mode=self.mode)
            room = found[0] if found else (await client.create_room("den", plan)).name
            await client.change_room(room, RoomChange(people=("*",)))
            self.room = room
        for _ in range(length):
            if self.members is None or self.random.random() < 0.2:
                await self.change(client)
            await self.post(client)
            if self.random.random() < 0.1:
                await client.stop(room=self.room)
            # In mode followup each message has a round of its own.
            most = 0.4 if self.mode == "followup" else 0.05
            if self.random.random() < 0.5:
                await trio.sleep(self.random.random() * most)

    async def change(self, client: Client) -> None:
        names = tuple(one for one in world.NAMES if one == STAYS or self.random.random() < 0.6)
        names = tuple(self.random.choice((one, world.RENAMED.get(one, one))) for one in names)
        self.members = None
        await client.change_room(self.room, RoomChange(members=names))
        self.members = names

    async def post(self, client: Client) -> None:
        if self.open is None:
            self.words += 1
            called = self.random.choice(CALLED)
            self.open = f"{called} <m{self.words}>", self.members or (STAYS,)
        text, sure = self.open
        try:
            said = await client.post(self.room, text, key=f"key-{text}")
        except RequestFailed as error:
            if error.code != "session_busy":
                raise
        else:
            assert isinstance(said, Posted)
            now = self.members or (STAYS,)
            self.here[said.seq] = tuple(one for one in sure if one in now)
        self.open = None


async def live(server: Process, url: str, token: str, talk: Talk, after: float | None) -> None:
    """One life: it is killed so many seconds after it serves; None: it comes to rest."""

    async def kill() -> None:
        await trio.sleep(after or 0)
        server.popen.kill()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        if after is not None:
            nursery.start_soon(kill)
        async with connect(url, token=token, name="test") as client:
            with trio.fail_after(120):
                await talk.go_on(client, 8 if after is None else 10_000)
                while not all(one.idle for one in await client.rooms()):
                    await trio.sleep(0.1)
        nursery.cancel_scope.cancel()


def lives(place: Path, seed: object, mode: RoomMode, kills: int) -> list[str]:
    """How the law is broken after so many kills."""
    (place / "motet.toml").write_text(TOML)
    talk = Talk(Random(f"{seed}/{mode}"), mode)
    listen = ("--listen", "127.0.0.1:0", "--state", "state", "--token-file", "token.txt")
    for after in (*(talk.random.random() * 0.8 for _ in range(kills)), None):
        with started("serve", *listen, cwd=place) as server:
            server.expect("motet serves ")
            url = server.expect("\n").strip()
            token = (place / "token.txt").read_text().strip()
            trio.run(live, server, url, token, talk, after)
            if after is None:
                server.signal(signal.SIGTERM)
                server.end()
    return trio.run(look, place / "state", talk)


async def look(state: Path, talk: Talk) -> list[str]:
    async with motet.open_host(state) as host:
        (seen,) = (await world.look(host)).values()
    here = {one.seq: (STAYS,) if one.kind == "agent" else () for one in seen.messages}
    missing = [f"message {one} is lost" for one in talk.here if one not in here]
    assert any(isinstance(one, RoomTurn) for one in seen.events)
    return missing + world.broken_after_kill(seen, world.Given(here=here | talk.here))


@pytest.mark.slow
def test_a_killed_server_accounts_for_each_call(tmp_path: Path) -> None:
    assert not lives(tmp_path, 1, "collect", 2)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mode", ROOM_MODES)
def test_a_server_that_is_killed_often_accounts_for_each_call(
    mode: RoomMode, seed: int, tmp_path: Path
) -> None:
    assert not lives(tmp_path, seed, mode, 40)
