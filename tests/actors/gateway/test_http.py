"""The port as a plain HTTP client, a careless one and a hostile one see it."""

from __future__ import annotations

import base64
import contextlib
import json
import re

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.gateway.server import serve_stream
from motet.actors.storage.tokens import new_token
from motet.protocols.sessions import Principal
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import connected, context_of

KEY = base64.b64encode(b"0123456789abcdef").decode()
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": KEY,
}


async def exchange(*parts: bytes, context: Context | None = None, eof: bool = True) -> bytes:
    """All that the port answers to these bytes; each part is read before the next is sent."""
    theirs, ours = trio.testing.memory_stream_pair()
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, context or context_of(FakeHost()), theirs, "here")
        with contextlib.suppress(trio.BrokenResourceError):
            for part in parts:
                await ours.send_all(part)
                await wait_all_tasks_blocked()
            if eof:
                await ours.send_eof()
        async for chunk in ours:
            received += chunk
    return bytes(received)


def head(method: str, path: str, **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost:1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def upgrade(path: str = "/ws", **changed: str) -> bytes:
    return head("GET", path, **{**UPGRADE, **changed})


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


async def test_health_is_json() -> None:
    answer = await exchange(head("GET", "/healthz?x=1"))
    assert status_of(answer) == 200
    assert json.loads(body_of(answer)) == {
        "status": "ok",
        "version": "0.1.0",
        "instance": "boot_1",
    }


async def test_the_root_says_that_a_websocket_is_wanted() -> None:
    answer = await exchange(head("GET", "/"))
    assert status_of(answer) == 200
    assert b"motet.v1" in body_of(answer)
    assert b"content-security-policy: default-src 'none'" in answer.lower()


async def test_head_has_the_length_and_no_body() -> None:
    whole = await exchange(head("GET", "/healthz"))
    answer = await exchange(head("HEAD", "/healthz"))
    assert body_of(answer) == b""
    assert f"content-length: {len(body_of(whole))}".encode() in answer.lower()


async def test_requests_follow_each_other_on_one_connection() -> None:
    answer = await exchange(head("HEAD", "/") + head("GET", "/nowhere") + head("GET", "/healthz"))
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"404", b"200"]


async def test_a_request_with_a_body_is_answered_and_then_closed(
    autojump_clock: MockClock,
) -> None:
    request = head("POST", "/", **{"Content-Length": "5"}) + b"hello" + head("GET", "/")
    answer = await exchange(request, eof=False)
    assert status_of(answer) == 405
    assert answer.count(b"HTTP/1.1") == 1
    assert b"connection: close" in answer.lower()
    assert b"allow: get, head" in answer.lower()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (head("GET", "/ws"), 426),
        (head("DELETE", "/healthz"), 405),
        (upgrade("/elsewhere"), 404),
        (upgrade(**{"Sec-WebSocket-Version": "8"}), 426),
        (upgrade(**{"Sec-WebSocket-Key": "short"}), 400),
        (upgrade(**{"Sec-WebSocket-Protocol": "other.v1"}), 400),
        (upgrade(Origin="http://evil.example"), 403),
        (upgrade().replace(b"localhost:1", b"rebound.example"), 403),
        (upgrade().replace(b"localhost:1", b"evil.example@localhost:1"), 400),
        (upgrade().replace(b"localhost:1", b"localhost/evil"), 400),
        (upgrade().replace(b"GET /ws", b"GET http://evil@localhost:1/ws"), 400),
        (upgrade().replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
        (upgrade().replace(b"GET", b"POST"), 405),
        (upgrade() + b"early", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 70_000, 431),
    ],
)
async def test_every_malformed_request_has_its_status(request_bytes: bytes, status: int) -> None:
    assert status_of(await exchange(request_bytes)) == status


async def test_an_upgrade_without_sub_protocol_is_accepted() -> None:
    assert status_of(await exchange(upgrade())) == 101


async def test_a_wrong_bearer_is_401_and_429_after_thirty_failures_and_a_right_one_passes(
    autojump_clock: MockClock,
) -> None:
    token = new_token()
    store = StaticTokens((token_entry(token, "alice"),))
    context = context_of(FakeHost(), Settings(tokens=store))
    for _ in range(30):
        wrong = await exchange(upgrade(Authorization="Bearer " + new_token()), context=context)
        assert status_of(wrong) == 401
    wrong = upgrade(Authorization="Bearer " + new_token())
    refused = await exchange(wrong, context=context)
    assert status_of(refused) == 429
    assert b"retry-after" in refused.lower()
    right = upgrade(Authorization=f"Bearer {token}")
    assert status_of(await exchange(right, context=context)) == 101
    await trio.sleep(301)
    assert status_of(await exchange(wrong, context=context)) == 401


async def test_a_request_that_never_ends_times_out(autojump_clock: MockClock) -> None:
    assert status_of(await exchange(b"GET / HTTP/1.1\r\nHost: a\r\n", eof=False)) == 408
    assert await exchange(b"", eof=False) == b""
    assert trio.current_time() <= 13


async def test_a_host_without_a_status_is_503() -> None:
    host = FakeHost()
    host.answers["status"] = RuntimeError("no")
    assert status_of(await exchange(head("GET", "/healthz"), context=context_of(host))) == 503


async def test_a_failure_of_the_gateway_itself_ends_that_connection_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def has_tokens(self) -> bool:
            return True

        def find(self, token_digest: str, now: float) -> Principal | None:
            raise LookupError(f"{token_digest} at {now}")

        def impersonates(self, token_digest: str, now: float) -> bool:
            return False

    context = context_of(FakeHost(), Settings(tokens=Broken()))
    request = upgrade(Authorization=f"Bearer {new_token()}")
    assert await exchange(request, context=context) == b""
    assert context.counts.total["failed"] == 1
    assert "LookupError" in caplog.text


edits = st.lists(st.tuples(st.integers(0, 250), st.binary(max_size=6)), min_size=1, max_size=8)
FRAMES = (
    b"\x81\x85\x01\x02\x03\x04\x69\x67\x6f\x68\x6e"  # the text `hello`, masked
    b"\x89\x80\x00\x00\x00\x00\x88\x80\x01\x02\x03\x04"  # a ping, a close
)


@settings(max_examples=120)
@given(
    parts=st.one_of(
        st.tuples(st.binary(max_size=300), st.just(b"")),
        st.tuples(edits.map(lambda found: mutated(upgrade(), found)), st.just(b"")),
        st.tuples(edits.map(lambda found: mutated(head("HEAD", "/") * 2, found)), st.just(b"")),
        st.tuples(st.just(upgrade()), st.binary(max_size=200)),
        st.tuples(st.just(upgrade()), edits.map(lambda found: mutated(FRAMES, found))),
    )
)
def test_no_bytes_crash_the_server(parts: tuple[bytes, bytes]) -> None:
    """Law: whatever a client sends, its handler ends by itself and others are still served."""

    async def main() -> None:
        context = context_of(FakeHost())
        with trio.fail_after(60):
            async with connected(context) as other:
                await exchange(*parts, context=context)
                await other.result("ping")
        assert context.counts.total["failed"] == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))


def mutated(data: bytes, edits: list[tuple[int, bytes]]) -> bytes:
    changed = bytearray(data)
    for place, piece in edits:
        changed[place : place + len(piece)] = piece
    return bytes(changed)


CHUNKED = {"Transfer-Encoding": "chunked"}
CHAT = "/v1/chat/completions"
END = b"0\r\n\r\n"


def framed(*lines: str, body: bytes = b"", method: str = "POST", path: str = "/nowhere") -> bytes:
    """A request with these header lines exactly, and a second one behind its body."""
    return (
        "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost:1", *lines, "", ""]).encode()
        + body
        + head("GET", "/healthz")
    )


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/healthz", CHAT, "/v1/models", "/ws", "/"])
@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (("Content-Length: 5", "Transfer-Encoding: chunked"), END),
        (("Transfer-Encoding: chunked", "Content-Length: 5"), END),
        (("Content-Length: 0", "Transfer-Encoding: chunked"), END),
        (("Content-Length: 5", "Content-Length: 6"), b"hello"),
        (("Content-Length: 5, 6",), b"hello"),
        (("Content-Length: +5",), b"hello"),
        (("Content-Length: -5",), b"hello"),
        (("Content-Length: 0x5",), b"hello"),
        (("Content-Length: 5 5",), b"hello"),
        (("Content-Length : 5",), b"hello"),
        (("Transfer-Encoding : chunked",), END),
        (("Transfer-Encoding: gzip, chunked",), END),
        (("Transfer-Encoding: chunked, chunked",), END),
        (("Transfer-Encoding: xchunked",), END),
        (("Transfer-Encoding: identity",), b""),
        (("Host: other",), b""),
        (("X: a\0b",), b""),
        (("no colon",), b""),
    ],
)
async def test_a_request_whose_end_is_not_sure_is_answered_and_nothing_behind_it_is_read(
    lines: tuple[str, ...], body: bytes, path: str, method: str
) -> None:
    """A proxy may have seen another end, and so another next request."""
    answer = await exchange(framed(*lines, body=body, method=method, path=path))
    assert status_of(answer) in (400, 501)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()
    assert b"boot_1" not in answer


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + END, 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /\r\n", 400),
        (b"GET / HTTP/1.1\r\n X: folded first\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\rHost: a\r\r", 400),
    ],
)
async def test_other_versions_and_broken_heads_are_refused(sent: bytes, status: int) -> None:
    answer = await exchange(sent)
    assert status_of(answer) == status
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize(
    "chunks",
    [b"zz\r\n", b"-1\r\nx\r\n", b"f" * 30 + b"\r\n", b"5\r\nhelloXX", b"5 5\r\nhello\r\n", b"\r\n"],
)
async def test_a_body_with_broken_chunks_is_refused(chunks: bytes) -> None:
    json_body = {"Content-Type": "application/json", **CHUNKED}
    answer = await exchange(
        head("POST", CHAT, **json_body) + chunks + END + head("GET", "/healthz")
    )
    assert status_of(answer) == 400
    assert b"connection: close" in answer.lower()
    assert b"boot_1" not in answer


async def test_the_host_of_an_absolute_target_counts() -> None:
    rebound = upgrade().replace(b"GET /ws", b"GET http://rebound.example/ws")
    assert status_of(await exchange(rebound)) == 403
    right = upgrade().replace(b"GET /ws", b"GET http://localhost:1/ws")
    assert status_of(await exchange(right)) == 101


async def test_an_empty_line_before_a_request_is_skipped() -> None:
    assert status_of(await exchange(b"\r\n", b"\r\n\r\n" + head("GET", "/healthz"))) == 200
    assert status_of(await exchange(b"\n" * 100 + head("GET", "/healthz"))) == 200


async def test_head_of_an_edge_has_no_body_and_an_unknown_method_names_the_known_ones() -> None:
    answer = await exchange(
        head("HEAD", "/v1/models") + head("PUT", CHAT) + head("GET", "/healthz")
    )
    first, _, rest = answer.partition(b"\r\n\r\n")
    assert status_of(first) == 200
    assert rest.startswith(b"HTTP/1.1 405")
    assert b"allow: post, options" in rest.lower()
    assert b"boot_1" in rest


async def test_a_body_is_asked_for_before_it_is_read() -> None:
    body = b'{"model": "helper", "messages": []}'
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    sent = head("POST", CHAT, Expect="100-continue", **headers)
    answer = await exchange(sent, body)
    assert answer.startswith(b"HTTP/1.1 100")
    assert answer.count(b"HTTP/1.1 ") == 2
