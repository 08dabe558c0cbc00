"""A client of a gateway, while the host cannot store anything and when it can again."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import motet
from motet.actors.storage.connection import Connection
from motet.client import RequestFailed, connect
from motet.protocols.config import GatewayConfig
from motet.protocols.events import StorageChanged
from motet.protocols.storage import DatabaseLocked
from tests.scripted import Scripted, say


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own patience with a lock is real time: shorten it."""
    monkeypatch.setattr("motet.actors.storage.location.BUSY_TIMEOUT", 0.02)


async def status_of(url: str, path: str) -> tuple[int, str]:
    port = int(url.rpartition(":")[2].strip("/"))
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        answer = (await stream.receive_some()).decode()
    return int(answer.split(" ")[1]), answer


async def test_a_client_is_told_that_nothing_can_be_stored_and_may_try_again(
    tmp_path: Path,
) -> None:
    agent = motet.Agent("a", model=Scripted(say("hello")))
    async with motet.open_host(tmp_path, agents=[agent]) as host:
        other = Connection(str(tmp_path / "motet.db"))
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0"))
        async with connect(url) as client, client.stream("session:s") as events:
            assert (await status_of(url, "/healthz/ready"))[0] == 200
            other.run("BEGIN IMMEDIATE")
            with pytest.raises(RequestFailed) as refused:
                await client.send("s", "hi", agent="a", key="once")
            assert (refused.value.code, refused.value.retryable) == ("storage_unavailable", True)
            assert str(tmp_path) not in str(refused.value)
            code, answer = await status_of(url, "/healthz/ready")
            assert code == 503
            assert "storage_unavailable" in answer
            assert (await status_of(url, "/healthz/live"))[0] == 200
            other.run("ROLLBACK")
            heard: list[str] = []
            with trio.fail_after(60):
                async for record in events:
                    if isinstance(record.event, StorageChanged):
                        heard.append(record.event.reason)
                    if heard[-1:] == [""]:
                        break
            assert heard == [DatabaseLocked.reason, ""]
            assert (await status_of(url, "/healthz/ready"))[0] == 200
            await client.send("s", "hi", agent="a", key="once")
            with trio.fail_after(60):
                while not await client.runs(session="s", status="completed"):
                    await trio.sleep(0.02)
        other.close()
