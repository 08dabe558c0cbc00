"""Models behind the Gemini API of Google."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

import attrs

from motet.actors.models.adapter import Adapter
from motet.actors.models.dialects import translated
from motet.actors.models.google_wire import GOOGLE, GoogleReader, wire_config, wire_contents
from motet.actors.models.sdk import CONNECT_TIMEOUT, Deadlines
from motet.actors.models.variables import GOOGLE_KEYS, GOOGLE_URL
from motet.actors.models.wire import wire_model
from motet.protocols.errors import MissingExtra
from motet.protocols.models import ModelFailure, ModelRequest, OutputSchema

if TYPE_CHECKING:
    from google.genai import Client
    from httpx2 import AsyncClient


class GoogleModel(Adapter["_Client"]):
    """A Gemini model.

    Args:
        name: the provider's name of the model, ``gemini-2.5-flash``.
        base_url: another server of the same API; ``GOOGLE_GEMINI_BASE_URL`` otherwise.
        api_key: the key; the variable ``GEMINI_API_KEY`` or ``GOOGLE_API_KEY`` otherwise. Not
            needed with a base URL.
        deadlines: how long the model may be silent.
        api_version: of the API, such as ``v1beta``; None: the SDK's own choice.

    Failures and cancellation are those of :class:`motet.actors.models.openai.OpenAIModel`.
    """

    provider: ClassVar = "google"
    server_variable: ClassVar = GOOGLE_URL

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        deadlines: Deadlines | None = None,
        api_version: str | None = None,
    ):
        super().__init__(name, base_url=base_url, api_key=api_key, deadlines=deadlines)
        self._api_version = api_version

    def takes_output(self, output: OutputSchema, *, tools: bool) -> bool:
        """Not beside tools: older models refuse the two in one request.

        See :class:`motet.protocols.models.NativeOutput`.
        """
        return not tools and translated(output.schema, GOOGLE) is not None

    def _reader(self) -> GoogleReader:
        return GoogleReader()

    def _make_client(self) -> _Client:
        try:
            from google.genai import Client
            from google.genai.types import HttpOptions
            from httpx2 import AsyncClient, Timeout
        except ModuleNotFoundError as error:
            raise MissingExtra("google", f"the model {self.name!r}") from error
        base_url = self.base_url
        named = next(filter(None, map(os.environ.get, GOOGLE_KEYS)), None)
        key = self._api_key or named or ("none" if base_url else None)
        if key is None:
            raise ModelFailure(f"no API key: set the variable {GOOGLE_KEYS[0]}", kind="auth")
        # The SDK's own choice of a transport wants asyncio; this one runs on Trio.
        transport = AsyncClient(timeout=Timeout(None, connect=CONNECT_TIMEOUT))
        options = HttpOptions(
            base_url=base_url, api_version=self._api_version, httpx_async_client=transport
        )
        return _Client(Client(vertexai=False, api_key=key, http_options=options), transport)

    async def _create(self, request: ModelRequest) -> _Stream:
        client = await self._client.get()
        model = wire_model(request.model, self._model, "google")
        contents, config = [*wire_contents(request, model)], wire_config(request)
        # Among the types that the SDK takes is one of a package that need not be there.
        chunks = await client.sdk.aio.models.generate_content_stream(  # pyright: ignore[reportUnknownMemberType]
            model=model, contents=contents, config=config
        )
        return _Stream(chunks)


@attrs.frozen
class _Client:
    """The SDK's client and what it sends with, which it leaves to us to close."""

    sdk: Client
    transport: AsyncClient

    async def close(self) -> None:
        await self.transport.aclose()
        self.sdk.close()


@attrs.frozen
class _Stream:
    """The SDK's generator of chunks. Whoever leaves it has unwound it, which closes the rest."""

    chunks: AsyncIterator[object]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """There is nothing behind the generator."""

    async def __anext__(self) -> object:
        return await anext(self.chunks)
