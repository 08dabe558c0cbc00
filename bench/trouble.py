"""Two clients that nobody wants: ``python -m bench.trouble PORT LINE...``.

One subscribes as all do and then reads nothing; the other connects rightly, sends rubbish, and
comes again. They go on until they are killed.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Sequence

from bench.crowd import Client


def _main(port: int, lines: Sequence[str]) -> None:
    stuck = Client(port)
    stuck.welcomed()
    for line in lines:
        stuck.say(line)
        stuck.answered()
    print("ready", flush=True)
    chance = random.Random(0)
    while True:
        with contextlib.suppress(OSError):
            client = Client(port)
            client.welcomed()
            for _ in range(chance.randint(1, 5)):
                client.socket.sendall(chance.randbytes(chance.randint(1, 500)))
            client.socket.close()
        time.sleep(0.01)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
