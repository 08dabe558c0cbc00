"""A real browser without a window, driven over its DevTools protocol. For tests of the page."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast
from urllib.request import urlopen

import attrs
import trio
from trio_websocket import WebSocketConnection, open_websocket_url

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
PATIENCE: Final = 20.0


def browser() -> str | None:
    """The browser of this machine, if it has one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@attrs.define(eq=False)
class Page:
    """One tab. ``problems`` are errors and refusals that the browser's console was told of.

    Each act waits for its element, and finds and uses it in one step of the page's script: what was
    there at a look before may be replaced at the act.
    """

    socket: WebSocketConnection
    problems: list[str] = attrs.field(factory=list[str])
    loads: int = 0
    """Documents that have been loaded."""
    _ids: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1))

    async def call(self, method: str, **params: object) -> dict[str, object]:
        """One command of the DevTools protocol."""
        number = next(self._ids)
        await self.socket.send_message(
            json.dumps({"id": number, "method": method, "params": params})
        )
        while (said := await self._receive()).get("id") != number:
            pass
        assert "error" not in said, said
        return cast("dict[str, object]", said["result"])

    async def _receive(self) -> dict[str, object]:
        said = cast("dict[str, object]", json.loads(await self.socket.get_message()))
        if said.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.problems.append(json.dumps(said["params"])[:500])
        elif said.get("method") == "Page.loadEventFired":
            self.loads += 1
        return said

    async def reload(self) -> None:
        """Load the page again, and wait until the new document is the one that is asked."""
        before = self.loads
        await self.call("Page.reload")
        with trio.fail_after(PATIENCE):
            while self.loads == before:
                await self._receive()

    async def evaluate(self, script: str) -> object:
        """The value of an expression in the page."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return cast("dict[str, object]", answer["result"]).get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true."""
        with trio.move_on_after(PATIENCE):
            while not await self.evaluate(f"Boolean({script})"):
                await trio.sleep(0.05)
            return
        text = await self.evaluate("document.body.innerText")
        raise AssertionError(f"it never came true: {script}; the page says: {text}")

    async def shows(self, text: str) -> None:
        """Wait until the page has a text."""
        # A page that is being loaded has no body yet.
        await self.until(f"document.body?.innerText.includes({json.dumps(text)})")

    async def click(self, label: str) -> None:
        """Press the visible button with this text."""
        buttons = "[...document.querySelectorAll('button')]"
        wanted = f"b => b.checkVisibility() && b.innerText === {json.dumps(label)}"
        await self._press(f"{buttons}.find({wanted})")

    async def press(self, selector: str) -> None:
        """Press the first element that this CSS selector finds."""
        await self._press(f"document.querySelector({json.dumps(selector)})")

    async def _press(self, element: str) -> None:
        await self.until(f"((one) => one && (one.click(), true))({element})")

    async def type(self, selector: str, text: str, *, enter: bool = True) -> None:
        """Type into a field, as keys."""
        found = f"document.querySelector({json.dumps(selector)})"
        await self.until(f"((one) => one && (one.focus(), true))({found})")
        await self.call("Input.insertText", text=text)
        if enter:
            for kind in ("keyDown", "keyUp"):
                await self.call(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key="Enter",
                    code="Enter",
                    text="\r",
                    windowsVirtualKeyCode=13,
                )

    async def screenshot(self, file: Path) -> None:
        answer = await self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(str(answer["data"])))


@asynccontextmanager
async def tab(program: str, *, width: int = 1100, height: int = 760) -> AsyncGenerator[Page]:
    """A tab of a browser that is started for it."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}",
            f"--window-size={width},{height}",
            "about:blank",
        )
        quiet = subprocess.DEVNULL
        popen = subprocess.Popen(
            [program, *options], stdout=quiet, stderr=quiet, start_new_session=True
        )
        try:
            async with open_websocket_url(
                await _address(Path(folder)), max_message_size=2**26
            ) as s:
                page = Page(s)
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                yield page
        finally:
            os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()


async def _address(folder: Path) -> str:
    file = folder / "DevToolsActivePort"
    with trio.fail_after(PATIENCE):
        while not file.exists() or "\n" not in file.read_text():
            await trio.sleep(0.05)
    port = file.read_text().split("\n")[0]

    def look() -> list[dict[str, str]]:
        with urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            return cast("list[dict[str, str]]", json.load(answer))

    targets = await trio.to_thread.run_sync(look)
    return next(one["webSocketDebuggerUrl"] for one in targets if one["type"] == "page")
