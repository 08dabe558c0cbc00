"""The thin Trio shell around a provider's SDK: lazy client, deadlines, translated failures.

The SDKs take half a second and more to import, so they are loaded on first use and in a
thread: the event loop never stalls. Their own retries are off and their read timeouts unset.
A deadline here is Trio's, so a test's virtual clock rules it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import attrs
import msgspec
import trio

from motet.actors.models.dialects import Reader
from motet.actors.models.failures import failure_of
from motet.actors.models.switch import require
from motet.protocols.models import ModelEvent, ModelFailure, ModelRequest

CLOSE_BUDGET = 5.0
CONNECT_TIMEOUT = 15.0


class Deadlines(msgspec.Struct, frozen=True):
    """How long a model may be silent, in seconds.

    Attributes:
        first_token: from the request to the first event of the answer.
        between_tokens: from one event to the next.
    """

    first_token: float = 60.0
    between_tokens: float = 60.0

    def __post_init__(self) -> None:
        for name in ("first_token", "between_tokens"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")


class Client(Protocol):
    """What is used of an SDK's client here."""

    async def close(self) -> None: ...


class ChunkStream(Protocol):
    """What is used of an SDK's stream. Leaving it closes the connection.

    Its ``__anext__`` must be a checkpoint wherever it waits for the connection.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None: ...

    async def __anext__(self) -> object: ...


C = TypeVar("C", bound=Client)


class LazyClient(Generic[C]):
    """One SDK client, made on first use. A failure to make it is not remembered."""

    def __init__(self, make: Callable[[], C]):
        self._make = make
        self._client: C | None = None
        self._lock = trio.Lock()

    async def get(self) -> C:
        """The client. Cancelled while it is made: waits for the import, then is cancelled."""
        async with self._lock:
            if self._client is None:
                self._client = await trio.to_thread.run_sync(self._make)
            return self._client

    async def aclose(self) -> None:
        """Close its connections, within 5 s even when cancelled; later use makes a new one."""
        client, self._client = self._client, None
        if client is not None:
            with trio.move_on_after(CLOSE_BUDGET, shield=True):
                await client.close()


class EventStream:
    """The events of one answer. Every wait for the next one has a deadline.

    Cancelled while waiting, it is of no further use: leave the request's block.
    """

    def __init__(self, chunks: ChunkStream, reader: Reader, deadlines: Deadlines, first: float):
        self._chunks = chunks
        self._reader = reader
        self._deadlines = deadlines
        self._first: float | None = first
        self._ready: deque[ModelEvent] = deque()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        if not self._ready and not self._ended:
            await self._wait()
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    async def _wait(self) -> None:
        """Read chunks until at least one event is ready or the answer has ended."""
        silence = self._deadlines.between_tokens
        until = trio.current_time() + silence if self._first is None else self._first
        try:
            with deadline(until, self._silence()), failures(started=self._first is None):
                while not self._ready and not self._ended:
                    await self._read()
        except ModelFailure:
            if not self._reader.complete:
                raise
            # The answer is whole; only what follows it was lost.
            self._end()
        self._first = None

    async def _read(self) -> None:
        try:
            chunk = await self._chunks.__anext__()
        except StopAsyncIteration:
            self._end()
        else:
            self._ready.extend(self._reader.feed(chunk))

    def _end(self) -> None:
        self._ended = True
        self._ready.extend(self._reader.close())

    def _silence(self) -> str:
        if self._first is None:
            return f"no further token came within {self._deadlines.between_tokens:g} s"
        return first_silence(self._deadlines)


@asynccontextmanager
async def answer(
    model: str,
    create: Callable[[], Awaitable[ChunkStream]],
    reader: Reader,
    deadlines: Deadlines,
) -> AsyncGenerator[EventStream]:
    """The events of the answer that ``create`` asks for; leaving the block ends the connection.

    Raises :class:`ModelFailure`, also from the events, and when requests are switched off.
    """
    require(model)
    first = trio.current_time() + deadlines.first_token
    with deadline(first, first_silence(deadlines)), failures(started=False):
        stream = await create()
    async with stream:
        try:
            yield EventStream(stream, reader, deadlines, first)
        finally:
            await unwind(stream)


async def unwind(stream: ChunkStream) -> None:
    """Bring the generators under a stream to their end; one that has ended is left as it is.

    The SDKs nest half a dozen of them, and closing the outermost leaves the others, with their
    connection, to the garbage collector. Resumed in a cancelled scope, each ends where it waits.
    """
    with trio.CancelScope(shield=True) as scope, suppress(Exception):
        scope.cancel()
        while True:
            await stream.__anext__()


def first_silence(deadlines: Deadlines) -> str:
    return f"no first token came within {deadlines.first_token:g} s"


@contextmanager
def deadline(until: float, message: str) -> Generator[None]:
    """A block that fails with a timeout when it is not left by ``until``, by Trio's clock."""
    with trio.CancelScope(deadline=until) as scope:
        yield
    if scope.cancelled_caught:
        raise ModelFailure(message, kind="timeout")


@contextmanager
def failures(*, started: bool) -> Generator[None]:
    """Turn what an SDK raises in the block into :class:`ModelFailure`; a bug stays what it is."""
    try:
        yield
    except Exception as error:
        failure = failure_of(error, started=started)
        if failure is None or failure is error:
            raise
        raise failure from error


# Server-sent events from the bytes of an SDK's response: decoded here, and read to their end.
#
# The SDK's own decoder stops at the end mark and leaves the generators under it to the collector.


END = b"[DONE]"
DRAIN = 1.0
"""Seconds that a server has to end the body behind the end mark."""


@attrs.define
class SseDecoder:
    """Bytes to the data of events; names, ids and comments are passed over.

    Lines end with LF or CRLF alone: JSON may hold every other character that ends a line of text.
    """

    _rest: bytes = attrs.field(default=b"", init=False)
    _data: list[bytes] = attrs.field(factory=list[bytes], init=False)

    def feed(self, received: bytes) -> Iterator[bytes]:
        """The data of the events that end in these bytes."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not name and not value and self._data:
                data, self._data = b"\n".join(self._data), []
                yield data


class SseStream:
    """The JSON values of the events in a response; leaving it closes the response.

    Raises ``msgspec.DecodeError`` for data that is no JSON, and what ``received`` raises.
    """

    def __init__(
        self, received: AsyncIterator[bytes], close: Callable[[], Awaitable[None]]
    ) -> None:
        self._received = received
        self._close = close
        self._decoder = SseDecoder()
        self._events: deque[bytes] = deque()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self._close()

    async def __anext__(self) -> object:
        while not self._events:
            self._events.extend(self._decoder.feed(await anext(self._received)))
        data = self._events.popleft()
        if data == END:
            await self._drain()
            raise StopAsyncIteration
        return msgspec.json.decode(data)

    async def _drain(self) -> None:
        """Read what is behind the end mark, so that the connection can serve again."""
        with trio.move_on_after(DRAIN):
            while True:
                try:
                    await anext(self._received)
                except StopAsyncIteration:
                    return


# What the adapters of all SDKs have in common: a name, a server, a client made on first use.
#
# Invariant: a request goes through :func:`motet.actors.models.sdk.answer`, which owns deadlines and
# failures; an adapter only says what is sent, and how what comes back is read.


C_of_adapter = TypeVar("C_of_adapter", bound=Client)


class Adapter(ABC, Generic[C_of_adapter]):
    """A model that the client ``C_of_adapter`` of an SDK speaks to.

    Attributes:
        provider: what stands before the colon in its name.
        server_variable: the environment variable that names another server of the same API.
    """

    provider: ClassVar[str]
    server_variable: ClassVar[str] = ""

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        deadlines: Deadlines | None = None,
    ):
        self._model = name
        self._base_url = base_url
        self._api_key = api_key
        self._deadlines = deadlines or Deadlines()
        self._client = LazyClient(self._make_client)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def name(self) -> str:
        return f"{self.provider}:{self._model}"

    @property
    def base_url(self) -> str | None:
        """The server that is asked in place of the provider's own."""
        return self._base_url or os.environ.get(self.server_variable) or None

    def request(self, request: ModelRequest) -> AbstractAsyncContextManager[EventStream]:
        """Stream one answer; see :class:`motet.protocols.models.Model`."""
        return answer(self.name, lambda: self._create(request), self._reader(), self._deadlines)

    async def aclose(self) -> None:
        """Close the connections that are kept open for later requests."""
        await self._client.aclose()

    @abstractmethod
    def _make_client(self) -> C_of_adapter:
        """Raises ``MissingExtra`` without the SDK, ``ModelFailure`` without a key."""

    @abstractmethod
    async def _create(self, request: ModelRequest) -> ChunkStream:
        """Send a request; its answer, as far as the head."""

    @abstractmethod
    def _reader(self) -> Reader:
        """What reads the chunks of one answer."""
