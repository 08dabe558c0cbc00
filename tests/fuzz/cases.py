"""The frames and bytes of a hostile or broken client. Pure: a case is made from its seed alone.

Four kinds: bytes that are no HTTP, heads that nearly are, WebSocket frames that go against the
RFC, and frames of ``motet.v1`` from nonsense to what every method takes.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import random
import struct
from collections.abc import Callable
from typing import Final

import attrs
from msgspec import inspect as shapes

from motet.actors.gateway.methods import METHODS

TEXTS: Final = (
    "",
    "hi",
    "/stop",
    "/status",
    "/nonsense",
    "stop",
    "\u0000",
    "\ud800",
    "\u202e\u0007",
    "x" * 5_000,
    "run_1",
    "session:fuzz:1",
    "session:",
    "room:dev",
    "system",
    "fuzz:1",
    "fuzz:2",
    "calm",
    "echo",
    "'; DROP TABLE runs; --",
    "../../etc/passwd",
    "%s%n{0}",
)
NUMBERS: Final = (0, 1, -1, 2, 50, 200, 201, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**400)
NOTHING: Final[list[object]] = []
ODD: Final[tuple[object, ...]] = (
    None,
    True,
    1.5,
    1e308,
    -0.0,
    NOTHING,
    [NOTHING],
    {"a": None},
    "t",
)
VERBS: Final = (b"GET", b"HEAD", b"POST", b"PUT", b"OPTIONS", b"GE T", b"\x00", b"get")
TARGETS: Final = (b"/ws", b"/", b"/healthz", b"/metrics", b"/v1/chat/completions", b"/../x", b"*")
OPCODES: Final = (0, 1, 2, 3, 8, 9, 10, 11, 15)


@attrs.frozen
class Step:
    """Bytes to send, and whether the server's next word is waited for."""

    data: bytes
    wait: bool = False


@attrs.frozen
class Case:
    """One connection. ``reset``: it ends without a farewell."""

    seed: int
    steps: tuple[Step, ...]
    reset: bool


def case_of(seed: int, tokens: tuple[str, ...]) -> Case:
    """The case of a seed. ``tokens`` are good ones, so that some cases get further."""
    chance = random.Random(seed)
    makers = (_noise, _http, _socket, _protocol, _protocol, _protocol)
    steps = tuple(chance.choice(makers)(chance, tokens))
    return Case(seed, steps, chance.random() < 0.5)


# -- below WebSocket ---------------------------------------------------------------------------


def _noise(chance: random.Random, _tokens: tuple[str, ...]) -> list[Step]:
    return [Step(chance.randbytes(chance.choice((0, 1, 7, 300, 70_000))))]


def _http(chance: random.Random, _tokens: tuple[str, ...]) -> list[Step]:
    head = bytearray(_head(chance))
    for _ in range(chance.choice((0, 1, 3, 20))):
        at = chance.randrange(len(head))
        head[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
    return [Step(bytes(head), wait=True) for _ in range(chance.choice((1, 1, 3)))]


def _head(chance: random.Random) -> bytes:
    lines = [chance.choice(VERBS) + b" " + chance.choice(TARGETS) + b" HTTP/1.1"]
    offered = (
        b"Host: localhost",
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: " + base64.b64encode(chance.randbytes(16)),
        b"Sec-WebSocket-Protocol: motet.v1",
        b"Origin: https://elsewhere.example",
        b"Authorization: Bearer mtt_" + b"0" * 32,
        b"Content-Length: " + str(chance.choice(NUMBERS)).encode(),
        b"Transfer-Encoding: " + chance.choice((b"chunked", b"identity", b"chunked, chunked")),
        b"Content-Length: 0",
        b"X: a\r\n folded",
        b"X: " + b"y" * chance.choice((1, 9_000)),
        b"Expect: 100-continue",
    )
    lines += chance.sample(offered, chance.randrange(len(offered)))
    return b"\r\n".join([*lines, b"", b""])


def handshake(chance: random.Random) -> bytes:
    """A head that opens a WebSocket."""
    key = base64.b64encode(chance.randbytes(16))
    lines = (
        b"GET /ws HTTP/1.1",
        b"Host: localhost",
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: " + key,
        b"Sec-WebSocket-Protocol: motet.v1",
    )
    return b"\r\n".join([*lines, b"", b""])


# -- WebSocket ---------------------------------------------------------------------------------


def frame(payload: bytes, opcode: int = 1, *, first: int = 0x80, masked: bool = True) -> bytes:
    """A frame of RFC 6455; ``first`` has FIN and the reserved bits."""
    mask = os.urandom(4) if masked else b""
    bit = 0x80 if masked else 0
    if len(payload) < 126:
        head = struct.pack("!BB", first | opcode, bit | len(payload))
    elif len(payload) < 65_536:
        head = struct.pack("!BBH", first | opcode, bit | 126, len(payload))
    else:
        head = struct.pack("!BBQ", first | opcode, bit | 127, len(payload))
    if masked:
        times = len(payload) // 4 + 1
        number = int.from_bytes((mask * times)[: len(payload)], "big")
        payload = (int.from_bytes(payload, "big") ^ number).to_bytes(len(payload), "big")
    return head + mask + payload


def _socket(chance: random.Random, tokens: tuple[str, ...]) -> list[Step]:
    steps = [Step(handshake(chance), wait=True)]
    if chance.random() < 0.5:
        steps.append(_text(connect(chance, tokens), wait=True))
    for _ in range(chance.randrange(6)):
        steps.append(Step(_bad_frame(chance)))
    return steps


def _bad_frame(chance: random.Random) -> bytes:
    match chance.randrange(7):
        case 6:  # a message in parts, with something between them or wrong about them
            parts = [b"\xc3", b"\xa9", b"{}", b"\xff", b""]
            begun = frame(chance.choice(parts), chance.choice((0, 1, 2)), first=0)
            between = frame(b"x" * chance.choice((0, 125, 126)), chance.choice((8, 9, 10)))
            last = frame(chance.choice(parts), chance.choice((0, 0, 0, 1)))
            return begun + (between if chance.random() < 0.5 else b"") + last
        case 0:
            return chance.randbytes(chance.randrange(200))
        case 1:  # it claims more than it has
            return struct.pack("!BBQ", 0x81, 0xFF, chance.choice((2**20, 2**40, 2**63 - 1)))
        case 2:
            return frame(b"{}", masked=False)
        case 3:
            first = chance.choice((0x80, 0, 0xC0, 0xF0))
            return frame(
                chance.randbytes(chance.randrange(130)), chance.choice(OPCODES), first=first
            )
        case 4:
            return frame(chance.choice((b"\xff\xfe", b"\xed\xa0\x80", b"\x80")), 1)
        case _:
            return frame(struct.pack("!H", chance.choice((0, 999, 1005, 1000, 4999))) + b"bye", 8)


# -- motet.v1 ----------------------------------------------------------------------------------


def _text(text: str, *, wait: bool = False) -> Step:
    return Step(frame(text.encode("utf-8", "surrogatepass")), wait)


def connect(chance: random.Random, tokens: tuple[str, ...]) -> str:
    """A first frame, mostly a good one."""
    token = chance.choice(tokens) if chance.random() < 0.9 else "mtt_" + "0" * 32
    resume = {f"session:fuzz:{chance.randrange(3)}": chance.choice((0, 1, 10**6))}
    params: dict[str, object] = {"auth": {"token": token}}
    if chance.random() < 0.5:
        params["resume"] = resume
    return request("0", "connect", params)


def request(request_id: object, method: object, params: object) -> str:
    return json.dumps({"type": "req", "id": request_id, "method": method, "params": params})


def _protocol(chance: random.Random, tokens: tuple[str, ...]) -> list[Step]:
    steps = [Step(handshake(chance), wait=True)]
    if chance.random() < 0.9:
        steps.append(_text(connect(chance, tokens), wait=True))
    for number in range(chance.randrange(1, 25)):
        steps.append(_text(_said(chance, number), wait=chance.random() < 0.3))
    return steps


def _said(chance: random.Random, number: int) -> str:
    match chance.randrange(10):
        case 0:
            return json.dumps(_any(chance))
        case 1:
            return "[" * chance.choice((1, 500, 60_000))
        case 2:
            return request(chance.choice(ODD), chance.choice(TEXTS), _any(chance))
        case 3:
            return _scratched(chance, request("9", "chat.send", {"session": "fuzz:1"}))
        case _:
            name = chance.choice(tuple(METHODS))
            return request(str(chance.choice((number, 1))), name, _params(chance, name))


def _scratched(chance: random.Random, text: str) -> str:
    at = chance.randrange(len(text))
    return text[:at] + chance.choice(TEXTS) + text[at + chance.randrange(4) :]


def _params(chance: random.Random, method: str) -> object:
    """What the method takes, with something wrong now and then."""
    if chance.random() < 0.1:
        return _any(chance)
    kind: type = inspect.getclosurevars(METHODS[method].call).nonlocals["params"]
    info = shapes.type_info(kind)
    assert isinstance(info, shapes.StructType)
    given: dict[str, object] = {}
    for field in info.fields:
        if field.required or chance.random() < 0.4:
            right = chance.random() < 0.9
            given[field.encode_name] = _value(chance, field.type) if right else _any(chance)
    return given


def _value(chance: random.Random, kind: shapes.Type) -> object:
    match kind:
        case shapes.UnionType(types=types):
            return _value(chance, chance.choice(types))
        case shapes.LiteralType(values=values):
            return chance.choice(values)
        case shapes.StrType():
            return chance.choice(TEXTS)
        case shapes.IntType() | shapes.FloatType():
            return chance.choice((*NUMBERS[:-1], 0.5, 1e308))
        case shapes.BoolType():
            return chance.random() < 0.5
        case shapes.NoneType():
            return None
        case shapes.StructType(fields=fields):
            return {field.encode_name: _value(chance, field.type) for field in fields}
        case _:
            return _any(chance)


def _any(chance: random.Random) -> object:
    pools: tuple[Callable[[], object], ...] = (
        lambda: chance.choice(TEXTS),
        lambda: chance.choice(NUMBERS),
        lambda: chance.choice(ODD),
        lambda: {chance.choice(TEXTS): chance.choice(ODD) for _ in range(3)},
    )
    return chance.choice(pools)()
