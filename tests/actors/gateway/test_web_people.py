"""The page of a room that people run, in a real browser: people, moderation, an invite link."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

import motet
from motet.actors.gateway.http import web_page
from motet.actors.gateway.methods import METHODS
from motet.actors.storage.tokens import new_token
from motet.cli.record_commands import RoomLook
from motet.protocols.commands import COMMANDS
from motet.protocols.config import GatewayConfig, TokenConfig
from motet.protocols.events import RoomChanged
from motet.protocols.room_acts import ACTS as ROOM_ACTS
from motet.protocols.room_acts import RenameRoom
from motet.protocols.rooms import RoomPlan
from tests.actors.gateway.test_isolation import ROWS
from tests.browser import browser, tab
from tests.scripted import Scripted

PROGRAM = browser()
ALICE, BOB = motet.Principal("alice"), motet.Principal("bob")


@pytest.mark.extended
@pytest.mark.skipif(PROGRAM is None, reason="needs a browser")
async def test_an_owner_mutes_and_bans_on_the_page_and_others_come_in_by_a_link(
    tmp_path: Path,
) -> None:
    tokens = {user: new_token() for user in ("alice", "bob")}
    shots = Path(os.environ.get("MOTET_SCREENSHOTS", tmp_path))
    entries = tuple(TokenConfig(token=token, user=user) for user, token in tokens.items())
    helper = motet.Agent("helper", model=Scripted(name="helper"))
    assert PROGRAM is not None
    async with motet.open_host(agents=[helper]) as host, tab(PROGRAM) as page:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0", tokens=entries))
        plan = RoomPlan(("helper",), speakers=("mentions",))
        room = (await host.rooms.create("club", plan, people=("cleo",), principal=ALICE)).name
        await host.rooms.manage(RenameRoom(room=room, title="Garden Club"), principal=ALICE)

        await page.call("Page.navigate", url=f"{url}#token={tokens['alice']}")
        await page.until("document.body?.innerText.includes('#Garden Club · helper')")
        await page.click("#Garden Club · helper")
        await page.press("#here")
        await page.shows("owner: alice")
        await page.click("Mute")
        await page.shows("Unmute")
        (cleo,) = (await host.rooms.people(room, principal=ALICE)).people
        assert cleo.muted > 0
        await page.click("Ban")
        await page.shows("Unban")
        await page.click("Invite by link")
        await page.until("document.querySelector('#error').innerText.includes('#join=mti_')")
        await page.screenshot(shots / "people.png")
        said = str(await page.evaluate("document.querySelector('#error').innerText"))
        link = next(word for word in said.split() if "#join=" in word)
        link = link[link.index("http") :]

        await page.call("Page.navigate", url="about:blank")
        await page.call("Page.navigate", url=f"{link}&token={tokens['bob']}")
        await page.until("document.body?.innerText.includes('bob (operator)')")
        await page.until("document.querySelector('#title').innerText.includes('Garden Club')")
        assert not await page.evaluate("location.hash")
        await page.press("#here")
        await page.shows("Leave")
        assert not await page.evaluate(
            "[...document.querySelectorAll('#error button')].some((one) => one.innerText == 'Ban')"
        )
        await page.click("Leave")
        await page.until("document.querySelector('#text').disabled")
        assert [one.user for one in (await host.rooms.people(room, principal=ALICE)).people] == [
            "cleo"
        ]
        assert page.problems == []


ACTS = {
    "rooms.add", "rooms.archive", "rooms.ban", "rooms.delete", "rooms.export", "rooms.invite",
    "rooms.invites", "rooms.join", "rooms.leave", "rooms.mute", "rooms.people", "rooms.remove",
    "rooms.rate", "rooms.rename", "rooms.revoke", "rooms.slow", "rooms.summary", "rooms.terms",
    "rooms.transfer",
}  # fmt: skip
"""The methods of administration; each has a command, an action of ``motet rooms`` and a button."""


@pytest.mark.extended
def test_each_act_of_administration_is_a_method_a_command_an_action_and_on_the_page() -> None:
    page = "".join(web_page()[path]().body for path in ("/app.js", "/rooms.js"))
    assert {name for name in METHODS if name in ACTS} == ACTS
    assert set(ROOM_ACTS) < ACTS
    assert [name for name in ACTS if f'"{name}"' not in page] == []
    words = {"rooms.delete": "deleteroom", "rooms.rename": "title", "rooms.terms": "newcomers"}
    # An invite is used, listed and revoked, and a room exported, where no chat of the room is open.
    elsewhere = {"rooms.join", "rooms.invites", "rooms.revoke", "rooms.export"}
    for name in ACTS - elsewhere:
        assert words.get(name, name.removeprefix("rooms.")) in COMMANDS, name
    for name in ACTS:
        word = name.removeprefix("rooms.").replace("rename", "title").replace("terms", "newcomers")
        assert word in {one.value for one in RoomLook}, name
    assert set(ROWS) > ACTS, "each has a row in the table of isolation"


@pytest.mark.extended
@pytest.mark.skipif(PROGRAM is None, reason="needs a browser")
async def test_an_owner_runs_a_room_on_the_page_and_finds_it_among_many(tmp_path: Path) -> None:
    token, shots = new_token(), Path(os.environ.get("MOTET_SCREENSHOTS", tmp_path))
    entries = (TokenConfig(token=token, user="alice"),)
    helper = motet.Agent("helper", model=Scripted(name="helper"))
    assert PROGRAM is not None
    async with motet.open_host(agents=[helper]) as host, tab(PROGRAM) as page:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0", tokens=entries))
        plan = RoomPlan(("helper",), speakers=("mentions",))
        for number in range(101):
            await host.rooms.create(f"n{number:03}", plan, principal=ALICE)
        room = (await host.rooms.create("zoo", plan, people=("bob",), principal=ALICE)).name

        await page.call("Page.navigate", url=f"{url}#token={token}")
        await page.until("document.body?.innerText.includes('More rooms')")
        shown = "document.querySelectorAll('#rooms li').length"
        assert await page.evaluate(shown) == 101
        await page.click("More rooms")
        await page.until(f"{shown} == 102")
        await page.type("#room-query", "zoo")
        await page.until(f"{shown} == 1")
        await page.click(f"#{room} · helper")
        await page.evaluate("document.querySelector('#here').click()")
        await page.shows("owner: alice")

        async def fill(act: str, **fields: str) -> None:
            """Fill the form whose button says this, and press it."""
            values = msgspec.json.encode(fields).decode()
            await page.evaluate(
                f"for (const form of document.querySelectorAll('#error form'))"
                f" if (form.lastChild.innerText == '{act}') {{"
                f" for (const [name, value] of Object.entries({values}))"
                " form.elements[name].value = value; form.requestSubmit(); }"
            )

        opened = await host.open_room(room, principal=ALICE)
        async with opened.subscribe() as events:

            async def told(text: str) -> None:
                async for event in events:
                    if isinstance(event, RoomChanged):
                        assert event.text == f"alice {text}"
                        return

            await fill("Add", user="irc:*", role="reader")
            await told("made irc:* a reader of this room")
            await fill("Title", title="The Zoo")
            await told("named this room 'The Zoo'")
            await fill("Slow mode, s", seconds="30")
            await told("set slow mode: one message in 30 s")
            await fill("Set", newcomers="joining", details="member")
            await told("set what newcomers read: joining")
        await page.shows("irc:*")
        info = await host.rooms.get(room, principal=ALICE)
        assert (info.terms.title, info.terms.slow, info.newcomers) == ("The Zoo", 30, "joining")
        await page.click("Invites")
        await page.shows("There are no invites.")
        await page.screenshot(shots / "room.png")
        await page.click("Archive")
        await page.shows("Open again")
        await fill("Delete for good", name="not this one")
        await page.click("Open again")
        await page.shows("Archive")
        assert not (await host.rooms.get(room, principal=ALICE)).terms.archived
        await page.click("Make owner")
        await page.until("document.querySelector('#error').innerText.includes('owner: bob')")
        bob = await host.rooms.get(room, principal=BOB)
        assert (bob.owner, bob.role) == ("bob", "owner")
        assert page.problems == []
