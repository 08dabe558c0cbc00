"""Events that are known beforehand, as a stream of a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import trio

from motet.protocols.models import ModelEvent


class Played:
    """The events, each behind a checkpoint."""

    def __init__(self, events: Iterable[ModelEvent]) -> None:
        self._events = iter(events)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        await trio.lowlevel.checkpoint()
        for event in self._events:
            return event
        raise StopAsyncIteration
