"""Sessions that are passivated: one is made on its first message, and saved when it is idle.

python examples/kernel/session.py
"""

from __future__ import annotations

import trio

from motet.protocols.messages import Request
from motet.runtime import Actor, handles, open_system

SAVED: dict[str, list[str]] = {}  # a database, in a program of yours


class Add(Request[int], frozen=True, tag="session.add"):
    item: str


class Session(Actor[Add]):
    def __init__(self, user: str) -> None:
        self.user = user
        self.items = SAVED.get(user, [])
        print("loaded", user, self.items)

    @handles(Add)
    async def add(self, request: Add) -> int:
        self.items.append(request.item)
        return len(self.items)

    async def on_stop(self) -> None:
        SAVED[self.user] = self.items
        print("saved", self.user)


async def main() -> None:
    async with open_system() as system:
        sessions = await system.registry.kind("sessions", Session, idle_after=0.02)
        ann = sessions.ref("ann")
        print(await ann.ask(Add("tea")), await ann.ask(Add("milk")), sessions.live)
        while ann.is_live:
            await trio.sleep(0.01)
        print(sessions.live)
        print(await ann.ask(Add("bread")))


if __name__ == "__main__":
    trio.run(main)
