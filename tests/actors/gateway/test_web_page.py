"""The page in a real browser, at a real host: what a person does and sees."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import trio

import motet
from motet.actors.gateway.http import web_page
from motet.actors.storage.connection import Connection
from motet.actors.storage.tokens import new_token
from motet.protocols.config import GatewayConfig, TokenConfig
from motet.protocols.rooms import RoomPlan
from motet.protocols.sessions import Principal
from motet.testing import ScriptedModel, call, say
from tests.browser import browser, tab
from tests.motet.command import UNSAFE_SHELL, started

PROGRAM = browser()
SOCKETS = """
window.sockets = [];
window.WebSocket = class extends WebSocket {
  constructor(...given) { super(...given); sockets.push(this); }
};
"""
"""Lets a test pull the plug."""

TOLD = """
window.told = [];
const line = document.getElementById("connection");
new MutationObserver(() => told.push(line.textContent)).observe(line, { childList: true });
"""
"""Keeps every state of its connection that the page showed, however briefly."""

needs_browser = pytest.mark.skipif(PROGRAM is None, reason="no chromium here: apt install chromium")


def agent() -> motet.Agent[None, str]:
    script = [
        say("hello <b>you</b>, **look** [here](https://a.example/x)"),
        call("restart", unit="ssh"),
        say("it is restarted"),
        call("hang"),
        say("never said"),
    ]
    made = motet.Agent("helper", model=ScriptedModel(script))

    @made.tool(approval=True)
    async def restart(unit: str) -> str:
        """Restart a unit."""
        return f"{unit} is up"

    @made.tool
    async def hang() -> str:
        """Does not end."""
        await trio.sleep_forever()
        raise AssertionError

    return made


@pytest.mark.extended
def test_the_page_loads_its_own_files_and_nothing_else() -> None:
    files = {path: answer() for path, answer in web_page().items()}

    linked = set(re.findall(r'(?:src|href)="([^"]+)"', files["/"].body)) - {"data:,"}
    assert linked < set(files)
    for answer in files.values():
        assert (
            "default-src 'none'; script-src 'self'"
            in dict(answer.headers)["content-security-policy"]
        )
        assert not re.search(r"https?://|innerHTML|eval\(", answer.body)
    sizes = [len(answer.body) for answer in files.values()]
    assert (max(sizes) < 60_000, sum(sizes) < 150_000) == (True, True)


@pytest.mark.slow
def test_the_modules_of_the_page_hold_to_the_protocol() -> None:
    node = Path(sys.executable).with_name("node")
    done = subprocess.run(
        [node, "--test", Path(__file__).with_name("web_modules.mjs")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:]


@pytest.mark.extended
@needs_browser
async def test_the_page_says_that_nothing_can_be_stored_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motet.actors.storage.location.BUSY_TIMEOUT", 0.02)
    assert PROGRAM is not None
    talker = motet.Agent("talker", model=ScriptedModel([say("first"), say("second")]))
    async with motet.open_host(tmp_path, agents=[talker]) as host, tab(PROGRAM) as page:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        await page.call("Page.navigate", url=url)
        await page.shows("connected")
        await page.until("document.querySelector('#new-agent').value")
        await page.click("Begin")
        await page.type("#text", "one")
        await page.shows("first")
        await page.until("document.querySelector('#storage').hidden")
        other = Connection(str(tmp_path / "motet.db"))
        other.set_busy_timeout(5_000)  # the end of the run may be written just now
        other.run("BEGIN IMMEDIATE")
        await page.type("#text", "two")
        await page.shows("Nothing can be stored now, since another program")
        other.run("ROLLBACK")
        other.close()
        await page.until("document.querySelector('#storage').hidden")


@needs_browser
@pytest.mark.slow
async def test_a_person_talks_approves_stops_and_is_reconnected(tmp_path: Path) -> None:
    token, shots = new_token(), Path(os.environ.get("MOTET_SCREENSHOTS", tmp_path))
    entry = TokenConfig(token=token, user="alice", role="operator")
    assert PROGRAM is not None
    async with (
        motet.open_host(agents=[agent()]) as host,
        tab(PROGRAM) as page,
    ):
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0", tokens=(entry,)))
        await page.call("Page.navigate", url=url)
        await page.until("document.querySelector('#login')?.checkVisibility()")
        await page.shows("enter your token")
        await page.type("#token", "mtt_" + "0" * 32)
        await page.shows("unknown or revoked token")
        await page.type("#token", token)
        await page.shows("connected")
        await page.shows("alice (operator)")

        await page.until("document.querySelector('#new-agent').value")
        await page.click("Begin")
        await page.type("#text", "hi")
        await page.shows("hello <b>you</b>, look here")
        link = await page.evaluate("document.querySelector('.said a').outerHTML")
        assert 'rel="noreferrer noopener"' in str(link)
        assert await page.evaluate("document.querySelector('.said strong').innerText") == "look"
        await page.until("!document.querySelector('#mode').checkVisibility()")
        await page.type("#text", "restart ssh")
        await page.shows("Allow once")
        await page.until("document.title == '(1⚠) motet'")
        await page.screenshot(shots / "approval.png")
        await page.until(r"/expires \w+ \d+, \d{4}/.test(document.body.innerText)")
        await page.click("Allow once")
        await page.shows("allowed by alice")
        await page.shows("it is restarted")
        await page.type("#text", "hang")
        await page.shows("working…")
        await page.until("document.querySelector('#mode').checkVisibility()")
        await page.evaluate("document.querySelector('#mode').value = 'followup'")
        await page.type("#text", "and then")
        await page.shows("queued #1")
        await page.click("Stop")
        await page.shows("stopped 1, 1 never began")
        await page.screenshot(shots / "stopped.png")

        await page.evaluate("document.querySelector('#runs-box').open = true")
        await page.shows("cancelled · helper")
        await page.evaluate("document.querySelector('#errors-box').open = true")
        await page.type("#text", "/status")
        await page.shows("No run")
    assert page.problems == []


@pytest.mark.extended
@needs_browser
async def test_a_person_reads_the_whole_of_a_large_error_and_goes_to_its_session() -> None:
    """An error of 11 MB, which comes in pages; equal errors are one entry, with their number."""
    text = "\n".join(f"row {n} of the dump, as the worker has sent it" for n in range(230_000))
    steps = [step for n in range(2) for step in (call("dump", n=n), say("it failed"))]
    agent = motet.Agent("dumper", model=ScriptedModel(steps))

    @agent.tool
    def dump(n: int) -> str:
        """Dump."""
        raise RuntimeError(text + "\x1b[31m the end")

    assert PROGRAM is not None
    async with motet.open_host(agents=[agent]) as host, tab(PROGRAM) as page:
        for session in ("one", "two"):
            await host.run(agent, "dump", session=session)
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        await page.call("Page.navigate", url=url)
        await page.until("document.querySelector('#new-agent')?.value")
        await page.evaluate("document.querySelector('#errors-box').open = true")
        await page.until("document.querySelectorAll('#errors button').length == 1")
        await page.until("document.querySelector('#errors').innerText.includes('2 times')")
        await page.press("#errors button")
        await page.until("document.querySelector('#error-box').open")
        parts = "[...document.querySelectorAll('#error pre')].map((one) => one.textContent)"
        message = await page.evaluate(f"{parts}.find((one) => one.startsWith('row 0 '))")
        assert message == text + "<U+001B>[31m the end"
        assert "raise RuntimeError" in str(await page.evaluate(f"{parts}.at(-1)"))
        await page.click("two")
        await page.until("!document.querySelector('#error-box').open")
        await page.until("document.querySelector('#title').textContent == 'two'")
        await page.shows("it failed")
    assert page.problems == []


@pytest.mark.extended
@needs_browser
async def test_a_person_sees_every_digit_of_what_they_approve() -> None:
    """Law: the numbers of an approval, of a call and of an error are shown as the host has them."""
    account, amount = 2**53 + 1, 123456789012345678901234567890
    more = {"limits": [-account, 5.0, 1.0000000000000002], "__proto__": {"id": 2**64}}
    args = {"account": account, "amount": amount, "more": more}
    model = ScriptedModel([call("pay", **args), say("it is paid")])
    payer = motet.Agent("payer", model=model)

    @payer.tool(approval=True)
    def pay(account: int, amount: int, more: dict[str, Any]) -> str:
        """Pay."""
        assert (account, amount, more) == tuple(args.values())
        raise motet.ToolFailure("no money", detail={"account": account})

    assert PROGRAM is not None
    async with motet.open_host(agents=[payer]) as host, tab(PROGRAM) as page:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        await page.call("Page.navigate", url=url)
        await page.until("document.querySelector('#new-agent')?.value")
        await page.click("Begin")
        await page.type("#text", "pay")
        await page.shows("Allow once")
        shown = str(await page.evaluate("document.querySelector('.approval pre').innerText"))
        assert "account = 9007199254740993\n" in shown
        assert "amount = 123456789012345678901234567890\n" in shown
        for digits in ("-9007199254740993", "1.0000000000000002", "18446744073709551616"):
            assert f" {digits}" in shown
        await page.click("Allow once")
        await page.shows("it is paid")
        called = str(await page.evaluate("document.querySelector('.call').textContent"))
        assert called.count("9007199254740993") == 3
        await page.evaluate("document.querySelector('#errors-box').open = true")
        await page.press("#errors button")
        await page.until("document.querySelector('#error').textContent")
        assert "9007199254740993" in str(
            await page.evaluate("document.querySelector('#error').textContent")
        )
    assert page.problems == []


@pytest.mark.extended
@needs_browser
async def test_the_page_outlives_a_server_that_is_killed_and_started_again(tmp_path: Path) -> None:
    (tmp_path / "motet.toml").write_text(UNSAFE_SHELL.replace('"."', '"work"'))
    shots = Path(os.environ.get("MOTET_SCREENSHOTS", tmp_path))
    asked = "run echo one $((40 + 1)) and then run sleep 600"
    assert PROGRAM is not None
    async with tab(PROGRAM) as page:
        with started(
            "serve", "--listen", "127.0.0.1:0", "--state", "state", cwd=tmp_path
        ) as server:
            server.expect("motet serves ")
            listen = server.expect("\n").strip().removeprefix("ws://").removesuffix("/ws")
            server.expect("page     ")
            await page.call("Page.navigate", url=server.expect("\n").strip())  # with its token
            await page.until("document.querySelector('#new-agent')?.value")
            assert await page.evaluate("location.hash") == ""
            await page.click("Begin")
            await page.type("#text", asked)
            await page.shows('▸ shell(command="sleep 600"')
            server.signal(signal.SIGKILL)
            server.end()
        await page.shows("reconnecting in")
        await page.type("#text", "run echo two $((40 + 2))")
        await page.shows("not connected: sent when the connection is back")
        await page.screenshot(shots / "offline.png")
        with started("serve", "--listen", listen, "--state", "state", cwd=tmp_path):
            await page.shows("connected")
            await page.shows("interrupted: the host ended while shell was run")
            await page.shows("two 42")
            await page.screenshot(shots / "back.png")
            said = str(await page.evaluate("document.querySelector('#log').innerText"))
            assert "sent when" not in str(await page.evaluate("document.body.innerText"))
    once = (
        asked,
        '(command="echo one',
        '(command="sleep 600',
        "[Interrupted",
        "interrupted:",
        "two 42",
    )
    assert [said.count(one) for one in once] == [1, 1, 1, 0, 1, 1], said


@pytest.mark.extended
@needs_browser
async def test_a_room_on_a_small_screen_goes_on_after_a_lost_connection(tmp_path: Path) -> None:
    shots = Path(os.environ.get("MOTET_SCREENSHOTS", tmp_path))
    ann = motet.Agent(
        "ann", model=ScriptedModel([say("@bob what do you think?"), say("fine")], name="ann")
    )
    bob = motet.Agent(
        "bob",
        model=ScriptedModel([say("it is good, @ann and @zed"), say("still good")], name="bob"),
    )
    assert PROGRAM is not None
    async with (
        motet.open_host(agents=[ann, bob]) as host,
        tab(PROGRAM, width=500, height=800) as page,
    ):
        room = await host.open_room(
            motet.Room("dev", members=[ann, bob], speakers=motet.mentions(), max_depth=1)
        )
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=SOCKETS)
        await page.call("Page.navigate", url=url)
        await page.click("#dev · ann, bob")
        await page.type("#text", "@ann begin")
        await page.shows("it is good")
        await page.shows("nobody here is called @zed: ann, bob")
        await page.shows("ann was called by bob, and will not speak: max_depth")
        await page.shows("the round is over")

        await page.evaluate(TOLD)
        await page.evaluate("sockets.at(-1).close(4900, 'pulled')")
        # A browser that has waited 2 s for the other side's close frame knows no reason.
        wanted = "/^(pulled; )?reconnecting in \\d+ s, resuming from \\d+$/"
        await page.until(f"told.some(text => {wanted}.test(text))")
        await room.post("@bob and now?", user="carol", key="k")
        await page.shows("connected")
        await page.shows("still good")

        assert await page.evaluate("document.querySelectorAll('.said').length") == 5
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await page.screenshot(shots / "room.png")

        phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        await page.call("Emulation.setDeviceMetricsOverride", **phone)
        await room.post("line\n" * 200, user="carol", key="long")
        await page.until("document.querySelectorAll('.said').length === 6")
        await page.type("#text", "/help")
        await page.shows("/who")
        heights = "[...document.querySelectorAll('nav, #log, #composer')].map(e => e.offsetHeight)"
        assert min(cast("list[int]", await page.evaluate(heights))) > 50
        assert await page.evaluate("document.documentElement.scrollHeight <= innerHeight")
        assert await page.evaluate("document.querySelector('#title').offsetHeight < 40")
        helped = str(await page.evaluate("document.querySelector('#stopped').innerText"))
        assert len(helped.splitlines()) > 10, "one line for each command"
        await page.screenshot(shots / "phone.png")
    assert page.problems == []


@pytest.mark.extended
@needs_browser
async def test_people_change_messages_and_see_each_other_on_the_page(tmp_path: Path) -> None:
    shots = Path(os.environ.get("MOTET_SCREENSHOTS", tmp_path))
    ann = motet.Agent("ann", model=ScriptedModel([say("fine, thanks")], name="ann"))
    entry = TokenConfig(token=(token := new_token()), user="alice", role="operator")
    alice, bob = Principal("alice"), Principal("bob")
    assert PROGRAM is not None
    async with motet.open_host(agents=[ann]) as host, tab(PROGRAM) as page:
        plan = RoomPlan(("ann",), speakers=("mentions",))
        name = (await host.rooms.create("dev", plan, people=("bob",), principal=alice)).name
        await host.rooms.post(name, "hello", principal=bob)
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0", tokens=(entry,)))
        await page.call("Page.navigate", url=f"{url}/#token={token}")
        await page.until("document.querySelector('#rooms button')?.checkVisibility()")
        await page.shows(f"#{name} · ann (1)")
        await page.click(f"#{name} · ann (1)")
        leave = host.rooms.enter(name, bob)
        await page.shows("here: alice, bob")
        await page.type("#text", "@ann how are yuo?")
        await page.shows("fine, thanks")
        await host.rooms.typing(name, principal=bob)
        await page.shows("bob is typing…")

        await page.click("Edit")
        await page.shows("Save")
        await page.screenshot(shots / "editing.png")
        await page.evaluate("document.querySelector('#text').value = ''")
        await page.type("#text", "@ann how are you?")
        await page.shows("(edited)")
        await page.shows("Send")
        await host.rooms.react(name, 3, "👍", principal=bob)
        await page.shows("👍 1")
        await page.press(".reactions button")
        await page.shows("👍 2")
        pressed = "document.querySelector('.reactions button').ariaPressed"
        await page.until(f"{pressed} === 'true'")
        await host.rooms.delete_message(name, 1, principal=bob)
        await page.shows("withdrawn")
        said = await page.evaluate("[...document.querySelectorAll('.said .text')].length")
        assert said == 2
        assert "hello" not in str(await page.evaluate("document.body.innerText"))
        await page.screenshot(shots / "changed.png")
        (info,) = await host.rooms.list(principal=alice)
        assert (info.read, info.unread) == (3, 0), "what is on the screen is read"
        await page.until(f"document.querySelector('#rooms').innerText === '#{name} · ann'")
        await host.rooms.post(f"{name}/3", "why are you fine?", principal=bob)
        await page.shows("Thread 1")
        await page.click("Thread 1")
        await page.shows("why are you fine?")
        await page.shows("fine, thanks")
        await page.until(f"document.querySelector('#title').textContent === '#{name}/3'")
        await page.screenshot(shots / "thread.png")
        await page.click(f"#{name} · ann")
        leave()
        await page.until("document.querySelector('#here').textContent === 'here: alice'")
    assert page.problems == []


@pytest.mark.extended
@needs_browser
async def test_a_person_decides_about_an_escalation_on_the_page(tmp_path: Path) -> None:
    """Each decision by its button; the history is shown without secrets."""
    shots = Path(os.environ.get("MOTET_SCREENSHOTS", tmp_path))
    secret = "hunter2-hunter2-hunter2"
    fails = [call("shell", command=f"make {n}", password=secret) for n in range(3)]
    model = ScriptedModel(
        [fails[0], say("built at last"), fails[1], say("I left it out"), fails[2]]
    )
    limits = motet.Limits(tool_errors=1)
    helper = motet.Agent("helper", model=model, limits=limits)

    @helper.tool
    def shell(command: str, password: str) -> str:
        """Run a command."""
        raise OSError(f"no route to <b>prod</b> for {command}")

    assert PROGRAM is not None
    async with motet.open_host(agents=[helper]) as host, tab(PROGRAM) as page:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        await page.call("Page.navigate", url=url)
        await page.until("document.querySelector('#new-agent')?.value")
        await page.click("Begin")
        await page.type("#text", "build it")
        await page.shows("a person has to decide: Too many errors with shell")
        await page.shows("no route to <b>prod</b> for make 0 [err_")
        await page.until("document.title == '(1⚠) motet'")
        await page.screenshot(shots / "escalation.png")
        assert secret not in str(
            await page.evaluate("document.querySelector('.escalation').innerText")
        )
        await page.click("Retry")
        await page.shows("retry by local")
        await page.shows("built at last")

        await page.type("#text", "again")
        await page.until("document.querySelectorAll('.escalation button').length == 3")
        await page.click("Skip with this text")
        await page.shows("skip needs a note")
        await page.type(".escalation textarea", "use <i>staging</i>", enter=False)
        await page.click("Skip with this text")
        await page.shows("skip by local: use <i>staging</i>")
        await page.shows("I left it out")

        await page.type("#text", "once more")
        await page.until("document.querySelectorAll('.escalation button').length == 3")
        (open_one,) = await host.escalations(state="open")
        await page.click("Give up")
        await page.shows("give_up by local")
        await page.until("document.title == 'motet'")
        await page.screenshot(shots / "decided.png")
        assert (await host.escalations(state="open")) == ()
        assert [run.status for run in await host.runs()].count("completed") == 2
        assert open_one.session == (await host.runs())[0].session

        await page.reload()
        await page.press("#sessions button")
        await page.shows("skip by local: use <i>staging</i>")
        assert await page.evaluate("document.querySelectorAll('.escalation button').length") == 0
    assert page.problems == []
