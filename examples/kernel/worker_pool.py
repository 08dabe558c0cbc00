"""A pool of workers: a job that crashes its worker costs no other job, and the pool drains.

python examples/kernel/worker_pool.py
"""

from __future__ import annotations

import trio

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, handles, open_system, start_pool


class Job(Message, frozen=True, tag="pool.job"):
    number: int


class Done(Message, frozen=True, tag="pool.done"):
    number: int
    result: int


class Results(Request[dict[int, int]], frozen=True, tag="pool.results"):
    pass


class Collector(Actor[Done | Results]):
    def __init__(self) -> None:
        self.results: dict[int, int] = {}

    @handles(Done)
    async def done(self, message: Done) -> None:
        self.results[message.number] = message.result

    @handles(Results)
    async def all(self, _: Results) -> dict[int, int]:
        return self.results


async def main() -> None:
    async with open_system() as system:
        collector = await system.start(Collector)

        class Worker(Actor[Job]):
            @handles(Job)
            async def work(self, job: Job) -> None:
                await trio.sleep(0.01)
                await collector.tell(Done(job.number, 60 // job.number))

        pool = await start_pool(system, Worker, size=3, route="least_loaded")
        for number in (1, 2, 0, 3, 4, 5):
            await pool.tell(Job(number))
        await pool.drain()
        print(sorted((await collector.ask(Results())).items()))
        print("lost:", [letter.message for letter in system.dead_letters])


if __name__ == "__main__":
    trio.run(main)
