"""What the adapters of all SDKs have in common: a name, a server, a client made on first use.

Invariant: a request goes through :func:`motet.actors.models.sdk.answer`, which owns deadlines and
failures; an adapter only says what is sent, and how what comes back is read.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Generic, TypeVar

from motet.actors.models.sdk import ChunkStream, Client, Deadlines, EventStream, LazyClient, answer
from motet.actors.models.wire import Reader
from motet.protocols.models import ModelRequest

C = TypeVar("C", bound=Client)


class Adapter(ABC, Generic[C]):
    """A model that the client ``C`` of an SDK speaks to.

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
    def _make_client(self) -> C:
        """Raises ``MissingExtra`` without the SDK, ``ModelFailure`` without a key."""

    @abstractmethod
    async def _create(self, request: ModelRequest) -> ChunkStream:
        """Send a request; its answer, as far as the head."""

    @abstractmethod
    def _reader(self) -> Reader:
        """What reads the chunks of one answer."""
