"""A saga: a trip is booked step by step, and a step that fails undoes those before it.

python examples/kernel/saga.py
"""

from __future__ import annotations

import trio

from motet.protocols.messages import Request
from motet.runtime import Actor, ActorRef, handles, open_system


class Book(Request[str], frozen=True, tag="service.book"):
    trip: str


class Cancel(Request[None], frozen=True, tag="service.cancel"):
    booking: str


class Travel(Request[list[str]], frozen=True, tag="saga.travel"):
    trip: str


class Service(Actor[Book | Cancel]):
    def __init__(self, places: int) -> None:
        self.places = places

    @handles(Book)
    async def book(self, request: Book) -> str:
        if not self.places:
            raise LookupError(f"no {self.name} left")
        self.places -= 1
        return f"{self.name} for {request.trip}"

    @handles(Cancel)
    async def cancel(self, request: Cancel) -> None:
        self.places += 1
        print("cancelled:", request.booking)


class Saga(Actor[Travel]):
    def __init__(self, services: list[ActorRef[Book | Cancel]]) -> None:
        self.services = services

    @handles(Travel, concurrent=100)
    async def travel(self, request: Travel) -> list[str]:
        booked: list[tuple[ActorRef[Book | Cancel], str]] = []
        try:
            for service in self.services:
                booked.append((service, await service.ask(Book(request.trip), timeout=1)))
        except BaseException:  # also when its asker has left
            with trio.CancelScope(shield=True):
                for service, booking in reversed(booked):
                    await service.ask(Cancel(booking))
            raise
        return [booking for _, booking in booked]


async def main() -> None:
    async with open_system() as system:
        services = [
            await system.start(Service, places, name=name)
            for name, places in (("flight", 2), ("hotel", 2), ("car", 1))
        ]
        saga = await system.start(Saga, services)
        print(await saga.ask(Travel("Rome")))
        try:
            await saga.ask(Travel("Oslo"))
        except LookupError as error:
            print("failed:", error)


if __name__ == "__main__":
    trio.run(main)
