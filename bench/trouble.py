"""Two bad clients: ``python -m bench.trouble PORT LINE...``.

One subscribes and sends many requests but reads nothing, until the buffers of both directions are
full; when it is disconnected, it connects again. The other connects correctly, sends garbage, and
connects again. They run until they are killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Sequence

from bench.crowd import Client, masked

_QUESTIONS = (
    masked(b'{"type":"req","id":"9","method":"ping"}') * 200_000
)  # more than the buffers of any system
_AGAIN = 5.0  # seconds; a gateway waits for 10


def stuck(port: int, lines: Sequence[str]) -> Client:
    """A client with a full buffer, to which the gateway cannot write."""
    client = Client(port, room=4_096)
    client.welcomed()
    for line in lines:
        client.say(line)
        client.answered()
    client.socket.settimeout(0.1)
    with contextlib.suppress(OSError):
        client.socket.sendall(_QUESTIONS)
    return client


def nonsense(port: int, chance: random.Random) -> None:
    client = Client(port)
    client.welcomed()
    for _ in range(chance.randint(1, 5)):
        client.socket.sendall(chance.randbytes(chance.randint(1, 500)))
    client.socket.close()


def _main(port: int, lines: Sequence[str]) -> None:
    os.nice(19)  # what it computes itself is not the server's trouble
    chance = random.Random(0)
    deaf: list[Client] = []
    since = -_AGAIN
    while True:
        if time.monotonic() - since > _AGAIN:
            deaf.append(stuck(port, lines))
            since = time.monotonic()
            print("stuck", flush=True)
        with contextlib.suppress(OSError):
            nonsense(port, chance)
        time.sleep(0.01)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
