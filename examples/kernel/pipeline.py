"""A supervised pipeline without any agents: a tailer, a parser that crashes, and a counter.

    python examples/kernel/pipeline.py app.log --follow 10

Counts the lines of a log by level and prints the counts. It reads to the end of the file or, with
``--follow``, for some seconds while the file grows. The parser does not handle lines it cannot
read: it crashes and is restarted, and only that line is lost. Lost lines are printed too.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter as Counts
from functools import partial

import trio

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorRef, MailboxSpec, Supervision, System, handles, open_system

LEVELS = ("debug", "info", "warning", "error")


class Read(Request[None], frozen=True, tag="tailer.read"):
    path: str
    follow: bool


class Line(Message, frozen=True, tag="parser.line"):
    number: int
    text: str


class Parsed(Request[None], frozen=True, tag="parser.parsed"):
    """Answered when all lines before it have been parsed."""


class Entry(Message, frozen=True, tag="counter.entry"):
    level: str


class Totals(Request[dict[str, int]], frozen=True, tag="counter.totals"):
    pass


class Counter(Actor[Entry | Totals]):
    def __init__(self) -> None:
        self.counts = Counts[str]()

    @handles(Entry)
    async def count(self, entry: Entry) -> None:
        self.counts[entry.level] += 1

    @handles(Totals)
    async def totals(self, _: Totals) -> dict[str, int]:
        return dict(self.counts)


class Parser(Actor[Line | Parsed]):
    mailbox = MailboxSpec(capacity=16)  # a faster tailer waits

    def __init__(self, counter: ActorRef[Entry]) -> None:
        self.counter = counter

    @handles(Line)
    async def parse(self, line: Line) -> None:
        level = line.text.split(maxsplit=1)[0].lower()
        if level not in LEVELS:
            raise ValueError(f"no level: {level!r}")
        await self.counter.tell(Entry(level))

    @handles(Parsed)
    async def parsed(self, _: Parsed) -> None:
        """Nothing to do: the mailbox keeps its order."""


class Tailer(Actor[Read]):
    def __init__(self, parser: ActorRef[Line]) -> None:
        self.parser = parser

    @handles(Read)
    async def read(self, request: Read) -> None:
        """Read to the end of the file; with ``follow``, until the asker is cancelled."""
        async with await trio.open_file(request.path, encoding="utf-8") as file:
            number, begun = 0, ""
            while True:
                begun += await file.readline()
                if begun.endswith("\n"):
                    number += 1
                    await self.parser.tell(Line(number, begun))
                    begun = ""
                elif request.follow:
                    await trio.sleep(0.1)
                else:
                    return


async def pipeline(system: System, path: str, seconds: float | None) -> dict[str, int]:
    """Start the three actors, each after those it needs, and let them work."""
    counter = await system.start(Counter, name="counter")
    parser = await system.start(partial(Parser, counter), name="parser")
    tailer = await system.start(partial(Tailer, parser), name="tailer")
    with trio.move_on_after(math.inf if seconds is None else seconds):
        await tailer.ask(Read(path, follow=seconds is not None))
    # Here the tailer's handler has ended and its file is closed.
    await parser.ask(Parsed())
    return await counter.ask(Totals())


async def main(path: str, seconds: float | None) -> None:
    # A log may have many bad lines: only more than a hundred a second count as a defect.
    async with open_system(supervision=Supervision(intensity=100, period=1)) as system:
        for level, count in sorted((await pipeline(system, path, seconds)).items()):
            print(f"{level:8}{count:6}")
        for letter in system.dead_letters:
            print(f"lost: {letter.message}: {letter.reason}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Count the lines of a log by level.")
    options.add_argument("path")
    options.add_argument("--follow", type=float, metavar="SECONDS", help="read on as it grows")
    chosen = options.parse_args()
    trio.run(main, chosen.path, chosen.follow)
