"""A cache whose entries end after a time: one timer with a key for each entry.

python examples/kernel/ttl_cache.py
"""

from __future__ import annotations

import trio

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, handles, open_system


class Put(Message, frozen=True, tag="cache.put"):
    key: str
    value: str
    seconds: float


class Get(Request[str | None], frozen=True, tag="cache.get"):
    key: str


class Expired(Message, frozen=True, tag="cache.expired"):
    key: str


class Cache(Actor[Put | Get | Expired]):
    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    @handles(Put)
    async def put(self, message: Put) -> None:
        self.entries[message.key] = message.value
        self.timers.once(message.seconds, Expired(message.key), key=message.key)

    @handles(Get)
    async def get(self, request: Get) -> str | None:
        return self.entries.get(request.key)

    @handles(Expired)
    async def expired(self, message: Expired) -> None:
        del self.entries[message.key]


async def main() -> None:
    async with open_system() as system:
        cache = await system.start(Cache)
        await cache.tell(Put("a", "tea", 0.05))
        await cache.tell(Put("b", "milk", 60))
        print(await cache.ask(Get("a")), await cache.ask(Get("b")))
        await cache.tell(Put("a", "coffee", 0.1))  # its time begins anew
        await trio.sleep(0.07)
        print(await cache.ask(Get("a")))
        await trio.sleep(0.1)
        print(await cache.ask(Get("a")), await cache.ask(Get("b")))


if __name__ == "__main__":
    trio.run(main)
