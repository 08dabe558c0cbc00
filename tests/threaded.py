"""An actor and helpers for tests in which several threads use one system."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import trio

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, MailboxSpec, handles


class Note(Message, frozen=True, tag="threads.note"):
    sender: int
    number: int


class Read(Request[list[tuple[int, int]]], frozen=True, tag="threads.read"):
    pass


class Count(Request[int], frozen=True, tag="threads.count"):
    """How many notes there are, when it is handled."""


class Hold(Request[str], frozen=True, tag="threads.hold"):
    pass


class Echo(Request[int], frozen=True, tag="threads.echo"):
    number: int


class Block(Request[str], frozen=True, tag="threads.block"):
    """Calls its function in a thread, and returns the name of its error."""


class Log(Actor[Note | Read | Count | Hold | Echo | Block]):
    """Notes what it is told; ``Hold`` lasts until ``go``; ``Echo`` is handled beside the turn."""

    def __init__(self, function: Callable[[], object] = lambda: None) -> None:
        self.notes: list[tuple[int, int]] = []
        self.go = trio.Event()
        self.events: list[str] = []
        self.function = function

    @handles(Note)
    async def note(self, message: Note) -> None:
        self.notes.append((message.sender, message.number))

    @handles(Read)
    async def read(self, request: Read) -> list[tuple[int, int]]:
        return self.notes

    @handles(Count)
    async def count(self, request: Count) -> int:
        return len(self.notes)

    @handles(Hold)
    async def hold(self, request: Hold) -> str:
        self.events.append("begun")
        try:
            await self.go.wait()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            self.events.append("ended")
        return "held"

    @handles(Echo, concurrent=2, here=True)
    async def echo(self, request: Echo) -> int:
        return request.number

    @handles(Block)
    async def block(self, request: Block) -> str:
        try:
            await trio.to_thread.run_sync(self.function)
        except Exception as error:
            return type(error).__name__
        return "done"


class Small(Log):
    mailbox = MailboxSpec(capacity=4)


class Failing(Log):
    mailbox = MailboxSpec(capacity=4, overflow="fail")


class Dropping(Log):
    mailbox = MailboxSpec(capacity=4, overflow="drop_oldest")


def flood(safe: Any, sender: int, count: int) -> None:
    for number in range(count):
        safe.tell(Note(sender, number))


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await trio.sleep(0)


async def in_thread(fn: Callable[[], Any]) -> Any:
    """Run ``fn`` in a thread that Trio does not know."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(fn)
        await until(future.done)
    return future.result()


def error_of(fn: Callable[[], object]) -> type[BaseException] | None:
    try:
        fn()
    except BaseException as error:
        return type(error)
    return None
