"""Whom a request is for: the user of its connection, or one of the people a bridge speaks for.

Invariants: for a bridge it sees and does what that user would with a token of their own, never more
than an operator (G16); their messages are counted as theirs.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from motet.actors.gateway.context import Context
from motet.actors.gateway.once import Once
from motet.actors.gateway.streams import Streams
from motet.protocols.gateway import StreamState
from motet.protocols.host import Expected, HostApi
from motet.protocols.sessions import Principal


@attrs.frozen
class Behalf:
    """The :class:`motet.actors.gateway.method.Caller` of one request.

    ``expected``: its input, as it was noted when the request was read.
    """

    principal: Principal
    _context: Context
    _streams: Streams
    expected: Expected | None = None

    @property
    def api(self) -> HostApi:
        return self._context.api

    @property
    def once(self) -> Once:
        return self._context.once

    def now(self) -> float:
        return self._context.now()

    def spend_message(self) -> None:
        self._context.spend_message(self.principal.user)

    async def subscribe(
        self, stream: str, after: int | None
    ) -> tuple[StreamState, Callable[[], None]]:
        return await self._streams.subscribe(stream, after, self.principal)

    def unsubscribe(self, stream: str) -> bool:
        return self._streams.unsubscribe(stream)
