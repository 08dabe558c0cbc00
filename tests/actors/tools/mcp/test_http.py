"""Servers with a URL."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import trio

from motet.protocols.mcp import ListMcpTools, McpFailed, McpServer
from tests.actors.tools.mcp.stage import acting, open_files
from tests.actors.tools.mcp.web import serving
from tests.aimock import SDK_GENERATORS


async def test_a_session_is_opened_used_and_ended() -> None:
    async with serving() as web:
        server = McpServer(url=web.url, headers={"X-Team": "red"}, token="t0p-secret-token")
        async with acting(server) as stage:
            assert await stage.call("echo", text="hi") == "hi"
            assert web.headers["authorization"] == "Bearer t0p-secret-token"
            assert web.headers["x-team"] == "red"
            assert web.headers["mcp-session-id"] == "s1"
        assert [one for one in web.asked if one != "GET"] == [
            "initialize",
            "notifications/initialized",
            "tools/list",
            "tools/call",
        ]


async def test_an_idle_url_is_told_that_the_session_is_over() -> None:
    async with serving() as web, acting(McpServer(url=web.url, idle_stop=0.05)) as stage:
        await stage.call("echo", text="hi")
        with trio.fail_after(60):
            while "DELETE" not in web.asked:
                await trio.sleep(0.01)
        assert await stage.call("echo", text="again") == "again"
    assert web.asked.count("initialize") > 1


async def test_a_url_is_told_to_stop_a_cancelled_call_before_its_caller_goes_on() -> None:
    async with serving() as web, acting(McpServer(url=web.url)) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.call, "slow")
            await web.calling.wait()
            nursery.cancel_scope.cancel()
        assert await stage.call("echo", text="next") == "next"
        calls = web.asked.index("tools/call")
        assert web.asked[calls:] == ["tools/call", "notifications/cancelled", "tools/call"]


@pytest.fixture
def sdk_garbage() -> Iterator[None]:
    """Collects the garbage of the SDK while the warning filter of the test is active."""
    yield
    gc.collect()


@SDK_GENERATORS
async def test_a_list_that_changes_in_a_call_is_read_again(sdk_garbage: None) -> None:
    async with serving() as web, acting(McpServer(url=web.url)) as stage:
        await stage.ref.ask(ListMcpTools())
        await stage.call("grow")
        with trio.fail_after(60):
            while len(stage.lists) < 2:
                await trio.sleep(0.01)
        assert stage.lists[-1][-1].name == "fresh"


async def test_a_session_that_was_forgotten_fails_one_call_and_is_opened_anew() -> None:
    async with serving() as web, acting(McpServer(url=web.url)) as stage:
        await stage.call("echo", text="hi")
        web.forgets = True
        with pytest.raises(McpFailed, match="it has forgotten the session"):
            await stage.call("echo", text="lost")
        assert await stage.call("echo", text="back") == "back"


@pytest.mark.parametrize(
    ("status", "said"), [(401, "HTTP 401: check its headers and token"), (500, "error response")]
)
async def test_a_url_that_refuses_is_unavailable(status: int, said: str) -> None:
    async with serving() as web:
        web.status = status
        async with acting(McpServer(url=web.url, token="t0p-secret-token")) as stage:
            with pytest.raises(McpFailed, match=said) as caught:
                await stage.call("echo", text="hi")
    assert caught.value.kind == "unavailable"
    assert "secret" not in str(caught.value)


async def test_a_url_without_a_listener_is_unavailable() -> None:
    async with acting(McpServer(url="http://127.0.0.1:9/mcp")) as stage:
        with pytest.raises(McpFailed, match="is not available: "):
            await stage.call("echo", text="hi")


async def test_a_url_that_never_answers_the_end_does_not_delay_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("motet.actors.tools.mcp.web.CLOSE_BUDGET", 0.1)
    before = open_files()
    async with serving() as web:
        web.stuck = True
        async with acting(McpServer(url=web.url, idle_stop=0.05)) as stage:
            await stage.call("echo", text="hi")
            with trio.fail_after(60):
                while "DELETE" not in web.asked:
                    await trio.sleep(0.01)
                assert await stage.call("echo", text="again") == "again"
    assert open_files() == before
