"""Models behind Anthropic's messages API."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from motet.actors.models.adapter import Adapter
from motet.actors.models.anthropic_wire import (
    AnthropicReader,
    wire_messages,
    wire_output,
    wire_tool,
)
from motet.actors.models.dialects import ANTHROPIC, translated
from motet.actors.models.sdk import CONNECT_TIMEOUT, Deadlines
from motet.actors.models.variables import ANTHROPIC_KEY, ANTHROPIC_URL
from motet.actors.models.wire import wire_model
from motet.protocols.errors import MissingExtra
from motet.protocols.models import ModelFailure, ModelRequest, OutputSchema

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream
    from anthropic.types import RawMessageStreamEvent

MAX_TOKENS = 8192
OLD = (
    "claude-2",
    "claude-3",
    "claude-instant",
    "claude-sonnet-4-0",
    "claude-sonnet-4-2",
    "claude-opus-4-0",
    "claude-opus-4-2",
)
"""Models that have no JSON Schema for their answers; two of them carry a date of 2025."""


class AnthropicModel(Adapter["AsyncAnthropic"]):
    """A messages model.

    Args:
        name: the provider's name of the model, ``claude-sonnet-4-5``.
        base_url: another server of the same API; the variable ``ANTHROPIC_BASE_URL`` otherwise.
        api_key: the key; the variable ``ANTHROPIC_API_KEY`` otherwise. Not needed with a base
            URL.
        deadlines: how long the model may be silent.
        max_tokens: bound of an answer whose request names none; the API wants one.
        cache: let the provider cache the prompt, so that a long run pays for it once.
        native_output: whether the server holds answers to a JSON Schema. None: Anthropic's own
            does, but for old models; of another nobody knows.

    Failures and cancellation are those of :class:`motet.actors.models.openai.OpenAIModel`.
    """

    provider: ClassVar = "anthropic"
    server_variable: ClassVar = ANTHROPIC_URL

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        deadlines: Deadlines | None = None,
        max_tokens: int = MAX_TOKENS,
        cache: bool = True,
        native_output: bool | None = None,
    ):
        super().__init__(name, base_url=base_url, api_key=api_key, deadlines=deadlines)
        self._max_tokens = max_tokens
        self._cache = cache
        self._native_output = native_output

    def takes_output(self, output: OutputSchema, *, tools: bool) -> bool:  # noqa: ARG002
        """With tools and without; see :class:`motet.protocols.models.NativeOutput`."""
        native = self._native_output
        if native is None:
            native = self.base_url is None and not self._model.startswith(OLD)
        return native and translated(output.schema, ANTHROPIC) is not None

    def _reader(self) -> AnthropicReader:
        return AnthropicReader()

    def _make_client(self) -> AsyncAnthropic:
        try:
            from anthropic import AsyncAnthropic, Timeout
        except ModuleNotFoundError as error:
            raise MissingExtra("anthropic", f"the model {self.name!r}") from error
        base_url = self.base_url
        key = self._api_key or os.environ.get(ANTHROPIC_KEY) or ("none" if base_url else None)
        if key is None:
            raise ModelFailure(f"no API key: set the variable {ANTHROPIC_KEY}", kind="auth")
        timeout = Timeout(None, connect=CONNECT_TIMEOUT)
        return AsyncAnthropic(api_key=key, base_url=base_url, max_retries=0, timeout=timeout)

    async def _create(self, request: ModelRequest) -> AsyncStream[RawMessageStreamEvent]:
        client = await self._client.get()
        from anthropic import omit

        return await client.messages.create(
            model=wire_model(request.model, self._model, "anthropic"),
            max_tokens=request.max_output_tokens or self._max_tokens,
            system=request.system or omit,
            messages=wire_messages(request.messages),
            tools=[wire_tool(tool) for tool in request.tools] or omit,
            cache_control={"type": "ephemeral"} if self._cache else omit,
            output_config=omit if request.output is None else wire_output(request.output),
            # The SDK has no name for it any more: newer models refuse it, older ones take it.
            extra_body=None
            if request.temperature is None
            else {"temperature": request.temperature},
            stream=True,
        )
