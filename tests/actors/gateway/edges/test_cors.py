"""A page of another origin in a real browser, with the headers of OpenAI's SDK for JavaScript."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import pytest
import trio

import motet
from motet.actors.storage.tokens import new_token
from motet.protocols.config import GatewayConfig, TokenConfig
from motet.testing import ScriptedModel, say
from tests.actors.gateway.edges.test_exchange import OPENAI_NODE
from tests.browser import Page, browser, tab

PROGRAM = browser()
TOKEN = new_token()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium here: apt install chromium"),
]
ASK = """(async () => {
  const headers = %(headers)s;
  const body = { model: "echo", stream: %(stream)s, messages: [{ role: "user", content: "hi" }] };
  try {
    const answer = await fetch("%(url)s/v1/chat/completions", {
      method: "POST", headers, body: JSON.stringify(body), %(more)s
    });
    const id = answer.headers.get("x-request-id");
    return { status: answer.status, id, text: await answer.text() };
  } catch (error) {
    return { error: error.name };
  }
})()"""


def sdk_headers(token: str) -> dict[str, str]:
    own = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    return dict.fromkeys(OPENAI_NODE.split(","), "1") | own | {"accept": "application/json"}


@asynccontextmanager
async def another_origin() -> AsyncGenerator[str]:
    """The origin of a server that has one empty page."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 15\r\n"
            b"connection: close\r\n\r\n<!doctype html>"
        )
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener, *_) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def visited(
    origins: tuple[str, ...], *, token: bool = True
) -> AsyncGenerator[tuple[Page, str, motet.Host]]:
    """A page of another origin, and the address of a host; ``{}`` in ``origins`` is that origin."""
    echo = motet.Agent("echo", model=ScriptedModel([say("hello")] * 9))
    tokens = (TokenConfig(token=TOKEN, user="alice"),) if token else ()
    assert PROGRAM is not None
    async with (
        another_origin() as origin,
        motet.open_host(agents=[echo]) as host,
        tab(PROGRAM) as page,
    ):
        allowed = tuple(one.format(origin) for one in origins)
        config = GatewayConfig(listen="127.0.0.1:0", tokens=tokens, allowed_origins=allowed)
        url = await host.serve(config)
        await page.call("Page.navigate", url=f"{origin}/")
        await page.until(f"location.origin === {json.dumps(origin)}")
        yield page, url, host


async def asked(
    page: Page, url: str, *, token: str = TOKEN, stream: bool = False, more: str = ""
) -> dict[str, object]:
    fields = {"url": url, "headers": json.dumps(sdk_headers(token)), "more": more}
    found = await page.evaluate(ASK % {**fields, "stream": json.dumps(stream)})
    assert isinstance(found, dict)
    return cast("dict[str, object]", found)


async def test_a_page_of_a_configured_origin_talks_with_the_headers_of_the_sdk() -> None:
    async with visited(("{}",)) as (page, url, _):
        whole = await asked(page, url)
        assert whole["status"] == 200
        assert str(whole["id"]).startswith("run_")
        assert '"content":"hello"' in str(whole["text"])
        streamed = await asked(page, url, stream=True)
        assert str(streamed["text"]).endswith("data: [DONE]\n\n")
        refused = await asked(page, url, token=new_token())
        assert refused["status"] == 401  # the page can read why, and the SDK shows it
        assert "error" in str(refused["text"])
        models = await page.evaluate(
            f"fetch('{url}/v1/models', {{headers: {json.dumps(sdk_headers(TOKEN))}}})"
            ".then(answer => answer.text())"
        )
        assert '"echo"' in str(models)


@pytest.mark.parametrize("origins", [(), ("https://chat.example",), ("{}0",)])
async def test_a_page_of_another_origin_reaches_nothing(origins: tuple[str, ...]) -> None:
    """Neither with the headers of the SDK, nor with a simple request, which has no preflight."""
    async with visited(origins, token=False) as (page, url, host):
        assert await asked(page, url) == {"error": "TypeError"}
        simple = (
            f"fetch('{url}/v1/chat/completions', {{method: 'POST', mode: 'no-cors', "
            'body: \'{"model":"echo","messages":[{"role":"user","content":"hi"}]}\'})'
            ".then(answer => answer.type)"
        )
        assert await page.evaluate(simple) == "opaque"
        listed = await page.evaluate(f"fetch('{url}/v1/models').catch(error => error.name)")
        assert listed == "TypeError"
        assert await host.runs() == ()


async def test_a_page_cannot_use_the_cookies_of_another() -> None:
    """Only the headers have credentials: the answer to a request with cookies is not shown."""
    async with visited(("{}",)) as (page, url, _):
        found = await asked(page, url, more='credentials: "include"')
        assert found == {"error": "TypeError"}
