"""An event-sourced order: its events are stored, and its state is made from them at each start.

python examples/kernel/aggregate.py
"""

from __future__ import annotations

import trio

from motet.protocols.messages import Request
from motet.runtime import DomainEvent, EventSourced, Journal, MemoryJournal, handles, open_system


class Added(DomainEvent, frozen=True, tag="order.added"):
    item: str


class Paid(DomainEvent, frozen=True, tag="order.paid"):
    pass


class Add(Request[int], frozen=True, tag="order.add"):
    item: str


class Pay(Request[list[str]], frozen=True, tag="order.pay"):
    pass


class Order(EventSourced[Add | Pay, Added | Paid]):
    def __init__(self, journal: Journal, key: str) -> None:
        super().__init__(journal, f"order/{key}")
        self.items: list[str] = []
        self.paid = False

    def apply(self, event: Added | Paid) -> None:
        match event:
            case Added(item):
                self.items.append(item)
            case Paid():
                self.paid = True

    @handles(Add)
    async def add(self, request: Add) -> int:
        if self.paid:
            raise ValueError("it is paid")
        await self.persist(Added(request.item))
        return len(self.items)

    @handles(Pay)
    async def pay(self, _: Pay) -> list[str]:
        await self.persist(Paid())
        return self.items


async def main() -> None:
    journal = MemoryJournal()  # or motet.sqlite_journal.open_journal(path), for a file
    async with open_system() as system:
        order = await system.start(Order, journal, "17")
        print(await order.ask(Add("tea")), await order.ask(Add("milk")))
        await order.stop()
        order = await system.start(Order, journal, "17")
        print(await order.ask(Pay()))
        try:
            await order.ask(Add("bread"))
        except ValueError as error:
            print("refused:", error)


if __name__ == "__main__":
    trio.run(main)
