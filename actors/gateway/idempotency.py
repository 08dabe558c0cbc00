"""Requests with an idempotency key are carried out once: a resend gets the first answer.

Invariants: nothing here waits for a disk, since a stop must not wait for one that may be stuck. An
answer is :meth:`Idempotency.unsaved` until a task beside has stored it; a host that starts gets the
stored ones back by :meth:`Idempotency.restore`. A kill within the few milliseconds until the commit
has a resend carried out again, which stops what the next host has resumed in spite of the stop.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import sha256
from typing import Final, TypeAlias, TypeVar

import attrs
import msgspec
import trio

from motet.protocols.gateway_stores import IdempotencyScope, StoredAnswer
from motet.protocols.sessions import KeyConflict

T = TypeVar("T")
KEPT_FOR: Final = 86_400.0
MOST: Final = 4_096


@attrs.define(eq=False)
class _Request:
    """``answer`` is None while the request is carried out, and for ever when it has failed; one
    that is not kept is empty.
    """

    digest: str
    since: float
    over: trio.Event = attrs.field(factory=trio.Event)
    answer: str | None = None


@attrs.define(eq=False)
class Idempotency:
    """The answers of one gateway. ``now``: Unix seconds; ``changed``: something is to be stored."""

    now: Callable[[], float]
    changed: trio.Event = attrs.field(init=False, factory=trio.Event)
    _requests: OrderedDict[IdempotencyScope, _Request] = attrs.field(
        init=False, factory=OrderedDict[IdempotencyScope, _Request]
    )
    _unsaved: deque[StoredAnswer] = attrs.field(
        init=False, factory=lambda: deque[StoredAnswer](maxlen=MOST)
    )

    def __len__(self) -> int:
        return len(self._requests)

    async def once(
        self,
        scope: IdempotencyScope,
        body: object,
        kind: type[T],
        work: Callable[[], Awaitable[T]],
        *,
        keep: bool = True,
    ) -> tuple[T, bool]:
        """The answer, and whether it is that of an earlier request.

        ``keep`` false: the answer quotes what may be withdrawn or deleted meanwhile, and ``work``
        changes nothing when it is done again: then a resend does it again for its answer.

        A resend during the first request waits for its answer, and is carried out in its place when
        that fails or is cancelled. Raises ``KeyConflict`` for another ``body`` under the same key,
        and the errors of ``work``.
        """
        digest = sha256(msgspec.json.encode(body)).hexdigest()
        while True:
            self._forget()
            request = self._requests.get(scope)
            if request is None:
                return await self._first(scope, digest, work, keep), False
            if request.digest != digest:
                raise KeyConflict(f"the key {scope[2]!r} was used for something else")
            await request.over.wait()
            if request.answer == "":
                return await work(), True
            if request.answer is not None:
                return msgspec.json.decode(request.answer, type=kind), True

    async def _first(
        self, scope: IdempotencyScope, digest: str, work: Callable[[], Awaitable[T]], keep: bool
    ) -> T:
        mine = self._requests[scope] = _Request(digest, self.now())
        try:
            answer = await work()
            mine.answer = msgspec.json.encode(answer).decode() if keep else ""
            self._unsaved.append(StoredAnswer(scope, digest, mine.answer, mine.since))
            self.changed.set()
            return answer
        finally:
            if mine.answer is None:
                del self._requests[scope]
            mine.over.set()

    def restore(self, answers: Iterable[StoredAnswer]) -> None:
        """Take over the answers of the last host, oldest first."""
        for one in answers:
            request = _Request(one.request_digest, one.since, answer=one.answer)
            request.over.set()
            self._requests[one.scope] = request

    def unsaved(self) -> tuple[StoredAnswer, ...]:
        """The answers that are not known to be stored."""
        self.changed = trio.Event()
        return tuple(self._unsaved)

    def saved(self, answers: tuple[StoredAnswer, ...]) -> None:
        """These are on disk."""
        stored = set(answers)
        self._unsaved = deque((one for one in self._unsaved if one not in stored), MOST)

    def _forget(self) -> None:
        """Drop answers that are too old or too many, never a request that is carried out."""
        oldest = self.now() - KEPT_FOR
        for scope, one in list(self._requests.items()):
            if one.since >= oldest and len(self._requests) < MOST:
                break
            if one.answer is not None:
                del self._requests[scope]


MOST_CONVERSATIONS: Final = 1_000

Message: TypeAlias = tuple[str, str]
"""A role and a text."""


def state_digest(user: str, agent: str, messages: Sequence[Message]) -> str:
    """The identity of a conversation's state; spaces around its texts do not count."""
    stripped = [(role, text.strip()) for role, text in messages]
    return sha256(msgspec.json.encode((user, agent, stripped))).hexdigest()


@attrs.define(eq=False)
class MemoryConversations:
    """For a gateway without a database; of too many, the least recent is dropped."""

    _states: dict[str, str] = attrs.field(init=False, factory=dict[str, str])

    async def find(self, state: str) -> str | None:
        return next((one for one, newest in self._states.items() if newest == state), None)

    async def note(self, session: str, state: str) -> None:
        others = {one: now for one, now in self._states.items() if one != session and now != state}
        while len(others) >= MOST_CONVERSATIONS:
            del others[next(iter(others))]
        self._states = others | {session: state}
