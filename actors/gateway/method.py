"""What a method of ``motet.v1`` is: its name, its least role, its parameters and its handler.

Invariant: a handler gets parameters that were checked; it knows of the connection only what a
:class:`Caller` shows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

import attrs
import msgspec

from motet.actors.gateway.once import Once
from motet.protocols import gateway as wire
from motet.protocols.chat import JsonObject
from motet.protocols.host import Expected, HostApi
from motet.protocols.sessions import Principal, Role

P = TypeVar("P")
T = TypeVar("T")
_PAGE_BYTES: Final = 524_288


@attrs.frozen
class Answer:
    """A result, and what happens as soon as it is queued."""

    result: object
    then: Callable[[], None] | None = None


class Caller(Protocol):
    """The connection a request came on."""

    @property
    def api(self) -> HostApi: ...

    @property
    def principal(self) -> Principal: ...

    @property
    def once(self) -> Once:
        """What was carried out under a key."""
        ...

    @property
    def expected(self) -> Expected | None:
        """The input of this request, as it was noted when the request was read."""
        ...

    def now(self) -> float:
        """Unix seconds."""
        ...

    def spend_message(self) -> None:
        """Raises :class:`Refusal` when the user sent too many."""
        ...

    async def subscribe(
        self, stream: str, after: int | None
    ) -> tuple[wire.StreamState, Callable[[], None]]: ...

    def unsubscribe(self, stream: str) -> bool: ...


@attrs.frozen
class Method:
    name: str
    role: Role
    call: Callable[[Caller, JsonObject], Awaitable[Answer]]


def method(
    name: str, role: Role, params: type[P], handler: Callable[[Caller, P], Awaitable[Answer]]
) -> Method:
    """A method for the table; parameters that do not fit raise :class:`FrameError`."""

    async def call(caller: Caller, given: JsonObject) -> Answer:
        return await handler(caller, wire.decode_params(given, params))

    return Method(name, role, call)


def fitting(items: Sequence[T]) -> Sequence[T]:
    """The first of them, at least one, that fit in a page."""
    size = 0
    for index, item in enumerate(items):
        size += len(msgspec.json.encode(item))
        if index and size > _PAGE_BYTES:
            return items[:index]
    return items
