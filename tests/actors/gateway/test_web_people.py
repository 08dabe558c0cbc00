"""The page of a room that people run, in a real browser: people, moderation, an invite link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import motet
from motet.actors.storage.tokens import new_token
from motet.protocols.config import GatewayConfig, TokenConfig
from motet.protocols.room_acts import RenameRoom
from motet.protocols.rooms import RoomPlan
from tests.browser import browser, tab
from tests.scripted import Scripted

PROGRAM = browser()
ALICE, BOB = motet.Principal("alice"), motet.Principal("bob")


@pytest.mark.skipif(PROGRAM is None, reason="needs a browser")
@pytest.mark.slow
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
        await page.until("document.querySelector('#title').innerText.includes('club')")
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
