"""Models behind OpenAI's chat completions API, or any server that speaks it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from motet.actors.models.adapter import Adapter
from motet.actors.models.openai_wire import OpenAIReader, wire_messages, wire_output, wire_tool
from motet.actors.models.sdk import CONNECT_TIMEOUT, Deadlines
from motet.actors.models.sse import SseStream
from motet.actors.models.variables import OPENAI_KEY, OPENAI_URL
from motet.actors.models.wire import wire_model
from motet.protocols.errors import MissingExtra
from motet.protocols.models import ModelFailure, ModelRequest, OutputSchema

if TYPE_CHECKING:
    from openai import AsyncOpenAI

HOME = "https://api.openai.com/v1"
OLD = re.compile(r"gpt-3|gpt-4(-|$)|o1-(mini|preview)|davinci|babbage")
"""Models that have no JSON Schema for their answers."""


class OpenAIModel(Adapter["AsyncOpenAI"]):
    """A chat completions model.

    ``provider`` and ``key_variable`` are those of the servers that a class is for.

    Args:
        name: the provider's name of the model, ``gpt-5.2``.
        base_url: another server of the same API; the variable ``OPENAI_BASE_URL`` otherwise.
        api_key: the key; the variable ``OPENAI_API_KEY`` otherwise. Not needed with a base URL,
            since local servers ask for none.
        deadlines: how long the model may be silent.
        native_output: whether the server holds answers to a JSON Schema, with tools beside it.
            None: OpenAI's own does; of another nobody knows.

    A request is made anew for every call of :meth:`request` and never retried here. It raises
    :class:`MissingExtra` without the package and :class:`ModelFailure` for everything else.
    Cancelling it, or leaving its block, closes its connection at once.
    """

    provider: ClassVar = "openai"
    key_variable: ClassVar = OPENAI_KEY
    server_variable: ClassVar = OPENAI_URL

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        deadlines: Deadlines | None = None,
        native_output: bool | None = None,
    ):
        super().__init__(name, base_url=base_url, api_key=api_key, deadlines=deadlines)
        self._native_output = native_output

    def takes_output(self, output: OutputSchema, *, tools: bool) -> bool:  # noqa: ARG002
        """With every schema and any tools; see :class:`motet.protocols.models.NativeOutput`."""
        if self._native_output is None:
            at_openai = urlsplit(self.base_url or HOME).hostname == urlsplit(HOME).hostname
            return at_openai and not OLD.match(self._model)
        return self._native_output

    def _reader(self) -> OpenAIReader:
        return OpenAIReader()

    def _make_client(self) -> AsyncOpenAI:
        try:
            from openai import AsyncOpenAI, Timeout
        except ModuleNotFoundError as error:
            raise MissingExtra(self.provider, f"the model {self.name!r}") from error
        base_url = self.base_url
        variable = self.key_variable
        key = self._api_key or os.environ.get(variable) or ("none" if base_url else None)
        if key is None:
            raise ModelFailure(f"no API key: set the variable {variable}", kind="auth")
        timeout = Timeout(None, connect=CONNECT_TIMEOUT)
        return AsyncOpenAI(api_key=key, base_url=base_url, max_retries=0, timeout=timeout)

    async def _create(self, request: ModelRequest) -> SseStream:
        client = await self._client.get()
        from openai import omit

        limit = omit if request.max_output_tokens is None else request.max_output_tokens
        # OpenAI's newer models refuse the old name of the limit, other servers the new one.
        at_openai = client.base_url.host.endswith("api.openai.com")
        response = client.chat.completions.with_streaming_response.create(
            model=wire_model(request.model, self._model, self.provider),
            messages=wire_messages(request),
            tools=[wire_tool(tool) for tool in request.tools] or omit,
            temperature=omit if request.temperature is None else request.temperature,
            max_completion_tokens=limit if at_openai else omit,
            max_tokens=omit if at_openai else limit,
            response_format=omit if request.output is None else wire_output(request.output),
            stream=True,
            stream_options={"include_usage": True},
        )
        opened = await response.__aenter__()
        return SseStream(opened.iter_bytes(), opened.close)
