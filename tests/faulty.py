"""A memory that fails where a test says, for tests of what is around a memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs
import trio

from motet.protocols.chat import ChatMessage
from motet.protocols.memory import Remembered

Fault = Exception | Literal["hangs"] | None
"""What a method raises, that it never answers, or that all is well."""


@attrs.define
class FaultyMemory:
    """Fails as its fields say, knows nothing else, and remembers in ``asked`` what was asked."""

    read_fault: Fault = None
    observe_fault: Fault = None
    search_fault: Fault = None
    write_fault: Fault = None
    asked: list[str] = attrs.field(factory=list[str])

    async def read(self, query: str, session: str, limit: int) -> Sequence[Remembered]:
        await self._fail("read", self.read_fault)
        return ()

    async def observe(self, rows: Sequence[ChatMessage], session: str) -> None:
        await self._fail("observe", self.observe_fault)

    async def search(self, query: str, session: str, limit: int) -> Sequence[Remembered]:
        await self._fail("search", self.search_fault)
        return ()

    async def write(self, text: str, session: str) -> None:
        await self._fail("write", self.write_fault)

    async def _fail(self, what: str, fault: Fault) -> None:
        self.asked.append(what)
        if fault == "hangs":
            await trio.sleep_forever()
        elif fault is not None:
            raise fault
