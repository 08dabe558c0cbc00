"""A bank: accounts are actors, and a transfer is two asks, of which the first may be refused.

python examples/kernel/bank.py
"""

from __future__ import annotations

import trio

from motet.protocols.messages import Request
from motet.runtime import Actor, ActorRef, handles, open_system


class Deposit(Request[int], frozen=True, tag="account.deposit"):
    cents: int


class Withdraw(Request[int], frozen=True, tag="account.withdraw"):
    cents: int


class Transfer(Request[None], frozen=True, tag="bank.transfer"):
    source: str
    target: str
    cents: int


class Account(Actor[Deposit | Withdraw]):
    def __init__(self, balance: int) -> None:
        self.balance = balance

    @handles(Deposit)
    async def deposit(self, request: Deposit) -> int:
        self.balance += request.cents
        return self.balance

    @handles(Withdraw)
    async def withdraw(self, request: Withdraw) -> int:
        if request.cents > self.balance:
            raise ValueError(f"only {self.balance} cents in {self.name}")
        self.balance -= request.cents
        return self.balance


class Bank(Actor[Transfer]):
    accounts: dict[str, ActorRef[Deposit | Withdraw]]

    async def on_start(self) -> None:
        self.accounts = {
            name: await self.start_child(Account, balance, name=name)
            for name, balance in (("alice", 100), ("bob", 50))
        }

    @handles(Transfer, concurrent=8)
    async def transfer(self, request: Transfer) -> None:
        left = await self.accounts[request.source].ask(Withdraw(request.cents))
        there = await self.accounts[request.target].ask(Deposit(request.cents))
        print(f"{request.source} has {left}, {request.target} has {there}")


async def main() -> None:
    async with open_system() as system:
        bank = await system.start(Bank)
        for transfer in (Transfer("alice", "bob", 30), Transfer("bob", "alice", 500)):
            try:
                await bank.ask(transfer)
            except ValueError as error:
                print("refused:", error)


if __name__ == "__main__":
    trio.run(main)
