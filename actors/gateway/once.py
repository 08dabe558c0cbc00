"""Stops and commands that carry a key are carried out once: a resend gets the first answer.

Invariants: nothing here waits for a disk; what was answered is :meth:`Once.unsaved` until it is
stored, and a host that starts gets it back by :meth:`Once.put`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256
from typing import Final, TypeVar

import attrs
import msgspec
import trio

from motet.actors.gateway.answers import Given, Whose
from motet.protocols.sessions import KeyConflict

T = TypeVar("T")
KEPT_FOR: Final = 86_400.0
MOST: Final = 4_096


@attrs.define(eq=False)
class _Done:
    """``answer`` is None while it goes on, and when it has failed: then it may be tried again."""

    body: str
    since: float
    over: trio.Event = attrs.field(factory=trio.Event)
    answer: str | None = None


@attrs.define(eq=False)
class Once:
    """The answers of one gateway. ``now``: Unix seconds; ``news``: there is something to store."""

    now: Callable[[], float]
    news: trio.Event = attrs.field(init=False, factory=trio.Event)
    _done: OrderedDict[Whose, _Done] = attrs.field(init=False, factory=OrderedDict[Whose, _Done])
    _given: deque[Given] = attrs.field(init=False, factory=lambda: deque[Given](maxlen=MOST))

    def __len__(self) -> int:
        return len(self._done)

    async def do(
        self, whose: Whose, body: object, kind: type[T], work: Callable[[], Awaitable[T]]
    ) -> tuple[T, bool]:
        """The answer, and whether it is an earlier one. ``whose``: user, method and key.

        Who sends the same while the first is being carried out waits for its answer, and takes its
        place if that fails or is cancelled. Raises ``KeyConflict`` when ``body`` is another, and
        what ``work`` raises.
        """
        digest = sha256(msgspec.json.encode(body)).hexdigest()
        while True:
            known = self._known(whose)
            if known is None:
                return await self._first(whose, digest, work), False
            if known.body != digest:
                raise KeyConflict(f"the key {whose[2]!r} was used for something else")
            await known.over.wait()
            if known.answer is not None:
                return msgspec.json.decode(known.answer, type=kind), True

    async def _first(self, whose: Whose, body: str, work: Callable[[], Awaitable[T]]) -> T:
        mine = self._done[whose] = _Done(body, self.now())
        try:
            answer = await work()
            mine.answer = msgspec.json.encode(answer).decode()
            self._given.append(Given(whose, body, mine.answer, mine.since))
            self.news.set()
            return answer
        finally:
            if mine.answer is None:
                del self._done[whose]
            mine.over.set()

    def put(self, given: Iterable[Given]) -> None:
        """Know what the last host has answered, oldest first."""
        for one in given:
            done = self._done[one.whose] = _Done(one.body, one.since, answer=one.answer)
            done.over.set()

    def unsaved(self) -> tuple[Given, ...]:
        """What was answered and is not known to be stored."""
        self.news = trio.Event()
        return tuple(self._given)

    def saved(self, given: tuple[Given, ...]) -> None:
        """These are on disk."""
        stored = set(given)
        self._given = deque((one for one in self._given if one not in stored), MOST)

    def _known(self, whose: Whose) -> _Done | None:
        self._forget()
        return self._done.get(whose)

    def _forget(self) -> None:
        """What is too old, or too much; never what goes on."""
        oldest = self.now() - KEPT_FOR
        for key, one in list(self._done.items()):
            if one.since >= oldest and len(self._done) < MOST:
                break
            if one.answer is not None:
                del self._done[key]
