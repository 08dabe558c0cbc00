"""Faulty plain actors, each with a corrected twin and the sequential model of what it should do.

They lose updates between two handlers, or what they had acknowledged when they are restarted. The
corrected ones do one thing at a time, and are tried without crashes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
import trio

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, handles

__all__ = ["ACTORS", "Subjects"]


class Put(Request[None], frozen=True, tag="stranger.put"):
    """Writes a value."""

    key: str
    value: int


class Read(Request[int], frozen=True, tag="stranger.read"):
    """The value; 0 without one."""

    key: str


class Take(Request[bool], frozen=True, tag="stranger.take"):
    """Takes one of three things, if any is left."""


class Push(Request[None], frozen=True, tag="stranger.push"):
    """Appends a number."""

    number: int


class Pop(Request[int], frozen=True, tag="stranger.pop"):
    """Removes the first number; -1 without one."""


@attrs.frozen
class Subjects:
    """A faulty and a corrected actor, with their model and its first state."""

    faulty: Callable[[], Actor[Any]]
    fixed: Callable[[], Actor[Any]]
    model: Callable[[Any, Any], tuple[Any, object]]
    initial: Any
    crashes: int


def shelf(stock: int, _: Message) -> tuple[int, object]:
    return (stock - 1, True) if stock else (0, False)


class Shelf(Actor[Take]):
    """Looks and takes in one step."""

    def __init__(self) -> None:
        self.stock = 3

    @handles(Take)
    async def take(self, request: Take) -> bool:
        if not self.stock:
            return False
        await trio.sleep(0.1)
        self.stock -= 1
        return True


class OpenShelf(Actor[Take]):
    """Looks, and takes after an await: two handlers get the last one."""

    def __init__(self) -> None:
        self.stock = 3

    @handles(Take, concurrent=3)
    async def take(self, request: Take) -> bool:
        if not self.stock:
            return False
        await trio.sleep(0.1)
        self.stock -= 1
        return True


def table(state: dict[str, int], message: Message) -> tuple[dict[str, int], object]:
    if isinstance(message, Put):
        return {**state, message.key: message.value}, None
    assert isinstance(message, Read)
    return state, state.get(message.key, 0)


class Table(Actor[Put | Read]):
    """Keeps values in its memory: right without crashes."""

    def __init__(self) -> None:
        self.values = dict[str, int]()

    @handles(Put)
    async def put(self, request: Put) -> None:
        await trio.lowlevel.checkpoint()
        self.values[request.key] = request.value

    @handles(Read)
    async def read(self, request: Read) -> int:
        return self.values.get(request.key, 0)


class SlowTable(Actor[Put | Read]):
    """Writes a copy of all values back, so that a second write is lost."""

    def __init__(self) -> None:
        self.values = dict[str, int]()

    @handles(Put, concurrent=2)
    async def put(self, request: Put) -> None:
        values = dict(self.values)
        await trio.lowlevel.checkpoint()
        values[request.key] = request.value
        self.values = values

    @handles(Read)
    async def read(self, request: Read) -> int:
        return self.values.get(request.key, 0)


def queue(state: tuple[int, ...], message: Message) -> tuple[tuple[int, ...], object]:
    if isinstance(message, Push):
        return (*state, message.number), None
    return (state[1:], state[0]) if state else (state, -1)


class Queue(Actor[Push | Pop]):
    """A queue in memory: right without crashes."""

    def __init__(self) -> None:
        self.numbers = deque[int]()

    @handles(Push)
    async def push(self, request: Push) -> None:
        self.numbers.append(request.number)

    @handles(Pop)
    async def pop(self, request: Pop) -> int:
        await trio.lowlevel.checkpoint()
        return self.numbers.popleft() if self.numbers else -1


ACTORS = {
    "lost update: shelf": Subjects(OpenShelf, Shelf, shelf, 3, 0),
    "lost update: table": Subjects(SlowTable, Table, table, {}, 0),
    "lost state: shelf": Subjects(Shelf, Shelf, shelf, 3, 1),
    "lost state: table": Subjects(Table, Table, table, {}, 1),
    "lost state: queue": Subjects(Queue, Queue, queue, (), 2),
}
