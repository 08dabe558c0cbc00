"""Rooms that rest are forgotten, and found again as they were by whatever comes next."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.rooms import table
from motet.actors.rooms.opening import OpenRoom
from motet.protocols.errors import Forbidden, NotFound
from motet.protocols.room_acts import AddPerson
from motet.protocols.rooms import RoomChange, RoomPlan
from motet.protocols.sessions import Principal
from tests.actors.rooms.talk import agent, model_of, said, until_idle

ALICE, BOB = Principal("alice"), Principal("bob")
ANN = agent("ann", "yes")


def known(host: motet.Host) -> set[str]:
    """The rooms in memory."""
    gc.collect()
    parts = host._parts  # pyright: ignore[reportPrivateUsage]
    return set(parts.room_table.rooms)


async def rested(host: motet.Host, *rooms: str) -> None:
    """Wait until these are forgotten."""
    with trio.fail_after(60):
        while known(host).intersection(rooms):
            await trio.sleep(0.1)


async def made(host: motet.Host, owner: Principal = ALICE) -> str:
    plan = RoomPlan(("ann",), speakers=("mentions",))
    return (await host.rooms.create("plans", plan, people=("bob",), principal=owner)).name


async def spoken(host: motet.Host, room: str, text: str) -> None:
    """Bob says something, and is answered."""
    async with (await host.open_room(room, principal=BOB)).subscribe() as events:
        await host.rooms.post(room, text, principal=BOB)
        assert said(await until_idle(events))[-1] == ("ann", "yes")


@pytest.mark.parametrize(
    "rooms", [40, pytest.param(10_000, marks=pytest.mark.sweep)], ids=["few", "many"]
)
async def test_rooms_that_were_made_and_left_have_no_place(
    rooms: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given many rooms in which something was said, then the latest few are in memory for a while,
    and none of them for ever."""
    most = min(table.MOST, rooms // 10)
    monkeypatch.setattr(table, "MOST", most)
    async with motet.open_host(agents=[agent("ann", "yes")]) as host:
        names = [await made(host, Principal(f"owner {n % 20}")) for n in range(rooms)]
        for name in names:
            await host.rooms.post(name, "nobody is called", principal=BOB)
            await (await host.open_room(name, principal=BOB)).wait()
        await trio.sleep(10)
        assert known(host) == set(names[-most:])
        await trio.sleep(2_000)
        assert not known(host)
        await spoken(host, names[0], "@ann are you there?")
        assert [one.seq for one in await host.rooms.history(names[0], principal=BOB)] == [1, 2, 3]


async def post(host: motet.Host, room: str) -> None:
    await spoken(host, room, "@ann again")
    texts = [one.text for one in await host.rooms.history(room, principal=ALICE)]
    assert texts == ["@ann hello", "yes", "@ann again", "yes"]


async def resend(host: motet.Host, room: str) -> None:
    first = await host.rooms.post(room, "nobody", key="k", principal=BOB)
    await rested(host, room)
    again = await host.rooms.post(room, "nobody", key="k", principal=BOB)
    assert (again.seq, again.duplicate) == (first.seq, True)


async def subscribe(host: motet.Host, room: str) -> None:
    """The events of a stream go on behind the last one that was seen, and come once."""
    last = (await host.events.head(f"room:{room}")).head
    await rested(host, room)
    await spoken(host, room, "@ann again")
    after = await host.events.read(f"room:{room}", last, 100)
    assert said([one.event for one in after]) == [("bob", "@ann again"), ("ann", "yes")]


async def react(host: motet.Host, room: str) -> None:
    changed = await host.rooms.react(room, 2, "+1", principal=BOB)
    assert [one.users for one in changed.reactions] == [("bob",)]


async def edit(host: motet.Host, room: str) -> None:
    with pytest.raises(NotFound, match="is not yours"):
        await host.rooms.edit_message(room, 1, "mine", principal=ALICE)
    assert (await host.rooms.edit_message(room, 1, "@ann hi", principal=BOB)).text == "@ann hi"


async def remove(host: motet.Host, room: str) -> None:
    await host.rooms.change(room, RoomChange(people=()), principal=ALICE)
    with pytest.raises(NotFound):
        await host.rooms.post(room, "let me in", principal=BOB)


async def change(host: motet.Host, room: str) -> None:
    await host.rooms.change(room, RoomChange(max_turns=3), principal=ALICE)
    await spoken(host, room, "@ann again")
    opened = await host.open_room(room, principal=ALICE)
    assert opened.live.settings.room.max_turns == 3


async def stop(host: motet.Host, room: str) -> None:
    """Nothing is at work, which is no error; who may not stop it is told so."""
    assert (await host.stop(room=room, principal=BOB)).stopped == []
    with pytest.raises(NotFound):
        await host.stop(room=room, principal=Principal("eve"))
    reader = AddPerson(room=room, user="bob", role="reader")
    await host.rooms.manage(reader, principal=ALICE)
    assert room not in known(host)
    with pytest.raises(Forbidden):
        await host.stop(room=room, principal=BOB)


async def thread(host: motet.Host, room: str) -> None:
    """A thread goes on without its room: its people are those of the room, and a stop ends both."""
    await spoken(host, within := f"{room}/2", "@ann and why?")
    await rested(host, room, within)
    model_of(ANN).gate = trio.Event()
    for text in ("@ann more", "@ann and more"):
        await host.rooms.post(within, text, principal=BOB)
    await rested(host, room)
    live = (await host.open_room(within, principal=ALICE)).live
    await rested(host, room)
    assert live.settings.open_to(BOB)
    assert [one.text for one in live.history.unanswered()] == ["@ann and more"]
    await host.rooms.change(room, RoomChange(people=()), principal=ALICE)
    assert not live.settings.open_to(BOB)
    assert not live.history.unanswered()
    report = await host.stop(room=room, principal=ALICE)
    assert len(report.stopped) == 1


ACTS: list[Callable[[motet.Host, str], Awaitable[None]]] = [
    post, resend, subscribe, react, edit, remove, change, stop, thread,
]  # fmt: skip


@pytest.mark.parametrize("act", ACTS)
async def test_a_forgotten_room_is_found_by(
    act: Callable[[motet.Host, str], Awaitable[None]],
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "MOST", 0)
    model_of(ANN).gate = None
    async with motet.open_host(agents=[ANN]) as host:
        room = await made(host)
        await spoken(host, room, "@ann hello")
        await rested(host, room)
        await act(host, room)


async def test_a_room_of_the_program_and_one_that_somebody_has_stay(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first cannot be opened by its name; of the second there would be two."""
    monkeypatch.setattr(table, "MOST", 0)
    async with motet.open_host(agents=[agent("ann", "yes")]) as host:
        await host.open_room(motet.Room("own", members=[agent("ben", "yes")], people=["bob"]))
        had, left = [await host.open_room(await made(host), principal=ALICE) for _ in range(2)]
        name, _ = left.name, left
        del left, _
        await rested(host, name)
        assert known(host) == {"own", had.name}
        await host.rooms.post("own", "hello", principal=BOB)
        again = await host.open_room(had.name, principal=BOB)
        assert again.live is had.live


@pytest.mark.parametrize("first", ["change", "opening"])
async def test_a_change_of_people_while_a_room_is_opened_is_not_lost(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given that one of both begins while the other one waits, then who is removed is gone."""
    async with motet.open_host(agents=[agent("ann", "yes")]) as host:
        parts = host._parts  # pyright: ignore[reportPrivateUsage]
        room, opened = await made(host), list[OpenRoom]()

        async def change() -> None:
            await host.rooms.change(room, RoomChange(people=()), principal=ALICE)

        async def opening() -> None:
            opened.append(await host.open_room(room, principal=ALICE))

        steps = {
            "change": (type(parts.journal), "settle", change, opening),
            "opening": (type(parts.resolver), "resolve", opening, change),
        }
        owner, name, outer, inner = steps[first]
        waits = getattr(owner, name)

        async def late(*given: object) -> object:
            monkeypatch.undo()
            await inner()
            return await waits(*given)

        monkeypatch.setattr(owner, name, late)
        await outer()
        assert not opened[0].live.settings.open_to(BOB)
        with pytest.raises(NotFound):
            await host.rooms.post(room, "hello", principal=BOB)
