"""A chat room: members join and leave, and one that ends without a word leaves, too.

python examples/kernel/chat.py
"""

from __future__ import annotations

import trio

from motet.protocols.messages import Message
from motet.runtime import Actor, ActorRef, Terminated, handles, open_system


class Said(Message, frozen=True, tag="chat.said"):
    who: str
    text: str


class Join(Message, frozen=True, tag="chat.join"):
    who: str
    ref: ActorRef[Said]


class Member(Actor[Said]):
    def __init__(self, room: ActorRef[Join | Said]) -> None:
        self.room = room

    async def on_start(self) -> None:
        await self.room.tell(Join(self.name, self.ref))

    @handles(Said)
    async def said(self, message: Said) -> None:
        print(f"{self.name} reads {message.who}: {message.text}")


class Room(Actor[Join | Said | Terminated]):
    def __init__(self) -> None:
        self.members: dict[str, ActorRef[Said]] = {}

    @handles(Join)
    async def join(self, message: Join) -> None:
        self.members[message.who] = message.ref
        self.watch(message.ref)
        self.pass_on(Said("room", f"{message.who} is here"))

    @handles(Said)
    async def said(self, message: Said) -> None:
        self.pass_on(message)

    @handles(Terminated)
    async def left(self, message: Terminated) -> None:
        who = message.path.rpartition("/")[2]
        del self.members[who]
        self.pass_on(Said("room", f"{who} has left"))

    def pass_on(self, message: Said) -> None:
        for who, ref in self.members.items():
            if who != message.who and ref.is_alive:
                ref.tell_nowait(message)


async def main() -> None:
    async with open_system() as system:
        room = await system.start(Room)
        await system.start(Member, room, name="ann")
        bob = await system.start(Member, room, name="bob")
        await room.tell(Said("ann", "hello"))
        await trio.sleep(0.01)
        await bob.stop()
        await trio.sleep(0.01)


if __name__ == "__main__":
    trio.run(main)
