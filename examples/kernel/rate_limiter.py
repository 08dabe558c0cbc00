"""A rate limiter: callers wait for a permit without a thread or a task, and may give up.

python examples/kernel/rate_limiter.py
"""

from __future__ import annotations

from collections import deque

import trio

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, AskTimeout, ReplyTo, handles, open_system


class Permit(Request[int], frozen=True, tag="limiter.permit"):
    pass


class Refill(Message, frozen=True, tag="limiter.refill"):
    pass


class Limiter(Actor[Permit | Refill]):
    def __init__(self, burst: int, period: float) -> None:
        self.burst, self.left, self.period, self.given = burst, burst, period, 0
        self.waiting: deque[ReplyTo[int]] = deque()

    async def on_start(self) -> None:
        self.timers.every(self.period, Refill())

    @handles(Permit, later=True)
    async def permit(self, request: Permit) -> int | ReplyTo[int]:
        if self.left:
            self.left -= 1
            self.given += 1
            return self.given
        self.waiting.append(self.reply_later(request))
        return self.waiting[-1]

    @handles(Refill)
    async def refill(self, _: Refill) -> None:
        while self.waiting:
            if self.waiting.popleft().send(self.given + 1):  # False: its asker has left
                self.given += 1
                return
        self.left = min(self.burst, self.left + 1)


async def main() -> None:
    async with open_system() as system, trio.open_nursery() as nursery:
        limiter = await system.start(Limiter, 2, 0.05)

        async def call() -> None:
            print("permit", await limiter.ask(Permit()))

        for _ in range(4):
            nursery.start_soon(call)
        await trio.sleep(0.01)
        try:
            await limiter.ask(Permit(), timeout=0.01)
        except AskTimeout:
            print("gave up")


if __name__ == "__main__":
    trio.run(main)
