"""Bank accounts that survive ``kill -9``: event-sourced aggregates, without any agents.

    python examples/kernel/event_sourced_account.py bank.db alice +100 -30 +5
    python examples/kernel/event_sourced_account.py bank.db alice

Deposits and withdraws in turn, and prints the balance. Each amount that was printed is on disk.
An account is made when it is first used, from its newest snapshot and the events after it.
"""

from __future__ import annotations

import argparse
from typing import Any, ClassVar

import trio

from motet.protocols.messages import Request
from motet.runtime import DomainEvent, EventSourced, handles, open_system
from motet.sqlite_journal import open_journal


class Booked(DomainEvent, frozen=True, tag="account.booked"):
    """In cents since version 2; in euros before."""

    version: ClassVar[int] = 2
    cents: int

    @classmethod
    def upcast(cls, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        return {"cents": fields["euros"] * 100} if version == 1 else super().upcast(version, fields)


class Balanced(DomainEvent, frozen=True, tag="account.balanced"):
    """The snapshot: the balance after all bookings before it."""

    cents: int


class Book(Request[int], frozen=True, tag="account.book"):
    """Deposit, or withdraw if negative; the new balance."""

    cents: int


class Balance(Request[int], frozen=True, tag="account.balance"):
    pass


class Account(EventSourced[Book | Balance, Booked | Balanced]):
    balance = 0

    def apply(self, event: Booked | Balanced) -> None:
        self.balance = event.cents + (self.balance if isinstance(event, Booked) else 0)

    def snapshot(self) -> Balanced:
        return Balanced(self.balance)

    @handles(Book)
    async def book(self, request: Book) -> int:
        if self.balance + request.cents < 0:
            raise ValueError(f"there are only {self.balance / 100:.2f}")
        await self.persist(Booked(request.cents))
        return self.balance

    @handles(Balance)
    async def report(self, _: Balance) -> int:
        return self.balance


async def main(file: str, owner: str, amounts: list[float]) -> None:
    async with open_journal(file) as journal, open_system() as system:
        kind = await system.registry.kind("account", lambda key: Account(journal, f"account/{key}"))
        account = kind.ref(owner)
        for amount in amounts:
            try:
                left = await account.ask(Book(round(amount * 100)))
                print(f"{amount:+10.2f}{left / 100:10.2f}")
            except ValueError as error:
                print(f"{amount:+10.2f} refused: {error}")
        print(f"{owner} has {await account.ask(Balance()) / 100:.2f}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Book amounts on an account.")
    options.add_argument("file")
    options.add_argument("owner")
    options.add_argument("amounts", type=float, nargs="*")
    chosen = options.parse_args()
    trio.run(main, chosen.file, chosen.owner, chosen.amounts)
