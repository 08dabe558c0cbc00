"""Requests to the edges as the network has them: slow, cut off, several at once, hostile."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from motet.actors.gateway.auth import StaticTokens, TokenStore, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.gateway.server import serve_stream
from motet.actors.storage.tokens import new_token
from motet.protocols import gateway as wire
from motet.protocols.events import AnyEvent, RunCompleted, TextDelta
from motet.protocols.models import Usage
from motet.protocols.sessions import Principal
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import context_of

ALICE, VERA, BRIDGE = new_token(), new_token(), new_token()
ENTRIES = (
    token_entry(ALICE, "alice"),
    token_entry(VERA, "vera", "viewer"),
    token_entry(BRIDGE, "bridge", impersonate=True),
)
CHAT = "/v1/chat/completions"


class Host(FakeHost):
    """``mute``: its runs have no events."""

    mute = False

    def say(self, session: str, event: AnyEvent, run_id: str | None = None) -> None:
        if not self.mute:
            super().say(session, event, run_id)


@attrs.define(eq=False)
class Talk:
    """A connection of bytes."""

    stream: trio.abc.Stream
    heard: bytes = b""

    async def hears(self, text: bytes) -> bytes:
        """The bytes up to and with ``text``."""
        while text not in self.heard:
            data = await self.stream.receive_some()
            assert data, f"no {text!r} in {self.heard!r}"
            self.heard += data
        before, _, self.heard = self.heard.partition(text)
        return before + text

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """One answer that has a length."""
        head = (await self.hears(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:-2])}
        while len(self.heard) < int(headers["content-length"]):
            self.heard += await self.stream.receive_some()
        body = self.heard[: int(headers["content-length"])]
        self.heard = self.heard[len(body) :]
        return int(head[0].split(" ")[1]), headers, body

    async def ended(self) -> bool:
        try:
            return not await self.stream.receive_some()
        except trio.BrokenResourceError:
            return True


@attrs.frozen
class Place:
    host: Host
    context: Context
    nursery: trio.Nursery

    def talk(self, *, lockstep: bool = False) -> Talk:
        pair = trio.testing.lockstep_stream_pair if lockstep else trio.testing.memory_stream_pair
        theirs, ours = pair()
        self.nursery.start_soon(serve_stream, self.context, theirs, "here")
        return Talk(ours)


@asynccontextmanager
async def place(settings: Settings | None = None) -> AsyncGenerator[Place]:
    async with trio.open_nursery() as nursery:
        host = Host(nursery)
        yield Place(host, context_of(host, settings), nursery)
        nursery.cancel_scope.cancel()


def post(
    text: str = "hi", headers: Mapping[str, str] | None = None, *, stream: bool = False
) -> bytes:
    said = [{"role": "user", "content": text}]
    body = json.dumps({"model": "echo", "messages": said, "stream": stream}).encode()
    return request("POST", CHAT, body, {"Content-Type": "application/json", **(headers or {})})


def request(
    method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1"]
    given = {"Host": "localhost:1", "Content-Length": str(len(body)), **(headers or {})}
    lines += [f"{name}: {value}" for name, value in given.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def of(token: str, as_user: str = "") -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", **({"X-As-User": as_user} if as_user else {})}


async def test_requests_follow_one_another_on_a_connection_also_pipelined() -> None:
    async with place() as at:
        talk = at.talk()
        await talk.stream.send_all(post("one") + post("two", stream=True) + post("three"))
        status, headers, body = await talk.answer()
        assert (status, headers["x-request-id"]) == (200, "run_1")
        assert json.loads(body)["choices"][0]["message"]["content"] == "one"
        assert b"transfer-encoding: chunked" in (await talk.hears(b"\r\n\r\n")).lower()
        await talk.hears(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert json.loads((await talk.answer())[2])["choices"][0]["message"]["content"] == "three"


async def test_a_client_that_expects_100_continue_gets_it() -> None:
    async with place() as at:
        talk = at.talk()
        head, _, body = post("hi", {"Expect": "100-continue"}).partition(b"\r\n\r\n")
        await talk.stream.send_all(head + b"\r\n\r\n")
        assert b" 100 " in await talk.hears(b"\r\n\r\n")
        await talk.stream.send_all(body)
        assert (await talk.answer())[0] == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (post("hi", {"Content-Length": "1048577"}), 413),
        (post("hi", {"Content-Type": "text/plain"}), 415),
        (request("GET", CHAT), 405),
        (request("DELETE", "/v1/models"), 405),
        (request("POST", "/v1/embeddings"), 404),
        (post("hi", {"Origin": "https://evil.example"}), 403),
        (post("hi", {"Host": "evil.example"}), 403),
    ],
)
async def test_requests_that_no_edge_serves_are_refused(sent: bytes, status: int) -> None:
    async with place() as at:
        talk = at.talk()
        await talk.stream.send_all(sent)
        assert (await talk.answer())[0] == status
        assert at.host.submitted == []


async def test_a_body_that_grows_above_the_limit_is_refused() -> None:
    async with place() as at:
        talk = at.talk()
        head = b"POST /v1/ag-ui HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        chunk = b"%x\r\n" % 70_000 + b" " * 70_000 + b"\r\n"
        head += b"Transfer-Encoding: chunked\r\n\r\n"
        await talk.stream.send_all(head + chunk * 16)
        assert (await talk.answer())[0] == 413


async def test_a_body_that_does_not_come_times_out(autojump_clock: MockClock) -> None:
    async with place() as at:
        talk = at.talk()
        await talk.stream.send_all(post()[:-1])
        assert (await talk.answer())[0] == 408


async def test_a_page_of_an_allowed_origin_may_ask() -> None:
    page = "https://chat.example"
    origin = {"Origin": page}
    async with place(Settings(allowed_origins=(page,))) as at:
        talk = at.talk()
        await talk.stream.send_all(request("OPTIONS", CHAT, b"", origin) + post("hi", origin))
        status, headers, _ = await talk.answer()
        assert status == 200
        assert headers["access-control-allow-origin"] == page
        assert "authorization" in headers["access-control-allow-headers"]
        status, headers, _ = await talk.answer()
        assert (status, headers["access-control-allow-origin"]) == (200, page)


OPENAI_NODE = (
    "authorization,content-type,idempotency-key,openai-organization,openai-project,"
    "x-stainless-arch,x-stainless-custom-poll-interval,x-stainless-helper-method,x-stainless-lang,"
    "x-stainless-os,x-stainless-package-version,x-stainless-poll-helper,x-stainless-retry-count,"
    "x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout"
)
"""The headers that a browser asks for when the official SDK for JavaScript makes a request."""


async def preflight(origin: str, wanted: str, path: str = CHAT) -> tuple[int, dict[str, str]]:
    async with place(Settings(allowed_origins=("https://chat.example",))) as at:
        talk = at.talk()
        asked = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": wanted,
        }
        await talk.stream.send_all(request("OPTIONS", path, b"", asked))
        status, headers, _ = await talk.answer()
        return status, headers


async def test_the_headers_of_the_official_javascript_sdk_are_let_through() -> None:
    status, headers = await preflight("https://chat.example", OPENAI_NODE)
    allowed = {name.strip() for name in headers["access-control-allow-headers"].split(",")}
    assert status == 200
    assert allowed >= set(OPENAI_NODE.split(","))
    assert "x-session" in allowed


@pytest.mark.parametrize("wanted", ["", "a b", "x, ,y", "x\u00e9", "x" * 5_000, "*,\\"])
async def test_a_preflight_for_names_that_are_none_has_our_own_names_only(wanted: str) -> None:
    _, headers = await preflight("https://chat.example", wanted)
    assert headers["access-control-allow-headers"].endswith("x-as-user")


async def test_a_page_that_is_not_allowed_gets_no_preflight() -> None:
    for origin in ("https://evil.example", "null", "https://chat.example.evil"):
        status, headers = await preflight(origin, OPENAI_NODE)
        assert status == 405
        assert not any(name.startswith("access-control") for name in headers)


async def test_only_a_bridge_asks_on_behalf_of_others() -> None:
    async with place(Settings(tokens=StaticTokens(ENTRIES))) as at:
        talk = at.talk()
        await talk.stream.send_all(post("hi", of(BRIDGE, "ada")) + post("hi", of(ALICE, "ada")))
        assert [(await talk.answer())[0] for _ in range(2)] == [200, 403]
        assert [run.info.user for run in at.host.run_infos.values()] == ["ada"]


async def test_messages_count_against_the_limit_of_their_user() -> None:
    limits = wire.Limits(message_burst=1)
    async with place(Settings(limits=limits)) as at:
        talk = at.talk()
        await talk.stream.send_all(post() + post())
        assert (await talk.answer())[0] == 200
        status, headers, body = await talk.answer()
        assert (status, headers["x-should-retry"], headers["retry-after"]) == (429, "true", "1")
        assert json.loads(body)["error"]["code"] == "rate_limited"


@pytest.mark.parametrize(
    ("limits", "status"),
    [(wire.Limits(connections=1), 503), (wire.Limits(connections_per_user=1), 429)],
)
async def test_requests_count_as_connections_while_they_are_answered(
    limits: wire.Limits, status: int
) -> None:
    async with place(Settings(limits=limits)) as at:
        first, second = at.talk(), at.talk()
        await first.stream.send_all(post("hang", stream=True))
        await first.hears(b"assistant")
        await second.stream.send_all(post())
        assert (await second.answer())[0] == status
        await first.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        third = at.talk()
        await third.stream.send_all(post())
        assert (await third.answer())[0] == 200


async def test_a_quiet_stream_is_kept_alive() -> None:
    async with place() as at:
        talk = at.talk()
        await talk.stream.send_all(post("hang", stream=True))
        await talk.hears(b"assistant")
        for _ in range(3):
            at.context.tick()
            await talk.hears(b": keep-alive\n\n")


async def test_the_end_of_a_run_without_an_event_is_noticed() -> None:
    async with place() as at:
        talk = at.talk()
        await talk.stream.send_all(post("hang", stream=True))
        await talk.hears(b"assistant")
        (run,) = at.host.run_infos.values()
        at.host.mute = True
        run.scope.cancel()
        await run.ended.wait()
        for _ in range(2):
            at.context.tick()
            await talk.hears(b": keep-alive\n\n")
        assert b"unavailable" in await talk.hears(b"0\r\n\r\n")


@pytest.mark.parametrize("key", [False, True])
async def test_a_client_that_leaves_stops_its_run_unless_it_has_a_key(key: bool) -> None:
    async with place() as at:
        talk = at.talk()
        keyed = {"Idempotency-Key": "k"} if key else {}
        await talk.stream.send_all(post("hang", keyed, stream=True))
        await talk.hears(b"assistant")
        await talk.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert [stop.arguments["run_id"] for stop in at.host.asked_for("stop")] == (
            [] if key else ["run_1"]
        )
        assert (at.context.counts.open["edge"], len(at.context.connections)) == (0, 0)


async def test_a_client_that_does_not_read_is_cut_off_and_its_run_goes_on(
    autojump_clock: MockClock,
) -> None:
    async with place() as at:
        talk = at.talk(lockstep=True)
        await talk.stream.send_all(post("hang", stream=True))
        await talk.hears(b"assistant")
        (run,) = at.host.run_infos.values()
        for i in range(2_000):
            at.host.say(run.info.session, TextDelta(0, i, "x"), run.info.run_id)
        await trio.sleep(11)
        assert at.context.counts.total["evicted"] == 1
        assert run.info.status == "running"
        assert at.host.asked_for("stop") == []
        while not await talk.ended():
            pass


async def test_text_dropped_for_a_slow_client_comes_with_the_whole_message() -> None:
    async with place() as at:
        talk = at.talk(lockstep=True)
        await talk.stream.send_all(post("word " * 3_000, stream=True))
        told = await talk.hears(b"[DONE]")
        chunks = [json.loads(line[6:]) for line in told.split(b"\n") if line.startswith(b"data: {")]
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert text.strip() == ("word " * 3_000).strip()
        assert at.context.counts.total["evicted"] == 0


async def test_a_token_that_is_revoked_ends_the_stream_and_not_the_run() -> None:
    @attrs.define(eq=False)
    class Revocable:
        inner: TokenStore
        revoked: bool = False

        def has_tokens(self) -> bool:
            return True

        def find(self, token_digest: str, now: float) -> Principal | None:
            return None if self.revoked else self.inner.find(token_digest, now)

        def impersonates(self, token_digest: str, now: float) -> bool:
            return False

    tokens = Revocable(StaticTokens(ENTRIES))
    async with place(Settings(tokens=tokens)) as at:
        talk = at.talk()
        await talk.stream.send_all(post("hang", of(ALICE), stream=True))
        await talk.hears(b"assistant")
        tokens.revoked = True
        at.context.recheck()
        while not await talk.ended():
            pass
        assert at.host.asked_for("stop") == []


async def test_a_gateway_that_stops_leaves_the_run_to_its_host() -> None:
    async with trio.open_nursery() as runs:
        host = Host(runs)
        context = context_of(host)
        async with trio.open_nursery() as nursery:
            theirs, ours = trio.testing.memory_stream_pair()
            nursery.start_soon(serve_stream, context, theirs, "here")
            await ours.send_all(post("hang", stream=True))
            await Talk(ours).hears(b"assistant")
            nursery.cancel_scope.cancel()
        (run,) = host.run_infos.values()
        assert (host.asked_for("stop"), run.info.status) == ([], "running")
        host.say(run.info.session, RunCompleted(Usage()), run.info.run_id)
        runs.cancel_scope.cancel()
