"""Fetching pages of the web, and HTML as text."""

from __future__ import annotations

import gzip
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.tools.builtin.all_tools import http_tool
from motet.actors.tools.builtin.http import (
    MAX_HTML,
    PAGE_CHARS,
    declared_charset,
    fetch,
    readable,
    refuse_unreadable,
)
from motet.actors.tools.builtin.http_client import WebClient, parse, redirected
from motet.actors.tools.tool import Tool
from motet.protocols.config import HttpConfig
from motet.protocols.tools import ToolFailure

Call = Callable[..., Awaitable[str]]
Routes = Mapping[str, bytes]
LOCAL = HttpConfig(timeout=20, allow_private=True, max_bytes=100_000)


@attrs.define
class Server:
    base: str
    requests: list[str] = attrs.field(factory=list[str])


@asynccontextmanager
async def serving(routes: Routes, context: ssl.SSLContext | None = None) -> AsyncGenerator[Server]:
    """A server that answers a path with the given bytes, and then closes the connection.

    A path without an answer is never answered.
    """
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    scheme = "https" if context else "http"
    server = Server(f"{scheme}://127.0.0.1:{listener.socket.getsockname()[1]}")

    async def answer(stream: trio.abc.Stream) -> None:
        if context:
            stream = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        try:
            request = b""
            while b"\r\n\r\n" not in request:
                if not (data := await stream.receive_some()):
                    return
                request += data
            server.requests.append(request.decode())
            reply = routes.get(request.split()[1].decode())
            if reply is None:
                await trio.sleep_forever()
            await stream.send_all(reply.replace(b"BASE", server.base.encode()))
            await stream.aclose()
        except trio.BrokenResourceError:
            return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        yield server
        nursery.cancel_scope.cancel()


def reply(body: bytes, kind: str = "text/plain", status: str = "200 OK", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def redirect(to: str, status: str = "302 Found") -> bytes:
    return f"HTTP/1.1 {status}\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.fixture
def web() -> Tool:
    return http_tool(LOCAL)


async def test_a_page_is_given_as_text_with_its_title(web: Tool, call: Call) -> None:
    page = b"<title>Hi</title><p>Some <a href=/x>link</a>"
    async with serving({"/": reply(page, "text/html; charset=utf-8")}) as server:
        text = await call(web, url=server.base)
    assert text == (f"[200 OK · {server.base}/ · text/html]\n\n# Hi\n\nSome link <{server.base}/x>")
    assert "host: 127.0.0.1:" in server.requests[0].lower()


async def test_json_is_given_as_it_is(web: Tool, call: Call) -> None:
    async with serving({"/": reply(b'{"a": [1]}', "application/json")}) as server:
        assert (await call(web, url=server.base)).endswith('\n\n{"a": [1]}')


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/plain; charset=latin-1", "é".encode("latin-1")),
        ("text/html", b"<meta charset=latin-1>\xe9"),
        ("", "é".encode()),
    ],
)
async def test_the_character_set_is_found(web: Tool, call: Call, kind: str, body: bytes) -> None:
    async with serving({"/": reply(body, kind)}) as server:
        assert (await call(web, url=server.base)).endswith("é")


async def test_a_chunked_and_packed_body_is_unpacked(web: Tool, call: Call) -> None:
    packed = gzip.compress(b"unpacked")
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n"
    async with serving({"/": head + b"Transfer-Encoding: chunked\r\n\r\n" + body}) as server:
        assert (await call(web, url=server.base)).endswith("unpacked")


async def test_a_long_text_comes_in_pages(web: Tool, call: Call) -> None:
    whole = "".join(f"{number}\n" for number in range(10_000))
    seen, offset = "", 0
    async with serving({"/": reply(whole.encode())}) as server:
        while len(seen) < len(whole):
            text = await call(web, url=server.base, offset=offset)
            assert len(text) < web.max_output
            seen += text.partition("\n\n")[2].partition("\n[characters")[0]
            offset += PAGE_CHARS
    assert seen == whole


async def test_a_body_beyond_the_limit_is_cut_with_a_note(web: Tool, call: Call) -> None:
    bomb = reply(gzip.compress(b"x" * 30_000_000), more="Content-Encoding: gzip\r\n")
    async with serving({"/": bomb}) as server:
        text = await call(web, url=server.base, offset=90_000)
    assert text.endswith("x\n[cut after 100,000 bytes]")


async def test_head_gives_the_headers(web: Tool, call: Call) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nETag: x\r\n\r\n"
    async with serving({"/": head}) as server:
        text = await call(web, url=server.base, method="HEAD")
    assert "etag: x" in text
    assert server.requests[0].startswith("HEAD / HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("status", "kind"),
    [("404 Not Found", "not_found"), ("403 Forbidden", "auth"), ("500 Oops", "unknown")],
)
async def test_an_error_status_is_a_failure_with_the_body_as_detail(
    web: Tool, call: Call, status: str, kind: str
) -> None:
    async with serving({"/": reply(b"because", status=status)}) as server:
        with pytest.raises(ToolFailure, match=f"HTTP {status[:3]}") as caught:
            await call(web, url=server.base)
    assert caught.value.kind == kind
    assert caught.value.detail is not None
    assert caught.value.detail["body"] == "because"


async def test_a_binary_type_is_refused_with_its_size(web: Tool, call: Call) -> None:
    async with serving({"/": reply(b"\x89PNG", "image/png")}) as server:
        with pytest.raises(ToolFailure, match=r"is image/png \(4 bytes\)"):
            await call(web, url=server.base)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nCont"])
async def test_a_server_that_speaks_no_http_is_told_so(
    web: Tool, call: Call, answer: bytes
) -> None:
    async with serving({"/": answer}) as server:
        with pytest.raises(ToolFailure, match="proper HTTP"):
            await call(web, url=server.base)


async def test_a_body_that_ends_too_early_is_a_failure(web: Tool, call: Call) -> None:
    async with serving({"/": reply(b"12345")[:-1]}) as server:
        with pytest.raises(ToolFailure, match="proper HTTP"):
            await call(web, url=server.base)


async def test_a_server_that_never_answers_is_given_up(call: Call) -> None:
    web = http_tool(attrs.evolve(LOCAL, timeout=0.1))
    async with serving({}) as server:
        with pytest.raises(ToolFailure, match=r"longer than 0.1 seconds") as caught:
            await call(web, url=server.base)
    assert caught.value.kind == "timeout"


class TestRedirects:
    async def test_redirects_are_followed_and_the_last_address_named(
        self, web: Tool, call: Call
    ) -> None:
        routes = {"/a": redirect("/b", "301 Moved"), "/b": redirect("BASE/c"), "/c": reply(b"end")}
        async with serving(routes) as server:
            text = await call(web, url=f"{server.base}/a")
        assert text == f"[200 OK · {server.base}/c · text/plain]\n\nend"

    async def test_the_sixth_redirect_is_refused(self, web: Tool, call: Call) -> None:
        async with serving({"/": redirect("/")}) as server:
            with pytest.raises(ToolFailure, match="more than 5 redirects"):
                await call(web, url=server.base)
        assert len(server.requests) == 6

    @pytest.mark.parametrize("to", ["file:///etc/passwd", "gopher://x", "http://u:p@x/", "http://"])
    async def test_each_redirect_is_checked(self, web: Tool, call: Call, to: str) -> None:
        async with serving({"/": redirect(to)}) as server:
            with pytest.raises(ToolFailure):
                await call(web, url=server.base)

    def test_https_never_becomes_http(self) -> None:
        assert redirected("https://x/", "/y") == "https://x/y"
        with pytest.raises(ToolFailure, match="https to http"):
            redirected("https://x/", "http://x/y")


class TestNames:
    """``rebinder.test`` has another address for each request."""

    @pytest.fixture
    def answers(self, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        answers: list[list[str]] = []
        real = socket.getaddrinfo

        def getaddrinfo(
            host: bytes | str, port: int, family: int, type: int, proto: int, flags: int
        ) -> Sequence[tuple[object, ...]]:
            if host not in ("rebinder.test", b"rebinder.test"):
                return real(host, port, family, type, proto, flags)
            if flags & socket.AI_NUMERICHOST:
                raise socket.gaierror(socket.EAI_NONAME, "a name")
            found = answers.pop(0)
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (text, port)) for text in found]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        return answers

    async def test_a_name_is_resolved_once_and_the_checked_address_used(
        self, answers: list[list[str]], call: Call
    ) -> None:
        async with serving({"/": reply(b"here")}) as server:
            answers += [["127.0.0.1"], ["127.0.0.99"]]
            url = server.base.replace("127.0.0.1", "rebinder.test")
            text = await call(http_tool(LOCAL), url=url)
        assert text.endswith("here")
        assert answers == [["127.0.0.99"]]

    async def test_one_private_address_among_public_ones_is_enough_to_refuse(
        self, answers: list[list[str]], call: Call
    ) -> None:
        answers += [["1.1.1.1", "10.0.0.1"]]
        with pytest.raises(ToolFailure, match=r"is at 10\.0\.0\.1") as caught:
            await call(http_tool(HttpConfig()), url="http://rebinder.test/")
        assert caught.value.kind == "permission"


async def test_this_machine_is_refused_by_default(call: Call) -> None:
    async with serving({"/": reply(b"secret")}) as server:
        with pytest.raises(ToolFailure, match="not a public address"):
            await call(http_tool(HttpConfig()), url=server.base)
    assert server.requests == []


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    name = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(path), "-out", f"{path}.crt"]
    subprocess.run([*make.split(), *name, *files], check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


class TestTls:
    @pytest.fixture
    def server_context(self, certificate: Path) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        return context

    async def test_an_untrusted_certificate_is_refused_with_a_reason(
        self, web: Tool, call: Call, server_context: ssl.SSLContext
    ) -> None:
        async with serving({"/": reply(b"x")}, server_context) as server:
            with pytest.raises(ToolFailure, match="certificate is not trusted"):
                await call(web, url=server.base)
        assert server.requests == []

    async def test_a_trusted_certificate_is_accepted(
        self, certificate: Path, server_context: ssl.SSLContext
    ) -> None:
        trusting = ssl.create_default_context(cafile=certificate)
        client = WebClient(1000, True, refuse_unreadable, trusting)
        async with serving({"/": reply(b"hidden")}, server_context) as server:
            assert (await fetch(client, 20, server.base)).endswith("hidden")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "/etc/passwd",
        "file:///etc/passwd",
        "ftp://x/",
        "http://",
        "http://:80/",
        "https:x",
        "http://u@x/",
        "http://u:p@x/",
        "http://x:99999/",
        "http://x:a/",
        "http://x:0/",
        "http://[/",
    ],
)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        parse(url)
    assert caught.value.kind == "validation"


@pytest.mark.parametrize(
    ("url", "wire"),
    [
        (" HTTP://Example.COM ", "http://example.com/"),
        ("https://x:443/a b?q=ä#part", "https://x/a%20b?q=%C3%A4"),
        ("http://x:8080/%20?a=%26", "http://x:8080/%20?a=%26"),
        ("http://bücher.test/", "http://xn--bcher-kva.test/"),
        ("http://[::1]:80/", "http://[::1]/"),
    ],
)
def test_a_url_is_normalised(url: str, wire: str) -> None:
    assert parse(url).geturl() == wire


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_url_smuggles_a_header_in(path: str, query: str) -> None:
    """Law: a URL is refused with ``ToolFailure``, or is printable ASCII without spaces."""
    try:
        target = parse(f"http://x.test/{path}?{query}")
    except ToolFailure:
        return
    assert all("!" <= letter <= "~" for letter in target.path + target.query)
    assert target.netloc == "x.test"


BASE = "http://x.test/a/b"


def text_of(html: str) -> str:
    return readable(html, BASE)[1]


def test_title_headings_lists_and_links_are_kept() -> None:
    title, text = readable(
        "<html><head><title> A\n page </title><style>p {}</style></head><body><h2>Top</h2>"
        "<p>One   two<br>three <a href='../c?d=1'>there</a>.</p><ul><li>x<li>y</ul>"
        "<script>if (a < b) alert('</p>')</script>&amp;&eacute;",
        BASE,
    )
    assert title == "A page"
    assert text == ("## Top\n\nOne two\nthree there <http://x.test/c?d=1>.\n\n- x\n- y\n&é")


def test_preformatted_text_keeps_its_indentation() -> None:
    assert text_of("<pre>def f():\n    return 1\n</pre>") == "def f():\n    return 1"


@pytest.mark.parametrize("target", ["#top", "javascript:alert(1)", "data:text/html,x"])
def test_links_that_lead_nowhere_are_left_out(target: str) -> None:
    assert text_of(f'<a href="{target}">x</a>') == "x"


def test_hidden_text_ends_at_its_own_end_tag() -> None:
    assert text_of("a<svg><svg><text>b</text></svg>c</svg>d</svg>e") == "ade"


def test_conditional_comments_hide_nothing_else() -> None:
    assert text_of("a<!--[if IE]>b<![endif]-->c<![if !IE]>d<![endif]>e") == "acde"


def test_the_last_line_without_an_end_is_logged() -> None:
    assert text_of("<p>one &am") == "one &am"


@pytest.mark.parametrize("piece", ["<!--", "<a ", "<![", "</", "<?", "<svg>", "<x y='", "&#", "<"])
def test_a_hostile_document_is_not_slow(piece: str) -> None:
    text_of(piece * (MAX_HTML // 4 // len(piece)))


@given(
    st.lists(st.sampled_from(["<", ">", "a", "/", "!", "-", "[", "pre", "'", "=", "&", ";", "\0"]))
)
def test_no_document_is_refused(pieces: list[str]) -> None:
    """Law: every document has a text."""
    readable("".join(pieces), BASE)


def test_a_document_may_name_its_character_set() -> None:
    assert declared_charset(b'<meta charset="Shift_JIS">') == "Shift_JIS"
    assert declared_charset(b"<META http-equiv=x content='text/html; charset=koi8-r'>") == "koi8-r"
    assert declared_charset(b"<p>charset=x") is None
