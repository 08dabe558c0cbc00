"""The base class of the adapters: lazy SDK client, deadlines, failures, server-sent events.

The SDKs take half a second and more to import, so they are loaded on first use and in a thread:
the event loop never stalls. Their own retries are off and their read timeouts unset. Deadlines
here are Trio's, so that a test's virtual clock controls them.

Invariant: every request goes through :func:`answer`, the one owner of deadlines and failures.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import attrs
import msgspec
import trio
from msgspec.structs import replace

from motet.actors.models.dialects import Lawful, Reader, Rules, lawful
from motet.actors.models.switch import require
from motet.protocols.errors import MissingExtra
from motet.protocols.model_failures import failure_of
from motet.protocols.models import (
    CallArguments,
    CallStart,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    TextPart,
)
from motet.protocols.tool_schemas import Names, with_keys
from motet.runtime.outside import wall_time

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
    """The part of an SDK's client that is used here."""

    async def close(self) -> None: ...


class ChunkStream(Protocol):
    """The part of an SDK's stream that is used here. Leaving it closes the connection.

    Its ``__anext__`` must be a checkpoint wherever it waits for the connection.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        exc_tb: TracebackType | None,
        /,
    ) -> None: ...

    async def __anext__(self) -> object: ...


C = TypeVar("C", bound=Client)


class LazyClient(Generic[C]):
    """One SDK client, made on first use. After a failure the next use tries again."""

    def __init__(self, make: Callable[[], C]):
        self._make = make
        self._client: C | None = None
        self._lock = trio.Lock()

    async def get(self) -> C:
        """The client. A cancelled caller leaves the import to its thread, for the next use."""
        async with self._lock:
            if self._client is None:
                self._client = await trio.to_thread.run_sync(self._make, abandon_on_cancel=True)
            return self._client

    async def aclose(self) -> None:
        """Close its connections, within 5 s even when cancelled. Later use makes a new client."""
        client, self._client = self._client, None
        if client is not None:
            with trio.move_on_after(CLOSE_BUDGET, shield=True):
                await client.close()


class EventStream:
    """The events of one answer. Every wait for the next one has a deadline.

    After a cancelled wait it cannot be used again: leave the request's block. Tools and properties
    of ``asked`` that the model was given other names of have their own. Arguments of such a
    property's tool come whole.
    """

    def __init__(
        self,
        chunks: ChunkStream,
        reader: Reader,
        deadlines: Deadlines,
        first: float,
        asked: Lawful | None = None,
    ) -> None:
        self._asked = asked
        self._held: dict[int, list[str]] = {}
        self._others: dict[int, Names] = {}
        self._text: list[str] = []
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
            # The answer is complete; only trailing data was lost.
            self._end()
        self._first = None

    async def _read(self) -> None:
        try:
            chunk = await self._chunks.__anext__()
        except StopAsyncIteration:
            self._end()
        else:
            self._ready.extend(self._own(self._reader.feed(chunk)))

    def _end(self) -> None:
        self._ended = True
        last = self._reader.close()
        if self._asked is not None and self._text:
            self._ready.append(TextPart(with_keys("".join(self._text), self._asked.answer)))
        for index, texts in self._held.items():
            whole = with_keys("".join(texts), self._others[index])
            self._ready.append(CallArguments(index, whole))
        self._ready.extend(self._own(last))

    def _own(self, events: Iterable[ModelEvent]) -> Iterator[ModelEvent]:
        """The events with the own names of tools; what has other keys is held until the end."""
        for event in events:
            match event:
                case CallStart(index, _, name) if self._asked is not None:
                    if name in self._asked.properties:
                        self._held[index], self._others[index] = [], self._asked.properties[name]
                    yield replace(event, name=self._asked.names.get(name, name))
                case TextPart(text) if self._asked is not None and self._asked.answer:
                    self._text.append(text)
                case CallArguments(index, text) if index in self._held:
                    self._held[index].append(text)
                case _:
                    yield event

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
    asked: Lawful | None = None,
) -> AsyncGenerator[EventStream]:
    """Send a request by ``create`` and stream its answer; leaving the block ends the connection.

    Raises :class:`ModelFailure`, also from the events, and when requests are switched off.
    """
    require(model)
    first = trio.current_time() + deadlines.first_token
    with deadline(first, first_silence(deadlines)), failures(started=False):
        stream = await create()
    async with stream:
        try:
            yield EventStream(stream, reader, deadlines, first, asked)
        finally:
            await unwind(stream)


async def unwind(stream: ChunkStream) -> None:
    """Run the generators under a stream to their end.

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
    """Raise a timeout failure if the block is not done by ``until``, in Trio's time."""
    with trio.CancelScope(deadline=until) as scope:
        yield
    if scope.cancelled_caught:
        raise ModelFailure(message, kind="timeout")


def _now() -> datetime:
    return datetime.fromtimestamp(wall_time(), UTC)


@contextmanager
def failures(*, started: bool) -> Generator[None]:
    """Translate the SDK's errors in the block to :class:`ModelFailure`; others pass unchanged."""
    try:
        yield
    except Exception as error:
        failure = failure_of(error, now=_now, started=started)
        if failure is None or failure is error:
            raise
        raise failure from error


@attrs.define(eq=False, repr=False)
class Adapter(ABC, Generic[C]):
    """A model of a provider, reached through the client ``C`` of its SDK.

    Subclasses say how a request is sent and how its chunks are read; deadlines, failures, the
    client's life and the provider's rules for transcripts are handled here.

    Args:
        name: the provider's name of the model.
        base_url: another server of the same API.
        api_key: the key; the first of ``key_variables`` that is set otherwise.
        deadlines: how long the model may be silent.

    Attributes:
        provider: the prefix of its name, before the colon; also the extra that installs its SDK.
        server_variable: the environment variable that names another server of the same API.
        key_variables: the environment variables that may hold the key.
        default_deadlines: used without ``deadlines``.
        rules: for transcripts; see :func:`motet.actors.models.dialects.lawful`.
    """

    provider: ClassVar[str]
    server_variable: ClassVar[str] = ""
    key_variables: ClassVar[tuple[str, ...]] = ()
    default_deadlines: ClassVar[Deadlines] = Deadlines()
    rules: ClassVar[Rules] = Rules()

    # The aliases are what attrs would choose; pyright knows only those that are written.
    _model: str = attrs.field(alias="name")
    _base_url: str | None = attrs.field(alias="base_url", default=None, kw_only=True)
    _api_key: str | None = attrs.field(alias="api_key", default=None, kw_only=True)
    _deadlines: Deadlines | None = attrs.field(alias="deadlines", default=None, kw_only=True)
    _client: LazyClient[C] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._client = LazyClient(self._make_client_or_say_extra)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def name(self) -> str:
        return f"{self.provider}:{self._model}"

    @property
    def base_url(self) -> str | None:
        """The server in place of the provider's own; None: the provider's own."""
        return self._base_url or os.environ.get(self.server_variable) or None

    def request(self, request: ModelRequest) -> AbstractAsyncContextManager[EventStream]:
        """Stream one answer; see :class:`motet.protocols.models.Model`."""
        deadlines = self._deadlines or self.default_deadlines
        asked = lawful(request, self.rules)
        reader = self._reader()
        return answer(self.name, lambda: self._create(asked), reader, deadlines, asked)

    async def aclose(self) -> None:
        """Close the connections that are kept open for later requests."""
        await self._client.aclose()

    def _key(self) -> str:
        """The key for a client. Raises ``ModelFailure`` ``auth`` when there is none.

        Local servers want no key, but the SDKs want a value.
        """
        in_environment = filter(None, map(os.environ.get, self.key_variables))
        key = self._api_key or next(in_environment, None) or ("none" if self.base_url else None)
        if key is None:
            variable = self.key_variables[0]
            raise ModelFailure(f"no API key: set the variable {variable}", kind="auth")
        return key

    def _make_client_or_say_extra(self) -> C:
        try:
            return self._make_client()
        except ModuleNotFoundError as error:
            raise MissingExtra(self.provider, f"the model {self.name!r}") from error

    @abstractmethod
    def _make_client(self) -> C:
        """Import the SDK and make its client, without retries and read timeouts of its own."""

    @abstractmethod
    async def _create(self, asked: Lawful) -> ChunkStream:
        """Send a request; returns when the head of its answer has arrived."""

    @abstractmethod
    def _reader(self) -> Reader:
        """A reader for the chunks of one answer."""


END = b"[DONE]"
DRAIN = 1.0
"""Seconds that a server has to end the body after the end mark."""


@attrs.define
class SseDecoder:
    """Decodes bytes to the data of events; ignores event names, ids and comments.

    Only LF and CRLF end a line: the other line separators of Unicode may stand inside JSON.
    """

    _rest: bytes = attrs.field(default=b"", init=False)
    _data: list[bytes] = attrs.field(factory=list[bytes], init=False)

    def feed(self, received: bytes) -> Iterator[bytes]:
        """The data of each event that is complete with these bytes."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not name and not value and self._data:
                data, self._data = b"\n".join(self._data), []
                yield data


class SseStream(trio.abc.AsyncResource):
    """The JSON values of the events in a response; leaving it closes the response.

    The SDK's own decoder stops at the end mark and leaves the generators under it to the garbage
    collector; this one reads the body to its end. Raises ``msgspec.DecodeError`` for data that is
    not JSON, and the errors of ``received``.
    """

    def __init__(
        self, received: AsyncIterator[bytes], close: Callable[[], Awaitable[None]]
    ) -> None:
        self._received = received
        self._close = close
        self._decoder = SseDecoder()
        self._events: deque[bytes] = deque()

    async def aclose(self) -> None:
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
        """Read the rest of the body, so that the connection can be used again."""
        with trio.move_on_after(DRAIN):
            while True:
                try:
                    await anext(self._received)
                except StopAsyncIteration:
                    return
