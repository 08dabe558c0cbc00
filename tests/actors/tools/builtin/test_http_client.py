"""Addresses that may be fetched, and the text of a response."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from ipaddress import IPv4Address, ip_address

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.telemetry.http import Body
from motet.actors.tools.builtin.http_client import connect, decode, resolve
from motet.protocols.tools import ToolFailure


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f.1", "0", "::1", "::ffff:7f00:1"])
async def test_every_spelling_of_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ToolFailure, match="not a public address"):
        await resolve(host, 80, allow_private=False)


async def test_a_private_address_is_given_when_that_is_allowed() -> None:
    assert await resolve("127.0.0.1", 80, allow_private=True) == (IPv4Address("127.0.0.1"),)


@pytest.mark.parametrize("host", ["a" * 70, "x..y", "\udc80"])
async def test_a_name_that_cannot_be_one_is_not_found(host: str) -> None:
    with pytest.raises(ToolFailure, match="no address is known"):
        await resolve(host, 80, allow_private=True)


async def test_the_next_address_is_tried_when_one_refuses() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    addresses = [ip_address("127.0.0.2"), ip_address("127.0.0.1")]
    async with listener, await connect("two", port, addresses) as stream:
        assert stream.socket.getpeername()[0] == "127.0.0.1"


async def test_a_refused_connection_has_a_reason() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    with pytest.raises(ToolFailure, match=r"cannot connect to here:\d+: Connection refused"):
        await connect("here", port, [ip_address("127.0.0.1")])


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


CODINGS = [
    ("", bytes),
    ("identity", bytes),
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
]


def fed(body: Body, data: bytes, step: int) -> Body:
    for start in range(0, len(data), step):
        if body.add(data[start : start + step]):
            break
    return body


@given(st.sampled_from(CODINGS), st.binary(max_size=200), st.integers(1, 50), st.integers(1, 300))
def test_a_compressed_body_is_read_up_to_the_limit(
    coding: tuple[str, Callable[[bytes], bytes]], data: bytes, step: int, room: int
) -> None:
    """Law: in any chunks, the body is the compressed data cut to the limit."""
    name, pack = coding
    packed = pack(data)
    limit = max(room, len(packed))
    body = fed(Body(name, limit), packed, step)
    assert body.data == data[:limit]
    assert body.cut == (len(data) > limit)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_bomb_is_cut_at_the_limit(pack: Callable[[bytes], bytes]) -> None:
    bomb = pack(bytes(50_000_000))
    body = fed(Body("deflate" if pack is zlib.compress else "gzip", 100_000), bomb, 4096)
    assert body.cut
    assert len(body.data) == 100_000


def test_members_without_content_do_not_go_on_forever() -> None:
    body = Body("gzip", 1000)
    assert fed(body, gzip.compress(b"") * 1000, 100).cut
    assert body.data == b""


def test_several_members_are_one_body() -> None:
    assert fed(Body("gzip", 1000), gzip.compress(b"a") + gzip.compress(b"b"), 7).data == b"ab"


def test_padding_after_the_end_is_ignored() -> None:
    assert fed(Body("gzip", 1000), gzip.compress(b"a") + b"\0" * 20, 7).data == b"a"


def test_data_in_another_encoding_than_declared_is_an_error() -> None:
    with pytest.raises(zlib.error):
        Body("gzip", 1000).add(b"no gzip at all")


@pytest.mark.parametrize("name", ["br", "zstd", "gzip, gzip"])
def test_an_unknown_encoding_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Body(name, 1000)


@pytest.mark.parametrize(
    ("data", "charset", "text"),
    [
        ("é".encode(), None, "é"),
        ("é".encode("latin-1"), "ISO-8859-1", "é"),
        ("あ".encode("shift_jis"), "Shift_JIS", "あ"),
        ("é".encode("utf-16"), "latin-1", "é"),
        ("é".encode("utf-8-sig"), "latin-1", "é"),
        (b"\xff", "utf-8", "\ufffd"),
        (b"x", "no-such-charset", "x"),
        (b"x", "zip", "x"),
        (b"x", "punycode", "x"),
        (b"x", "a\0b", "x"),
    ],
)
def test_a_byte_order_mark_decides_then_the_name_then_utf_8(
    data: bytes, charset: str | None, text: str
) -> None:
    assert decode(data, charset) == text


@given(st.binary(max_size=50), st.text(max_size=12) | st.none())
def test_any_bytes_have_a_text(data: bytes, charset: str | None) -> None:
    """Law: decoding never fails."""
    decode(data, charset)
