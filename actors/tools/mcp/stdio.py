"""The stdio transport of MCP: a server's process, a line of JSON for each message, its stderr log.

The SDK has such a transport too. This one differs in three things: the process cannot outlive the
host (:mod:`motet.runtime.processes`), a message is on its way when ``send`` has returned, and a
line is never longer than :data:`LONGEST`.

Invariants: a message whose sending was cancelled is still sent whole, or the connection has ended,
so that a server never reads half a line; however much a server writes, the log gets at most
:data:`LINES` lines of :data:`WIDTH` characters in :data:`PERIOD` seconds, and memory no more than
a window of the redactor.
"""

from __future__ import annotations

import math
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Self

import attrs
import trio

from motet.actors.errors.log import logger
from motet.protocols.mcp import McpServer, answered_id, readings, too_much
from motet.protocols.redaction.redact import Redactor
from motet.runtime.processes import Child, open_child

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCError, JSONRPCMessage

LINES = 40
PERIOD = 60.0
WIDTH = 500
LAST = 5

log = logger(__name__)


@attrs.define(eq=False)
class StderrLog:
    """The output of one server outside of the protocol, over all its starts.

    Attributes:
        dropped: lines that were not logged, since the last one that was.
    """

    server: str
    dropped: int = 0
    _last: deque[str] = attrs.field(factory=lambda: deque[str](maxlen=LAST), init=False)
    _logged: deque[float] = attrs.field(factory=lambda: deque[float](maxlen=LINES), init=False)
    _open: dict[str, tuple[Redactor, str]] = attrs.field(
        factory=dict[str, tuple[Redactor, str]], init=False
    )

    def write(self, line: bytes, source: str) -> None:
        """Log a line from ``stderr``, or one on ``stdout`` that is no message."""
        self._feed(line.decode("utf-8", "replace") + "\n", source)

    def _feed(self, text: str, source: str) -> None:
        """Redact, then cut: the middle of a key without its beginning is not recognised."""
        redactor, rest = self._open.get(source) or (Redactor(), "")
        *lines, rest = (rest + redactor.feed(text)).split("\n")
        self._open[source] = redactor, rest[:WIDTH]
        for line in lines:
            self._log(line.strip()[:WIDTH], source)

    def _end(self, source: str) -> None:
        redactor, rest = self._open.pop(source, (Redactor(), ""))
        for line in (rest + redactor.close()).split("\n"):
            self._log(line.strip()[:WIDTH], source)

    def _log(self, text: str, source: str) -> None:
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
        """The last line, to explain why the server has ended."""
        return self._last[-1] if self._last else ""

    def clear(self) -> None:
        """Drop the lines of the last process, which explain nothing about the next."""
        self._last.clear()

    async def follow(self, stream: trio.abc.ReceiveStream, source: str) -> None:
        """Read a stream to its end, or until it is closed."""
        decoder = getincrementaldecoder("utf-8")("replace")
        try:
            async for chunk in stream:
                self._feed(decoder.decode(chunk), source)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self._feed(decoder.decode(b"", final=True), source)
        self._end(source)


LONGEST = 32 << 20
"""Bytes of one message; a server that sends more is ended."""
GARBAGE = 100
"""Lines in a row that may be no messages: some servers print a banner."""
STUCK = 1.0
"""Seconds that a server may leave a notice of cancellation unread before it counts as hung."""
EXIT_BUDGET = 1.0
"""Seconds between the end of its input and the first signal."""
GRACE = 0.5
"""Seconds between SIGTERM and SIGKILL."""

BURST, RATE = 5_000, 500.0
"""Messages that nobody asked for: so many at once, and so many a second. More end the server."""
TOLD = 65_536
"""Bytes of a line that is no message that go to the log; the redactor reads them."""
ANY = McpServer(command=("",))
"""The default limits."""
SHARE = 50
"""Messages after which other tasks of the host have their turn."""

CANCELLED = "notifications/cancelled"
LIST_CHANGED = "notifications/tools/list_changed"


@attrs.define(eq=False)
class End:
    """The end of a connection; the first reason stands.

    Attributes:
        hopeless: the server breaks the protocol, so that waiting for a clean exit is useless.
    """

    happened: trio.Event = attrs.field(factory=trio.Event)
    reason: str = ""
    hopeless: bool = False

    def because(self, reason: str, *, hopeless: bool = False) -> None:
        if not self.happened.is_set():
            self.reason, self.hopeless = reason, hopeless
            self.happened.set()

    def exited(self, code: int) -> None:
        """Add the exit code of the process, which is known only after the end."""
        if code:
            self.reason += f" (exit code {code})"


@attrs.define(eq=False)
class Listing:
    """Whether the list of tools that was read is still current.

    Attributes:
        stale: the server has announced a change.
        fresh: all announced changes have been read.
    """

    stale: trio.Event = attrs.field(factory=trio.Event)
    fresh: trio.Event = attrs.field(factory=trio.Event)

    def changed(self) -> None:
        if self.fresh.is_set():
            self.fresh = trio.Event()
        self.stale.set()

    async def next(self) -> None:
        """Wait until the list has to be read again."""
        await self.stale.wait()
        self.stale = trio.Event()

    def read(self) -> None:
        """The list has been read, except for changes announced meanwhile."""
        if not self.stale.is_set():
            self.fresh.set()


def unlawful_answer(id: int | str, why: object) -> JSONRPCError:
    """An error for the caller whose answer is no message of the protocol."""
    from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError

    first = (str(why).splitlines() or [""])[0]
    return JSONRPCError(jsonrpc="2.0", id=id, error=ErrorData(code=PARSE_ERROR, message=first))


@attrs.define(eq=False)
class Flood:
    """A bucket of messages that nobody asked for; each request that is sent adds its answer."""

    left: float = BURST
    _at: float = attrs.field(factory=trio.current_time, init=False)

    def take(self, end: End, count: int = 1) -> bool:
        """Whether so many messages may be read; otherwise the server is ended."""
        now = trio.current_time()
        self.left = min(BURST, self.left + (now - self._at) * RATE) - count
        self._at = now
        if self.left < 0:
            end.because(f"it sent {BURST} messages that nobody had asked for", hopeless=True)
        return self.left >= 0


@attrs.define(eq=False)
class Call:
    """A request to a server from the side of its caller. On the web, nothing outlives it."""

    over: bool = False
    scopes: set[trio.CancelScope] = attrs.field(factory=set[trio.CancelScope])

    @contextmanager
    def waiting(self, scope: trio.CancelScope) -> Generator[None]:
        """A wait for the server, which ends with the call."""
        self.scopes.add(scope)
        if self.over:
            scope.cancel()
        try:
            with scope:
                yield
        finally:
            self.scopes.discard(scope)


CALL: ContextVar[Call] = ContextVar("the request to an MCP server that is under way")


@contextmanager
def under_way() -> Generator[None]:
    """A request; the SDK keeps its context in the tasks that it starts for it, and those for ever
    where an answer does not come.
    """
    call = Call()
    token = CALL.set(call)
    try:
        yield
    finally:
        CALL.reset(token)
        call.over = True
        for scope in tuple(call.scopes):
            scope.cancel()


class Closing(trio.abc.AsyncResource):
    """The rest of the SDK's protocols of streams, besides reading and writing."""

    async def aclose(self) -> None:
        """The block that opened the process closes its pipes."""


class Incoming(Closing):
    """The messages of a server, as the SDK reads them. Other lines go to the log."""

    def __init__(
        self,
        stdout: trio.abc.ReceiveStream,
        log: StderrLog,
        end: End,
        listing: Listing,
        flood: Flood | None = None,
        limits: McpServer = ANY,
    ) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        self._parse = jsonrpc_message_adapter.validate_json
        self._message = SessionMessage
        self._stdout, self._log, self._end = stdout, log, end
        self._listing = listing
        self._limits = limits
        self._flood = flood or Flood()
        self._buffer = bytearray()
        self._searched = 0
        self._garbage = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while (line := await self._line()) is not None:
            if not line.strip():
                continue
            if not self._flood.take(self._end):
                break
            if not int(self._flood.left) % SHARE:
                await trio.lowlevel.checkpoint()
            try:
                message = self._message(self._read(line))
            except ValueError:
                self._log.write(line[:TOLD], "stdout")
                self._garbage += 1
                if self._garbage >= GARBAGE:
                    what = f"it wrote {GARBAGE} lines that are not messages"
                    self._end.because(what, hopeless=True)
                    break
            else:
                self._garbage = 0
                if getattr(message.message, "method", "") == LIST_CHANGED:
                    # Noted while reading: an answer that follows is handled after this notice.
                    self._listing.changed()
                return message
        raise StopAsyncIteration

    def _read(self, line: bytes) -> JSONRPCMessage:
        """The message in a line; of an answer that is none, an error for its caller."""
        error = ValueError("it is empty")
        for text in readings(line):
            if why := too_much(text, self._limits):
                error = ValueError(why)
                break
            try:
                return self._parse(text, by_name=False)
            except ValueError as failed:
                error = failed
        id = answered_id(line)
        if id is None:
            raise error
        return unlawful_answer(id, error)

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            from anyio import EndOfStream

            raise EndOfStream from None

    async def _line(self) -> bytes | None:
        """The next line, or None at the end. A cancelled call loses no bytes."""
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
                self._log.write(bytes(self._buffer), "stdout")
                self._end.because("it has closed its output")
                return None
            self._buffer += chunk
        line = bytes(self._buffer[:found])
        del self._buffer[: found + 1]
        self._searched = 0
        return line


class Outgoing(Closing):
    """The messages to a server. :meth:`run` writes them, one after the other."""

    def __init__(self, stdin: trio.abc.SendStream, end: End, flood: Flood | None = None) -> None:
        self._stdin, self._end = stdin, end
        self._flood = flood or Flood()
        self._lines: deque[tuple[bytes, trio.Event]] = deque()
        self._more = trio.Event()
        self._broken = False

    async def send(self, item: SessionMessage, /) -> None:
        """Returns when the pipe has all of it. A cancelled send is completed by :meth:`run`.

        Raises ``anyio.BrokenResourceError`` when the server has stopped reading.
        """
        if not self._broken:
            line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            written = trio.Event()
            self._flood.left += 1
            self._lines.append((line + b"\n", written))
            self._more.set()
            patience = STUCK if getattr(item.message, "method", "") == CANCELLED else math.inf
            with trio.move_on_after(patience):
                await written.wait()
            if not written.is_set():
                # The cancelled call would go on in a server that cannot be told to stop (G1).
                self._end.because("it does not read its input", hopeless=True)
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
    server: McpServer, env: dict[str, str], log: StderrLog, end: End, listing: Listing
) -> AsyncGenerator[Wire]:
    """Run a server's program for the length of the block, and end it with all its descendants.

    Leaving takes at most :data:`EXIT_BUDGET`, :data:`GRACE` and the kernel's time. Raises
    ``OSError`` when it cannot be started.
    """
    async with (
        open_child(server.command, cwd=server.cwd, env=env, grace=GRACE) as child,
        trio.open_nursery() as nursery,
    ):
        flood = Flood()
        incoming = Incoming(child.stdout, log, end, listing, flood, server)
        wire = Wire(incoming, Outgoing(child.stdin, end, flood))
        nursery.start_soon(wire.outgoing.run)
        nursery.start_soon(log.follow, child.stderr, "stderr")
        try:
            yield wire
        finally:
            # Awaits while being cancelled: the protocol asks a server to exit by closing its input.
            if not end.hopeless:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + EXIT_BUDGET):
                    await _exited(child, end)
            nursery.cancel_scope.cancel()


async def _exited(child: Child, end: End) -> None:
    await child.stdin.aclose()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_discard, child.stdout)  # or it might block on a full pipe
        code = await child.wait()
        nursery.cancel_scope.cancel()
    end.exited(code)


async def _discard(stream: trio.abc.ReceiveStream) -> None:
    try:
        async for _ in stream:
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
