"""Each administrative act on a room by four ways: method, command line, chat command and page.

The table names the ways; an act that lacks one fails. The page's are done once in a real browser,
and the host says what has become of the room. That each does nothing for those without the right
is shown in test_room_acts.py (methods, commands) and tests/motet/test_cli_rooms.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import attrs
import pytest
import trio
from msgspec.structs import asdict

import motet
from motet.actors.gateway.http import web_page
from motet.actors.gateway.methods import METHODS
from motet.actors.storage.tokens import new_token
from motet.cli.record_commands import RoomLook
from motet.protocols.commands import COMMANDS
from motet.protocols.config import GatewayConfig, TokenConfig
from motet.protocols.room_acts import ACTS, AddPerson, RemovePerson, SetTerms
from motet.protocols.room_people import RoomPerson
from motet.protocols.rooms import RoomChange, RoomPlan
from tests.browser import Page, browser, tab
from tests.scripted import Scripted, call, say

PROGRAM = browser()
ALICE, BOB = motet.Principal("alice"), motet.Principal("bob")


@attrs.frozen
class Ways:
    """The words of the command line and of the chat for a method.

    ``page``: what the page's reader presses; empty: none, for a reason that the table gives.
    """

    look: tuple[str, ...]
    chat: tuple[str, ...]
    page: tuple[str, ...]


def same(*words: str, page: str = "") -> Ways:
    return Ways(words, words, (page or words[0].capitalize(),))


WAYS: Final[dict[str, Ways]] = {
    "rooms.people": same("people", page="here: alice"),
    "rooms.add": same("add"),
    "rooms.remove": same("remove"),
    "rooms.mute": Ways(("mute", "unmute"), ("mute", "unmute"), ("Mute", "Unmute")),
    "rooms.ban": Ways(("ban", "unban"), ("ban", "unban"), ("Ban", "Unban")),
    "rooms.leave": same("leave"),
    "rooms.transfer": same("transfer", page="Make owner"),
    "rooms.rename": same("title"),
    "rooms.slow": same("slow", page="Slow mode, s"),
    "rooms.rate": same("rate", page="Messages a minute"),
    "rooms.archive": Ways(
        ("archive", "unarchive"), ("archive", "unarchive"), ("Archive", "Open again")
    ),
    "rooms.terms": same("answers", "details", "newcomers", page="Set"),
    "rooms.set": Ways(("set",), ("queue", "activation"), ("Change",)),
    "rooms.summary": same("summary", page="What was said before I came"),
    "rooms.invite": same("invite", page="Invite by link"),
    "rooms.invites": same("invites"),
    "rooms.revoke": same("revoke", page="End it"),
    "rooms.join": Ways(("join",), ("join",), ()),  # the page comes in by the link itself
    "rooms.export": same("export"),
    "rooms.delete": Ways(("delete",), ("deleteroom",), ("Delete for good",)),
}
TALK: Final = {
    "rooms.list", "rooms.get", "rooms.create", "rooms.history", "rooms.post", "rooms.read",
    "rooms.typing", "rooms.present",
}  # fmt: skip
"""Methods that administer nothing."""


def test_each_act_has_its_four_ways() -> None:
    page = "".join(answer().body for path, answer in web_page().items() if path.endswith(".js"))
    assert {name for name in METHODS if name.startswith("rooms.")} == {*WAYS, *TALK}
    assert set(ACTS) <= set(WAYS)
    for method, ways in WAYS.items():
        assert set(ways.look) <= {one.value for one in RoomLook}, method
        assert set(ways.chat) <= set(COMMANDS), method
        assert f'"{method}"' in page, method
        for label in ways.page:
            assert re.search(rf'"{label}"|`{label}|here: ', page), (method, label)


def is_called(label: str) -> str:
    return f"(one) => one.textContent === {json.dumps(label)}"


@attrs.define
class Desk:
    """The page at one room, which its owner has open."""

    page: Page
    host: motet.Host
    room: str
    done: set[str] = attrs.field(factory=set[str])

    async def press(self, label: str) -> None:
        self.done.add(label)
        await self.page.click(label)

    async def submit(self, label: str, **fields: str) -> None:
        """Fill a form of the dialog and press its button, before it is shown anew."""
        self.done.add(label)
        button = f"[...document.querySelectorAll('#error form button')].find({is_called(label)})"
        fill = "for (const [name, value] of Object.entries(fields)) one.form[name].value = value"
        script = (
            f"((one, fields) => {{ if (!one) return false; {fill}; one.click(); return true }})"
        )
        await self.page.until(f"{script}({button}, {json.dumps(fields)})")

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """The page is asked as often, so that its answers come meanwhile."""
        with trio.move_on_after(60):
            while not await holds():
                await self.page.evaluate("new Promise((done) => setTimeout(done, 20))")
            return
        raise AssertionError(await self.page.evaluate("document.body.innerText"))

    async def person(self, user: str) -> RoomPerson | None:
        people = (await self.host.rooms.people(self.room, principal=ALICE)).people
        return next((one for one in people if one.user == user), None)


async def as_people(desk: Desk) -> None:
    host, room = desk.host, desk.room

    async def is_here() -> bool:
        return await desk.person("bob") is not None

    async def is_muted() -> bool:
        return bool((one := await desk.person("bob")) and one.muted)

    async def is_banned() -> bool:
        return bool((one := await desk.person("bob")) and one.banned)

    async def gone() -> bool:
        return not await is_here()

    async def spoken() -> bool:
        return not await is_muted()

    for label, holds in (
        ("Add", is_here), ("Mute", is_muted), ("Unmute", spoken), ("Remove", gone),
        ("Add", is_here), ("Ban", is_banned), ("Unban", gone), ("Add", is_here),
    ):  # fmt: skip
        if label == "Add":
            await desk.submit(label, user="bob")
        else:
            await desk.press(label)
        await desk.until(holds)
    await desk.press("Invite by link")
    await desk.page.shows("#join=mti_")
    await desk.press("Invites")
    await desk.page.shows("by alice")
    assert len(await host.rooms.invites(room, principal=ALICE)) == 1
    await desk.press("End it")

    async def ended() -> bool:
        return not await host.rooms.invites(room, principal=ALICE)

    await desk.until(ended)


async def as_terms(desk: Desk) -> None:
    async def held(wanted: Mapping[str, object]) -> bool:
        info = await desk.host.rooms.get(desk.room, principal=ALICE)
        found = {**asdict(info), **asdict(info.terms)}
        return all(found[name] == value for name, value in wanted.items())

    for fields, label, wanted in (
        ({"title": "Garden"}, "Title", {"title": "Garden"}),
        ({"seconds": "30"}, "Slow mode, s", {"slow": 30.0}),
        ({"messages": "6"}, "Messages a minute", {"rate": 6}),
        ({"answers": "member", "newcomers": "summary"}, "Set", {"newcomers": "summary"}),
        ({"mode": "steer", "activation": "off"}, "Change", {"mode": "steer", "activation": "off"}),
        ({}, "Archive", {}),
        ({}, "Open again", {"archived": 0.0}),
    ):
        await (desk.submit(label, **fields) if fields else desk.press(label))
        await desk.until(partial(held, wanted))
    await desk.page.until("document.querySelector('#title').textContent === '#Garden'")


async def as_reader(desk: Desk) -> None:
    """Look for messages, some at a time, and go to one that is in the conversation."""
    page = desk.page

    async def is_found(*numbers: int) -> None:
        found = "[...document.querySelectorAll('#error .found li')].map((one) => one.innerText"
        wanted = json.dumps([f"#{number}" for number in numbers])
        await page.until(f"JSON.stringify({found}.split(' ')[0])) === JSON.stringify({wanted})")

    await page.type("#said-query", "HELLO")
    await is_found(*range(25, 5, -1))
    await page.click("Earlier messages")
    await is_found(*range(25, 0, -1))
    await page.until("document.querySelector('#error .found li').innerText.includes('hello <b>24')")
    await page.click("#1")
    await page.until("!document.querySelector('#error-box').open")
    await page.evaluate("document.querySelector('#said-query').value = ''")
    await page.type("#said-query", "farewell")
    await page.shows("No message that you may read has these words.")
    await page.click("Close")


async def as_guest(desk: Desk, link: str, model: Scripted) -> None:
    """A guest's page has neither arguments nor results of calls, until a setting says so."""
    host, room, page = desk.host, desk.room, desk.page
    words = "[...document.querySelectorAll('*')].map((one) => one.textContent + one.value).join()"

    async def has(word: str) -> bool:
        return word in str(await page.evaluate(words))

    async def waits() -> bool:
        return len(await host.approvals(state="pending")) == 1

    await host.rooms.change(room, RoomChange(activation="mention"), principal=ALICE)
    await host.rooms.manage(AddPerson(room=room, user="bob"), principal=ALICE)
    for details in ("moderator", "member"):
        model.then(call(("unlock", {"word": "swordfish"})), say(f"done for {details}"))
        await host.rooms.manage(SetTerms(room=room, details=details), principal=ALICE)
        await page.call("Page.navigate", url=link.replace("#", f"?{details}#"))
        await page.press(f'nav button[data-stream="room:{room}"]')
        await page.shows("hello <b>24")
        await host.rooms.post(room, "@ann unlock it", principal=ALICE)
        await page.until("document.querySelector('#log .call')")
        await desk.until(waits)
        (asked,) = await host.approvals(state="pending")
        await host.approve(asked.id, "allow-once")
        await page.shows(f"done for {details}")
        for word in ("swordfish", "opens the shed"):
            assert await has(word) == (details == "member"), (word, details)
    await host.rooms.manage(RemovePerson(room=room, user="bob"), principal=ALICE)
    await page.shows(f"the room {room} is not open to you any more")
    assert not await has("done for")
    await host.rooms.change(room, RoomChange(activation="off"), principal=ALICE)


@pytest.mark.skipif(PROGRAM is None, reason="no chromium here: apt install chromium")
@pytest.mark.slow
async def test_each_act_is_done_on_the_page() -> None:
    assert PROGRAM is not None
    tokens = {user: new_token() for user in ("alice", "bob")}
    entries = tuple(
        TokenConfig(token=token, user=user, role="operator") for user, token in tokens.items()
    )
    model = Scripted(name="ann")
    ann = motet.Agent("ann", model=model)

    @ann.tool(approval=True)
    async def unlock(word: str) -> str:
        return f"{word} opens the shed"

    async with motet.open_host(agents=[ann]) as host, tab(PROGRAM) as page:
        plan = RoomPlan(("ann",), activation="off")
        room = (await host.rooms.create("dev", plan, principal=ALICE)).name
        for number in range(25):
            await host.rooms.post(room, f"hello <b>{number}", principal=ALICE)
        url = await host.serve(
            GatewayConfig(listen="127.0.0.1:0", tokens=entries, messages_per_minute=10**6)
        )
        gone = (await host.rooms.create("gone", plan, principal=ALICE)).name
        desk = Desk(page, host, gone)
        await page.call("Page.navigate", url=f"{url}/#token={tokens['alice']}")
        await page.click(f"#{gone} · ann")
        await desk.press("here: alice")
        await desk.submit("Delete for good", name=gone)

        async def is_deleted() -> bool:
            return [one.name for one in await host.rooms.list(principal=ALICE)] == [room]

        await desk.until(is_deleted)
        desk.room = room
        await page.click(f"#{room} · ann")
        await desk.press("here: alice")
        await page.until(
            f"document.querySelector('#error [name=name]')?.placeholder.includes('{room}')"
        )
        await page.click("Close")
        await as_reader(desk)
        await desk.press("here: alice")
        await as_guest(desk, f"{url}/#token={tokens['bob']}", model)
        await page.call("Page.navigate", url=f"{url}/?again#token={tokens['alice']}")
        await page.press(f'nav button[data-stream="room:{room}"]')
        await desk.press("here: alice")
        await as_people(desk)
        await as_terms(desk)
        await desk.press("Export")
        await desk.press("Make owner")

        async def is_given() -> bool:
            return (await host.rooms.get(room, principal=ALICE)).owner == "bob"

        await desk.until(is_given)
        await desk.press("Leave")

        async def has_left() -> bool:
            return not await host.rooms.list(principal=ALICE)

        await desk.until(has_left)
        await host.rooms.manage(AddPerson(room=room, user="alice"), principal=BOB)
        await page.reload()
        await page.click("#Garden · ann")
        await desk.press("here: alice")
        await desk.press("What was said before I came")
        await page.shows("There is no summary now.")
        assert desk.done == {label for ways in WAYS.values() for label in ways.page}
    assert page.problems == []
