"""``websockets`` on asyncio: the same frame to a thousand clients."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed

from bench.clock import Watch
from bench.crowd import BURST, Crowd

__all__ = ["fan_out"]


def fan_out(count: int) -> float:
    return asyncio.run(_fan_out(count))


async def _fan_out(count: int) -> float:
    """Frames a second that reached their client; ``count`` for each of them."""
    clients: set[ServerConnection] = set()

    async def stay(connection: ServerConnection) -> None:
        clients.add(connection)
        with suppress(ConnectionClosed):
            async for _ in connection:
                pass
        clients.discard(connection)

    async with serve(stay, "127.0.0.1", 0, compression=None) as server:
        port = int(server.sockets[0].getsockname()[1])
        crowd = await asyncio.to_thread(Crowd, port, ())
        with crowd:
            while len(clients) < crowd.size:
                await asyncio.sleep(0.01)
            watch = Watch()
            for start in range(0, count, BURST):
                for number in range(start, min(start + BURST, count)):
                    broadcast(clients, _frame(number))
                    await asyncio.sleep(0)
                await asyncio.to_thread(crowd.reached, min(start + BURST, count))
            return watch.rate(count * crowd.size)


def _frame(number: int) -> str:
    """As long as an event of a host, encoded once."""
    data = {"role": "assistant", "author": "agent", "text": f"{number:06} " + "x" * 80, "i": 0}
    event = {
        "type": "event", "stream": "session:s", "event": "message",
        "ts": 1795244701.5, "data": data, "seq": number + 1, "run_id": "run_0",
    }  # fmt: skip
    return json.dumps(event, separators=(",", ":"))
