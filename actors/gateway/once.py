"""Stops and commands that carry a key are carried out once: a resend gets the first answer.

Kept in memory, for as long as the host lives: a stop must not wait for a disk that may be stuck,
and after a restart there is nothing left that a resent stop could end by mistake.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import attrs
import msgspec
import trio

from motet.protocols.sessions import KeyConflict

T = TypeVar("T")
KEPT_FOR: Final = 86_400.0
MOST: Final = 4_096


@attrs.define(eq=False)
class _Done:
    """``answer`` is None while it goes on, and when it has failed: then it may be tried again."""

    body: bytes
    since: float
    over: trio.Event = attrs.field(factory=trio.Event)
    answer: object = None


@attrs.define(eq=False)
class Once:
    """The answers of one gateway. ``now``: Unix seconds."""

    now: Callable[[], float]
    _done: OrderedDict[tuple[str, str, str], _Done] = attrs.field(
        init=False, factory=OrderedDict[tuple[str, str, str], _Done]
    )

    def __len__(self) -> int:
        return len(self._done)

    async def do(
        self,
        whose: tuple[str, str, str],
        body: object,
        kind: type[T],
        work: Callable[[], Awaitable[T]],
    ) -> tuple[T, bool]:
        """The answer, and whether it is an earlier one. ``whose``: user, method and key.

        Who sends the same while the first is being carried out waits for its answer, and takes its
        place if that fails or is cancelled. Raises ``KeyConflict`` when ``body`` is another, and
        what ``work`` raises.
        """
        encoded = msgspec.json.encode(body)
        while True:
            known = self._known(whose)
            if known is None:
                return await self._first(whose, encoded, work), False
            if known.body != encoded:
                raise KeyConflict(f"the key {whose[2]!r} was used for something else")
            await known.over.wait()
            if isinstance(known.answer, kind):
                return known.answer, True

    async def _first(
        self, whose: tuple[str, str, str], body: bytes, work: Callable[[], Awaitable[T]]
    ) -> T:
        mine = self._done[whose] = _Done(body, self.now())
        try:
            answer = await work()
            mine.answer = answer
            return answer
        finally:
            if mine.answer is None:
                del self._done[whose]
            mine.over.set()

    def _known(self, whose: tuple[str, str, str]) -> _Done | None:
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
