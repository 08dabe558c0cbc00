"""Clients that break the WebSocket protocol, on a real socket: each is told so by a Close frame.

The cases are of the kinds that Autobahn's fuzzing client has (RFC 6455, sections 5 to 8).
"""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.gateway.context import Context
from motet.actors.gateway.server import serve_listeners
from motet.protocols.gateway import Limits
from motet.protocols.websocket import FrameHeaders
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import context_of
from tests.actors.gateway.test_http import upgrade

PROTOCOL, INVALID, TOO_LARGE = 1002, 1007, 1009
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
CONNECT = b'{"type":"req","id":"c","method":"connect","params":{"protocol":{"min":1,"max":1}}}'


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True
) -> bytes:
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    size, bit = len(payload), 0x80 if masked else 0
    if size < 126:
        head = bytes((first, bit | size))
    elif size < 65_536:
        head = bytes((first, bit | 126)) + struct.pack("!H", size)
    else:
        head = bytes((first, bit | 127)) + struct.pack("!Q", size)
    mask = b"\x01\x02\x03\x04"
    if not masked:
        return head + payload
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason)


@asynccontextmanager
async def opened(context: Context | None = None) -> AsyncGenerator[trio.SocketStream]:
    """A client whose handshake is over."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_listeners, context or context_of(FakeHost()), listeners)
        port = listeners[0].socket.getsockname()[1]
        async with await trio.open_tcp_stream("127.0.0.1", port) as client:
            await client.send_all(upgrade())
            head = b""
            while b"\r\n\r\n" not in head:
                head += await client.receive_some(1)
            assert head.startswith(b"HTTP/1.1 101")
            yield client
        nursery.cancel_scope.cancel()


def frames(data: bytes) -> list[tuple[int, bytes]]:
    """The frames of a server: never masked, never in parts."""
    found: list[tuple[int, bytes]] = []
    while data:
        size, at = data[1], 2
        assert data[0] & 0xF0 == 0x80
        assert size < 128
        if size == 126:
            size, at = struct.unpack("!H", data[2:4])[0], 4
        elif size == 127:
            size, at = struct.unpack("!Q", data[2:10])[0], 10
        found.append((data[0] & 0x0F, data[at : at + size]))
        assert len(found[-1][1]) == size
        data = data[at + size :]
    return found


async def answered(*parts: bytes, context: Context | None = None) -> list[tuple[int, bytes]]:
    """All frames that the server sends until it has ended its side."""
    received = b""
    with trio.fail_after(20):
        async with opened(context) as client:
            with suppress(trio.BrokenResourceError):  # it may have closed already
                for part in parts:
                    await client.send_all(part)
            while chunk := await client.receive_some():
                received += chunk
    return frames(received)


async def code_of(*parts: bytes, context: Context | None = None) -> int:
    """The code of the one Close frame, which is the last frame."""
    every = await answered(*parts, context=context)
    assert [opcode for opcode, _ in every].count(CLOSE) == 1
    opcode, payload = every[-1]
    assert opcode == CLOSE
    assert len(payload) <= 125
    payload[2:].decode()
    return int(struct.unpack("!H", payload[:2])[0])


HALF = "é".encode()[:1]
LONE_SURROGATE = b"\xed\xa0\x80"
ERRORS: dict[str, tuple[int, bytes]] = {
    **{f"reserved bits {rsv}": (PROTOCOL, frame(TEXT, b"a", rsv=rsv)) for rsv in range(1, 8)},
    "reserved bit of a ping": (PROTOCOL, frame(PING, rsv=4)),
    "reserved bit of a close": (PROTOCOL, frame(CLOSE, rsv=1)),
    **{
        f"reserved opcode {opcode}": (PROTOCOL, frame(opcode, b"a"))
        for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)
    },
    "ping in parts": (PROTOCOL, frame(PING, b"a", fin=False)),
    "pong in parts": (PROTOCOL, frame(PONG, fin=False)),
    "close in parts": (PROTOCOL, frame(CLOSE, fin=False)),
    "ping of 126 bytes": (PROTOCOL, frame(PING, b"x" * 126)),
    "pong of 126 bytes": (PROTOCOL, frame(PONG, b"x" * 126)),
    "close of 126 bytes": (PROTOCOL, close(1000, b"x" * 124)),
    "ping of 65,536 bytes": (PROTOCOL, frame(PING, b"x" * 65_536)),
    "continuation of nothing": (PROTOCOL, frame(0, b"a")),
    "continuation of nothing, to go on": (PROTOCOL, frame(0, b"a", fin=False)),
    "continuation after the end": (PROTOCOL, frame(PING) + frame(0, b"a")),
    "text inside a text": (PROTOCOL, frame(TEXT, b"a", fin=False) + frame(TEXT, b"b")),
    "binary inside a text": (PROTOCOL, frame(TEXT, b"a", fin=False) + frame(BINARY, b"b")),
    "text without a mask": (PROTOCOL, frame(TEXT, b"hello", masked=False)),
    "ping without a mask": (PROTOCOL, frame(PING, masked=False)),
    "a longer length than needed": (PROTOCOL, b"\x81\xfe\x00\x05" + bytes(9)),
    "the longest length than needed": (PROTOCOL, b"\x81\xff" + struct.pack("!Q", 5) + bytes(9)),
    "a length with its highest bit": (PROTOCOL, b"\x81\xff\x80" + bytes(11)),
    "text with a wrong byte": (INVALID, frame(TEXT, b"a\xff")),
    "text with half a character": (INVALID, frame(TEXT, b"a" + HALF)),
    "text with a surrogate": (INVALID, frame(TEXT, LONE_SURROGATE)),
    "text with an overlong character": (INVALID, frame(TEXT, b"\xc0\xaf")),
    "text beyond Unicode": (INVALID, frame(TEXT, b"\xf4\x90\x80\x80")),
    "a wrong byte in the second part": (
        INVALID,
        frame(TEXT, b"a", fin=False) + frame(0, b"\xff"),
    ),
    "half a character at the end of the parts": (
        INVALID,
        frame(TEXT, b"a", fin=False) + frame(PING) + frame(0, HALF),
    ),
    "a wrong byte before the end of the text": (INVALID, frame(TEXT, b"\xff", fin=False)),
    "reason with a wrong byte": (INVALID, close(1000, b"\xff")),
    "reason with half a character": (INVALID, close(1000, HALF)),
    "close of one byte": (PROTOCOL, frame(CLOSE, b"\x03")),
    **{
        f"close with {code}": (PROTOCOL, close(code))
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535)
    },
}


@pytest.mark.parametrize("name", ERRORS)
async def test_an_error_of_the_protocol_gets_a_close_frame(name: str) -> None:
    code, sent = ERRORS[name]
    assert await code_of(sent) == code


@pytest.mark.parametrize("name", list(ERRORS)[::7])
async def test_so_it_does_byte_for_byte_and_after_the_connect(name: str) -> None:
    code, sent = ERRORS[name]
    connect = frame(TEXT, CONNECT)
    assert await code_of(connect, *(sent[at : at + 1] for at in range(6)), sent[6:]) == code
    assert await code_of(connect + sent) == code


async def test_a_character_in_two_parts_is_one() -> None:
    first, second = frame(TEXT, b'"' + HALF, fin=False), frame(0, "é".encode()[1:] + b'"')
    every = await answered(first, frame(PING, b"now"), second)
    assert (PONG, b"now") in every
    assert any(opcode == TEXT and b"bad_frame" in payload for opcode, payload in every)


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1011, 3000, 3999, 4000, 4999])
async def test_a_close_is_answered_with_its_own_code(code: int) -> None:
    assert await code_of(close(code, b"bye")) == code


async def test_a_close_without_a_code_is_answered_and_nothing_after_it_is_read() -> None:
    context = context_of(FakeHost())
    every = await answered(frame(CLOSE) + frame(TEXT, CONNECT) + frame(3), context=context)
    assert [opcode for opcode, _ in every] == [CLOSE]
    assert context.counts.total["failed"] == 0


async def test_a_frame_above_the_limit_is_refused_as_too_large() -> None:
    context = context_of(FakeHost())
    size = context.settings.limits.frame + 1
    assert await code_of(frame(TEXT, b"x" * size), context=context) == TOO_LARGE


@pytest.mark.parametrize("size", [Limits().frame + 1, 1 << 40])
@pytest.mark.parametrize("before", [b"", frame(TEXT, CONNECT)], ids=["first", "later"])
async def test_a_frame_above_the_limit_is_refused_before_its_bytes_have_come(
    before: bytes, size: int
) -> None:
    head = b"\x81\xff" + struct.pack("!Q", size)
    assert await code_of(before + head) == TOO_LARGE
    assert await code_of(before, head[:5], head[5:]) == TOO_LARGE


@given(
    st.lists(st.tuples(st.integers(0, 300), st.booleans())),
    st.integers(126, 1 << 63),
    st.lists(st.integers(0, 400)),
)
def test_headers_are_found_in_any_parts(
    sizes: list[tuple[int, bool]], large: int, cuts: list[int]
) -> None:
    every = b"".join(frame(TEXT, b"x" * size, masked=masked) for size, masked in sizes)
    wide = 2 if large < 65_536 else 8
    last = bytes((0x81, 0xFE if wide == 2 else 0xFF)) + large.to_bytes(wide, "big")
    limit = max([125, *(size for size, _ in sizes)])
    headers, rest, taken = FrameHeaders(limit), every + last + b"payload", 0
    for cut in [*cuts, len(rest)]:
        part, rest = rest[:cut], rest[cut:]
        taken += headers.take(part)
    assert headers.too_large == (large > limit)
    assert taken == len(every + last) + (0 if large > limit else len(b"payload"))


async def test_a_client_that_breaks_the_protocol_and_never_leaves_is_cut_off() -> None:
    with trio.fail_after(20):
        async with opened() as client:
            await client.send_all(frame(3))
            data = b""
            while chunk := await client.receive_some():
                data += chunk
            assert frames(data)[-1][0] == CLOSE
            # The server reads and discards for a second, then it closes.
            with suppress(trio.BrokenResourceError):
                while True:
                    await client.send_all(bytes(65_536))
