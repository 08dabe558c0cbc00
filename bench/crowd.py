"""Many WebSocket clients in a separate process, which only read.

They implement a minimum of the protocol on plain sockets, to be cheap: only the server is measured.
``python -m bench.crowd PORT SIZE LINE...`` sends each client's lines, reads the answers, then
counts the frames of all clients and reports each time that all have one more burst.
"""

from __future__ import annotations

import base64
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

__all__ = ["BURST", "EVENTS", "Client", "Crowd", "masked"]

BURST = 20
"""Frames that a server sends before it waits until all clients have them."""
EVENTS = 200
"""Frames for each client in a measurement of frames per second."""
_BUFFER = 262_144
_TICK = b'"event":"tick"'


class Crowd:
    """Start the process. ``lines``: the messages of each new client; each gets an answer."""

    def __init__(self, port: int, size: int, lines: Sequence[str]) -> None:
        command = [sys.executable, "-m", "bench.crowd", str(port), str(size), *lines]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        self._reached = 0
        self._read("ready")

    def reached(self, count: int) -> None:
        """Block until every client has got ``count`` frames."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        self._read(str(count))

    def arrivals(self, count: int) -> list[float]:
        """As :meth:`reached`; returns when each client got its last frame, in monotonic time."""
        self.reached(count)
        assert self._process.stdin is not None
        self._process.stdin.write("when\n")
        self._process.stdin.flush()
        return [float(word) for word in self._line().split()]

    def _read(self, wanted: str) -> None:
        line = self._line()
        if line != wanted:
            raise RuntimeError(f"the clients said {line!r}, not {wanted!r}")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


class Client:
    """One socket.

    ``frames`` counts the frames since :meth:`say`; ``at`` is the time of the last ones.
    """

    def __init__(self, port: int, room: int | None = None) -> None:
        """``room``: size of the socket's receive buffer, in bytes."""
        self.socket = socket.socket()
        if room is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        self.socket.connect(("127.0.0.1", port))
        self._rest = b""
        self.frames, self.at = 0, 0.0
        key = base64.b64encode(os.urandom(16)).decode()
        head = (
            "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
        )
        self.socket.sendall(head.encode())

    def welcomed(self) -> None:
        """Read the answer to the handshake."""
        got = b""
        while b"\r\n\r\n" not in got:
            got += self._received()
        head, _, self._rest = got.partition(b"\r\n\r\n")
        if b" 101 " not in head.partition(b"\r\n")[0]:
            raise ConnectionError(f"no WebSocket: {head!r}")

    def say(self, line: str) -> None:
        self.frames = 0
        self.socket.sendall(masked(line.encode()))

    def answered(self) -> None:
        while not self.frames:
            self.read()
        self.frames = 0

    def _received(self) -> bytes:
        data = self.socket.recv(_BUFFER)
        if not data:
            raise ConnectionError("the server has closed the connection")
        return data

    def read(self) -> None:
        """Read the available data; counts the complete text frames."""
        data = self._rest + self._received()
        self.at = time.monotonic()
        at, size = 0, len(data)
        while size - at >= 2:
            length, start = data[at + 1] & 0x7F, at + 2
            if length == 126:
                length, start = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
            elif length == 127:
                length, start = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
            if start + length > size:
                break
            is_text = data[at] & 0x0F == 1
            self.frames += is_text and data.find(_TICK, start, start + length) < 0
            at = start + length
        self._rest = data[at:]


def masked(payload: bytes) -> bytes:
    """A text frame of a client, with a mask of zeros, which is valid."""
    size = len(payload)
    head = bytes((0x81, 0x80 | size)) if size < 126 else b"\x81\xfe" + size.to_bytes(2, "big")
    return head + b"\0\0\0\0" + payload


def _main(port: int, size: int, lines: Sequence[str]) -> None:
    clients: list[Client] = []
    for start in range(0, size, 50):  # no more than a listener takes at once
        clients += (new := [Client(port) for _ in range(start, min(start + 50, size))])
        for client in new:
            client.welcomed()
        for line in lines:
            for client in new:
                client.say(line)
            for client in new:
                client.answered()
    print("ready", flush=True)
    with selectors.DefaultSelector() as selector:
        for client in clients:
            client.socket.setblocking(False)
            selector.register(client.socket, selectors.EVENT_READ, client)
        for line in sys.stdin:
            if line == "when\n":
                print(*(client.at for client in clients), flush=True)
                continue
            wanted = int(line)
            missing = sum(1 for client in clients if client.frames < wanted)
            while missing:
                for key, _ in selector.select():
                    client = key.data
                    before = client.frames
                    client.read()
                    missing -= before < wanted <= client.frames
            print(wanted, flush=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
