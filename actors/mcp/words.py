"""What a server says outside of the protocol: a bounded part of it in the log, its last words kept.

Invariant: whatever a server writes, the log gets at most :data:`LINES` lines of :data:`WIDTH`
characters in :data:`PERIOD` seconds, and no more than a line is ever kept in memory.
"""

from __future__ import annotations

from collections import deque

import attrs
import trio

from motet.actors.errors.redact import redact_text
from motet.actors.log import logger

LINES = 40
PERIOD = 60.0
WIDTH = 500
LAST = 5

log = logger(__name__)


@attrs.define(eq=False)
class Words:
    """The words of one server, over all its starts.

    Attributes:
        dropped: lines that were not logged, since the last one that was.
    """

    server: str
    dropped: int = 0
    _last: deque[str] = attrs.field(factory=lambda: deque[str](maxlen=LAST), init=False)
    _logged: deque[float] = attrs.field(factory=lambda: deque[float](maxlen=LINES), init=False)

    def say(self, line: bytes, source: str) -> None:
        """Take a line from ``stderr``, or one on ``stdout`` that is no message."""
        text = redact_text(line[: 4 * WIDTH].decode("utf-8", "replace").strip()[:WIDTH])
        if not text:
            return
        self._last.append(text)
        now = trio.current_time()
        if len(self._logged) == LINES and now - self._logged[0] < PERIOD:
            self.dropped += 1
            return
        self._logged.append(now)
        log.info("an MCP server says", server=self.server, source=source, line=text)
        if self.dropped:
            log.warning("words of an MCP server left out", server=self.server, lines=self.dropped)
            self.dropped = 0

    def last(self) -> str:
        """Its last line, for a message that says why it is gone."""
        return self._last[-1] if self._last else ""

    def forget(self) -> None:
        """It starts anew: what it said before explains nothing any more."""
        self._last.clear()

    async def follow(self, stream: trio.abc.ReceiveStream, source: str) -> None:
        """Read a stream to its end, or until it is closed."""
        line = bytearray()
        try:
            async for chunk in stream:
                *whole, rest = chunk.split(b"\n")
                for part in whole:
                    self.say(bytes(line + part[: 4 * WIDTH]), source)
                    line.clear()
                line += rest[: max(0, 4 * WIDTH - len(line))]
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.say(bytes(line), source)
