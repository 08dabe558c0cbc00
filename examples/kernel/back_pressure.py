"""A pipeline with back-pressure: a slow last stage holds back the source, through the mailboxes.

python examples/kernel/back_pressure.py
"""

from __future__ import annotations

import trio

from motet.protocols.messages import Message
from motet.runtime import Actor, ActorRef, MailboxSpec, handles, open_system


class Line(Message, frozen=True, tag="stage.line"):
    text: str


class Clean(Actor[Line]):
    mailbox = MailboxSpec(capacity=2)

    def __init__(self, after: ActorRef[Line]) -> None:
        self.after = after

    @handles(Line)
    async def clean(self, line: Line) -> None:
        await self.after.tell(Line(line.text.strip().lower()))


class Write(Actor[Line]):
    mailbox = MailboxSpec(capacity=2)

    def __init__(self, written: list[str]) -> None:
        self.written = written

    @handles(Line)
    async def write(self, line: Line) -> None:
        await trio.sleep(0.005)
        self.written.append(line.text)


async def main() -> None:
    written: list[str] = []
    ahead = 0
    async with open_system() as system:
        write = await system.start(Write, written)
        clean = await system.start(Clean, write)
        for number in range(20):
            await clean.tell(Line(f"  Line {number} "))
            ahead = max(ahead, number + 1 - len(written))
        await clean.drain()
        await write.drain()
    print(len(written), "lines, the source was at most", ahead, "ahead")
    print(written[0], "...", written[-1])


if __name__ == "__main__":
    trio.run(main)
