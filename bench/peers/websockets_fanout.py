"""``websockets`` on asyncio: the same frame to many clients."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed

from bench.clock import Watch
from bench.crowd import BURST, EVENTS, Crowd

__all__ = ["fan_out", "fan_out_singly"]


def fan_out(count: int) -> float:
    return asyncio.run(_fan_out(count, BURST))


def fan_out_singly(count: int) -> float:
    return asyncio.run(_fan_out(count, 1))


async def _fan_out(count: int, burst: int) -> float:
    """Frames a second that reached one of ``count`` clients."""
    clients: set[ServerConnection] = set()

    async def stay(connection: ServerConnection) -> None:
        clients.add(connection)
        with suppress(ConnectionClosed):
            async for _ in connection:
                pass
        clients.discard(connection)

    async with serve(stay, "127.0.0.1", 0, compression=None) as server:
        port = int(server.sockets[0].getsockname()[1])
        crowd = await asyncio.to_thread(Crowd, port, count, ())
        with crowd:
            while len(clients) < count:
                await asyncio.sleep(0.01)
            watch = Watch()
            for start in range(0, EVENTS, burst):
                for number in range(start, start + burst):
                    broadcast(clients, _frame(number))
                    await asyncio.sleep(0)
                await asyncio.to_thread(crowd.reached, start + burst)
            return watch.rate(EVENTS * count)


def _frame(number: int) -> str:
    """As long as an event of a host, encoded once."""
    data = {"role": "assistant", "author": "agent", "text": f"{number:06} " + "x" * 80, "i": 0}
    event = {
        "type": "event", "stream": "session:s", "event": "message",
        "ts": 1795244701.5, "data": data, "seq": number + 1, "run_id": "run_0",
    }  # fmt: skip
    return json.dumps(event, separators=(",", ":"))
