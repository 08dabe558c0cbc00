"""What a server says outside of the protocol: a bounded part of it in the log, its last words kept.

Invariant: whatever a server writes, the log gets at most :data:`LINES` lines of :data:`WIDTH`
characters in :data:`PERIOD` seconds, and no more than a line is ever kept in memory.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

import attrs
import trio

from motet.actors.errors.log import logger
from motet.actors.errors.redact import redact_text
from motet.protocols.mcp import McpServer
from motet.runtime.processes import Child, open_child

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage


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


# Messages to and from a server's process, a line of JSON each: the stdio transport.
#
# The SDK's own would do but for three things: here the process is one that cannot outlive the host
# (:mod:`motet.runtime.processes`), a message is on its way when ``send`` has returned, and a line
# is never longer than :data:`LONGEST`.
#
# Invariant: a message whose sending was cancelled goes out whole all the same, or the connection is
# at its end; so a server never reads half a line.


LONGEST = 32 << 20
"""Bytes of one message; what sends more speaks no protocol."""
GARBAGE = 100
"""Lines in a row that may be no message: some servers greet."""
STUCK = 1.0
"""Seconds that a server may leave a notice of cancellation unread before it counts as hung."""
FAREWELL = 1.0
"""Seconds between the end of its input and the first signal."""
GRACE = 0.5
"""Seconds between asking it to end and killing it."""

CANCELLED = "notifications/cancelled"
LIST_CHANGED = "notifications/tools/list_changed"


@attrs.define(eq=False)
class End:
    """How a connection came to its end; the first reason stands.

    Attributes:
        hopeless: the server does not do what the protocol says, so that nothing is waited for.
    """

    happened: trio.Event = attrs.field(factory=trio.Event)
    reason: str = ""
    hopeless: bool = False

    def because(self, reason: str, *, hopeless: bool = False) -> None:
        if not self.happened.is_set():
            self.reason, self.hopeless = reason, hopeless
            self.happened.set()


@attrs.define(eq=False)
class Listing:
    """Whether the list of tools that was read is still the server's.

    Attributes:
        stale: the server has said that it has another.
        fresh: what was said so far has been read.
    """

    stale: trio.Event = attrs.field(factory=trio.Event)
    fresh: trio.Event = attrs.field(factory=trio.Event)

    def changed(self) -> None:
        if self.fresh.is_set():
            self.fresh = trio.Event()
        self.stale.set()

    async def next(self) -> None:
        """Wait until it has to be read."""
        await self.stale.wait()
        self.stale = trio.Event()

    def read(self) -> None:
        """It has been read; what was said meanwhile has not."""
        if not self.stale.is_set():
            self.fresh.set()


class _Closing:
    """What the SDK's protocols of streams want besides reading and writing."""

    async def aclose(self) -> None:
        """The block that opened the process closes its pipes."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.aclose()


class Incoming(_Closing):
    """The messages of a server, as the SDK reads them. A line that is none becomes words."""

    def __init__(
        self, stdout: trio.abc.ReceiveStream, words: Words, end: End, listing: Listing
    ) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        self._parse = jsonrpc_message_adapter.validate_json
        self._message = SessionMessage
        self._stdout, self._words, self._end = stdout, words, end
        self._listing = listing
        self._buffer = bytearray()
        self._searched = 0
        self._garbage = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while (line := await self._line()) is not None:
            if not line.strip():
                continue
            try:
                message = self._message(self._parse(line, by_name=False))
            except ValueError:
                self._words.say(line, "stdout")
                self._garbage += 1
                if self._garbage >= GARBAGE:
                    what = f"it wrote {GARBAGE} lines that are no messages"
                    self._end.because(what, hopeless=True)
                    break
            else:
                self._garbage = 0
                if getattr(message.message, "method", "") == LIST_CHANGED:
                    # Here, since only here the order counts: an answer behind it is told later.
                    self._listing.changed()
                return message
        raise StopAsyncIteration

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            from anyio import EndOfStream

            raise EndOfStream from None

    async def _line(self) -> bytes | None:
        """The next line; None: there is no more. Cancelled: nothing of it is lost."""
        while (found := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            if self._searched > LONGEST:
                what = f"it sent a message of more than {LONGEST >> 20} MB"
                self._end.because(what, hopeless=True)
                return None
            try:
                chunk = await self._stdout.receive_some()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                chunk = b""
            if not chunk:
                self._words.say(bytes(self._buffer), "stdout")
                self._end.because("it has closed its output")
                return None
            self._buffer += chunk
        line = bytes(self._buffer[:found])
        del self._buffer[: found + 1]
        self._searched = 0
        return line


class Outgoing(_Closing):
    """The messages to a server, written one after the other by :meth:`run`."""

    def __init__(self, stdin: trio.abc.SendStream, end: End) -> None:
        self._stdin, self._end = stdin, end
        self._lines: deque[tuple[bytes, trio.Event]] = deque()
        self._more = trio.Event()
        self._broken = False

    async def send(self, item: SessionMessage, /) -> None:
        """Returns when the server's pipe has all of it. Cancelled: it goes out all the same.

        Raises ``anyio.BrokenResourceError`` when the server reads no more.
        """
        if not self._broken:
            line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            written = trio.Event()
            self._lines.append((line + b"\n", written))
            self._more.set()
            patience = STUCK if getattr(item.message, "method", "") == CANCELLED else math.inf
            with trio.move_on_after(patience):
                await written.wait()
            if not written.is_set():
                # A call that cannot be called off would work on for nobody (G1).
                self._end.because("it does not read what it is sent", hopeless=True)
        if self._broken:
            from anyio import BrokenResourceError

            raise BrokenResourceError

    async def run(self) -> None:
        try:
            while True:
                while self._lines:
                    line, written = self._lines[0]
                    await self._stdin.send_all(line)
                    written.set()
                    self._lines.popleft()
                self._more = trio.Event()
                await self._more.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._end.because("it has closed its input")
        finally:
            self._broken = True
            for _, written in self._lines:
                written.set()


@attrs.frozen
class Wire:
    """The two streams of a session."""

    incoming: Incoming
    outgoing: Outgoing


@asynccontextmanager
async def open_process(
    server: McpServer, env: dict[str, str], words: Words, end: End, listing: Listing
) -> AsyncGenerator[Wire]:
    """Run a server's program for the length of the block, and end it with all that it started.

    Leaving takes at most :data:`FAREWELL`, :data:`GRACE` and what the kernel needs. Raises
    ``OSError`` when it cannot be started.
    """
    async with (
        open_child(server.command, cwd=server.cwd, env=env, grace=GRACE) as child,
        trio.open_nursery() as nursery,
    ):
        wire = Wire(Incoming(child.stdout, words, end, listing), Outgoing(child.stdin, end))
        nursery.start_soon(wire.outgoing.run)
        nursery.start_soon(words.follow, child.stderr, "stderr")
        try:
            yield wire
        finally:
            # Awaits while being cancelled: the protocol's way to end is the end of its input.
            if not end.hopeless:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + FAREWELL):
                    await _farewell(child, end)
            nursery.cancel_scope.cancel()


async def _farewell(child: Child, end: End) -> None:
    await child.stdin.aclose()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_discard, child.stdout)  # or it might wait for room there, not for us
        code = await child.wait()
        nursery.cancel_scope.cancel()
    if code:
        end.reason += f" (exit code {code})"


async def _discard(stream: trio.abc.ReceiveStream) -> None:
    try:
        async for _ in stream:
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
