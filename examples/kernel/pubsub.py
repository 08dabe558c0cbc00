"""Publish and subscribe: a slow subscriber with a small mailbox delays nobody, and misses some.

python examples/kernel/pubsub.py
"""

from __future__ import annotations

import trio

from motet.protocols.messages import Message
from motet.runtime import Actor, Group, MailboxSpec, handles, open_system


class Price(Message, frozen=True, tag="market.price"):
    cents: int


class Subscriber(Actor[Price]):
    def __init__(self, prices: Group[Price], seconds: float) -> None:
        self.prices, self.seconds = prices, seconds
        self.seen: list[int] = []

    async def on_start(self) -> None:
        self.prices.join(self.ref)

    @handles(Price)
    async def price(self, message: Price) -> None:
        await trio.sleep(self.seconds)
        self.seen.append(message.cents)

    async def on_stop(self) -> None:
        print(self.name, self.seen)


class Newest(Subscriber):
    mailbox = MailboxSpec(capacity=1, overflow="drop_oldest")


async def main() -> None:
    prices = Group[Price]("prices")
    async with open_system() as system:
        quick = await system.start(Subscriber, prices, 0.0, name="quick")
        slow = await system.start(Newest, prices, 0.01, name="slow")
        for cents in range(10, 15):
            prices.publish(Price(cents))
            await trio.sleep(0.001)
        await quick.drain()
        await slow.drain()
        print(prices.publish(Price(20)), "subscribers left")


if __name__ == "__main__":
    trio.run(main)
